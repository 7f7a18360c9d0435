#include "segmentation.h"

#include "postprocess.h"

static uint32_t highest(const lowerdeck_tensor *scores, const void *data, uint32_t place, uint32_t stride) {
  float best = lowerdeck_real(scores, data, place);
  if (scores->sizes[1] == 1) {
    return best > 0.0f;
  }
  uint32_t found = 0;
  for (uint32_t label = 1; label < (uint32_t)scores->sizes[1]; label++) {
    const float score = lowerdeck_real(scores, data, place + label * stride);
    if (score > best) {
      best = score;
      found = label;
    }
  }
  return found;
}

int lowerdeck_segment(const void *data, uint8_t *classes) {
  const lowerdeck_tensor *const scores = &lowerdeck_outputs[LOWERDECK_TASK_OUTPUT];
  if (scores->dimensions != 4 || scores->sizes[0] != 1 || scores->sizes[1] > 256) {
    return -1;
  }
  uint32_t strides[LOWERDECK_MAX_DIMENSIONS];
  lowerdeck_strides(scores, strides);
  for (uint32_t row = 0; row < (uint32_t)scores->sizes[2]; row++) {
    for (uint32_t column = 0; column < (uint32_t)scores->sizes[3]; column++) {
      *classes++ = (uint8_t)highest(scores, data, row * strides[2] + column * strides[3], strides[1]);
    }
  }
  return 0;
}
