/* Lines on a serial port, or on standard output: what ran, what it answered, and whether that is what was expected.

     LD <verb> <fields> *<CRC>

   The CRC is CRC-16/CCITT-FALSE of all between "LD " and " *", as four hexadecimal digits, so that a reader can tell lines
   from the noise of a boot loader and from characters that were lost. Give the bytes to any port by lowerdeck_put. C11. */
#ifndef LOWERDECK_LINE_PROTOCOL_H
#define LOWERDECK_LINE_PROTOCOL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Writes one character; the application defines it. */
void lowerdeck_put(char character);

/* hello 1 key=... program=... inputs=N outputs=N: the protocol's version, and which build this is. */
void lowerdeck_say_hello(const char *build_key, const char *program_sha256, uint32_t inputs, uint32_t outputs);

/* memory name=NAME used=N size=N: a pool, and how much of it was taken. */
void lowerdeck_say_memory(const char *name, uint32_t used_bytes, uint32_t size_bytes);

/* time us=N: one execution. */
void lowerdeck_say_time(uint32_t microseconds);

/* output index=I offset=N data=HEX, as many lines as the bytes need. */
void lowerdeck_say_output(uint32_t index, const uint8_t *bytes, size_t count);

/* result index=I elements=N equal=N max_steps=N: against the test vector, in steps of the output's quantization, or in
   millionths of floats that have none. */
void lowerdeck_say_result(uint32_t index, uint32_t elements, uint32_t equal, uint32_t max_steps);

/* class index=I name=NAME, where the task has classes. */
void lowerdeck_say_class(uint32_t index, const char *name);

/* done passed | done failed where=PLACE code=N: the last line. */
void lowerdeck_say_passed(void);
void lowerdeck_say_failed(const char *where, uint32_t code);

/* CRC-16/CCITT-FALSE: polynomial 0x1021, begins with 0xFFFF. */
uint16_t lowerdeck_crc16(uint16_t crc, const char *text, size_t count);

#ifdef __cplusplus
}
#endif

#endif
