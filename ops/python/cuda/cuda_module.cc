// epgc_cuda: the CUDA kernels for their tests and their benchmark. Takes everything that has __cuda_array_interface__
// (CuPy, PyTorch, and the Buffer here, which needs neither), C-contiguous. numpy and its like have no bfloat16: an
// array of uint16 holds bfloat16.
#include <cuda_runtime.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ops/core/codec.h"
#include "ops/cuda/codec_cuda.h"
#include "ops/python/codec_options.h"

namespace py = pybind11;

namespace {

using epgc::CodecOptions;
using epgc::ConstTensor;
using epgc::DType;
using epgc::MakeOptions;
using epgc::MutableTensor;
using epgc::ShardLayout;

void Check(const char* error) {
  if (error != nullptr) throw std::runtime_error(std::string("CUDA: ") + error);
}

void Check(cudaError_t error) { Check(error == cudaSuccess ? nullptr : cudaGetErrorString(error)); }

CUstream_st* Stream(uintptr_t stream) { return reinterpret_cast<CUstream_st*>(stream); }

// --- Memory ---

// Bytes on the current device.
class Buffer {
 public:
  explicit Buffer(size_t size) : size_(size) { Check(cudaMalloc(&data_, size == 0 ? 1 : size)); }
  ~Buffer() { cudaFree(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  uintptr_t address() const { return reinterpret_cast<uintptr_t>(data_); }
  size_t size() const { return size_; }

  void CopyFrom(const py::buffer& host) {
    const py::buffer_info info = host.request();
    if (static_cast<size_t>(info.size * info.itemsize) != size_) throw py::value_error("The sizes differ.");
    Check(cudaMemcpy(data_, info.ptr, size_, cudaMemcpyHostToDevice));
  }

  py::array_t<uint8_t> ToHost() const {
    py::array_t<uint8_t> host(static_cast<py::ssize_t>(size_));
    Check(cudaMemcpy(host.mutable_data(), data_, size_, cudaMemcpyDeviceToHost));
    return host;
  }

 private:
  void* data_ = nullptr;
  size_t size_;
};

// --- Arguments ---

struct Array {
  void* data;
  int64_t size;
  std::string type;
};

Array ArrayOf(const py::object& object) {
  const py::dict interface = object.attr("__cuda_array_interface__");
  if (interface.contains("strides") && !interface["strides"].is_none()) {
    throw py::value_error("An array is not C-contiguous.");
  }
  int64_t size = 1;
  for (const py::handle& extent : interface["shape"].cast<py::tuple>()) size *= extent.cast<int64_t>();
  const auto data = interface["data"].cast<std::pair<uintptr_t, bool>>();
  return {reinterpret_cast<void*>(data.first), size, interface["typestr"].cast<std::string>()};
}

DType ParseDType(const std::string& type) {
  if (type == "<f4") return DType::kFloat32;
  if (type == "<f2") return DType::kFloat16;
  if (type == "<u2" || type == "<V2") return DType::kBFloat16;  // PyTorch has the latter
  if (type == "<f8") return DType::kFloat64;
  throw py::type_error("An array has the type '" + type + "'; use '<f4', '<f2', '<f8', or '<u2' for bfloat16.");
}

// Tensor is ConstTensor or MutableTensor.
template <typename Tensor>
std::vector<Tensor> Tensors(const std::vector<py::object>& objects, int64_t* elements) {
  std::vector<Tensor> tensors;
  for (const py::object& object : objects) {
    const Array array = ArrayOf(object);
    tensors.push_back({array.data, array.size, ParseDType(array.type)});
    *elements += array.size;
  }
  return tensors;
}

uint32_t* Words(const py::object& object, int64_t size) {
  const Array array = ArrayOf(object);
  if (array.type != "<u4" && array.type != "<i4") throw py::type_error("Words have the type '<u4' or '<i4'.");
  if (array.size != size) {
    throw py::value_error("There are " + std::to_string(array.size) + " words, but these arguments make " +
                          std::to_string(size) + ".");
  }
  return static_cast<uint32_t*>(array.data);
}

// --- Passes; `queue` is a cudaStream_t ---

// A launch that can be repeated without another look at its arguments. Whoever has it keeps the arrays alive.
class Call {
 public:
  // Launches for the first time.
  explicit Call(std::function<void()> launch) : launch_(std::move(launch)) { launch_(); }
  void operator()() const { launch_(); }

 private:
  std::function<void()> launch_;
};

Call Pack(const std::vector<py::object>& tensors, const py::object& out, int64_t shards, int bits,
          const std::string& rounding, const std::string& scaling, uint64_t seed, uint64_t step, uint64_t stream,
          uintptr_t queue) {
  const CodecOptions options = MakeOptions(bits, rounding, scaling, seed, step, stream);
  int64_t elements = 0;
  const auto list = Tensors<ConstTensor>(tensors, &elements);
  const ShardLayout layout = epgc::MakeShardLayout(elements, shards, options);
  uint32_t* words = Words(out, layout.shards * layout.shard_words);
  return Call([=] {
    const int64_t num_tensors = static_cast<int64_t>(list.size());
    Check(epgc::PackOnCuda(options, layout, list.data(), num_tensors, words, Stream(queue)));
  });
}

Call Reduce(const py::object& rows, const py::object& out, int64_t num_rows, int64_t shard_elements, int bits,
            const std::string& rounding, const std::string& scaling, float scale, uint64_t seed, uint64_t step,
            uint64_t stream, uintptr_t queue) {
  const CodecOptions options = MakeOptions(bits, rounding, scaling, seed, step, stream);
  const ShardLayout layout = epgc::MakeShardLayoutOfSize(shard_elements, 1, options);
  const uint32_t* words = Words(rows, num_rows * layout.shard_words);
  uint32_t* reduced = Words(out, layout.shard_words);
  return Call([=] { Check(epgc::ReduceOnCuda(options, layout, words, num_rows, scale, reduced, Stream(queue))); });
}

Call Unpack(const py::object& packed, const std::vector<py::object>& tensors, int64_t shards, int bits,
            const std::string& scaling, uintptr_t queue) {
  const CodecOptions options = MakeOptions(bits, "nearest", scaling);
  int64_t elements = 0;
  const auto list = Tensors<MutableTensor>(tensors, &elements);
  const ShardLayout layout = epgc::MakeShardLayout(elements, shards, options);
  const uint32_t* words = Words(packed, layout.shards * layout.shard_words);
  return Call([=] {
    const int64_t num_tensors = static_cast<int64_t>(list.size());
    Check(epgc::UnpackOnCuda(options, layout, words, list.data(), num_tensors, Stream(queue)));
  });
}

Call Quantize(const py::object& in, const py::object& out, int bits, const std::string& rounding,
              const std::string& scaling, uint64_t seed, uint64_t step, uint64_t stream, uintptr_t queue) {
  const CodecOptions options = MakeOptions(bits, rounding, scaling, seed, step, stream);
  int64_t size = 0, out_size = 0;
  const auto source = Tensors<ConstTensor>({in}, &size);
  const auto target = Tensors<MutableTensor>({out}, &out_size);
  if (size != out_size || source[0].dtype != target[0].dtype) throw py::value_error("in and out differ.");
  return Call([=] { Check(epgc::QuantizeOnCuda(options, source[0], target[0], Stream(queue))); });
}

Call CopyOnDevice(const Buffer& to, const Buffer& from) {
  if (to.size() != from.size()) throw py::value_error("The sizes differ.");
  return Call([target = to.address(), source = from.address(), size = to.size()] {
    Check(cudaMemcpyAsync(reinterpret_cast<void*>(target), reinterpret_cast<const void*>(source), size,
                          cudaMemcpyDeviceToDevice));
  });
}

// --- The device ---

int DeviceCount() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

std::string DeviceName() {
  cudaDeviceProp properties;
  Check(cudaGetDeviceProperties(&properties, 0));
  return properties.name;
}

// Seconds on the device of one of `repeats` launches that follow each other on the default stream.
double SecondsOf(const Call& call, int repeats) {
  cudaEvent_t start, end;
  Check(cudaEventCreate(&start));
  Check(cudaEventCreate(&end));
  Check(cudaEventRecord(start));
  for (int i = 0; i < repeats; ++i) call();
  Check(cudaEventRecord(end));
  Check(cudaEventSynchronize(end));
  float milliseconds = 0;
  Check(cudaEventElapsedTime(&milliseconds, start, end));
  Check(cudaEventDestroy(start));
  Check(cudaEventDestroy(end));
  return milliseconds / 1e3 / repeats;
}

}  // namespace

PYBIND11_MODULE(epgc_cuda, m) {
  m.doc() = "The CUDA kernels, for tests and benchmarks.";
  py::class_<Buffer>(m, "Buffer")
      .def(py::init<size_t>(), py::arg("size"))
      .def_property_readonly("address", &Buffer::address)
      .def_property_readonly("size", &Buffer::size)
      .def("copy_from", &Buffer::CopyFrom, py::arg("host"))
      .def("to_host", &Buffer::ToHost);
  py::class_<Call>(m, "Call").def("__call__", &Call::operator());
  m.def("pack", &Pack, py::arg("tensors"), py::arg("out"), py::arg("shards"), py::arg("bits"), py::arg("rounding"),
        py::arg("scaling"), py::arg("seed") = 0, py::arg("step") = 0, py::arg("stream") = 0, py::arg("queue") = 0);
  m.def("reduce", &Reduce, py::arg("rows"), py::arg("out"), py::arg("num_rows"), py::arg("shard_elements"),
        py::arg("bits"), py::arg("rounding"), py::arg("scaling"), py::arg("scale") = 1.0f, py::arg("seed") = 0,
        py::arg("step") = 0, py::arg("stream") = 0, py::arg("queue") = 0);
  m.def("unpack", &Unpack, py::arg("packed"), py::arg("tensors"), py::arg("shards"), py::arg("bits"),
        py::arg("scaling"), py::arg("queue") = 0);
  m.def("quantize", &Quantize, py::arg("x"), py::arg("out"), py::arg("bits"), py::arg("rounding"), py::arg("scaling"),
        py::arg("seed") = 0, py::arg("step") = 0, py::arg("stream") = 0, py::arg("queue") = 0);
  m.def("device_count", &DeviceCount);
  m.def("device_name", &DeviceName);
  m.def("synchronize", [] { Check(cudaDeviceSynchronize()); });
  m.def("seconds_of", &SecondsOf, py::arg("call"), py::arg("repeats"));
  m.def("copy", &CopyOnDevice, py::arg("to"), py::arg("source"));
}
