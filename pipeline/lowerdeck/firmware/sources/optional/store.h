/* One real value into the program's input, quantized as the pipeline does. C11. */
#ifndef LOWERDECK_STORE_H
#define LOWERDECK_STORE_H

#include <math.h>
#include <string.h>

#include "model.h"

/* Whether values can be stored in `input`: floats, or integers of up to 16 bits with a scale. */
static inline int lowerdeck_can_store(const lowerdeck_tensor *input) {
  return input->type == LOWERDECK_FLOAT32 ||
         (input->scale > 0.0f &&
          (input->type == LOWERDECK_INT8 || input->type == LOWERDECK_UINT8 || input->type == LOWERDECK_INT16));
}

/* The integer that stands for `real`. */
static inline int32_t lowerdeck_quantized(const lowerdeck_tensor *input, float real) {
  /* Halves go to the even neighbour, as in quantize_per_tensor, unless firmware changed the rounding mode. */
  float steps = nearbyintf(real * input->inverse_scale) + (float)input->zero_point;
  steps = steps < (float)input->least ? (float)input->least : steps;
  steps = steps > (float)input->most ? (float)input->most : steps;
  return (int32_t)steps;
}

/* Write an integer as element `at` in memory order of an input of integers. */
static inline void lowerdeck_store_integer(const lowerdeck_tensor *input, int32_t value, void *data, uint32_t at) {
  uint8_t *bytes = (uint8_t *)data;
  if (input->type == LOWERDECK_INT16) {
    const int16_t stored = (int16_t)value;
    memcpy(bytes + (size_t)at * sizeof stored, &stored, sizeof stored);
  } else {
    bytes[at] = (uint8_t)value;
  }
}

/* Write a real value as element `at` in memory order. */
static inline void lowerdeck_store(const lowerdeck_tensor *input, float real, void *data, uint32_t at) {
  if (input->type == LOWERDECK_FLOAT32) {
    memcpy((uint8_t *)data + (size_t)at * sizeof real, &real, sizeof real);
  } else {
    lowerdeck_store_integer(input, lowerdeck_quantized(input, real), data, at);
  }
}

#endif
