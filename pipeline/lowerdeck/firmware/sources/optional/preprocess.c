#include "preprocess.h"

#include "postprocess.h"
#include "store.h"

static const double mean[LOWERDECK_CHANNELS] = LOWERDECK_MEAN;
static const double deviation[LOWERDECK_CHANNELS] = LOWERDECK_STD;

/* A pixel has 256 values: what becomes of each is computed once for a channel, in the pipeline's order and precision,
   so that every bit is the same, and then looked up. */
typedef union {
  float reals[256];
  int32_t integers[256];
} channel_table;

static void fill(channel_table *table, const lowerdeck_tensor *input, int32_t channel) {
  for (int32_t pixel = 0; pixel < 256; pixel++) {
    const float real = (float)((pixel * LOWERDECK_PIXEL_SCALE - mean[channel]) / deviation[channel]);
    if (lowerdeck_is_float(input)) {
      table->reals[pixel] = real;
    } else {
      table->integers[pixel] = lowerdeck_quantized(input, real);
    }
  }
}

int lowerdeck_preprocess(const lowerdeck_tensor *input, const uint8_t *pixels, void *data) {
  if (!lowerdeck_can_store(input) || input->dimensions != 4 || input->sizes[0] != 1 ||
      input->sizes[1] != LOWERDECK_CHANNELS) {
    return -1;
  }
  uint32_t strides[4];
  lowerdeck_strides(input, strides);
  for (int32_t channel = 0; channel < LOWERDECK_CHANNELS; channel++) {
    channel_table table;
    fill(&table, input, channel);
    const uint8_t *pixel = pixels + channel;
    for (int32_t row = 0; row < input->sizes[2]; row++) {
      for (int32_t column = 0; column < input->sizes[3]; column++, pixel += LOWERDECK_CHANNELS) {
        const uint32_t at = (uint32_t)channel * strides[1] + (uint32_t)row * strides[2] + (uint32_t)column * strides[3];
        if (lowerdeck_is_float(input)) {
          lowerdeck_store(input, table.reals[*pixel], data, at);
        } else {
          lowerdeck_store_integer(input, table.integers[*pixel], data, at);
        }
      }
    }
  }
  return 0;
}
