/* The serial board as a program of this machine: standard input and output are its port, and x * x + x its only program. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lowerdeck_board.h"

static uint8_t program[1 << 16], inputs[256];
static float outputs[16];
static const char *fault = "";
static int executions;

static int get(void) { return getchar(); }

static void put(int byte) {
  putchar(byte);
  if (byte == '\n') fflush(stdout);
}

static int load(const uint8_t *content, size_t size) { return size > 8 && !memcmp(content + 4, "ET12", 4) ? 0 : 35; }

static int execute(const uint8_t *content, size_t size, const uint8_t **result, size_t *result_size) {
  const float *x = (const float *)content;
  size_t i;
  ++executions;
  if (!strcmp(fault, "dies")) exit(3);
  if (!strcmp(fault, "hangs"))
    for (;;) getchar();
  if (!strcmp(fault, "nonsense")) printf("LD1 OUTPUT 1 64 abc\n");
  printf("log: execution %d\n", executions);
  for (i = 0; i < 16 && i < size / 4; ++i) outputs[i] = x[i] * x[i] + x[i];
  *result = (const uint8_t *)outputs;
  *result_size = strcmp(fault, "short") ? sizeof outputs : 8;
  return strcmp(fault, "error") ? 0 : 18;
}

static uint64_t ticks(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int main(int count, char **arguments) {
  lowerdeck_board board = {"board_on_host", get, put, program, sizeof program, inputs, sizeof inputs, load, execute, ticks,
                           1000000000u};
  if (count > 1) fault = arguments[1];
  printf("log: the board starts\n");
  fflush(stdout);
  lowerdeck_serve(&board);
  return 0;
}
