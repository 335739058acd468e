// tf_epgc._core: numpy arrays in and out of ops/core. tf_epgc/native.py is the front end for users.
//
// This file holds the checks that keep the codec from being called wrongly; each tells what was given, what is allowed
// and what to do. The interpreter lock is released while the codec works.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "ops/core/codec.h"
#include "ops/python/codec_options.h"

namespace py = pybind11;

namespace {

using epgc::CodecOptions;
using epgc::ConstTensor;
using epgc::DType;
using epgc::MakeOptions;
using epgc::MutableTensor;
using epgc::Quoted;
using epgc::ShardLayout;
using BlockRange = std::optional<std::pair<int64_t, int64_t>>;
using Words = py::array_t<uint32_t>;

std::string RunnableNames() {
  std::string names;
  for (const char* const* isa = epgc::RunnableIsas(); *isa != nullptr; ++isa) {
    names += (names.empty() ? "" : ", ") + Quoted(*isa);
  }
  return names;
}

void CheckIsa() {
  if (epgc::ActiveIsa() != nullptr) return;
  const char* forced = std::getenv("EPGC_FORCE_ISA");
  throw std::runtime_error("The environment variable EPGC_FORCE_ISA is " + Quoted(forced == nullptr ? "" : forced) +
                           ", but this CPU runs only " + RunnableNames() +
                           "; unset it or set it to one of them, and start again.");
}

// --- Arguments ---

DType ParseDType(const std::string& name) {
  if (name == "float32") return DType::kFloat32;
  if (name == "float16") return DType::kFloat16;
  if (name == "bfloat16") return DType::kBFloat16;
  if (name == "float64") return DType::kFloat64;
  throw py::type_error("The dtype is " + Quoted(name) +
                       ", but only float32, float16, bfloat16 and float64 can be coded; convert the array first.");
}

void CheckAtLeast(const char* name, int64_t value, int64_t least) {
  if (value >= least) return;
  throw py::value_error(std::string(name) + " is " + std::to_string(value) + ", but must be at least " +
                        std::to_string(least) + ".");
}

void CheckArray(const py::array& array) {
  ParseDType(array.dtype().attr("name").cast<std::string>());
  if (!array.dtype().attr("isnative").cast<bool>()) {
    throw py::value_error("An array has the byte order of another machine; convert it with astype().");
  }
  if ((array.flags() & py::array::c_style) == 0) {
    throw py::value_error("An array is not C-contiguous; pass numpy.ascontiguousarray(array).");
  }
}

ConstTensor ReadableTensor(const py::array& array) {
  CheckArray(array);
  return {array.data(), array.size(), ParseDType(array.dtype().attr("name").cast<std::string>())};
}

MutableTensor WritableTensor(py::array& array, DType dtype) { return {array.mutable_data(), array.size(), dtype}; }

std::vector<int64_t> ShapeOf(const py::array& array) {
  return std::vector<int64_t>(array.shape(), array.shape() + array.ndim());
}

std::string ShapeText(const py::array& array) { return py::repr(py::cast(ShapeOf(array))).cast<std::string>(); }

void CheckShape(const char* name, const py::array& array, const std::vector<int64_t>& shape) {
  if (ShapeOf(array) == shape) return;
  throw py::value_error(std::string(name) + " has the shape " + ShapeText(array) + ", but these arguments need " +
                        py::repr(py::cast(shape)).cast<std::string>() +
                        "; pass the same bits, scaling, shapes and shards to every phase.");
}

void CheckIsMatrix(const char* name, const py::array& words) {
  if (words.ndim() == 2 && words.shape(0) >= 1) return;
  throw py::value_error(std::string(name) + " has the shape " + ShapeText(words) +
                        "; pass a matrix of at least one row of words.");
}

py::array WordsOf(const char* name, const py::array& words) {
  if (!words.dtype().is(py::dtype::of<uint32_t>())) {
    throw py::type_error(std::string(name) + " has the dtype " + words.dtype().attr("name").cast<std::string>() +
                         ", but packed words are uint32; pass what pack() or reduce() returned.");
  }
  if ((words.flags() & py::array::c_style) == 0) {
    throw py::value_error(std::string(name) + " is not C-contiguous; pass numpy.ascontiguousarray(" + name + ").");
  }
  return words;
}

// `given` after its checks, or a new array.
py::array OutputWords(const std::optional<py::array>& given, const std::vector<int64_t>& shape) {
  if (!given) return Words(shape);
  CheckShape("out", WordsOf("out", *given), shape);
  return *given;
}

// --- Work ---

// Calls work(first, last) for disjoint ranges that cover the blocks, each in its own thread, the last in this one.
template <typename Work>
void RunBlocks(int64_t num_blocks, const BlockRange& only, int64_t threads, const Work& work) {
  CheckAtLeast("threads", threads, 1);
  const auto [first, last] = only.value_or(std::make_pair(int64_t{0}, num_blocks));
  if (first < 0 || first > last || last > num_blocks) {
    throw py::value_error("blocks is (" + std::to_string(first) + ", " + std::to_string(last) +
                          "), but must be a range within 0.." + std::to_string(num_blocks) + ".");
  }
  const py::gil_scoped_release unlocked;
  const int64_t parts = std::max<int64_t>(1, std::min(threads, last - first));
  const int64_t each = (last - first) / parts;
  std::vector<std::thread> running;
  int64_t begin = first;
  for (int64_t part = 1; part < parts; ++part, begin += each) {
    try {
      running.emplace_back([&work, begin, each] { work(begin, begin + each); });
    } catch (const std::system_error&) {
      work(begin, begin + each);  // no thread to be had
    }
  }
  work(begin, last);
  for (std::thread& thread : running) thread.join();
}

py::array Pack(const std::vector<py::array>& tensors, int64_t shards, int bits, const std::string& rounding,
               const std::string& scaling, uint64_t seed, uint64_t step, uint64_t stream, int64_t threads,
               const std::optional<py::array>& out, const BlockRange& blocks) {
  CheckIsa();
  CheckAtLeast("shards", shards, 1);
  const CodecOptions options = MakeOptions(bits, rounding, scaling, seed, step, stream);
  std::vector<ConstTensor> list;
  int64_t elements = 0;
  for (const py::array& tensor : tensors) {
    list.push_back(ReadableTensor(tensor));
    elements += list.back().size;
  }
  const ShardLayout layout = epgc::MakeShardLayout(elements, shards, options);
  py::array packed = OutputWords(out, {shards, layout.shard_words});
  uint32_t* words = static_cast<uint32_t*>(packed.mutable_data());
  RunBlocks(layout.shards * layout.shard_blocks, blocks, threads, [&](int64_t first, int64_t last) {
    epgc::Pack(options, layout, list.data(), static_cast<int64_t>(list.size()), first, last, words);
  });
  return packed;
}

py::array Reduce(const py::array& rows, int64_t shard_elements, int bits, const std::string& rounding,
                 const std::string& scaling, float scale, uint64_t seed, uint64_t step, uint64_t stream,
                 int64_t threads, const std::optional<py::array>& out, const BlockRange& blocks) {
  CheckIsa();
  CheckAtLeast("shard_elements", shard_elements, 0);
  if (shard_elements % epgc::kGroupSize != 0) {
    throw py::value_error("shard_elements is " + std::to_string(shard_elements) +
                          ", but must be a multiple of 32; take it from shard_layout().");
  }
  const CodecOptions options = MakeOptions(bits, rounding, scaling, seed, step, stream);
  const ShardLayout layout = epgc::MakeShardLayoutOfSize(shard_elements, 1, options);
  CheckIsMatrix("rows", WordsOf("rows", rows));
  CheckShape("rows", rows, {rows.shape(0), layout.shard_words});
  py::array reduced = OutputWords(out, {layout.shard_words});
  const int64_t num_rows = rows.shape(0);
  const uint32_t* words = static_cast<const uint32_t*>(rows.data());
  uint32_t* result = static_cast<uint32_t*>(reduced.mutable_data());
  RunBlocks(layout.shard_blocks, blocks, threads, [&](int64_t first, int64_t last) {
    epgc::Reduce(options, layout, words, num_rows, scale, first, last, result);
  });
  return reduced;
}

// numpy has no bfloat16: such values come back as their patterns, which native.py gives the right dtype.
py::array NewTensor(const std::vector<int64_t>& shape, DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return py::array(py::dtype("float16"), shape);
    case DType::kBFloat16:
      return py::array(py::dtype("uint16"), shape);
    case DType::kFloat64:
      return py::array(py::dtype("float64"), shape);
    default:
      return py::array(py::dtype("float32"), shape);
  }
}

