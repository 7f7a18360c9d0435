#include "embedding.h"

#include <math.h>

#include "postprocess.h"

void lowerdeck_embed(const void *data, float *vector) {
  const lowerdeck_tensor *const output = &lowerdeck_outputs[LOWERDECK_TASK_OUTPUT];
  double square = 0.0;
  for (uint32_t index = 0; index < output->elements; index++) {
    vector[index] = lowerdeck_real(output, data, lowerdeck_place(output, index));
    square += (double)vector[index] * (double)vector[index];
  }
  const double length = square > 0.0 ? sqrt(square) : 1.0;
  for (uint32_t index = 0; index < output->elements; index++) {
    vector[index] = (float)((double)vector[index] / length);
  }
}

float lowerdeck_similarity(const float *first, const float *second, uint32_t count) {
  double sum = 0.0;
  for (uint32_t index = 0; index < count; index++) {
    sum += (double)first[index] * (double)second[index];
  }
  return (float)sum;
}
