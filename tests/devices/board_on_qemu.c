/* The serial board as firmware of QEMU's mps2-an385 (Cortex-M3): UART 0 is its port, and x * x + x its only program. */
#include "lowerdeck_board.h"

#define UART ((volatile uint32_t *)0x40004000)
#define SYSTICK ((volatile uint32_t *)0xE000E010)

static uint8_t program[1 << 16] __attribute__((aligned(16))), inputs[256] __attribute__((aligned(16)));
static float outputs[16];

static int get(void) {
  while (!(UART[1] & 2)) {
  }
  return (int)(UART[0] & 255);
}

static void put(int byte) {
  while (UART[1] & 1) {
  }
  UART[0] = (uint32_t)byte;
}

static int execute(const uint8_t *content, size_t size, const uint8_t **result, size_t *result_size) {
  const float *x = (const float *)content;
  size_t i;
  for (i = 0; i < 16 && i < size / 4; ++i) outputs[i] = x[i] * x[i] + x[i];
  *result = (const uint8_t *)outputs;
  *result_size = sizeof outputs;
  return 0;
}

static uint64_t ticks(void) { return 0xFFFFFF - SYSTICK[2]; }

void start(void) {
  static const lowerdeck_board board = {"board_on_qemu", get, put, program, sizeof program, inputs, sizeof inputs, 0, execute,
                                        ticks, 25000000};
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
