/* One real value into the program's input, quantized as the pipeline does. C11. */
#ifndef LOWERDECK_STORE_H
#define LOWERDECK_STORE_H

#include <math.h>
#include <string.h>

#include "model.h"

static inline int lowerdeck_is_float(const lowerdeck_tensor *input) {
  return input->type == LOWERDECK_FLOAT32 || input->type == LOWERDECK_FLOAT16 || input->type == LOWERDECK_BFLOAT16 ||
         input->type == LOWERDECK_FLOAT64;
}

/* Whether values can be stored in `input`: floats, or integers of up to 16 bits with a scale. */
static inline int lowerdeck_can_store(const lowerdeck_tensor *input) {
  return lowerdeck_is_float(input) ||
         (input->scale > 0.0f &&
          (input->type == LOWERDECK_INT8 || input->type == LOWERDECK_UINT8 || input->type == LOWERDECK_INT16));
}

/* The half-precision number nearest to `real`, as its bits; halves go to the even neighbour, see below. */
static inline uint16_t lowerdeck_half(float real) {
  const uint32_t sign = signbit(real) ? 0x8000u : 0u;
  const float size = fabsf(real);
  if (!(size < 65520.0f)) {
    return (uint16_t)(sign | (isnan(real) ? 0x7E00u : 0x7C00u));
  }
  int exponent;
  (void)frexpf(size, &exponent);
  exponent = exponent > -13 && size > 0.0f ? exponent : -13; /* smaller numbers have the steps of the smallest normal */
  const uint32_t steps = (uint32_t)nearbyintf(ldexpf(size, 11 - exponent));
  return (uint16_t)(sign | (((uint32_t)(exponent + 13) << 10) + steps)); /* 2048 steps are the next exponent */
}

/* The bfloat16 number nearest to `real`, as its bits; halves go to the even neighbour. */
static inline uint16_t lowerdeck_bfloat16(float real) {
  uint32_t bits;
  memcpy(&bits, &real, sizeof bits);
  return (uint16_t)(isnan(real) ? 0x7FC0u : (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
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
  uint8_t *bytes = (uint8_t *)data;
  if (input->type == LOWERDECK_FLOAT32) {
    memcpy(bytes + (size_t)at * sizeof real, &real, sizeof real);
  } else if (input->type == LOWERDECK_FLOAT64) {
    const double stored = (double)real;
    memcpy(bytes + (size_t)at * sizeof stored, &stored, sizeof stored);
  } else if (lowerdeck_is_float(input)) {
    const uint16_t stored = input->type == LOWERDECK_FLOAT16 ? lowerdeck_half(real) : lowerdeck_bfloat16(real);
    memcpy(bytes + (size_t)at * sizeof stored, &stored, sizeof stored);
  } else {
    lowerdeck_store_integer(input, lowerdeck_quantized(input, real), data, at);
  }
}

#endif
