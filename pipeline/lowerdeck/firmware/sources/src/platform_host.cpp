// A host as the board: lines go to standard output and come from standard input. On a device, link a source file of your own in its place.
#include "platform.h"

#include <chrono>
#include <cstdio>

#include "line_protocol.h"

extern "C" void lowerdeck_put(char character) {
  std::putchar(character);
  if (character == '\n') {
    std::fflush(stdout);
  }
}

extern "C" int lowerdeck_get(void) { return std::getchar(); }

extern "C" void lowerdeck_start_board(void) {}

extern "C" uint32_t lowerdeck_microseconds(void) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint32_t>(std::chrono::duration_cast<std::chrono::microseconds>(now).count());
}
