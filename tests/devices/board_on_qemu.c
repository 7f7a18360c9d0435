/* The serial board as firmware of QEMU's mps2-an385 (Cortex-M3): UART 0 is its port, and x * x + x its only program. */
#include "line_protocol.h"
#include "lowerdeck_board.h"

#define UART ((volatile uint32_t *)0x40004000)
#define SYSTICK ((volatile uint32_t *)0xE000E010)

static uint8_t program[1 << 16] __attribute__((aligned(16)));
static float inputs[16], outputs[16];

int lowerdeck_get(void) {
  while (!(UART[1] & 2)) {
  }
  return (int)(UART[0] & 255);
}

void lowerdeck_put(char character) {
  while (UART[1] & 1) {
  }
  UART[0] = (uint8_t)character;
}

static uint8_t *input(uint32_t index, size_t bytes) {
  return index == 0 && bytes == sizeof inputs ? (uint8_t *)inputs : 0;
}

static int execute(void) {
  int i;
  for (i = 0; i < 16; ++i) outputs[i] = inputs[i] * inputs[i] + inputs[i];
  return 0;
}

static const uint8_t *output(uint32_t index, size_t *bytes) {
  *bytes = sizeof outputs;
  return index == 0 ? (const uint8_t *)outputs : 0;
}

static uint64_t ticks(void) { return 0xFFFFFF - SYSTICK[2]; }

void start(void) {
  static const lowerdeck_board board = {"board_on_qemu", "", program, sizeof program, 0, 0, input, execute, output, ticks,
                                        25000000};
  UART[2] = 3;
  UART[4] = 16;
  SYSTICK[1] = 0xFFFFFF;
  SYSTICK[0] = 5;
  lowerdeck_serve(&board);
  for (;;) {
  }
}

extern uint32_t stack_end;
__attribute__((section(".vectors"), used)) static const void *const vectors[2] = {&stack_end, (const void *)start};
