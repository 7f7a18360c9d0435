/* What the decoder of a task and the selection of its detections share. C11. */
#ifndef LOWERDECK_DETECTION_CANDIDATES_H
#define LOWERDECK_DETECTION_CANDIDATES_H

#include "detection.h"

/* Values of LOWERDECK_ACTIVATION, LOWERDECK_DECODER, LOWERDECK_BOX_LAYOUT and LOWERDECK_FORMULA. */
#define LOWERDECK_NONE 0
#define LOWERDECK_SIGMOID 1
#define LOWERDECK_SOFTMAX 2
#define LOWERDECK_BOXES 0
#define LOWERDECK_SSD 1
#define LOWERDECK_CORNERS 0
#define LOWERDECK_CORNER_AND_SIZE 1
#define LOWERDECK_CENTRE_AND_SIZE 2
#define LOWERDECK_V3 3
#define LOWERDECK_V5 5
#define LOWERDECK_V8 8
#define LOWERDECK_X 10

typedef struct {
  lowerdeck_detection *best; /* the highest score first */
  int32_t count;
} lowerdeck_candidates;

typedef struct {
  double left, top, right, bottom; /* pixels */
} lowerdeck_box;

/* Part of an output [1 x rows x columns], perhaps transposed. */
typedef struct {
  const lowerdeck_tensor *tensor;
  const void *data;
  uint32_t rows, columns, row_stride, column_stride, place;
} lowerdeck_matrix;

/* Output `index` of three dimensions. */
lowerdeck_matrix lowerdeck_matrix_of(const void *const *outputs, uint32_t index);
double lowerdeck_cell(const lowerdeck_matrix *matrix, uint32_t row, uint32_t column);

double lowerdeck_logistic(double value);

/* A box around a centre. */
lowerdeck_box lowerdeck_around(double x, double y, double width, double height);

/* A candidate that counts if its score is high enough. */
void lowerdeck_consider(lowerdeck_candidates *candidates, const lowerdeck_box *box, double score, int32_t label);

/* The decoder: considers every candidate, in the order of the outputs. */
void lowerdeck_decode(const void *const *outputs, lowerdeck_candidates *candidates);

#endif
