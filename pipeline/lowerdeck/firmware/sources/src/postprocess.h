/* Arithmetic on outputs: stored integers as real numbers, the best class, and differences from the test vector. C11. */
#ifndef LOWERDECK_POSTPROCESS_H
#define LOWERDECK_POSTPROCESS_H

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Element `index` of a tensor in memory order, as a real number. */
float lowerdeck_real(const lowerdeck_tensor *tensor, const void *data, uint32_t index);

/* Elements from one index of each dimension to the next in memory, into `strides` [dimensions]. */
void lowerdeck_strides(const lowerdeck_tensor *tensor, uint32_t *strides);

/* Where element `index` of the logical order of dimensions lies in memory order. */
uint32_t lowerdeck_place(const lowerdeck_tensor *tensor, uint32_t index);

/* The index of the highest element, the first one of equals: of scores, the class. */
uint32_t lowerdeck_argmax(const lowerdeck_tensor *tensor, const void *data);

/* Softmax of all elements into `probabilities` [elements]. */
void lowerdeck_softmax(const lowerdeck_tensor *tensor, const void *data, float *probabilities);

typedef struct {
  uint32_t equal;     /* elements with the same bits */
  uint32_t max_steps; /* the largest difference, in steps of the quantization; of other floats, in millionths */
} lowerdeck_difference;

/* Compare two tensors of `tensor`'s type element by element. */
lowerdeck_difference lowerdeck_compare(const lowerdeck_tensor *tensor, const void *data, const void *expected);

#ifdef __cplusplus
}
#endif

#endif
