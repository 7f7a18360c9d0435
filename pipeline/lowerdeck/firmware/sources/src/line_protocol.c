/* Writes the lines that line_protocol.h describes; no buffer, no heap, no printf. */
#include "line_protocol.h"

static const size_t bytes_per_line = 32;

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

static void word(const char *text) {
  for (; *text != '\0'; text++) {
    /* A space would end the field, and a control character the line. */
    put(*text > ' ' && *text < 127 ? *text : '_');
  }
}

static void literal(const char *text) {
  for (; *text != '\0'; text++) {
    put(*text);
  }
}

static char hex_digit(uint32_t value) { return "0123456789abcdef"[value & 15u]; }

static void number(uint32_t value) {
  char digits[10];
  int count = 0;
  do {
    digits[count++] = (char)('0' + value % 10u);
    value /= 10u;
  } while (value != 0u);
  while (count > 0) {
    put(digits[--count]);
  }
}

static void begin(const char *verb) {
  line_crc = 0xFFFFu;
  raw("LD ");
  literal(verb);
}

static void field(const char *name, uint32_t value) {
  put(' ');
  literal(name);
  put('=');
  number(value);
}

static void text_field(const char *name, const char *value) {
  put(' ');
  literal(name);
  put('=');
  word(value);
}

static void end(void) {
  const uint32_t crc = line_crc;
  raw(" *");
  for (int shift = 12; shift >= 0; shift -= 4) {
    lowerdeck_put(hex_digit(crc >> shift));
  }
  raw("\r\n");
}

void lowerdeck_say_hello(const char *build_key, const char *program_sha256, uint32_t inputs, uint32_t outputs) {
  begin("hello 1");
  text_field("key", build_key);
  text_field("program", program_sha256);
  field("inputs", inputs);
  field("outputs", outputs);
  end();
}

void lowerdeck_say_memory(const char *name, uint32_t used_bytes, uint32_t size_bytes) {
  begin("memory");
  text_field("name", name);
  field("used", used_bytes);
  field("size", size_bytes);
  end();
}

void lowerdeck_say_time(uint32_t microseconds) {
  begin("time");
  field("us", microseconds);
  end();
}

void lowerdeck_say_output(uint32_t index, const uint8_t *bytes, size_t count) {
  for (size_t offset = 0; offset < count; offset += bytes_per_line) {
    const size_t here = count - offset < bytes_per_line ? count - offset : bytes_per_line;
    begin("output");
    field("index", index);
    field("offset", (uint32_t)offset);
    literal(" data=");
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

void lowerdeck_say_passed(void) {
  begin("done passed");
  end();
}

void lowerdeck_say_failed(const char *where, uint32_t code) {
  begin("done failed");
  text_field("where", where);
  field("code", code);
  end();
}
