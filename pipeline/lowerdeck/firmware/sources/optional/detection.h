/* Objects in an image: the boxes that the outputs stand for, as the evaluation decodes and selects them. C11. */
#ifndef LOWERDECK_DETECTION_H
#define LOWERDECK_DETECTION_H

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  float left, top, right, bottom; /* pixels of the program's input */
  float score;                    /* 0 ... 1 */
  int32_t label;                  /* index of the class */
} lowerdeck_detection;

/* Decode the outputs, keep boxes with a score from LOWERDECK_SCORE_THRESHOLD on, and of those of a class that overlap
   by more than LOWERDECK_IOU_THRESHOLD the best. The thresholds are the evaluation's, which counts weak detections, too.

   outputs: the data of every output, by index.
   found: room for LOWERDECK_MAX_CANDIDATES; the detections are its first ones, the highest score first.

   Returns the number of detections, at most LOWERDECK_MAX_DETECTIONS. */
int32_t lowerdeck_detect(const void *const *outputs, lowerdeck_detection *found);

#ifdef __cplusplus
}
#endif

#endif
