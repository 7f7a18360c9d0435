/* Numbers of any shape. C11. */
#ifndef LOWERDECK_REGRESSION_H
#define LOWERDECK_REGRESSION_H

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Write the real values of output LOWERDECK_TASK_OUTPUT, in the logical order of its dimensions, into `values`
   [elements]. */
void lowerdeck_values(const void *data, float *values);

#ifdef __cplusplus
}
#endif

#endif