py::array UnpackTarget(const std::optional<std::vector<py::array>>& out, size_t i, const std::vector<int64_t>& shape,
                       DType dtype) {
  if (!out) return NewTensor(shape, dtype);
  const py::array& given = out->at(i);
  if (ReadableTensor(given).dtype != dtype) throw py::type_error("out has another dtype than dtypes asks for.");
  CheckShape("out", given, shape);
  return given;
}

std::vector<py::array> Unpack(const py::array& packed, const std::vector<std::vector<int64_t>>& shapes,
                              const std::vector<std::string>& dtypes, int bits, const std::string& scaling,
                              int64_t threads, const std::optional<std::vector<py::array>>& out,
                              const BlockRange& blocks) {
  CheckIsa();
  const CodecOptions options = MakeOptions(bits, "nearest", scaling);
  if (shapes.size() != dtypes.size() || (out && out->size() != shapes.size())) {
    throw py::value_error("There are " + std::to_string(shapes.size()) + " shapes and " +
                          std::to_string(dtypes.size()) + " dtypes; pass one dtype (and out array) for each shape.");
  }
  std::vector<py::array> arrays;
  std::vector<MutableTensor> list;
  int64_t elements = 0;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const DType dtype = ParseDType(dtypes[i]);
    for (int64_t size : shapes[i]) CheckAtLeast("A size in shapes", size, 0);
    arrays.push_back(UnpackTarget(out, i, shapes[i], dtype));
    list.push_back(WritableTensor(arrays.back(), dtype));
    elements += list.back().size;
  }
  CheckIsMatrix("packed", WordsOf("packed", packed));
  const ShardLayout layout = epgc::MakeShardLayout(elements, packed.shape(0), options);
  CheckShape("packed", packed, {layout.shards, layout.shard_words});
  const uint32_t* words = static_cast<const uint32_t*>(packed.data());
  RunBlocks(layout.shards * layout.shard_blocks, blocks, threads, [&](int64_t first, int64_t last) {
    epgc::Unpack(options, layout, words, list.data(), static_cast<int64_t>(list.size()), first, last);
  });
  return arrays;
}

