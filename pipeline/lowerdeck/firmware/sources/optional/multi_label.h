/* Any number of labels: those whose score is above the threshold of the task. C11. */
#ifndef LOWERDECK_MULTI_LABEL_H
#define LOWERDECK_MULTI_LABEL_H

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of the scores in `data`, output LOWERDECK_TASK_OUTPUT, write whether each label is predicted, 0 or 1, into `labels`
   [elements]. Returns how many are. */
uint32_t lowerdeck_labels(const void *data, uint8_t *labels);

/* The probability that a logit stands for. */
float lowerdeck_sigmoid(float logit);

#ifdef __cplusplus
}
#endif

#endif
