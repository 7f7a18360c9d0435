/* See line_protocol.h. */
#include "line_protocol.h"

#include <string.h>

static const size_t bytes_per_line = 64;

static uint16_t line_crc;

uint16_t lowerdeck_crc16(uint16_t crc, const char *text, size_t count) {
  for (size_t i = 0; i < count; i++) {
    crc = (uint16_t)(crc ^ (uint16_t)((uint16_t)(uint8_t)text[i] << 8));
    for (int bit = 0; bit < 8; bit++) {
      crc = (uint16_t)((crc & 0x8000u) ? ((uint32_t)crc << 1) ^ 0x1021u : (uint32_t)crc << 1);
    }
  }
  return crc;
}

static void raw(const char *text) {
  for (; *text != '\0'; text++) {
    lowerdeck_put(*text);
  }
}

static void put(char character) {
  line_crc = lowerdeck_crc16(line_crc, &character, 1);
  lowerdeck_put(character);
}

static void literal(const char *text) {
  for (; *text != '\0'; text++) {
    put(*text);
  }
}

static char hex_digit(uint32_t value) { return "0123456789abcdef"[value & 15u]; }

static void begin(const char *verb) {
  line_crc = 0xFFFFu;
  raw("LD ");
  literal(verb);
}

static void name_of_field(const char *name) {
  put(' ');
  literal(name);
  put('=');
}

static void field(const char *name, uint64_t value) {
  char digits[20];
  int count = 0;
  name_of_field(name);
  do {
    digits[count++] = (char)('0' + value % 10u);
    value /= 10u;
  } while (value != 0u);
  while (count > 0) {
    put(digits[--count]);
  }
}

static void text_field(const char *name, const char *value) {
  name_of_field(name);
  literal(*value == '\0' ? "-" : "");
  for (; *value != '\0'; value++) {
    /* A space would end the field, and a control character the line. */
    put(*value > ' ' && *value < 127 ? *value : '_');
  }
}

static void end(void) {
  const uint32_t crc = line_crc;
  raw(" *");
  for (int shift = 12; shift >= 0; shift -= 4) {
    lowerdeck_put(hex_digit(crc >> shift));
  }
  raw("\r\n");
}

void lowerdeck_say_hello(const char *name, const char *build_key, const char *program_sha256, uint32_t program_room) {
  begin("hello 2");
  text_field("name", name);
  text_field("key", build_key);
  text_field("program", program_sha256);
  field("program_room", program_room);
  end();
}

void lowerdeck_say_ack(uint32_t offset) {
  begin("ack");
  field("offset", offset);
  end();
}

void lowerdeck_say_ok(const char *program_sha256) {
  begin("ok");
  text_field("program", program_sha256);
  end();
}

void lowerdeck_say_time(uint32_t id, uint64_t ticks, uint64_t ticks_per_s) {
  begin("time");
  field("id", id);
  field("ticks", ticks);
  field("per_second", ticks_per_s);
  end();
}

void lowerdeck_say_memory(const char *name, uint32_t used_bytes, uint32_t size_bytes) {
  begin("memory");
  text_field("name", name);
  field("used", used_bytes);
  field("size", size_bytes);
  end();
}

void lowerdeck_say_output(uint32_t index, const uint8_t *bytes, size_t count) {
  for (size_t offset = 0; offset < count; offset += bytes_per_line) {
    const size_t here = count - offset < bytes_per_line ? count - offset : bytes_per_line;
    begin("output");
    field("index", index);
    field("offset", offset);
    name_of_field("data");
    for (size_t i = 0; i < here; i++) {
      put(hex_digit((uint32_t)bytes[offset + i] >> 4));
      put(hex_digit(bytes[offset + i]));
    }
    end();
  }
}

void lowerdeck_say_result(uint32_t index, uint32_t elements, uint32_t equal, uint32_t max_steps) {
  begin("result");
  field("index", index);
  field("elements", elements);
  field("equal", equal);
  field("max_steps", max_steps);
  end();
}

void lowerdeck_say_class(uint32_t index, const char *name) {
  begin("class");
  field("index", index);
  text_field("name", name);
  end();
}

void lowerdeck_say_done(uint32_t id, const char *program_sha256, uint32_t outputs) {
  begin("done");
  field("id", id);
  text_field("program", program_sha256);
  field("outputs", outputs);
  end();
}

void lowerdeck_say_error(const char *where, uint32_t code) {
  begin("error");
  text_field("where", where);
  field("code", code);
  end();
}

static int value_of_digit(char character) {
  if (character >= '0' && character <= '9') {
    return character - '0';
  }
  return character >= 'a' && character <= 'f' ? character - 'a' + 10 : -1;
}

/* Whether `line` ends with " *" and the CRC of `count` characters from its fourth on. */
static int has_crc(const char *line, size_t size, size_t count) {
  uint32_t stated = 0;
  for (size_t i = size - 4; i < size; i++) {
    const int value = value_of_digit(line[i]);
    if (value < 0) {
      return 0;
    }
    stated = stated << 4 | (uint32_t)value;
  }
  return line[size - 6] == ' ' && line[size - 5] == '*' && stated == lowerdeck_crc16(0xFFFFu, line + 3, count);
}

int lowerdeck_read_line(char line[LOWERDECK_LINE_BYTES]) {
  size_t size = 0;
  int is_cut = 0;
  for (;;) {
    const int character = lowerdeck_get();
    if (character < 0) {
      return LOWERDECK_NO_LINE;
    }
    if (character == '\n') {
      break;
    }
    if (character != '\r' && size == LOWERDECK_LINE_BYTES - 1) {
      is_cut = 1;
    } else if (character != '\r') {
      line[size++] = (char)character;
    }
  }
  line[size] = '\0';
  if (strncmp(line, "LD ", 3) != 0) {
    return LOWERDECK_OTHER_LINE;
  }
  if (is_cut || size < 10 || !has_crc(line, size, size - 9)) {
    return LOWERDECK_DAMAGED_LINE;
  }
  memmove(line, line + 3, size - 9);
  line[size - 9] = '\0';
  return LOWERDECK_LINE;
}

int lowerdeck_has_verb(const char *line, const char *verb) {
  const size_t count = strlen(verb);
  return strncmp(line, verb, count) == 0 && (line[count] == ' ' || line[count] == '\0');
}

const char *lowerdeck_field(const char *line, const char *name) {
  const size_t count = strlen(name);
  for (const char *at = strchr(line, ' '); at != NULL; at = strchr(at, ' ')) {
    at++;
    if (strncmp(at, name, count) == 0 && at[count] == '=') {
      return at + count + 1;
    }
  }
  return NULL;
}

uint32_t lowerdeck_number(const char *line, const char *name) {
  const char *at = lowerdeck_field(line, name);
  uint32_t number = 0;
  for (; at != NULL && *at >= '0' && *at <= '9'; at++) {
    number = number * 10u + (uint32_t)(*at - '0');
  }
  return number;
}

int lowerdeck_bytes(const char *line, const char *name, uint8_t *bytes, size_t room) {
  const char *at = lowerdeck_field(line, name);
  int count = 0;
  for (; at != NULL && *at != ' ' && *at != '\0'; at += 2) {
    const int high = value_of_digit(at[0]), low = high < 0 ? -1 : value_of_digit(at[1]);
    if (low < 0 || (size_t)count == room) {
      return -1;
    }
    bytes[count++] = (uint8_t)(high << 4 | low);
  }
  return at == NULL ? -1 : count;
}
