/* Each row of the result is resized across and blended from rows, in the order in which Pillow does so. As there,
   weights are integers of 22 binary places, and values are rounded to 8 bits after each of the two. */
#include "resize.h"

#include <math.h>
#include <string.h>

enum { WEIGHT_BITS = 22, ROW = LOWERDECK_WIDTH * LOWERDECK_CHANNELS };

static const double pi = 3.14159265358979323846;

typedef struct {
  int32_t first; /* pixel of the image */
  int32_t count;
  const int32_t *weights;
} taps;

/* One direction of the resizing: columns or rows. */
typedef struct {
  int32_t from;     /* pixels of the image */
  int32_t to;       /* pixels of the resized image */
  int32_t offset;   /* pixel of the resized image that is the input's first; negative behind a bar */
  int32_t begin;    /* pixels of the input that are no bars, to `end` */
  int32_t end;
  int32_t max_taps;
  double scale;     /* from / to */
  double width;     /* of the filter, in pixels of the image: it blurs what is reduced */
  double nearest;   /* where pixel number `reached` is nearest to, summed up as Pillow does it */
  int32_t reached;
} axis;

static int32_t at_least(int32_t least, int32_t given) { return given < least ? least : given; }
static int32_t at_most(int32_t most, int32_t given) { return given > most ? most : given; }

/* Halves go to the even neighbour, as in Python's round(). */
static int32_t rounded(double value) { return (int32_t)nearbyint(value); }

static axis axis_of(int32_t from, int32_t to, int32_t input) {
  axis made = {.from = from, .to = to, .scale = (double)from / to};
  made.offset = to >= input ? (to - input) / 2 : -((input - to + 1) / 2);
  made.begin = at_least(0, -made.offset);
  made.end = at_most(input, to - made.offset);
  made.width = made.scale < 1.0 ? 1.0 : made.scale;
  made.max_taps = (int32_t)ceil(LOWERDECK_RESIZE_INTERPOLATION * made.width) * 2 + 1;
  made.nearest = made.scale * 0.5;
  return made;
}

/* The size to which an image is resized: with bars beside it, by its shorter side, or to the input's. */
static void place(const lowerdeck_image *image, axis *across, axis *down) {
  const double x_scale = (double)LOWERDECK_WIDTH / image->width, y_scale = (double)LOWERDECK_HEIGHT / image->height;
  const int32_t shorter = at_most(image->width, image->height);
  int32_t width = LOWERDECK_WIDTH, height = LOWERDECK_HEIGHT;
  if (LOWERDECK_RESIZE_FIT == LOWERDECK_LETTERBOX) {
    const double scale = x_scale < y_scale ? x_scale : y_scale;
    width = at_most(LOWERDECK_WIDTH, at_least(1, rounded(image->width * scale)));
    height = at_most(LOWERDECK_HEIGHT, at_least(1, rounded(image->height * scale)));
  } else if (LOWERDECK_RESIZE_FIT == LOWERDECK_CROP) {
    const double larger = x_scale > y_scale ? x_scale : y_scale;
    const double scale = LOWERDECK_RESIZE_SIDE > 0 ? (double)LOWERDECK_RESIZE_SIDE / shorter : larger;
    width = at_least(LOWERDECK_WIDTH, rounded(image->width * scale));
    height = at_least(LOWERDECK_HEIGHT, rounded(image->height * scale));
  }
  *across = axis_of(image->width, width, LOWERDECK_WIDTH);
  *down = axis_of(image->height, height, LOWERDECK_HEIGHT);
}

static double sinc(double x) { return x == 0.0 ? 1.0 : sin(x * pi) / (x * pi); }

static double filtered(double x) {
  const double distance = x < 0.0 ? -x : x;
  switch (LOWERDECK_RESIZE_INTERPOLATION) {
    case LOWERDECK_BILINEAR:
      return distance < 1.0 ? 1.0 - distance : 0.0;
    case LOWERDECK_BICUBIC: /* Keys' kernel with a = -0.5 */
      if (distance < 1.0) {
        return (1.5 * distance - 2.5) * distance * distance + 1.0;
      }
      return distance < 2.0 ? (((distance - 5.0) * distance + 8.0) * distance - 4.0) * -0.5 : 0.0;
    default: /* Lanczos with three lobes */
      return -3.0 <= x && x < 3.0 ? sinc(x) * sinc(x / 3.0) : 0.0;
  }
}

/* The pixels of the image that pixel `at` of the resized image is made of; call it with rising `at`. */
static taps weigh(axis *along, int32_t at, int32_t *weights) {
  if (LOWERDECK_RESIZE_INTERPOLATION == LOWERDECK_NEAREST) {
    for (; along->reached < at; along->reached++) {
      along->nearest += along->scale;
    }
    weights[0] = 1 << WEIGHT_BITS;
    return (taps){(int32_t)along->nearest, 1, weights};
  }
  const double center = (at + 0.5) * along->scale, support = LOWERDECK_RESIZE_INTERPOLATION * along->width;
  const double inverse = 1.0 / along->width;
  const int32_t first = at_least(0, (int32_t)(center - support + 0.5));
  const int32_t count = at_most(along->from, (int32_t)(center + support + 0.5)) - first;
  double sum = 0.0;
  for (int32_t tap = 0; tap < count; tap++) {
    sum += filtered((tap + first - center + 0.5) * inverse);
  }
  for (int32_t tap = 0; tap < count; tap++) {
    const double weight = filtered((tap + first - center + 0.5) * inverse) / sum * (1 << WEIGHT_BITS);
    weights[tap] = (int32_t)(weight < 0.0 ? weight - 0.5 : weight + 0.5);
  }
  return (taps){first, count, weights};
}

