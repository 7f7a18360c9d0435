/* Decoders whose outputs have a row for each box: `boxes`, decoded by the model, and `ssd`, offsets of anchors. */
#include <math.h>

#include "detection_candidates.h"
#include "detection_tables.h"

/* The score of a column of the row, of which `highest` and `sum` are those of its softmax. */
static double activated(double value, double highest, double sum) {
  switch (LOWERDECK_ACTIVATION) {
    case LOWERDECK_SIGMOID:
      return lowerdeck_logistic(value);
    case LOWERDECK_SOFTMAX:
      return exp(value - highest) / sum;
    default:
      return value;
  }
}

static void consider_row(
    lowerdeck_candidates *candidates, const lowerdeck_box *box, const lowerdeck_matrix *scores, uint32_t row) {
  double highest = lowerdeck_cell(scores, row, 0), sum = 0.0;
  for (uint32_t column = 0; LOWERDECK_ACTIVATION == LOWERDECK_SOFTMAX && column < scores->columns; column++) {
    highest = fmax(highest, lowerdeck_cell(scores, row, column));
  }
  for (uint32_t column = 0; LOWERDECK_ACTIVATION == LOWERDECK_SOFTMAX && column < scores->columns; column++) {
    sum += exp(lowerdeck_cell(scores, row, column) - highest);
  }
  const double objectness = LOWERDECK_HAS_OBJECTNESS ? activated(lowerdeck_cell(scores, row, 0), highest, sum) : 1.0;
  const uint32_t first = LOWERDECK_FIRST_SCORE, end = scores->columns - LOWERDECK_LAST_SCORES;
  for (uint32_t column = first; column < end; column++) {
    const double score = activated(lowerdeck_cell(scores, row, column), highest, sum);
    lowerdeck_consider(candidates, box, objectness * score, (int32_t)(column - first));
  }
}

#if LOWERDECK_DECODER == LOWERDECK_SSD
/* Boxes of the anchors of a feature map, cell by cell; returns the row behind the last. */
static uint32_t decode_map(
    const lowerdeck_matrix *offsets, const lowerdeck_matrix *scores, uint32_t map, uint32_t row,
    lowerdeck_candidates *candidates) {
  const uint32_t rows = lowerdeck_grids[map][0], columns = lowerdeck_grids[map][1];
  for (uint32_t cell = 0; cell < rows * columns; cell++) {
    const double y = (cell / columns + 0.5) / rows, x = (cell % columns + 0.5) / columns;
    for (uint32_t anchor = lowerdeck_grids[map][2]; anchor < lowerdeck_grids[map][3]; anchor++, row++) {
      const double width = lowerdeck_anchors[anchor][0], height = lowerdeck_anchors[anchor][1];
      double given[4];
      for (uint32_t number = 0; number < 4; number++) {
        given[number] = lowerdeck_cell(offsets, row, LOWERDECK_ROWS_BEFORE_COLUMNS ? number ^ 1u : number);
      }
      const lowerdeck_box box = lowerdeck_around(
          (x + given[0] * LOWERDECK_VARIANCE * width) * LOWERDECK_INPUT_WIDTH,
          (y + given[1] * LOWERDECK_VARIANCE * height) * LOWERDECK_INPUT_HEIGHT,
          width * exp(fmin(given[2] * LOWERDECK_EXTENT_VARIANCE, 50.0)) * LOWERDECK_INPUT_WIDTH,
          height * exp(fmin(given[3] * LOWERDECK_EXTENT_VARIANCE, 50.0)) * LOWERDECK_INPUT_HEIGHT);
      consider_row(candidates, &box, scores, row);
    }
  }
  return row;
}

void lowerdeck_decode(const void *const *outputs, lowerdeck_candidates *candidates) {
  const lowerdeck_matrix offsets = lowerdeck_matrix_of(outputs, LOWERDECK_BOXES_OUTPUT);
  const lowerdeck_matrix scores = lowerdeck_matrix_of(outputs, LOWERDECK_SCORES_OUTPUT);
  uint32_t row = 0;
  for (uint32_t map = 0; map < sizeof lowerdeck_grids / sizeof lowerdeck_grids[0]; map++) {
    row = decode_map(&offsets, &scores, map, row, candidates);
  }
}
#else
static lowerdeck_box box_of(const lowerdeck_matrix *boxes, uint32_t row) {
  double given[4];
  for (uint32_t number = 0; number < 4; number++) {
    const uint32_t column = LOWERDECK_ROWS_BEFORE_COLUMNS ? number ^ 1u : number;
    const double size = number % 2 ? LOWERDECK_INPUT_HEIGHT : LOWERDECK_INPUT_WIDTH;
    given[number] = lowerdeck_cell(boxes, row, column) * (LOWERDECK_IS_NORMALIZED ? size : 1.0);
  }
  if (LOWERDECK_BOX_LAYOUT == LOWERDECK_CENTRE_AND_SIZE) {
    return lowerdeck_around(given[0], given[1], given[2], given[3]);
  }
  const int has_size = LOWERDECK_BOX_LAYOUT == LOWERDECK_CORNER_AND_SIZE;
  const double x = has_size ? given[0] : 0.0, y = has_size ? given[1] : 0.0;
  return (lowerdeck_box){given[0], given[1], x + given[2], y + given[3]};
}

void lowerdeck_decode(const void *const *outputs, lowerdeck_candidates *candidates) {
  lowerdeck_matrix boxes = lowerdeck_matrix_of(outputs, LOWERDECK_BOXES_OUTPUT);
  lowerdeck_matrix scores = lowerdeck_matrix_of(outputs, LOWERDECK_SCORES_OUTPUT);
  if (LOWERDECK_BOXES_OUTPUT == LOWERDECK_SCORES_OUTPUT) {
    const int are_columns = LOWERDECK_CANDIDATES_ARE_COLUMNS; /* negative where the longer dimension is theirs */
    if (are_columns < 0 ? scores.rows < scores.columns : are_columns) {
      const lowerdeck_matrix given = scores;
      scores.rows = given.columns, scores.columns = given.rows;
      scores.row_stride = given.column_stride, scores.column_stride = given.row_stride;
    }
    boxes = scores;
    scores.columns -= 4;
    scores.place = 4 * scores.column_stride;
  }
  for (uint32_t row = 0; row < boxes.rows; row++) {
    const lowerdeck_box box = box_of(&boxes, row);
    consider_row(candidates, &box, &scores, row);
  }
}
#endif
