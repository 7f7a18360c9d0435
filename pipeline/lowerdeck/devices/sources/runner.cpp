// Executes a program on a Linux board with ExecuTorch's C++ runtime: what wheel_runner.py does with Python.
//
// Standard input: a line of numbers (see devices/native.py), the `.pte`, then for every sample and input a line with its
// scalar type, sizes and order of dimensions, and its bytes. Standard output: a line of JSON, the outputs of all samples,
// the ETDump. The exit code is 1, with a message on standard error, where the runtime reports an error.

#include <unistd.h>

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <executorch/devtools/etdump/etdump_flatcc.h>
#include <executorch/extension/data_loader/buffer_data_loader.h>
#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor_ptr.h>

#include "lowerdeck_sha256.h"

// In the wheel's library, but not among its headers (executorch/extension/threadpool/threadpool.h of 1.5).
namespace executorch::extension::threadpool {
class ThreadPool {
 public:
  bool _unsafe_reset_threadpool(uint32_t num_threads);
};
ThreadPool* get_threadpool();
}  // namespace executorch::extension::threadpool

using executorch::aten::ScalarType;
using executorch::extension::BufferDataLoader;
using executorch::extension::Module;
using executorch::extension::TensorPtr;
using executorch::runtime::EValue;

namespace {

struct Free {
  void operator()(char* memory) const { std::free(memory); }
};
using Bytes = std::unique_ptr<char, Free>;

struct Sample {
  std::vector<Bytes> contents;
  std::vector<TensorPtr> tensors;
  std::vector<EValue> values;
};

[[noreturn]] void fail(const std::string& message) {
  std::fprintf(stderr, "%s\n", message.c_str());
  std::exit(1);
}

std::string read_line() {
  std::string line;
  for (int character; (character = std::getchar()) != '\n';) {
    if (character == EOF) fail("the request is cut");
    line.push_back(static_cast<char>(character));
  }
  return line;
}

// Aligned as the runtime wants programs and tensors.
Bytes read_bytes(size_t size) {
  Bytes content(static_cast<char*>(std::aligned_alloc(64, size / 64 * 64 + 64)));
  if (!content) fail("there is no memory for " + std::to_string(size) + " bytes");
  if (std::fread(content.get(), 1, size, stdin) != size) fail("the request is cut");
  return content;
}

Sample read_sample(size_t num_inputs) {
  Sample sample;
  for (size_t index = 0; index < num_inputs; ++index) {
    std::istringstream line(read_line());
    int type, dimensions;
    size_t size;
    line >> type >> size >> dimensions;
    std::vector<executorch::aten::SizesType> sizes(dimensions);
    std::vector<executorch::aten::DimOrderType> order(dimensions);
    for (auto& each : sizes) line >> each;
    for (auto& each : order) {
      int dimension;
      line >> dimension;
      each = static_cast<executorch::aten::DimOrderType>(dimension);
    }
    sample.contents.push_back(read_bytes(size));
    sample.tensors.push_back(executorch::extension::make_tensor_ptr(
        sizes, sample.contents.back().get(), order, {}, static_cast<ScalarType>(type)));
    sample.values.emplace_back(sample.tensors.back());
  }
  return sample;
}

const char* name_of(ScalarType type) {
  switch (type) {
    case ScalarType::Byte: return "uint8";
    case ScalarType::Char: return "int8";
    case ScalarType::Short: return "int16";
    case ScalarType::Int: return "int32";
    case ScalarType::Long: return "int64";
    case ScalarType::Half: return "float16";
    case ScalarType::Float: return "float32";
    case ScalarType::Double: return "float64";
    case ScalarType::Bool: return "bool";
    case ScalarType::BFloat16: return "bfloat16";
    default: fail("an output has scalar type " + std::to_string(static_cast<int>(type)));
  }
}

// The kernel's high-water mark of resident memory in bytes, -1 where it does not tell.
long long peak_memory(bool reset) {
  if (reset) std::ofstream("/proc/self/clear_refs") << "5";
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind("VmHWM:", 0) == 0) return 1024 * std::atoll(line.c_str() + 6);
  return -1;
}

