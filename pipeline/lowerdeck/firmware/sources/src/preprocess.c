#include "preprocess.h"

#include <math.h>
#include <string.h>

static const double mean[LOWERDECK_CHANNELS] = LOWERDECK_MEAN;
static const double deviation[LOWERDECK_CHANNELS] = LOWERDECK_STD;

/* A pixel has 256 values: what becomes of each is computed once for a channel, in the pipeline's order and precision, so
   that every bit is the same, and then looked up. */
typedef union {
  float reals[256];
  int32_t stored[256];
} channel_table;

static void fill(channel_table *table, const lowerdeck_tensor *input, int32_t channel) {
  for (int32_t pixel = 0; pixel < 256; pixel++) {
    const float real = (float)((pixel * LOWERDECK_PIXEL_SCALE - mean[channel]) / deviation[channel]);
    if (input->type == LOWERDECK_FLOAT32) {
      table->reals[pixel] = real;
      continue;
    }
    /* Halves go to the even neighbour, as in quantize_per_tensor, unless firmware changed the rounding mode. */
    float steps = nearbyintf(real * input->inverse_scale) + (float)input->zero_point;
    steps = steps < (float)input->least ? (float)input->least : steps;
    steps = steps > (float)input->most ? (float)input->most : steps;
    table->stored[pixel] = (int32_t)steps;
  }
}

static void store(const lowerdeck_tensor *input, const channel_table *table, uint8_t pixel, void *data, uint32_t at) {
  uint8_t *bytes = (uint8_t *)data;
  if (input->type == LOWERDECK_FLOAT32) {
    memcpy(bytes + (size_t)at * sizeof(float), &table->reals[pixel], sizeof(float));
  } else if (input->type == LOWERDECK_INT16) {
    const int16_t stored = (int16_t)table->stored[pixel];
    memcpy(bytes + (size_t)at * sizeof stored, &stored, sizeof stored);
  } else {
    bytes[at] = (uint8_t)table->stored[pixel];
  }
}

int lowerdeck_preprocess(const lowerdeck_tensor *input, const uint8_t *pixels, void *data) {
  const int is_known = input->type == LOWERDECK_FLOAT32 ||
                       (input->scale > 0.0f && (input->type == LOWERDECK_INT8 || input->type == LOWERDECK_UINT8 ||
                                                input->type == LOWERDECK_INT16));
  if (!is_known || input->dimensions != 4 || input->sizes[0] != 1 || input->sizes[1] != LOWERDECK_CHANNELS) {
    return -1;
  }
  uint32_t strides[4], step = 1;
  for (int place = 3; place >= 0; place--) {
    strides[input->order[place]] = step;
    step *= (uint32_t)input->sizes[input->order[place]];
  }
  for (int32_t channel = 0; channel < LOWERDECK_CHANNELS; channel++) {
    channel_table table;
    fill(&table, input, channel);
    const uint8_t *pixel = pixels + channel;
    for (int32_t row = 0; row < input->sizes[2]; row++) {
      for (int32_t column = 0; column < input->sizes[3]; column++, pixel += LOWERDECK_CHANNELS) {
        store(input, &table, *pixel, data,
              (uint32_t)channel * strides[1] + (uint32_t)row * strides[2] + (uint32_t)column * strides[3]);
      }
    }
  }
  return 0;
}
