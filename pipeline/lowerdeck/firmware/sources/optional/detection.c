#include "detection.h"

#include <math.h>
#include <string.h>

#include "detection_candidates.h"
#include "postprocess.h"

lowerdeck_matrix lowerdeck_matrix_of(const void *const *outputs, uint32_t index) {
  const lowerdeck_tensor *const tensor = &lowerdeck_outputs[index];
  uint32_t strides[LOWERDECK_MAX_DIMENSIONS];
  lowerdeck_strides(tensor, strides);
  return (lowerdeck_matrix){.tensor = tensor, .data = outputs[index],
                            .rows = (uint32_t)tensor->sizes[1], .columns = (uint32_t)tensor->sizes[2],
                            .row_stride = strides[1], .column_stride = strides[2]};
}

double lowerdeck_cell(const lowerdeck_matrix *matrix, uint32_t row, uint32_t column) {
  const uint32_t place = matrix->place + row * matrix->row_stride + column * matrix->column_stride;
  return (double)lowerdeck_real(matrix->tensor, matrix->data, place);
}

double lowerdeck_logistic(double value) { return 0.5 * (1.0 + tanh(0.5 * value)); }

lowerdeck_box lowerdeck_around(double x, double y, double width, double height) {
  const double left = x - width / 2, top = y - height / 2;
  return (lowerdeck_box){left, top, left + width, top + height};
}

static float within(double value, int32_t size) { return (float)fmin(fmax(value, 0.0), (double)size); }

void lowerdeck_consider(lowerdeck_candidates *candidates, const lowerdeck_box *box, double score, int32_t label) {
  if (!(score >= LOWERDECK_SCORE_THRESHOLD)) {
    return;
  }
  int32_t place = candidates->count; /* behind those that are as good */
  while (place > 0 && candidates->best[place - 1].score < (float)score) {
    place--;
  }
  if (place >= LOWERDECK_MAX_CANDIDATES) {
    return;
  }
  candidates->count += candidates->count < LOWERDECK_MAX_CANDIDATES;
  memmove(candidates->best + place + 1, candidates->best + place,
          (size_t)(candidates->count - 1 - place) * sizeof candidates->best[0]);
  candidates->best[place] = (lowerdeck_detection){
      within(box->left, LOWERDECK_INPUT_WIDTH), within(box->top, LOWERDECK_INPUT_HEIGHT),
      within(box->right, LOWERDECK_INPUT_WIDTH), within(box->bottom, LOWERDECK_INPUT_HEIGHT), (float)score, label};
}

static double area(const lowerdeck_detection *box) {
  return ((double)box->right - (double)box->left) * ((double)box->bottom - (double)box->top);
}

/* Whether two boxes overlap by more than the threshold; boxes without an area do not. */
static int overlap(const lowerdeck_detection *a, const lowerdeck_detection *b) {
  const double width = fmin((double)a->right, (double)b->right) - fmax((double)a->left, (double)b->left);
  const double height = fmin((double)a->bottom, (double)b->bottom) - fmax((double)a->top, (double)b->top);
  const double common = fmax(width, 0.0) * fmax(height, 0.0);
  return common / (area(a) + area(b) - common) > LOWERDECK_IOU_THRESHOLD;
}

int32_t lowerdeck_detect(const void *const *outputs, lowerdeck_detection *found) {
  lowerdeck_candidates candidates = {found, 0};
  lowerdeck_decode(outputs, &candidates);
  int32_t kept = 0;
  for (int32_t index = 0; index < candidates.count && kept < LOWERDECK_MAX_DETECTIONS; index++) {
    int is_new = 1;
    for (int32_t better = 0; better < kept && is_new; better++) {
      is_new = found[better].label != found[index].label || !overlap(&found[better], &found[index]);
    }
    if (is_new) {
      found[kept++] = found[index];
    }
  }
  return kept;
}
