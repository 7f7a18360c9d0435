#include "postprocess.h"

#include <math.h>
#include <string.h>

static uint32_t width(int32_t type) {
  switch (type) {
    case LOWERDECK_INT16:
    case LOWERDECK_UINT16:
    case LOWERDECK_FLOAT16:
    case LOWERDECK_BFLOAT16:
      return 2;
    case LOWERDECK_INT32:
    case LOWERDECK_UINT32:
    case LOWERDECK_FLOAT32:
      return 4;
    case LOWERDECK_INT64:
    case LOWERDECK_UINT64:
    case LOWERDECK_FLOAT64:
      return 8;
    default:
      return 1;
  }
}

static double half(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double special = fraction == 0 ? (double)INFINITY : (double)NAN;
  const double finite = exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25);
  return copysign(exponent == 31 ? special : finite, bits >> 15 ? -1.0 : 1.0);
}

/* Copied instead of cast: a buffer need not be aligned for its type. */
static double stored(int32_t type, const uint8_t *at) {
  switch (type) {
    case LOWERDECK_UINT8:
    case LOWERDECK_BOOL:
      return *at;
    case LOWERDECK_INT8: {
      int8_t value;
      memcpy(&value, at, sizeof value);
      return value;
    }
    case LOWERDECK_INT16: {
      int16_t value;
      memcpy(&value, at, sizeof value);
      return value;
    }
    case LOWERDECK_INT32: {
      int32_t value;
      memcpy(&value, at, sizeof value);
      return value;
    }
    case LOWERDECK_INT64: {
      int64_t value;
      memcpy(&value, at, sizeof value);
      return (double)value;
    }
    case LOWERDECK_UINT16: {
      uint16_t value;
      memcpy(&value, at, sizeof value);
      return value;
    }
    case LOWERDECK_UINT32: {
      uint32_t value;
      memcpy(&value, at, sizeof value);
      return value;
    }
    case LOWERDECK_UINT64: {
      uint64_t value;
      memcpy(&value, at, sizeof value);
      return (double)value;
    }
    case LOWERDECK_FLOAT16: {
      uint16_t bits;
      memcpy(&bits, at, sizeof bits);
      return half(bits);
    }
    case LOWERDECK_BFLOAT16: {
      uint16_t bits;
      memcpy(&bits, at, sizeof bits);
      const uint32_t wide = (uint32_t)bits << 16; /* its bits are the first ones of a float */
      float value;
      memcpy(&value, &wide, sizeof value);
      return (double)value;
    }
    case LOWERDECK_FLOAT32: {
      float value;
      memcpy(&value, at, sizeof value);
      return (double)value;
    }
    case LOWERDECK_FLOAT64: {
      double value;
      memcpy(&value, at, sizeof value);
      return value;
    }
    default:
      return 0.0;
  }
}

static const uint8_t *element(const lowerdeck_tensor *tensor, const void *data, uint32_t index) {
  return (const uint8_t *)data + (size_t)index * width(tensor->type);
}

float lowerdeck_real(const lowerdeck_tensor *tensor, const void *data, uint32_t index) {
  const double value = stored(tensor->type, element(tensor, data, index));
  return (float)(tensor->scale > 0.0f ? (double)tensor->scale * (value - tensor->zero_point) : value);
}

void lowerdeck_strides(const lowerdeck_tensor *tensor, uint32_t *strides) {
  uint32_t step = 1;
  for (int32_t place = tensor->dimensions - 1; place >= 0; place--) {
    strides[tensor->order[place]] = step;
    step *= (uint32_t)tensor->sizes[tensor->order[place]];
  }
}

uint32_t lowerdeck_place(const lowerdeck_tensor *tensor, uint32_t index) {
  uint32_t strides[LOWERDECK_MAX_DIMENSIONS], place = 0;
  lowerdeck_strides(tensor, strides);
  for (int32_t dimension = tensor->dimensions - 1; dimension >= 0; dimension--) {
    place += index % (uint32_t)tensor->sizes[dimension] * strides[dimension];
    index /= (uint32_t)tensor->sizes[dimension];
  }
  return place;
}

uint32_t lowerdeck_argmax(const lowerdeck_tensor *tensor, const void *data) {
  uint32_t best = 0;
  for (uint32_t index = 1; index < tensor->elements; index++) {
    if (stored(tensor->type, element(tensor, data, index)) > stored(tensor->type, element(tensor, data, best))) {
      best = index;
    }
  }
  return best;
}

void lowerdeck_softmax(const lowerdeck_tensor *tensor, const void *data, float *probabilities) {
  const float highest = lowerdeck_real(tensor, data, lowerdeck_argmax(tensor, data));
  float sum = 0.0f;
  for (uint32_t index = 0; index < tensor->elements; index++) {
    probabilities[index] = expf(lowerdeck_real(tensor, data, index) - highest);
    sum += probabilities[index];
  }
  for (uint32_t index = 0; index < tensor->elements; index++) {
    probabilities[index] /= sum;
  }
}

static int is_float(int32_t type) {
  return type == LOWERDECK_FLOAT16 || type == LOWERDECK_FLOAT32 || type == LOWERDECK_FLOAT64 ||
         type == LOWERDECK_BFLOAT16;
}

lowerdeck_difference lowerdeck_compare(const lowerdeck_tensor *tensor, const void *data, const void *expected) {
  lowerdeck_difference found = {0, 0};
  const uint32_t bytes = width(tensor->type);
  for (uint32_t index = 0; index < tensor->elements; index++) {
    const uint8_t *is = element(tensor, data, index), *should = element(tensor, expected, index);
    if (memcmp(is, should, bytes) == 0) {
      found.equal++;
      continue;
    }
    double steps = fabs(stored(tensor->type, is) - stored(tensor->type, should));
    if (is_float(tensor->type)) {
      steps = floor(steps / (tensor->step > 0.0f ? (double)tensor->step : 1e-6) + 0.5);
    }
    /* Bits of these may differ by less than half a step. Not a number, or bits that differ without a value here, is the
       largest difference. */
    const uint32_t whole = (steps > 0.0 || is_float(tensor->type)) && steps < 4294967295.0 ? (uint32_t)steps : UINT32_MAX;
    found.max_steps = whole > found.max_steps ? whole : found.max_steps;
  }
  return found;
}
