/* The serial board as a program of this machine: standard input and output are its port, and x * x + x its only program. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "line_protocol.h"
#include "lowerdeck_board.h"

static uint8_t program[1 << 16];
static float inputs[16], outputs[16];
static const char *fault = "";
static int executions, since_load;
static long received;
static int acknowledgements, faulty; /* how many were said, and the number of the one that is late or damaged */

static int is_fault(const char *name) { return strcmp(fault, name) == 0; }

int lowerdeck_get(void) {
  int character = getchar();
  received++;
  if (is_fault("loses") && received % 1009 == 0) character = getchar();
  if (is_fault("damages") && received % 997 == 0 && character >= 0) character ^= 1;
  return character;
}

void lowerdeck_put(char character) {
  static char line[8];
  static size_t count;
  if (count < sizeof line) line[count] = character;
  if (++count == sizeof line && !memcmp(line, "LD ack o", sizeof line) && (is_fault("slow") || acknowledgements++ == faulty)) {
    const struct timespec pause = {0, is_fault("slow") ? 100000000 : 450000000};
    if (is_fault("slow") || is_fault("late")) nanosleep(&pause, NULL);
    if (is_fault("damaged")) character ^= 1;
  }
  if (character == '\n') count = 0;
  putchar(character);
  if (character == '\n') fflush(stdout);
}

static int load(const uint8_t *content, size_t size) {
  since_load = 0;
  return size > 8 && !memcmp(content + 4, "ET12", 4) ? 0 : 35;
}

static uint8_t *input(uint32_t index, size_t bytes) {
  return index == 0 && bytes == sizeof inputs ? (uint8_t *)inputs : NULL;
}

static int execute(void) {
  ++executions;
  if (is_fault("dies")) exit(3);
  if (is_fault("hangs"))
    for (;;) getchar();
  if (is_fault("nonsense")) lowerdeck_say_output(0, (const uint8_t *)"old", 3);
  printf("log: execution %d\n", executions);
  for (int i = 0; i < 16; ++i) outputs[i] = inputs[i] * inputs[i] + inputs[i] + (is_fault("counts") ? since_load : 0);
  ++since_load;
  return is_fault("error") ? 18 : 0;
}

static const uint8_t *output(uint32_t index, size_t *bytes) {
  *bytes = index == 1 ? 0 : is_fault("short") ? 8 : sizeof outputs;
  return index == 0 || (index == 1 && is_fault("empty")) ? (const uint8_t *)outputs : NULL;
}

static uint64_t ticks(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int main(int count, char **arguments) {
  lowerdeck_board board = {0};
  board.name = "board_on_host";
  board.build_key = "";
  board.program = program;
  board.program_room = sizeof program;
  board.load = load;
  board.input = input;
  board.execute = execute;
  board.output = output;
  board.ticks = ticks;
  board.ticks_per_s = 1000000000u;
  if (count > 1) fault = arguments[1];
  if (count > 2) faulty = atoi(arguments[2]);
  if (is_fault("built_in")) {
    board.program = NULL;
    board.program_room = 0;
    board.program_sha256 = "1234567890abcdef1234567890abcdef1234567890abcdef1234567890abcdef";
  }
  printf("log: the board starts\n");
  fflush(stdout);
  lowerdeck_serve(&board);
  return 0;
}
