/* From a stored image to the program's input: the same numbers as in the pipeline. C11. */
#ifndef LOWERDECK_PREPROCESS_H
#define LOWERDECK_PREPROCESS_H

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Convert pixels [rows x columns x channels] of 8 bits, of the size that the program takes, to its input: multiply by
   LOWERDECK_PIXEL_SCALE, subtract the mean and divide by the deviation of the channel, quantize where the input is of
   integers, and place every value where the memory order of `input` has it.

   resize.h brings images of other sizes to that size, if the dataset does; other filters than its own cost accuracy.

   Returns 0, or -1 where the input is no image of these channels: another rank, batch or type. */
int lowerdeck_preprocess(const lowerdeck_tensor *input, const uint8_t *pixels, void *data);

#ifdef __cplusplus
}
#endif

#endif