std::vector<EValue> forward(Module& module, const Sample& sample) {
  auto result = module.execute("forward", sample.values);
  if (!result.ok()) fail("ExecuTorch's error " + std::to_string(static_cast<int>(result.error())) + " in forward");
  return result.get();
}

}  // namespace

int main() {
  // Libraries print to standard output; the answer goes where it led, and everything else to standard error.
  std::FILE* answer = fdopen(dup(1), "wb");
  dup2(2, 1);
  size_t program_bytes, num_samples, num_inputs;
  int warm_up, repetitions, profile, keeps_state, num_threads;
  std::istringstream head(read_line());
  head >> program_bytes >> num_samples >> num_inputs >> warm_up >> repetitions >> profile >> keeps_state >> num_threads;
  if (!head) fail("the request is of another version of lowerdeck; compile the runner again");
  auto program = read_bytes(program_bytes);
  char digest[65];
  lowerdeck_sha256(program.get(), program_bytes, digest);
  std::vector<Sample> samples;
  for (size_t index = 0; index < num_samples; ++index) samples.push_back(read_sample(num_inputs));
  executorch::extension::threadpool::get_threadpool()->_unsafe_reset_threadpool(num_threads);
  auto load = [&](executorch::etdump::ETDumpGen* tracer = nullptr) {
    return std::make_unique<Module>(
        std::make_unique<BufferDataLoader>(program.get(), program_bytes), nullptr, nullptr,
        std::unique_ptr<executorch::runtime::EventTracer>(tracer));
  };

  std::ostringstream outputs, contents;
  long long before = peak_memory(true);
  auto module = load();
  for (size_t index = 0; index < num_samples; ++index) {
    if (index && keeps_state) module = load();
    outputs << (index ? ",[" : "[");
    const char* separator = "";
    for (const EValue& value : forward(*module, samples[index])) {
      if (!value.isTensor()) fail("an output is no tensor");
      const auto tensor = value.toTensor();
      outputs << separator << "{\"dtype\":\"" << name_of(tensor.scalar_type()) << "\",\"bytes\":" << tensor.nbytes()
              << ",\"shape\":[";
      for (ssize_t dim = 0; dim < tensor.dim(); ++dim) outputs << (dim ? "," : "") << tensor.size(dim);
      outputs << "]}";
      contents.write(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
      separator = ",";
    }
    outputs << "]";
  }
  long long after = peak_memory(false);
  std::ostringstream latencies;
  if (num_samples && repetitions) {
    for (int index = 0; index < warm_up; ++index) forward(*module, samples[0]);
    for (int index = 0; index < repetitions; ++index) {
      auto start = std::chrono::steady_clock::now();
      forward(*module, samples[0]);
      auto end = std::chrono::steady_clock::now();
      latencies << (index ? "," : "") << std::chrono::duration_cast<std::chrono::nanoseconds>(end - start).count();
    }
  }
  std::string etdump;
  if (num_samples && profile) {  // executions of their own: writing events down takes time
    auto* tracer = new executorch::etdump::ETDumpGen();
    auto profiled = load(tracer);
    for (int index = 0; index < (repetitions > 1 ? repetitions : 1); ++index) forward(*profiled, samples[0]);
    auto dumped = tracer->get_etdump_data();
    etdump.assign(static_cast<const char*>(dumped.buf), dumped.size);
    std::free(dumped.buf);
  }
  std::fprintf(answer, "{\"outputs\":[%s],\"latencies_ns\":[%s],\"metrics\":{", outputs.str().c_str(),
               latencies.str().c_str());
  if (before >= 0 && after >= 0) std::fprintf(answer, "\"peak_process_memory_bytes\":%lld", after - before);
  std::fprintf(answer, "},\"program_sha256\":\"%s\",\"runtime\":\"a compiled runner of ExecuTorch\",\"etdump_bytes\":%zu}\n",
               digest, etdump.size());
  const std::string all = contents.str() + etdump;
  if (std::fwrite(all.data(), 1, all.size(), answer) != all.size() || std::fclose(answer) != 0)
    fail("the answer cannot be written");
  return 0;
}
