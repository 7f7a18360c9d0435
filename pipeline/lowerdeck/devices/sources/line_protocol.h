/* Lines of text on a serial port, in both directions (docs/line_protocol.md). C99 and C++.

     LD <verb> <fields> *<CRC>

   The CRC is CRC-16/CCITT-FALSE of all between "LD " and " *", as four hexadecimal digits, so that a reader can tell lines
   from the noise of a boot loader and from characters that were lost. No buffer, no heap, no printf. */
#ifndef LOWERDECK_LINE_PROTOCOL_H
#define LOWERDECK_LINE_PROTOCOL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The firmware defines these two: write one character, and read the next one, waiting for it; negative where there will be
   none, e.g. because nothing is connected. */
void lowerdeck_put(char character);
int lowerdeck_get(void);

/* hello 2 name=NAME key=KEY program=SHA256 program_room=BYTES: the protocol's version, the firmware and its build, the program
   that is loaded ("-" where there is none), and how large another one may be. */
void lowerdeck_say_hello(const char *name, const char *build_key, const char *program_sha256, uint32_t program_room);

/* ack offset=N: content is here up to byte N. */
void lowerdeck_say_ack(uint32_t offset);

/* ok program=SHA256: content, or a reset, was taken. */
void lowerdeck_say_ok(const char *program_sha256);

/* time id=I ticks=N per_second=N: one execution. */
void lowerdeck_say_time(uint32_t id, uint64_t ticks, uint64_t ticks_per_s);

/* memory name=NAME used=N size=N: a pool, and how much of it was taken. */
void lowerdeck_say_memory(const char *name, uint32_t used_bytes, uint32_t size_bytes);

/* output index=I offset=N data=HEX, as many lines as the bytes need. */
void lowerdeck_say_output(uint32_t index, const uint8_t *bytes, size_t count);

/* result index=I elements=N equal=N max_steps=N: against the test vector, in steps of the output's quantization, or in
   millionths of floats that have none. */
void lowerdeck_say_result(uint32_t index, uint32_t elements, uint32_t equal, uint32_t max_steps);

/* class index=I name=NAME, where the task has classes. */
void lowerdeck_say_class(uint32_t index, const char *name);

/* done id=I program=SHA256 outputs=N: the execution succeeded. */
void lowerdeck_say_done(uint32_t id, const char *program_sha256, uint32_t outputs);

/* error where=PLACE code=N: what was asked for failed. */
void lowerdeck_say_error(const char *where, uint32_t code);

/* The longest line that is read, with 64 bytes of content, and a zero byte. */
#define LOWERDECK_LINE_BYTES 192

enum {
  LOWERDECK_NO_LINE = -1,      /* there will be none */
  LOWERDECK_OTHER_LINE = 0,    /* not of this protocol */
  LOWERDECK_DAMAGED_LINE = 1,  /* of this protocol, with another CRC */
  LOWERDECK_LINE = 2
};

/* Reads a line and leaves verb and fields in `line`. */
int lowerdeck_read_line(char line[LOWERDECK_LINE_BYTES]);

/* Whether the line has this verb. */
int lowerdeck_has_verb(const char *line, const char *verb);

/* The value of a field, which ends at a space or a zero byte; null where there is none. */
const char *lowerdeck_field(const char *line, const char *name);

/* The number of a field; 0 where there is none. */
uint32_t lowerdeck_number(const char *line, const char *name);

/* Decodes the hexadecimal digits of a field into at most `room` bytes; returns how many, or -1 if it cannot. */
int lowerdeck_bytes(const char *line, const char *name, uint8_t *bytes, size_t room);

/* CRC-16/CCITT-FALSE: polynomial 0x1021, begins with 0xFFFF. */
uint16_t lowerdeck_crc16(uint16_t crc, const char *text, size_t count);

#ifdef __cplusplus
}
#endif

#endif
