// Loads the program from its array, executes it on the test vector, and says in lines what it answered. Then it is the
// device `serial_board` of Lowerdeck: it executes the program on inputs that arrive. C++17.
#include "model_config.h"

// In a namespace and before other headers, so that the array may have the name of anything that they define.
namespace lowerdeck_program {
#include LOWERDECK_PROGRAM_HEADER
const unsigned char* const lowerdeck_content = LOWERDECK_PROGRAM;
}  // namespace lowerdeck_program

#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>

#include <executorch/extension/data_loader/buffer_data_loader.h>
#include <executorch/runtime/executor/method.h>
#include <executorch/runtime/executor/program.h>
#include <executorch/runtime/platform/runtime.h>

#include "line_protocol.h"
#include "lowerdeck_board.h"
#include "model.h"
#include "platform.h"
#include "postprocess.h"

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

constexpr size_t aligned(size_t size) { return (size + 15u) / 16u * 16u; }

// Room for input `index`, one after the other in their pool; null where there is none of that size.
uint8_t* input_at(uint32_t index, size_t bytes) {
  uint8_t* data = input_pool;
  for (uint32_t before = 0; before < index && before < LOWERDECK_NUM_INPUTS; before++) {
    data += aligned(lowerdeck_inputs[before].bytes);
  }
  return index < LOWERDECK_NUM_INPUTS && lowerdeck_inputs[index].bytes == bytes ? data : nullptr;
}

// The program and its method in the pools.
class Application {
 public:
  Application()
      : planned_({arenas_, kNumArenas}),
        method_allocator_(sizeof(method_pool), method_pool),
        temporary_allocator_(sizeof(temporary_pool), temporary_pool),
        memory_(&method_allocator_, &planned_, &temporary_allocator_),
        loader_(lowerdeck_program::lowerdeck_content, LOWERDECK_PROGRAM_BYTES) {
    uint8_t* arena = planned_pool;
    for (size_t index = 0; index < kNumArenas; index++) {
      arenas_[index] = Span<uint8_t>(arena, kArenaBytes[index]);
      arena += aligned(kArenaBytes[index]);
    }
  }

  // Loads the method, whose state is the initial one then; `failed` is the call that returned another error than Ok.
  Error load() {
    method_.reset();
    method_allocator_.reset();
    std::memset(planned_pool, 0, sizeof(planned_pool));
    if (!program_) {
      auto program = Program::load(&loader_);
      failed = "load_program";
      if (!program.ok()) {
        return program.error();
      }
      program_.emplace(std::move(program.get()));
    }
    auto method = program_->load_method(LOWERDECK_METHOD, &memory_);
    failed = "load_method";
    if (!method.ok()) {
      return method.error();
    }
    method_.emplace(std::move(method.get()));
    return Error::Ok;
  }

  Error execute() {
    failed = "set_input";
    for (uint32_t index = 0; index < LOWERDECK_NUM_INPUTS; index++) {
      Input input(lowerdeck_inputs[index], input_at(index, lowerdeck_inputs[index].bytes));
      const Error error = method_->set_input(input.tensor(), index);
      if (error != Error::Ok) {
        return error;
      }
    }
    failed = "execute";
    return method_->execute();
  }

  Tensor output(uint32_t index) const { return method_->get_output(index).toTensor(); }

  void say_memory() const {
    lowerdeck_say_memory("planned", sizeof(planned_pool), sizeof(planned_pool));
    lowerdeck_say_memory("method", method_allocator_.peak(), sizeof(method_pool));
    lowerdeck_say_memory("temporary", temporary_allocator_.peak(), sizeof(temporary_pool));
  }

  const char* failed = "";

 private:
  Span<uint8_t> arenas_[kNumArenas];
  HierarchicalAllocator planned_;
  Pool method_allocator_;
  Pool temporary_allocator_;
  MemoryManager memory_;
  executorch::extension::BufferDataLoader loader_;
  std::optional<Program> program_;
  std::optional<Method> method_;
};

Application* application = nullptr;

