/* From samples of sound to the features that the program takes: the pipeline's front end, in single precision. C11.

   The sample rate is LOWERDECK_AUDIO_RATE_HZ. Features differ from the pipeline's by rounding alone: it sums in another
   order. */
#ifndef LOWERDECK_AUDIO_FRONT_END_H
#define LOWERDECK_AUDIO_FRONT_END_H

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One recording or stream; all members belong to the functions. */
typedef struct {
  float window[LOWERDECK_AUDIO_WINDOW];      /* the samples of the next frame */
  float spectrum[LOWERDECK_AUDIO_FFT + 2];
  float last;                                /* sample before, for the pre-emphasis */
  int32_t filled;                            /* samples in the window; negative between windows */
} lowerdeck_audio;

/* Begin a recording. */
void lowerdeck_audio_start(lowerdeck_audio *audio);

/* Take the next sample, from -1 to 1. Returns 1 where it completes a frame, whose features [LOWERDECK_AUDIO_FEATURES]
   are written, else 0. A microphone's 16-bit samples are divided by 32768. */
int lowerdeck_audio_take(lowerdeck_audio *audio, float sample, float *features);

/* The features of a clip [frames x LOWERDECK_AUDIO_FEATURES], of at most `max_frames`; returns the number of frames.
   Where the dataset's clips have one length or one peak (LOWERDECK_AUDIO_CLIP, LOWERDECK_AUDIO_PEAK), it gets them. */
int32_t lowerdeck_audio_clip(
    lowerdeck_audio *audio, const float *samples, int32_t count, float *features, int32_t max_frames);
int32_t lowerdeck_audio_clip_16_bit(
    lowerdeck_audio *audio, const int16_t *samples, int32_t count, float *features, int32_t max_frames);

/* Write features, as many frames as the input has, as the program's input: in its order, and quantized where it is of
   integers. The next call of a stream takes the frames from the second one on, and a new one.

   Returns 0, or -1 where the input is no such one: another type, or no whole number of frames. */
int lowerdeck_audio_store(const lowerdeck_tensor *input, const float *features, void *data);

#ifdef __cplusplus
}
#endif

#endif
