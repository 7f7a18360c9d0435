#include "anomaly.h"

#include "postprocess.h"

double lowerdeck_anomaly_score(const void *data, const float *given) {
  const lowerdeck_tensor *const output = &lowerdeck_outputs[LOWERDECK_TASK_OUTPUT];
  if (!LOWERDECK_IS_RECONSTRUCTION) {
    return (double)lowerdeck_real(output, data, 0);
  }
  double sum = 0.0;
  for (uint32_t index = 0; index < output->elements; index++) {
    const double real = (double)lowerdeck_real(output, data, lowerdeck_place(output, index));
    sum += (real - (double)given[index]) * (real - (double)given[index]);
  }
  return sum / output->elements;
}
