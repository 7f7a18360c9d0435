/* See lowerdeck_board.h. */
#include "lowerdeck_board.h"

#include "lowerdeck_sha256.h"

#define LINE_BYTES 160
#define DATA_BYTES 64

static void put_text(const lowerdeck_board *board, const char *text) {
  while (*text) board->put((unsigned char)*text++);
}

static void put_number(const lowerdeck_board *board, uint64_t number) {
  char digits[21];
  int place = 20;
  digits[place] = 0;
  do digits[--place] = (char)('0' + number % 10);
  while (number /= 10);
  put_text(board, " ");
  put_text(board, digits + place);
}

static void put_hex(const lowerdeck_board *board, const uint8_t *content, size_t size) {
  size_t i;
  for (i = 0; i < size; ++i) {
    board->put("0123456789abcdef"[content[i] >> 4]);
    board->put("0123456789abcdef"[content[i] & 15]);
  }
}

static void end_line(const lowerdeck_board *board) { put_text(board, "\n"); }

static void fail(const lowerdeck_board *board, const char *what, uint64_t number) {
  put_text(board, "LD1 ERROR ");
  put_text(board, what);
  put_number(board, number);
  end_line(board);
}

/* The next line without its end; 0 where there is none. What exceeds LINE_BYTES is cut. */
static int read_line(const lowerdeck_board *board, char *line) {
  size_t size = 0;
  for (;;) {
    int byte = board->get();
    if (byte < 0) return 0;
    if (byte == '\n') break;
    if (byte != '\r' && size < LINE_BYTES) line[size++] = (char)byte;
  }
  line[size] = 0;
  return 1;
}

/* Whether `*text` begins with `word` and a space or its end; `*text` is what follows then. */
static int takes(const char **text, const char *word) {
  const char *at = *text;
  while (*word)
    if (*at++ != *word++) return 0;
  if (*at && *at != ' ') return 0;
  *text = *at ? at + 1 : at;
  return 1;
}

static uint64_t take_number(const char **text) {
  uint64_t number = 0;
  while (**text >= '0' && **text <= '9') number = number * 10 + (uint64_t)(*(*text)++ - '0');
  if (**text == ' ') ++*text;
  return number;
}

static int hex_digit(char character) {
  if (character >= '0' && character <= '9') return character - '0';
  if (character >= 'a' && character <= 'f') return character - 'a' + 10;
  return -1;
}

/* Lines `:HEX`, each acknowledged with `+`, until `size` bytes are there; 0 where a line is something else. */
static int receive(const lowerdeck_board *board, uint8_t *content, size_t size) {
  char line[LINE_BYTES + 1];
  size_t have = 0;
  while (have < size) {
    size_t place = 1;
    if (!read_line(board, line) || line[0] != ':') return 0;
    for (; line[place] && have < size; place += 2) {
      int high = hex_digit(line[place]), low = line[place + 1] ? hex_digit(line[place + 1]) : -1;
      if (high < 0 || low < 0) return 0;
      content[have++] = (uint8_t)(high << 4 | low);
    }
    put_text(board, "+\n");
  }
  return 1;
}

static void send(const lowerdeck_board *board, const uint8_t *content, size_t size) {
  size_t place;
  for (place = 0; place < size; place += DATA_BYTES) {
    size_t left = size - place;
    put_text(board, ":");
    put_hex(board, content + place, left < DATA_BYTES ? left : DATA_BYTES);
    end_line(board);
  }
}

static void run(const lowerdeck_board *board, const char *arguments, size_t input_bytes, const char *program) {
  const uint8_t *outputs = 0;
  size_t output_bytes = 0;
  uint64_t id = take_number(&arguments), repetitions = take_number(&arguments), i;
  char digest[65];
  for (i = 0; i <= repetitions; ++i) { /* the first one gives the outputs, the others are timed */
    uint64_t start = board->ticks ? board->ticks() : 0;
    int error = board->execute(board->inputs, input_bytes, &outputs, &output_bytes);
    uint64_t end = board->ticks ? board->ticks() : 0;
    if (error) {
      fail(board, "execute", (uint64_t)(error < 0 ? -error : error));
      return;
    }
    if (i && board->ticks) {
      put_text(board, "LD1 TICKS");
      put_number(board, id);
      put_number(board, end - start);
      put_number(board, board->ticks_per_s);
      end_line(board);
    }
  }
  lowerdeck_sha256(outputs, output_bytes, digest);
  put_text(board, "LD1 OUTPUT");
  put_number(board, id);
  put_number(board, output_bytes);
  put_text(board, " ");
  put_text(board, digest);
  end_line(board);
  send(board, outputs, output_bytes);
  put_text(board, "LD1 DONE");
  put_number(board, id);
  put_text(board, " ");
  put_text(board, program);
  end_line(board);
}

void lowerdeck_serve(const lowerdeck_board *board) {
  char line[LINE_BYTES + 1], program[65] = "-", digest[65];
  size_t input_bytes = 0;
  while (read_line(board, line)) {
    const char *text = line;
    if (!takes(&text, "LD1")) continue;
    if (takes(&text, "HELLO")) {
      put_text(board, "LD1 BOARD ");
      put_text(board, board->name);
      put_number(board, board->program_capacity);
      put_number(board, board->inputs_capacity);
      put_text(board, " ");
      put_text(board, program);
      end_line(board);
    } else if (takes(&text, "PROGRAM") || takes(&text, "INPUTS")) {
      int is_program = line[4] == 'P';
      uint8_t *content = is_program ? board->program : board->inputs;
      uint64_t size = take_number(&text), capacity = is_program ? board->program_capacity : board->inputs_capacity;
      int error = 0;
      if (size > capacity) {
        fail(board, is_program ? "program_capacity" : "inputs_capacity", capacity);
        continue;
      }
      if (is_program) memcpy(program, "-", 2);
      if (!receive(board, content, (size_t)size)) {
        fail(board, "line", size);
        continue;
      }
      lowerdeck_sha256(content, (size_t)size, digest);
      if (is_program && board->load) error = board->load(content, (size_t)size);
      if (error) {
        fail(board, "load", (uint64_t)(error < 0 ? -error : error));
        continue;
      }
      if (is_program) memcpy(program, digest, sizeof program);
      else input_bytes = (size_t)size;
      put_text(board, "LD1 OK ");
      put_text(board, digest);
      end_line(board);
    } else if (takes(&text, "RUN")) {
      if (program[0] == '-') fail(board, "program", 0);
      else run(board, text, input_bytes, program);
    }
  }
}
