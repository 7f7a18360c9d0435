#include "multi_label.h"

#include <math.h>

#include "postprocess.h"

uint32_t lowerdeck_labels(const void *data, uint8_t *labels) {
  const lowerdeck_tensor *const scores = &lowerdeck_outputs[LOWERDECK_TASK_OUTPUT];
  uint32_t predicted = 0;
  for (uint32_t label = 0; label < scores->elements; label++) {
    labels[label] = (double)lowerdeck_real(scores, data, lowerdeck_place(scores, label)) > LOWERDECK_THRESHOLD;
    predicted += labels[label];
  }
  return predicted;
}

float lowerdeck_sigmoid(float logit) { return 0.5f * (1.0f + tanhf(0.5f * logit)); }
