// Firmware in small, for the host: executes the program of model_pte.h on the file of its test vector, as the bundle's
// README says, and writes the first output to standard output.
#include <cstdint>
#include <cstdio>
#include <vector>

#include <executorch/extension/data_loader/buffer_data_loader.h>
#include <executorch/runtime/executor/method.h>
#include <executorch/runtime/executor/program.h>
#include <executorch/runtime/platform/runtime.h>

#include "model_pte.h"

using namespace executorch::runtime;

namespace {

alignas(16) uint8_t planned_memory[PLANNED_BYTES];
alignas(16) uint8_t method_pool[METHOD_ALLOCATOR_BYTES];
alignas(16) uint8_t temporary_pool[1 << 16];

}  // namespace

int main(int, char** arguments) {
  runtime_init();
  Span<uint8_t> buffer(planned_memory, sizeof(planned_memory));
  HierarchicalAllocator planned({&buffer, 1});
  MemoryAllocator method_allocator(sizeof(method_pool), method_pool);
  MemoryAllocator temporary_allocator(sizeof(temporary_pool), temporary_pool);
  MemoryManager memory_manager(&method_allocator, &planned, &temporary_allocator);

  executorch::extension::BufferDataLoader loader(model_pte, MODEL_PTE_SIZE_BYTES);
  auto program = executorch::runtime::Program::load(&loader);
  auto method = program->load_method("forward", &memory_manager);
  if (!method.ok()) {
    return 1;
  }

  auto input = method->method_meta().input_tensor_meta(0);
  std::vector<int32_t> sizes(input->sizes().begin(), input->sizes().end());
  std::vector<uint8_t> order(input->dim_order().begin(), input->dim_order().end()), content(input->nbytes());
  std::FILE* file = std::fopen(arguments[1], "rb");
  if (file == nullptr || std::fread(content.data(), 1, content.size() + 1, file) != content.size()) {
    return 2;
  }
  std::vector<int32_t> strides(sizes.size());
  int32_t step = 1;
  for (size_t i = sizes.size(); i-- > 0; step *= sizes[order[i]]) {
    strides[order[i]] = step;
  }
  executorch::aten::TensorImpl tensor(
      input->scalar_type(), sizes.size(), sizes.data(), content.data(), order.data(), strides.data());
  if (method->set_input(executorch::aten::Tensor(&tensor), 0) != Error::Ok || method->execute() != Error::Ok) {
    return 3;
  }
  const auto& output = method->get_output(0).toTensor();
  return std::fwrite(output.const_data_ptr(), 1, output.nbytes(), stdout) != output.nbytes();
}