int fail(const char* where, Error error) {
  lowerdeck_say_error(where, static_cast<uint32_t>(error));
  return 1;
}

// Says output `index` and how far it is from the test vector's; returns whether it is near enough.
bool compare_output(uint32_t index) {
  const lowerdeck_tensor& description = lowerdeck_outputs[index];
  const Tensor output = application->output(index);
  const auto* data = static_cast<const uint8_t*>(output.const_data_ptr());
  if (output.nbytes() != description.bytes) {
    lowerdeck_say_error("output_bytes", static_cast<uint32_t>(output.nbytes()));
    return false;
  }
  lowerdeck_say_output(index, data, description.bytes);
  const lowerdeck_difference found = lowerdeck_compare(&description, data, lowerdeck_test_outputs[index]);
  lowerdeck_say_result(index, description.elements, found.equal, found.max_steps);
#if defined(LOWERDECK_IS_CLASSIFICATION) && LOWERDECK_NUM_CLASSES > 0
  if (index == LOWERDECK_TASK_OUTPUT && description.elements == LOWERDECK_NUM_CLASSES) {
    const uint32_t best = lowerdeck_argmax(&description, data);
    lowerdeck_say_class(best, lowerdeck_class_names[best]);
  }
#endif
  return found.max_steps <= LOWERDECK_TOLERATED_STEPS;
}

// The board's counter, which wraps around, in 64 bits.
uint64_t microseconds() {
  static uint64_t now = 0;
  now += static_cast<uint32_t>(lowerdeck_microseconds() - static_cast<uint32_t>(now));
  return now;
}

// Executes the test vector, as execution 0; returns what main does.
int run_test_vector() {
  for (uint32_t index = 0; index < LOWERDECK_NUM_INPUTS; index++) {
    const uint32_t bytes = lowerdeck_inputs[index].bytes;
    std::memcpy(input_at(index, bytes), lowerdeck_test_inputs[index], bytes);
  }
  const uint64_t began = microseconds();
  const Error error = application->execute();
  const uint64_t took = microseconds() - began;
  if (error != Error::Ok) {
    return fail(application->failed, error);
  }
  lowerdeck_say_time(0, took, 1000000u);
  application->say_memory();
  bool passed = true;
  for (uint32_t index = 0; index < LOWERDECK_NUM_OUTPUTS; index++) {
    passed = compare_output(index) && passed;
  }
  if (!passed) {
    lowerdeck_say_error("test_vector", 0);
    return 2;
  }
  lowerdeck_say_done(0, LOWERDECK_PROGRAM_SHA256, LOWERDECK_NUM_OUTPUTS);
  return 0;
}

lowerdeck_board board() {
  lowerdeck_board made = {};
  made.name = "lowerdeck_firmware";
  made.build_key = LOWERDECK_BUILD_KEY;
  made.program_sha256 = LOWERDECK_PROGRAM_SHA256;
  made.load = [](const uint8_t*, size_t) { return static_cast<int>(application->load()); };
  made.input = input_at;
  made.execute = [] { return static_cast<int>(application->execute()); };
  made.output = [](uint32_t index, size_t* bytes) -> const uint8_t* {
    if (index >= LOWERDECK_NUM_OUTPUTS) {
      return nullptr;
    }
    const Tensor output = application->output(index);
    *bytes = output.nbytes();
    return static_cast<const uint8_t*>(output.const_data_ptr());
  };
  made.ticks = microseconds;
  made.ticks_per_s = 1000000u;
  return made;
}

}  // namespace

int main() {
  lowerdeck_start_board();
  executorch::runtime::runtime_init();
  lowerdeck_say_hello("lowerdeck_firmware", LOWERDECK_BUILD_KEY, LOWERDECK_PROGRAM_SHA256, 0);
  static Application loaded;
  application = &loaded;
  const Error error = application->load();
  if (error != Error::Ok) {
    return fail(application->failed, error);
  }
  const int result = run_test_vector();
  const lowerdeck_board served = board();
  lowerdeck_serve(&served);
  return result;
}