static uint8_t value(const lowerdeck_image *image, int32_t row, int32_t column, int32_t channel) {
  const size_t place = (size_t)row * (size_t)image->width + (size_t)column;
  const uint8_t *const pixel = image->pixels + place * (size_t)image->channels;
  if (image->channels == LOWERDECK_CHANNELS) {
    return pixel[channel];
  }
  /* Luma of ITU-R BT.601, as in Pillow. */
  const uint32_t luma = image->channels == 1 ? 0 : pixel[0] * 19595u + pixel[1] * 38470u + pixel[2] * 7471u + 0x8000u;
  return image->channels == 1 ? pixel[0] : (uint8_t)(luma >> 16);
}

static uint8_t to_byte(int32_t sum) {
  const int32_t whole = sum >> WEIGHT_BITS;
  return (uint8_t)(whole < 0 ? 0 : whole > 255 ? 255 : whole);
}

/* Resize row `row` of `image`; `columns` has the taps of each column of the input. */
static void resize_row(
    const lowerdeck_image *image, const axis *across, int32_t row, const int32_t *columns, uint8_t *made) {
  for (int32_t column = across->begin; column < across->end; column++) {
    const int32_t *const entry = columns + column * (2 + across->max_taps);
    for (int32_t channel = 0; channel < LOWERDECK_CHANNELS; channel++) {
      int32_t sum = 1 << (WEIGHT_BITS - 1);
      for (int32_t tap = 0; tap < entry[1]; tap++) {
        sum += entry[2 + tap] * value(image, row, entry[0] + tap, channel);
      }
      made[column * LOWERDECK_CHANNELS + channel] = to_byte(sum);
    }
  }
}

/* Weigh the rows of `found` into one, from column `begin` to `end`; `image` may have the last rows alone, in turn. */
static void blend_rows(const lowerdeck_image *image, const taps *found, int32_t begin, int32_t end, uint8_t *made) {
  for (int32_t column = begin; column < end; column++) {
    for (int32_t channel = 0; channel < LOWERDECK_CHANNELS; channel++) {
      int32_t sum = 1 << (WEIGHT_BITS - 1);
      for (int32_t tap = 0; tap < found->count; tap++) {
        sum += found->weights[tap] * value(image, (found->first + tap) % image->height, column, channel);
      }
      made[column * LOWERDECK_CHANNELS + channel] = to_byte(sum);
    }
  }
}

int lowerdeck_resize(const lowerdeck_image *image, void *scratch, size_t scratch_bytes, uint8_t *pixels) {
  if ((image->channels != 1 && image->channels != 3) || image->width < 1 || image->height < 1 ||
      image->width > 65535 || image->height > 65535) {
    return -1;
  }
  axis across, down;
  place(image, &across, &down);
  int32_t *const columns = (int32_t *)scratch;
  int32_t *const weights = columns + LOWERDECK_WIDTH * (2 + across.max_taps);
  uint8_t *const rows = (uint8_t *)(weights + down.max_taps);
  /* The order decides how values are rounded. This is Pillow's, since version 13. */
  const int down_first = down.to < down.from && down.from - down.to > 2 * (across.from - across.to);
  const lowerdeck_image blended = {rows, image->width, 1, LOWERDECK_CHANNELS};
  const lowerdeck_image resized = {rows, LOWERDECK_WIDTH, down.max_taps, LOWERDECK_CHANNELS};
  const lowerdeck_image *const kept = down_first ? &blended : &resized;
  if (scratch_bytes < (size_t)(rows - (uint8_t *)scratch) + (size_t)(kept->width * kept->height * kept->channels)) {
    return -1;
  }
  for (int32_t column = across.begin; column < across.end; column++) {
    int32_t *const entry = columns + column * (2 + across.max_taps);
    const taps found = weigh(&across, column + across.offset, entry + 2);
    entry[0] = found.first;
    entry[1] = found.count;
  }
  memset(pixels, LOWERDECK_RESIZE_FILL, (size_t)LOWERDECK_HEIGHT * ROW);
  for (int32_t row = down.begin, next = 0; row < down.end; row++) {
    const taps found = weigh(&down, row + down.offset, weights);
    if (down_first) {
      blend_rows(image, &found, 0, image->width, rows);
      resize_row(&blended, &across, 0, columns, pixels + row * ROW);
      continue;
    }
    for (next = at_least(found.first, next); next < found.first + found.count; next++) {
      resize_row(image, &across, next, columns, rows + next % down.max_taps * ROW);
    }
    blend_rows(&resized, &found, across.begin, across.end, pixels + row * ROW);
  }
  return 0;
}
