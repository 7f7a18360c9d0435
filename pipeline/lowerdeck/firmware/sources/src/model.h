/* What the program's inputs and outputs are; model.c and model_config.h are generated from the build. C11 and C++17. */
#ifndef LOWERDECK_MODEL_H
#define LOWERDECK_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include "build_record.h"
#include "model_config.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { LOWERDECK_MAX_DIMENSIONS = 8 };

/* Element types, with the numbers of ExecuTorch's ScalarType. */
enum {
  LOWERDECK_UINT8 = 0,
  LOWERDECK_INT8 = 1,
  LOWERDECK_INT16 = 2,
  LOWERDECK_INT32 = 3,
  LOWERDECK_INT64 = 4,
  LOWERDECK_FLOAT16 = 5,
  LOWERDECK_FLOAT32 = 6,
  LOWERDECK_FLOAT64 = 7,
  LOWERDECK_BOOL = 11,
  LOWERDECK_BFLOAT16 = 15,
  LOWERDECK_UINT16 = 27,
  LOWERDECK_UINT32 = 28,
  LOWERDECK_UINT64 = 29
};

typedef struct {
  const char *name;
  int32_t type;                                /* LOWERDECK_... */
  int32_t dimensions;                          /* of sizes and order */
  int32_t sizes[LOWERDECK_MAX_DIMENSIONS];     /* the largest ones, where they may vary */
  uint8_t order[LOWERDECK_MAX_DIMENSIONS];     /* dimensions from outermost to innermost in memory */
  uint32_t elements;
  uint32_t bytes;
  float scale;                                 /* real = scale * (stored - zero_point); 0 for floats */
  float inverse_scale;                         /* of quantization: stored = round(real * inverse_scale) + zero_point */
  int32_t zero_point;
  int32_t least;                               /* stored values saturate to least ... most */
  int32_t most;
  float step;                                  /* one step of the quantization behind an output; 0 without any */
} lowerdeck_tensor;

extern const lowerdeck_tensor lowerdeck_inputs[LOWERDECK_NUM_INPUTS];
extern const lowerdeck_tensor lowerdeck_outputs[LOWERDECK_NUM_OUTPUTS];

/* Names of the classes by index; LOWERDECK_NUM_CLASSES is 0 where they are unknown. */
extern const char *const lowerdeck_class_names[LOWERDECK_NUM_CLASSES + 1];

/* The test vector: a sample as the program takes it, and what it answered on the host of the build. */
extern const uint8_t *const lowerdeck_test_inputs[LOWERDECK_NUM_INPUTS];
extern const uint8_t *const lowerdeck_test_outputs[LOWERDECK_NUM_OUTPUTS];

#ifdef __cplusplus
}
#endif

#endif
