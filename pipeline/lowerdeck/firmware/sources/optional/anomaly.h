/* Normal or anomalous: the score of a sample, higher for anomalous ones. C11. */
#ifndef LOWERDECK_ANOMALY_H
#define LOWERDECK_ANOMALY_H

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The score of output LOWERDECK_TASK_OUTPUT in `data`. With LOWERDECK_IS_RECONSTRUCTION it is the mean squared
   difference from `given`, the real values of the first input in the logical order of its dimensions, before they were
   quantized; else the output itself, and `given` is not read. The score of a recording is the mean of those of its
   samples. Scores from LOWERDECK_ANOMALY_THRESHOLD (build_record.h) on are anomalous. The evaluation finds it, so that
   only the bundle in firmware.zip has it. */
double lowerdeck_anomaly_score(const void *data, const float *given);

#ifdef __cplusplus
}
#endif

#endif
