// Loads the program from its array, executes it on the test vector, and says in lines what it answered. C++17.
#include <cstdint>
#include <cstring>

#include <executorch/extension/data_loader/buffer_data_loader.h>
#include <executorch/runtime/executor/method.h>
#include <executorch/runtime/executor/program.h>
#include <executorch/runtime/platform/runtime.h>

#include "line_protocol.h"
#include "model.h"
#include "platform.h"
#include "postprocess.h"
#include LOWERDECK_PROGRAM_HEADER

using executorch::aten::ScalarType;
using executorch::aten::Tensor;
using executorch::aten::TensorImpl;
using executorch::runtime::Error;
using executorch::runtime::HierarchicalAllocator;
using executorch::runtime::MemoryAllocator;
using executorch::runtime::MemoryManager;
using executorch::runtime::Method;
using executorch::runtime::Program;
using executorch::runtime::Span;

namespace {

// The pools of model_config.h; a linker script may place each of them in a memory of its own.
alignas(16) uint8_t planned_pool[LOWERDECK_PLANNED_POOL_BYTES];
alignas(16) uint8_t method_pool[LOWERDECK_METHOD_POOL_BYTES];
alignas(16) uint8_t temporary_pool[LOWERDECK_TEMPORARY_POOL_BYTES];
alignas(16) uint8_t input_pool[LOWERDECK_INPUT_POOL_BYTES];
constexpr uint32_t kArenaBytes[] = LOWERDECK_ARENA_BYTES;
constexpr size_t kNumArenas = sizeof(kArenaBytes) / sizeof(kArenaBytes[0]);

// Memory allocator that remembers how much was taken at most.
class Pool : public MemoryAllocator {
 public:
  Pool(uint32_t size, uint8_t* base) : MemoryAllocator(size, base) {}

  void* allocate(size_t size, size_t alignment = kDefaultAlignment) override {
    void* found = MemoryAllocator::allocate(size, alignment);
    if (found != nullptr) {
      const auto end = static_cast<uint32_t>(static_cast<uint8_t*>(found) - base_address() + size);
      peak_ = end > peak_ ? end : peak_;
    }
    return found;
  }

  uint32_t peak() const { return peak_; }

 private:
  uint32_t peak_ = 0;
};

int fail(const char* where, Error error) {
  lowerdeck_say_failed(where, static_cast<uint32_t>(error));
  return 1;
}

// A tensor over `data` with the sizes and the memory order of `description`.
class Input {
 public:
  Input(const lowerdeck_tensor& description, uint8_t* data)
      : impl_(
            static_cast<ScalarType>(description.type),
            description.dimensions,
            filled(description),
            data,
            order_,
            strides_) {}

  Tensor tensor() { return Tensor(&impl_); }

 private:
  int32_t* filled(const lowerdeck_tensor& description) {
    int32_t step = 1;
    for (int32_t place = description.dimensions - 1; place >= 0; place--) {
      order_[place] = description.order[place];
      sizes_[place] = description.sizes[place];
      strides_[description.order[place]] = step;
      step *= description.sizes[description.order[place]];
    }
    return sizes_;
  }

  int32_t sizes_[LOWERDECK_MAX_DIMENSIONS] = {};
  int32_t strides_[LOWERDECK_MAX_DIMENSIONS] = {};
  uint8_t order_[LOWERDECK_MAX_DIMENSIONS] = {};
  TensorImpl impl_;
};

Error set_test_inputs(Method& method) {
  uint8_t* data = input_pool;
  for (uint32_t index = 0; index < LOWERDECK_NUM_INPUTS; index++) {
    const lowerdeck_tensor& description = lowerdeck_inputs[index];
    std::memcpy(data, lowerdeck_test_inputs[index], description.bytes);
    Input input(description, data);
    const Error error = method.set_input(input.tensor(), index);
    if (error != Error::Ok) {
      return error;
    }
    data += (description.bytes + 15u) / 16u * 16u;
  }
  return Error::Ok;
}

bool say_outputs(Method& method) {
  bool passed = true;
  for (uint32_t index = 0; index < LOWERDECK_NUM_OUTPUTS; index++) {
    const lowerdeck_tensor& description = lowerdeck_outputs[index];
    const Tensor output = method.get_output(index).toTensor();
    const auto* data = static_cast<const uint8_t*>(output.const_data_ptr());
    if (output.nbytes() != description.bytes) {
      lowerdeck_say_failed("output_bytes", static_cast<uint32_t>(output.nbytes()));
      return false;
    }
    lowerdeck_say_output(index, data, description.bytes);
    const lowerdeck_difference found = lowerdeck_compare(&description, data, lowerdeck_test_outputs[index]);
    lowerdeck_say_result(index, description.elements, found.equal, found.max_steps);
    passed = passed && found.max_steps <= LOWERDECK_TOLERATED_STEPS;
#if LOWERDECK_NUM_CLASSES > 0
    if (index == 0 && description.elements == LOWERDECK_NUM_CLASSES) {
      const uint32_t best = lowerdeck_argmax(&description, data);
      lowerdeck_say_class(best, lowerdeck_class_names[best]);
    }
#endif
  }
  return passed;
}

}  // namespace

int main() {
  lowerdeck_start_board();
  executorch::runtime::runtime_init();
  lowerdeck_say_hello(LOWERDECK_BUILD_KEY, LOWERDECK_PROGRAM_SHA256, LOWERDECK_NUM_INPUTS, LOWERDECK_NUM_OUTPUTS);

  Span<uint8_t> arenas[kNumArenas];
  uint8_t* arena = planned_pool;
  for (size_t index = 0; index < kNumArenas; index++) {
    arenas[index] = Span<uint8_t>(arena, kArenaBytes[index]);
    arena += (kArenaBytes[index] + 15u) / 16u * 16u;
  }
  HierarchicalAllocator planned({arenas, kNumArenas});
  Pool method_allocator(sizeof(method_pool), method_pool);
  Pool temporary_allocator(sizeof(temporary_pool), temporary_pool);
  MemoryManager memory(&method_allocator, &planned, &temporary_allocator);

  executorch::extension::BufferDataLoader loader(LOWERDECK_PROGRAM, LOWERDECK_PROGRAM_BYTES);
  auto program = Program::load(&loader);
  if (!program.ok()) {
    return fail("load_program", program.error());
  }
  auto method = program->load_method(LOWERDECK_METHOD, &memory);
  if (!method.ok()) {
    return fail("load_method", method.error());
  }
  Error error = set_test_inputs(*method);
  if (error != Error::Ok) {
    return fail("set_input", error);
  }
  const uint32_t began = lowerdeck_microseconds();
  error = method->execute();
  const uint32_t took = lowerdeck_microseconds() - began;
  if (error != Error::Ok) {
    return fail("execute", error);
  }
  lowerdeck_say_time(took);
  lowerdeck_say_memory("planned", sizeof(planned_pool), sizeof(planned_pool));
  lowerdeck_say_memory("method", method_allocator.peak(), sizeof(method_pool));
  lowerdeck_say_memory("temporary", temporary_allocator.peak(), sizeof(temporary_pool));
  if (!say_outputs(*method)) {
    lowerdeck_say_failed("test_vector", 0);
    return 2;
  }
  lowerdeck_say_passed();
  return 0;
}
