#include "audio_front_end.h"

#include <math.h>
#include <string.h>

#include "audio_tables.h"
#include "postprocess.h"
#include "store.h"

/* The FFT of FFT real numbers is one of HALF complex numbers: even ones are their real parts, odd ones the others. */
enum { FFT = LOWERDECK_AUDIO_FFT, HALF = FFT / 2, WINDOW = LOWERDECK_AUDIO_WINDOW, HOP = LOWERDECK_AUDIO_HOP };
enum { MELS = LOWERDECK_AUDIO_MELS, FEATURES = LOWERDECK_AUDIO_FEATURES };

static void swap(float *a, float *b) {
  for (int32_t part = 0; part < 2; part++) {
    const float kept = a[part];
    a[part] = b[part];
    b[part] = kept;
  }
}

/* Radix 2, in place, of `z` [HALF x 2]. */
static void transform(float *z) {
  for (int32_t index = 1, reversed = 0; index < HALF; index++) {
    int32_t bit = HALF / 2;
    for (; reversed & bit; bit /= 2) {
      reversed ^= bit;
    }
    reversed ^= bit;
    if (index < reversed) {
      swap(z + 2 * index, z + 2 * reversed);
    }
  }
  for (int32_t size = 1; size < HALF; size *= 2) {
    for (int32_t start = 0; start < HALF; start += 2 * size) {
      for (int32_t offset = 0; offset < size; offset++) {
        const float *const turn = lowerdeck_audio_turns[offset * (HALF / size)];
        float *const a = z + 2 * (start + offset), *const b = a + 2 * size;
        const float real = b[0] * turn[0] - b[1] * turn[1], imaginary = b[0] * turn[1] + b[1] * turn[0];
        b[0] = a[0] - real;
        b[1] = a[1] - imaginary;
        a[0] += real;
        a[1] += imaginary;
      }
    }
  }
}

static float power(float real, float imaginary) {
  const float square = real * real + imaginary * imaginary;
  return LOWERDECK_AUDIO_POWER == 2 ? square : sqrtf(square);
}

/* From the complex FFT to the power of each bin of the real one, which takes the place of its real part. */
static void powers(float *z) {
  z[2 * HALF] = z[0];
  z[2 * HALF + 1] = z[1];
  for (int32_t bin = 0; bin <= HALF - bin; bin++) {
    float *const a = z + 2 * bin, *const b = z + 2 * (HALF - bin);
    const float even[2] = {0.5f * (a[0] + b[0]), 0.5f * (a[1] - b[1])};
    const float odd[2] = {0.5f * (a[1] + b[1]), 0.5f * (b[0] - a[0])};
    const float *const turn = lowerdeck_audio_turns[bin];
    const float real = odd[0] * turn[0] - odd[1] * turn[1], imaginary = odd[0] * turn[1] + odd[1] * turn[0];
    a[0] = power(even[0] + real, even[1] + imaginary);
    b[0] = power(even[0] - real, even[1] - imaginary);
  }
}

static float logarithm(float energy) {
  const float natural = logf(energy + LOWERDECK_AUDIO_FLOOR);
  return LOWERDECK_AUDIO_DECIBEL ? natural * LOWERDECK_AUDIO_DECIBELS : natural;
}

static float scaled(float value) {
  const float found = (value - LOWERDECK_AUDIO_MEAN) / LOWERDECK_AUDIO_STD;
  const float low = found < LOWERDECK_AUDIO_LEAST ? LOWERDECK_AUDIO_LEAST : found;
  return low > LOWERDECK_AUDIO_MOST ? LOWERDECK_AUDIO_MOST : low;
}

static void compute(lowerdeck_audio *audio, float *features) {
  float mels[MELS];
  float *const z = audio->spectrum;
  memset(z, 0, sizeof audio->spectrum);
  for (int32_t at = 0; at < WINDOW; at++) {
    z[at] = audio->window[at] * lowerdeck_audio_window[at];
  }
  transform(z);
  powers(z);
  const float *weight = lowerdeck_audio_mel_weights;
  for (int32_t mel = 0; mel < MELS; mel++) {
    float energy = 0.0f;
    const int32_t first = lowerdeck_audio_mel_bins[mel][0], count = lowerdeck_audio_mel_bins[mel][1];
    for (int32_t bin = first; bin < first + count; bin++) {
      energy += z[2 * bin] * *weight++;
    }
    mels[mel] = logarithm(energy);
  }
  for (int32_t feature = 0; feature < FEATURES; feature++) {
#if LOWERDECK_AUDIO_IS_MFCC
    float sum = 0.0f;
    for (int32_t mel = 0; mel < MELS; mel++) {
      sum += mels[mel] * lowerdeck_audio_cosines[feature][mel];
    }
    features[feature] = scaled(sum);
#else
    features[feature] = scaled(mels[feature]);
#endif
  }
}

