/* Zephyr as the board: lines go to the console and come from it. */
#include <zephyr/device.h>
#include <zephyr/drivers/uart.h>
#include <zephyr/kernel.h>
#include <zephyr/sys/printk.h>

#include "line_protocol.h"
#include "platform.h"

void lowerdeck_put(char character) { printk("%c", character); }

int lowerdeck_get(void) {
  const struct device *const console = DEVICE_DT_GET(DT_CHOSEN(zephyr_console));
  unsigned char character;
  while (uart_poll_in(console, &character) != 0) {
    k_yield();
  }
  return character;
}

void lowerdeck_start_board(void) {}

uint32_t lowerdeck_microseconds(void) { return k_cyc_to_us_floor32(k_cycle_get_32()); }
