/* See lowerdeck_board.h. */
#include "lowerdeck_board.h"

#include "line_protocol.h"
#include "lowerdeck_sha256.h"

/* What the board has, and the content that it is receiving: `have` of `wanted` bytes at `content`. */
typedef struct {
  char program[65];
  size_t program_bytes;
  uint8_t *content;
  uint32_t have, wanted;
  int is_program;
} session;

static uint32_t code_of(int error) { return (uint32_t)(error < 0 ? -error : error); }

static void load(const lowerdeck_board *board, session *now) {
  const int error = board->load ? board->load(board->program, now->program_bytes) : 0;
  if (error) {
    memcpy(now->program, "-", 2);
    lowerdeck_say_error("load", code_of(error));
    return;
  }
  if (board->program) lowerdeck_sha256(board->program, now->program_bytes, now->program);
  lowerdeck_say_ok(now->program);
}

static void finish(const lowerdeck_board *board, session *now) {
  now->content = NULL;
  if (!now->is_program) {
    lowerdeck_say_ok(now->program);
    return;
  }
  now->program_bytes = now->have;
  load(board, now);
}

static void receive(const lowerdeck_board *board, session *now, const char *line) {
  const uint32_t wanted = lowerdeck_number(line, "bytes"), index = lowerdeck_number(line, "index");
  now->is_program = lowerdeck_has_verb(line, "program");
  if (now->is_program && wanted > board->program_room) {
    lowerdeck_say_error("program_room", board->program_room);
    return;
  }
  if (now->is_program) memcpy(now->program, "-", 2);
  now->content = now->is_program ? board->program : board->input(index, wanted);
  if (now->content == NULL) {
    lowerdeck_say_error("input", index);
    return;
  }
  now->have = 0;
  now->wanted = wanted;
  lowerdeck_say_ack(0);
  if (wanted == 0) finish(board, now);
}

/* Takes the line's content where it is what comes next, and says what does. */
static void take(const lowerdeck_board *board, session *now, const char *line) {
  if (lowerdeck_number(line, "offset") == now->have) {
    const int count = lowerdeck_bytes(line, "data", now->content + now->have, now->wanted - now->have);
    if (count > 0) now->have += (uint32_t)count;
  }
  lowerdeck_say_ack(now->have);
  if (now->have == now->wanted) finish(board, now);
}

static void run(const lowerdeck_board *board, const session *now, uint32_t id, uint32_t repetitions) {
  const uint8_t *output;
  uint32_t index = 0;
  size_t bytes = 0;
  for (uint32_t i = 0; i <= repetitions; i++) { /* the first one gives the outputs where nothing is timed */
    const uint64_t start = board->ticks ? board->ticks() : 0;
    const int error = board->execute();
    const uint64_t end = board->ticks ? board->ticks() : 0;
    if (error) {
      lowerdeck_say_error("execute", code_of(error));
      return;
    }
    if (i && board->ticks) lowerdeck_say_time(id, end - start, board->ticks_per_s);
  }
  while ((output = board->output(index, &bytes)) != NULL) lowerdeck_say_output(index++, output, bytes);
  lowerdeck_say_done(id, now->program, index);
}

static void answer(const lowerdeck_board *board, session *now, const char *line) {
  if (now->content && lowerdeck_has_verb(line, "data")) {
    take(board, now, line);
    return;
  }
  now->content = NULL;
  if (lowerdeck_has_verb(line, "hello")) {
    lowerdeck_say_hello(board->name, board->build_key, now->program, board->program_room);
  } else if (lowerdeck_has_verb(line, "program")) {
    receive(board, now, line);
  } else if (lowerdeck_has_verb(line, "data")) {
    lowerdeck_say_error("line", 0);
  } else if (now->program[0] == '-') {
    lowerdeck_say_error("program", 0);
  } else if (lowerdeck_has_verb(line, "input")) {
    receive(board, now, line);
  } else if (lowerdeck_has_verb(line, "reset")) {
    load(board, now);
  } else if (lowerdeck_has_verb(line, "run")) {
    run(board, now, lowerdeck_number(line, "id"), lowerdeck_number(line, "repetitions"));
  } else {
    lowerdeck_say_error("verb", 0);
  }
}

void lowerdeck_serve(const lowerdeck_board *board) {
  char line[LOWERDECK_LINE_BYTES];
  session now = {"-", 0, NULL, 0, 0, 0};
  int kind;
  if (board->program_sha256) strncpy(now.program, board->program_sha256, sizeof now.program - 1);
  while ((kind = lowerdeck_read_line(line)) != LOWERDECK_NO_LINE) {
    if (kind == LOWERDECK_LINE) answer(board, &now, line);
    else if (kind == LOWERDECK_DAMAGED_LINE && now.content) lowerdeck_say_ack(now.have);
    else if (kind == LOWERDECK_DAMAGED_LINE) lowerdeck_say_error("line", 0);
  }
}