py::array Quantize(const py::array& array, int bits, const std::string& rounding, const std::string& scaling,
                   uint64_t seed, uint64_t step, uint64_t stream, int64_t threads) {
  CheckIsa();
  const CodecOptions options = MakeOptions(bits, rounding, scaling, seed, step, stream);
  const ConstTensor in = ReadableTensor(array);
  py::array result(array.dtype(), ShapeOf(array));
  const MutableTensor target = WritableTensor(result, in.dtype);
  const int64_t blocks = in.size / epgc::kBlockSize + (in.size % epgc::kBlockSize != 0 ? 1 : 0);
  RunBlocks(blocks, std::nullopt, threads,
            [&](int64_t first, int64_t last) { epgc::Quantize(options, in, target, first, last); });
  return result;
}

py::dict ShardLayoutDict(int64_t elements, int64_t shards, int bits, const std::string& scaling) {
  CheckAtLeast("elements", elements, 0);
  CheckAtLeast("shards", shards, 1);
  const ShardLayout layout = epgc::MakeShardLayout(elements, shards, MakeOptions(bits, "nearest", scaling));
  py::dict result;
  result["shards"] = layout.shards;
  result["shard_elements"] = layout.shard_elements;
  result["shard_blocks"] = layout.shard_blocks;
  result["shift_words"] = layout.shift_words;
  result["shard_words"] = layout.shard_words;
  return result;
}

std::string ActiveIsaName() {
  CheckIsa();
  return epgc::ActiveIsa();
}

std::vector<std::string> RunnableIsaNames() {
  std::vector<std::string> names;
  for (const char* const* isa = epgc::RunnableIsas(); *isa != nullptr; ++isa) names.emplace_back(*isa);
  return names;
}

void SelectIsa(const std::string& name) {
  if (epgc::SetIsaForTest(name.c_str())) return;
  throw py::value_error("The instruction set is " + Quoted(name) + "; this CPU runs " + RunnableNames() + ".");
}

}  // namespace

PYBIND11_MODULE(_core, m) {
  m.doc() = "Bindings of the codec; see tf_epgc.native for the documented front end.";
  m.attr("PROTOCOL_VERSION") = epgc::kProtocolVersion;
  m.attr("BLOCK_SIZE") = epgc::kBlockSize;
  m.attr("GROUP_SIZE") = epgc::kGroupSize;
  m.def("pack", &Pack, py::arg("tensors"), py::arg("shards"), py::arg("bits"), py::arg("rounding"), py::arg("scaling"),
        py::arg("seed") = 0, py::arg("step") = 0, py::arg("stream") = 0, py::arg("threads") = 1,
        py::arg("out") = py::none(), py::arg("blocks") = py::none());
  m.def("reduce", &Reduce, py::arg("rows"), py::arg("shard_elements"), py::arg("bits"), py::arg("rounding"),
        py::arg("scaling"), py::arg("scale") = 1.0f, py::arg("seed") = 0, py::arg("step") = 0, py::arg("stream") = 0,
        py::arg("threads") = 1, py::arg("out") = py::none(), py::arg("blocks") = py::none());
  m.def("unpack", &Unpack, py::arg("packed"), py::arg("shapes"), py::arg("dtypes"), py::arg("bits"), py::arg("scaling"),
        py::arg("threads") = 1, py::arg("out") = py::none(), py::arg("blocks") = py::none());
  m.def("quantize", &Quantize, py::arg("array"), py::arg("bits"), py::arg("rounding"), py::arg("scaling"),
        py::arg("seed") = 0, py::arg("step") = 0, py::arg("stream") = 0, py::arg("threads") = 1);
  m.def("shard_layout", &ShardLayoutDict, py::arg("elements"), py::arg("shards"), py::arg("bits"), py::arg("scaling"));
  m.def("active_isa", &ActiveIsaName);
  m.def("runnable_isas", &RunnableIsaNames);
  m.def("set_isa_for_test", &SelectIsa, py::arg("name"));
}