/* A sample after the pre-emphasis. */
static int take(lowerdeck_audio *audio, float sample, float *features) {
  if (audio->filled >= 0) {
    audio->window[audio->filled] = sample;
  }
  if (++audio->filled < WINDOW) {
    return 0;
  }
  compute(audio, features);
  audio->filled = WINDOW - HOP;
  if (audio->filled > 0) {
    memmove(audio->window, audio->window + HOP, (size_t)audio->filled * sizeof audio->window[0]);
  }
  return 1;
}

void lowerdeck_audio_start(lowerdeck_audio *audio) {
  memset(audio, 0, sizeof *audio);
  audio->filled = LOWERDECK_AUDIO_IS_CENTRED ? WINDOW / 2 : 0; /* zeros before the recording */
}

int lowerdeck_audio_take(lowerdeck_audio *audio, float sample, float *features) {
  const float emphasized = sample - LOWERDECK_AUDIO_PREEMPHASIS * audio->last;
  audio->last = sample;
  return take(audio, emphasized, features);
}

typedef struct {
  const float *reals; /* or null */
  const int16_t *integers;
  int32_t count;
} recording;

static float sample_at(const recording *given, int32_t at) {
  if (at >= given->count) {
    return 0.0f;
  }
  return given->reals != NULL ? given->reals[at] : (float)given->integers[at] / 32768.0f;
}

/* The factor that brings the largest amplitude to the dataset's. */
static float gain(const recording *given, int32_t count) {
  float largest = 0.0f;
  for (int32_t at = 0; at < count && LOWERDECK_AUDIO_PEAK > 0.0; at++) {
    largest = fmaxf(largest, fabsf(sample_at(given, at)));
  }
  return largest > 0.0f ? (float)(LOWERDECK_AUDIO_PEAK / (double)largest) : 1.0f;
}

static int32_t clip(lowerdeck_audio *audio, const recording *given, float *features, int32_t max_frames) {
  const int32_t count = LOWERDECK_AUDIO_CLIP > 0 ? LOWERDECK_AUDIO_CLIP : given->count;
  const int32_t after = LOWERDECK_AUDIO_IS_CENTRED ? WINDOW / 2 : 0;
  const float factor = gain(given, count);
  int32_t frames = 0;
  lowerdeck_audio_start(audio);
  for (int32_t at = 0; at < count + after && frames < max_frames; at++) {
    float *const frame = features + frames * FEATURES;
    frames += at < count ? lowerdeck_audio_take(audio, sample_at(given, at) * factor, frame) : take(audio, 0.0f, frame);
  }
  return frames;
}

int32_t lowerdeck_audio_clip(
    lowerdeck_audio *audio, const float *samples, int32_t count, float *features, int32_t max_frames) {
  const recording given = {samples, NULL, count};
  return clip(audio, &given, features, max_frames);
}

int32_t lowerdeck_audio_clip_16_bit(
    lowerdeck_audio *audio, const int16_t *samples, int32_t count, float *features, int32_t max_frames) {
  const recording given = {NULL, samples, count};
  return clip(audio, &given, features, max_frames);
}

int lowerdeck_audio_store(const lowerdeck_tensor *input, const float *features, void *data) {
  if (!lowerdeck_can_store(input) || input->elements == 0 || input->elements % FEATURES != 0) {
    return -1;
  }
  const uint32_t frames = input->elements / FEATURES;
  for (uint32_t index = 0; index < input->elements; index++) {
    const uint32_t source = LOWERDECK_AUDIO_FEATURES_FIRST ? index % frames * FEATURES + index / frames : index;
    lowerdeck_store(input, features[source], data, lowerdeck_place(input, index));
  }
  return 0;
}
