/* From an image of any size to one of the program's input: the same pixels as in the pipeline. C11. */
#ifndef LOWERDECK_RESIZE_H
#define LOWERDECK_RESIZE_H

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  const uint8_t *pixels; /* [height x width x channels], without gaps */
  int32_t width;         /* 1 ... 65535 */
  int32_t height;
  int32_t channels;      /* 1 (grey) or 3 (RGB): converted where the program takes the other */
} lowerdeck_image;

/* Values of LOWERDECK_RESIZE_FIT. */
#define LOWERDECK_CROP 0
#define LOWERDECK_STRETCH 1
#define LOWERDECK_LETTERBOX 2

/* Values of LOWERDECK_RESIZE_INTERPOLATION: how many pixels the filter reaches to each side. */
#define LOWERDECK_NEAREST 0
#define LOWERDECK_BILINEAR 1
#define LOWERDECK_BICUBIC 2
#define LOWERDECK_LANCZOS 3

/* Bytes of scratch that are enough for an image of this size; a constant if width and height are. They are weights for
   each column of the input and for a row, and as many rows of the input as the filter covers, or one of the image. */
#define LOWERDECK_RESIZE_SCRATCH_BYTES(width, height)                             \
  (4u * LOWERDECK_WIDTH * (2u + LOWERDECK_TAPS(LOWERDECK_ACROSS(width, height))) + \
   4u * LOWERDECK_TAPS(LOWERDECK_DOWN(width, height)) +                           \
   LOWERDECK_CHANNELS *                                                           \
       LOWERDECK_LARGER(LOWERDECK_WIDTH * LOWERDECK_TAPS(LOWERDECK_DOWN(width, height)), (uint32_t)(width)))

/* At most so many pixels of the image, in 256ths, become one. A letterbox has one factor for both sides, and rounding
   the other side to whole pixels increases its own by up to half. */
#define LOWERDECK_ACROSS(width, height) \
  LOWERDECK_OF_FIT(LOWERDECK_256THS(width, LOWERDECK_WIDTH), LOWERDECK_256THS(height, LOWERDECK_HEIGHT))
#define LOWERDECK_DOWN(width, height) \
  LOWERDECK_OF_FIT(LOWERDECK_256THS(height, LOWERDECK_HEIGHT), LOWERDECK_256THS(width, LOWERDECK_WIDTH))
#define LOWERDECK_OF_FIT(own, other) \
  (LOWERDECK_RESIZE_FIT == LOWERDECK_LETTERBOX ? LOWERDECK_LARGER(own, other) * 3u / 2u + 1u : (own))
#define LOWERDECK_256THS(from, to) (((uint32_t)(from) * 256u + (to) - 1u) / (to))
#define LOWERDECK_LARGER(a, b) ((a) > (b) ? (a) : (b))
/* Weights of a pixel: the filter reaches that far to both sides, in pixels of the image where it is reduced. */
#define LOWERDECK_TAPS(reduced) \
  (2u * ((LOWERDECK_RESIZE_INTERPOLATION * LOWERDECK_LARGER(reduced, 256u) + 255u) / 256u + 1u) + 1u)

/* Resize `image` by LOWERDECK_RESIZE_FIT and LOWERDECK_RESIZE_INTERPOLATION into `pixels` [LOWERDECK_HEIGHT x
   LOWERDECK_WIDTH x LOWERDECK_CHANNELS], which lowerdeck_preprocess takes. `scratch` is aligned to 4 bytes.

   Returns 0, or -1 where the image has other channels or sizes than allowed, or the scratch is too small. */
int lowerdeck_resize(const lowerdeck_image *image, void *scratch, size_t scratch_bytes, uint8_t *pixels);

#ifdef __cplusplus
}
#endif

#endif
