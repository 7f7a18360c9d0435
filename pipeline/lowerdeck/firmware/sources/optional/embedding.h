/* Vectors whose directions tell identities apart. C11. */
#ifndef LOWERDECK_EMBEDDING_H
#define LOWERDECK_EMBEDDING_H

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Write output LOWERDECK_TASK_OUTPUT in `data`, scaled to length 1, into `vector` [elements]; zeros stay. */
void lowerdeck_embed(const void *data, float *vector);

/* The cosine of the angle between two such vectors [count]: 1 for the same direction. */
float lowerdeck_similarity(const float *first, const float *second, uint32_t count);

#ifdef __cplusplus
}
#endif

#endif
