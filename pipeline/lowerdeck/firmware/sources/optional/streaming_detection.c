#include "streaming_detection.h"

#include <math.h>
#include <string.h>

#include "postprocess.h"

void lowerdeck_stream_start(lowerdeck_stream *stream) { memset(stream, 0, sizeof *stream); }

double lowerdeck_event_probability(const void *data) {
  const lowerdeck_tensor *const output = &lowerdeck_outputs[LOWERDECK_TASK_OUTPUT];
  const double event = (double)lowerdeck_real(output, data, lowerdeck_place(output, LOWERDECK_EVENT_CLASS));
  if (LOWERDECK_HAS_PROBABILITIES) {
    return event;
  }
  if (output->elements == 1) {
    return 1.0 / (1.0 + exp(-event));
  }
  const double highest = (double)lowerdeck_real(output, data, lowerdeck_argmax(output, data));
  double sum = 0.0;
  for (uint32_t index = 0; index < output->elements; index++) {
    sum += exp((double)lowerdeck_real(output, data, index) - highest);
  }
  return exp(event - highest) / sum;
}

int lowerdeck_stream_take(lowerdeck_stream *stream, const void *data) {
  const double now_s = LOWERDECK_FIRST_CALL_S + LOWERDECK_CALL_S * stream->calls++;
  if (!(lowerdeck_event_probability(data) > LOWERDECK_THRESHOLD)) {
    return 0;
  }
  if (stream->has_fired && !(now_s > stream->last_s + LOWERDECK_DEBOUNCE_S)) {
    return 0;
  }
  stream->has_fired = 1;
  stream->last_s = now_s;
  return 1;
}
