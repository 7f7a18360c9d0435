/* Zephyr as the board: lines go to the console. */
#include <zephyr/kernel.h>
#include <zephyr/sys/printk.h>

#include "line_protocol.h"
#include "platform.h"

void lowerdeck_put(char character) { printk("%c", character); }

void lowerdeck_start_board(void) {}

uint32_t lowerdeck_microseconds(void) { return k_cyc_to_us_floor32(k_cycle_get_32()); }
