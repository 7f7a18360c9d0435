/* A board that executes programs for Lowerdeck's device `serial_board` over a serial port. C99.
 *
 * Fill in a `lowerdeck_board`, then call `lowerdeck_serve`, which returns when `get` fails. The protocol is lines of text
 * (docs/devices.md); lines that do not begin with `LD1 ` or `:` are your own log, and Lowerdeck keeps them.
 */
#ifndef LOWERDECK_BOARD_H
#define LOWERDECK_BOARD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lowerdeck_board {
  /* Of the firmware, without spaces. */
  const char *name;
  /* The next byte of the port, waiting for it; negative where there will be none. */
  int (*get)(void);
  void (*put)(int byte);
  /* Room for a program, aligned to 16 bytes, and for the inputs of one execution, one after the other. */
  uint8_t *program;
  size_t program_capacity;
  uint8_t *inputs;
  size_t inputs_capacity;
  /* Called after another program was received; 0 on success, else an error of ExecuTorch. May be null. */
  int (*load)(const uint8_t *program, size_t program_bytes);
  /* Executes `forward`: `outputs` are its outputs one after the other. 0 on success, else an error of ExecuTorch. */
  int (*execute)(const uint8_t *inputs, size_t input_bytes, const uint8_t **outputs, size_t *output_bytes);
  /* A counter and its frequency, e.g. the cycle counter of the DWT; null where there is none. */
  uint64_t (*ticks)(void);
  uint64_t ticks_per_s;
} lowerdeck_board;

void lowerdeck_serve(const lowerdeck_board *board);

#ifdef __cplusplus
}
#endif
#endif
