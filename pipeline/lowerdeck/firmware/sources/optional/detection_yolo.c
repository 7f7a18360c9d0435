/* Decoder `yolo`: raw heads [1 x anchors * numbers x rows x columns]. */
#include <math.h>

#include "detection_candidates.h"
#include "detection_tables.h"
#include "postprocess.h"

/* The numbers of one anchor in one cell. */
typedef struct {
  const lowerdeck_tensor *tensor;
  const void *data;
  uint32_t place, stride;
} cell;

static double number(const cell *given, uint32_t index) {
  return (double)lowerdeck_real(given->tensor, given->data, given->place + index * given->stride);
}

#if LOWERDECK_FORMULA == LOWERDECK_V8
/* The distance of a side from the centre, in cells: the mean of a distribution. */
static double distance(const cell *given, uint32_t side) {
  double highest = number(given, side * LOWERDECK_REG_MAX), sum = 0.0, mean = 0.0;
  for (uint32_t bin = 1; bin < LOWERDECK_REG_MAX; bin++) {
    highest = fmax(highest, number(given, side * LOWERDECK_REG_MAX + bin));
  }
  for (uint32_t bin = 0; bin < LOWERDECK_REG_MAX; bin++) {
    const double share = exp(number(given, side * LOWERDECK_REG_MAX + bin) - highest);
    sum += share;
    mean += share * bin;
  }
  return mean / sum;
}

static lowerdeck_box box_of(const cell *given, double x, double y, const double *stride, const double *anchor) {
  (void)anchor;
  return (lowerdeck_box){(x + 0.5 - distance(given, 0)) * stride[0], (y + 0.5 - distance(given, 1)) * stride[1],
                         (x + 0.5 + distance(given, 2)) * stride[0], (y + 0.5 + distance(given, 3)) * stride[1]};
}
#else
static double centre(double value) {
  switch (LOWERDECK_FORMULA) {
    case LOWERDECK_V5:
      return 2 * lowerdeck_logistic(value) - 0.5;
    case LOWERDECK_V3:
      return lowerdeck_logistic(value);
    default: /* YOLOX */
      return value;
  }
}

static double extent(double value) {
  const double twice = 2 * lowerdeck_logistic(value);
  return LOWERDECK_FORMULA == LOWERDECK_V5 ? twice * twice : exp(fmin(value, 50.0));
}

static lowerdeck_box box_of(const cell *given, double x, double y, const double *stride, const double *anchor) {
  return lowerdeck_around((centre(number(given, 0)) + x) * stride[0], (centre(number(given, 1)) + y) * stride[1],
                          extent(number(given, 2)) * anchor[0], extent(number(given, 3)) * anchor[1]);
}
#endif

static void consider_cell(
    const cell *given, uint32_t num_numbers, const lowerdeck_box *box, lowerdeck_candidates *candidates) {
  const uint32_t first = LOWERDECK_FORMULA == LOWERDECK_V8 ? 4 * LOWERDECK_REG_MAX : 5;
  const double objectness = LOWERDECK_FORMULA == LOWERDECK_V8 ? 1.0 : lowerdeck_logistic(number(given, 4));
  for (uint32_t index = first; index < num_numbers; index++) {
    const double score = objectness * lowerdeck_logistic(number(given, index));
    lowerdeck_consider(candidates, box, score, (int32_t)(index - first));
  }
}

/* One head: its output, and its anchors from `first` to `end`; one without a size where there are none. */
static void decode_head(
    const void *const *outputs, uint32_t index, uint32_t first, uint32_t end, lowerdeck_candidates *candidates) {
  const lowerdeck_tensor *const tensor = &lowerdeck_outputs[index];
  const uint32_t rows = (uint32_t)tensor->sizes[2], columns = (uint32_t)tensor->sizes[3];
  const uint32_t num_numbers = (uint32_t)tensor->sizes[1] / (end - first);
  const double stride[2] = {(double)LOWERDECK_INPUT_WIDTH / columns, (double)LOWERDECK_INPUT_HEIGHT / rows};
  uint32_t strides[LOWERDECK_MAX_DIMENSIONS];
  lowerdeck_strides(tensor, strides);
  for (uint32_t place = 0; place < rows * columns; place++) {
    const uint32_t y = place / columns, x = place % columns;
    for (uint32_t anchor = first; anchor < end; anchor++) {
      const uint32_t start = (anchor - first) * num_numbers * strides[1] + y * strides[2] + x * strides[3];
      const cell given = {tensor, outputs[index], start, strides[1]};
      const double *const size = LOWERDECK_HAS_ANCHORS ? lowerdeck_anchors[anchor] : stride;
      const lowerdeck_box box = box_of(&given, x, y, stride, size);
      consider_cell(&given, num_numbers, &box, candidates);
    }
  }
}

void lowerdeck_decode(const void *const *outputs, lowerdeck_candidates *candidates) {
  for (uint32_t head = 0; head < sizeof lowerdeck_heads / sizeof lowerdeck_heads[0]; head++) {
    decode_head(outputs, lowerdeck_heads[head][0], lowerdeck_heads[head][1], lowerdeck_heads[head][2], candidates);
  }
}
