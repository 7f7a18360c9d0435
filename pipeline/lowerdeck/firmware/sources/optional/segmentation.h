/* A class for every pixel. C11. */
#ifndef LOWERDECK_SEGMENTATION_H
#define LOWERDECK_SEGMENTATION_H

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Write the class of every pixel, row by row, into `classes` [height x width]: that of the highest score, the first one
   of equals, or with one channel whether its logit is above 0. The scores in `data` are output LOWERDECK_TASK_OUTPUT,
   [1 x classes x height x width].

   Returns 0, or -1 where the output has another rank or batch, or more than 256 classes. */
int lowerdeck_segment(const void *data, uint8_t *classes);

#ifdef __cplusplus
}
#endif

#endif
