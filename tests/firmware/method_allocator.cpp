// Loads the method `forward` of a `.pte` with ExecuTorch's own runtime and prints the bytes that this took from the
// method allocator: what the estimate of metadata.json is held against.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

#include <executorch/extension/data_loader/file_data_loader.h>
#include <executorch/runtime/executor/method.h>
#include <executorch/runtime/executor/program.h>
#include <executorch/runtime/platform/runtime.h>

using namespace executorch::runtime;

namespace {

alignas(16) uint8_t pool[1 << 20];
alignas(16) uint8_t temporary[1 << 20];

struct Measuring : MemoryAllocator {
  Measuring() : MemoryAllocator(sizeof(pool), pool) {}

  void* allocate(size_t size, size_t alignment) override {
    uint8_t* start = static_cast<uint8_t*>(MemoryAllocator::allocate(size, alignment));
    used = std::max<size_t>(used, start + size - pool);
    return start;
  }

  size_t used = 0;
};

}  // namespace

int main(int, char** arguments) {
  runtime_init();
  auto loader = executorch::extension::FileDataLoader::from(arguments[1]);
  auto program = Program::load(&loader.get());
  auto meta = program->method_meta("forward");
  std::vector<std::vector<uint8_t>> buffers;
  for (size_t i = 0; i < meta->num_memory_planned_buffers(); ++i) {
    buffers.emplace_back(meta->memory_planned_buffer_size(i).get());
  }
  std::vector<Span<uint8_t>> spans;
  for (auto& buffer : buffers) {
    spans.push_back({buffer.data(), buffer.size()});
  }
  HierarchicalAllocator planned({spans.data(), spans.size()});
  Measuring method_allocator;
  MemoryAllocator temporary_allocator(sizeof(temporary), temporary);
  MemoryManager manager(&method_allocator, &planned, &temporary_allocator);
  auto method = program->load_method("forward", &manager);
  if (!method.ok()) {
    return 1;
  }
  std::printf("%zu\n", method_allocator.used);
  return 0;
}
