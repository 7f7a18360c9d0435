/* Events in a stream, such as a wake word: which calls of the program count as one. C11. */
#ifndef LOWERDECK_STREAMING_DETECTION_H
#define LOWERDECK_STREAMING_DETECTION_H

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One stream; all members belong to the functions. */
typedef struct {
  uint32_t calls;
  int has_fired;
  double last_s; /* time of the last event */
} lowerdeck_stream;

/* Begin a stream, with the program's initial state. */
void lowerdeck_stream_start(lowerdeck_stream *stream);

/* The probability of LOWERDECK_EVENT_CLASS by output LOWERDECK_TASK_OUTPUT in `data`. */
double lowerdeck_event_probability(const void *data);

/* Take the output of the next call. Returns 1 where an event begins: the probability is above LOWERDECK_THRESHOLD, and
   no event began within the LOWERDECK_DEBOUNCE_S before; else 0. The evaluation counts false accepts in the same way. */
int lowerdeck_stream_take(lowerdeck_stream *stream, const void *data);

#ifdef __cplusplus
}
#endif

#endif
