/* A board that executes programs for Lowerdeck's device `serial_board` over a serial port. C99 and C++.
 *
 * Fill in a `lowerdeck_board`, define `lowerdeck_put` and `lowerdeck_get` of line_protocol.h, and call `lowerdeck_serve`.
 * Lines that do not begin with `LD ` are your own log, and Lowerdeck keeps them.
 */
#ifndef LOWERDECK_BOARD_H
#define LOWERDECK_BOARD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Functions return 0 on success, else an error of ExecuTorch. */
typedef struct lowerdeck_board {
  /* Of the firmware, and the key of its build, or "". */
  const char *name;
  const char *build_key;
  /* Room for a program that is sent, aligned to 16 bytes; null and 0 where the firmware has one built in. */
  uint8_t *program;
  uint32_t program_room;
  /* SHA-256 of a program that is loaded already, as 64 hexadecimal digits; else null. */
  const char *program_sha256;
  /* Loads the program that was sent, or, for a reset, the one that was loaded before: its state is the initial one again. */
  int (*load)(const uint8_t *program, size_t program_bytes);
  /* Room for input `index`, where `execute` finds it; null where the program has no such input of so many bytes. */
  uint8_t *(*input)(uint32_t index, size_t bytes);
  /* Executes `forward` on the inputs. */
  int (*execute)(void);
  /* Output `index` of the last execution; null behind the last one. */
  const uint8_t *(*output)(uint32_t index, size_t *bytes);
  /* A counter and its frequency, e.g. the cycle counter of the DWT; null where there is none. */
  uint64_t (*ticks)(void);
  uint64_t ticks_per_s;
} lowerdeck_board;

/* Answers the host's lines until `lowerdeck_get` says that there will be no more. */
void lowerdeck_serve(const lowerdeck_board *board);

#ifdef __cplusplus
}
#endif
#endif
