/* What an application has to know of its board; platform_host.cpp has it for a host. */
#ifndef LOWERDECK_PLATFORM_H
#define LOWERDECK_PLATFORM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Clocks, pins, the serial port, the NPU's driver. */
void lowerdeck_start_board(void);

/* Microseconds since any moment, wrapping around. */
uint32_t lowerdeck_microseconds(void);

#ifdef __cplusplus
}
#endif

#endif
