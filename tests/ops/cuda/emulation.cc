// The logic of the CUDA kernels on a CPU, for emulation_test.py, which compiles this file by itself and calls it with
// ctypes. What differs from a launch is the warp, and that blocks come one after the other.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "ops/cuda/tensor_table.h"
#include "ops/cuda/warp_codec.h"
#include "tests/ops/cuda/host_warp.h"

namespace {

using epgc::CodecOptions;
using epgc::ConstTensor;
using epgc::MutableTensor;
using epgc::Rounding;
using epgc::ShardLayout;
using epgc::cuda::HostWarp;
using epgc::cuda::MakePass;
using epgc::cuda::Pass;
using epgc::cuda::Stage;
using epgc::cuda::TensorTable;

// Shared memory as a kernel finds it.
struct DirtyStage : Stage {
  DirtyStage() { std::memset(word, 0xA5, sizeof(word)); }
};

template <template <int, Rounding> class Work, int kBits, typename... Arguments>
void WithRounding(Rounding rounding, const Arguments&... arguments) {
  if (rounding == Rounding::kTruncate || kBits == 32) return Work<kBits, Rounding::kTruncate>::Run(arguments...);
  if (rounding == Rounding::kNearest) return Work<kBits, Rounding::kNearest>::Run(arguments...);
  Work<kBits, Rounding::kStochastic>::Run(arguments...);
}

template <template <int, Rounding> class Work, typename... Arguments>
void WithFormat(const CodecOptions& options, const Arguments&... arguments) {
  if (options.bits == 8) WithRounding<Work, 8>(options.rounding, arguments...);
  if (options.bits == 9) WithRounding<Work, 9>(options.rounding, arguments...);
  if (options.bits == 11) WithRounding<Work, 11>(options.rounding, arguments...);
  if (options.bits == 16) WithRounding<Work, 16>(options.rounding, arguments...);
  if (options.bits == 32) WithRounding<Work, 32>(options.rounding, arguments...);
}

// Calls work(table, number) for blocks [first_block, last_block), with the tables a launcher would make for all, and
// returns how many those were, or -1 after an error.
template <int kCapacity, typename Tensor, typename Work>
int ForEachBlock(const ShardLayout& layout, const Tensor* tensors, int64_t num_tensors, int64_t first_block,
                 int64_t last_block, const Work& work) {
  int launches = 0;
  const auto launch = [&](const auto& table, int64_t first, int64_t last) -> const char* {
    ++launches;
    const int64_t end = std::min(last, last_block);
    for (int64_t number = std::max(first, first_block); number < end; ++number) {
      work(table, static_cast<uint32_t>(number));
    }
    return nullptr;
  };
  const char* error = epgc::cuda::ForEachTable<kCapacity>(layout, tensors, num_tensors, launch);
  return error == nullptr ? launches : -1;
}

template <int kBits, Rounding kRounding>
struct PackWork {
  template <typename Table>
  static void Run(const Pass& pass, const Table& table, uint32_t number, uint32_t* out) {
    DirtyStage stage;
    epgc::cuda::PackBlock<kBits, kRounding>(HostWarp(), pass, table, number, &stage, out);
  }
};

template <int kBits, Rounding kRounding>
struct UnpackWork {
  template <typename Table>
  static void Run(const Pass& pass, const Table& table, uint32_t number, const uint32_t* packed) {
    DirtyStage stage;
    epgc::cuda::UnpackBlock<kBits>(HostWarp(), pass, table, number, &stage, packed);
  }
};

template <int kBits, Rounding kRounding>
struct ReduceWork {
  static void Run(const Pass& pass, const uint32_t* rows, int64_t num_rows, float scale, uint32_t* out) {
    for (int64_t number = 0; number < pass.layout.shard_blocks; ++number) {
      DirtyStage stage;
      epgc::cuda::ReduceBlock<kBits, kRounding>(HostWarp(), pass, rows, num_rows, scale, static_cast<uint32_t>(number),
                                                &stage, out);
    }
  }
};

template <int kBits, Rounding kRounding>
struct QuantizeWork {
  static void Run(const Pass& pass, const TensorTable<1>& in, const TensorTable<1>& out) {
    for (int64_t number = 0; number < pass.layout.shard_blocks; ++number) {
      DirtyStage stage;
      epgc::cuda::QuantizeBlock<kBits, kRounding>(HostWarp(), pass, in, out, static_cast<uint32_t>(number), &stage);
    }
  }
};

}  // namespace

extern "C" {

int EpgcPack(const CodecOptions* options, const ShardLayout* layout, const ConstTensor* tensors, int64_t num_tensors,
             int64_t first_block, int64_t last_block, uint32_t* out) {
  const Pass pass = MakePass(*options, *layout);
  const auto work = [&](const auto& table, uint32_t number) {
    WithFormat<PackWork>(*options, pass, table, number, out);
  };
  return epgc::cuda::FitsSmallTable(tensors, num_tensors)
             ? ForEachBlock<epgc::cuda::kSmallTable>(*layout, tensors, num_tensors, first_block, last_block, work)
             : ForEachBlock<epgc::cuda::kLargeTable>(*layout, tensors, num_tensors, first_block, last_block, work);
}

int EpgcUnpack(const CodecOptions* options, const ShardLayout* layout, const MutableTensor* tensors,
               int64_t num_tensors, const uint32_t* packed) {
  const Pass pass = MakePass(*options, *layout);
  const auto work = [&](const auto& table, uint32_t number) {
    WithFormat<UnpackWork>(*options, pass, table, number, packed);
  };
  return epgc::cuda::FitsSmallTable(tensors, num_tensors)
             ? ForEachBlock<epgc::cuda::kSmallTable>(*layout, tensors, num_tensors, 0, INT64_MAX, work)
             : ForEachBlock<epgc::cuda::kLargeTable>(*layout, tensors, num_tensors, 0, INT64_MAX, work);
}

void EpgcReduce(const CodecOptions* options, const ShardLayout* layout, const uint32_t* rows, int64_t num_rows,
                float scale, uint32_t* out) {
  WithFormat<ReduceWork>(*options, MakePass(*options, *layout), rows, num_rows, scale, out);
}

void EpgcQuantize(const CodecOptions* options, const ShardLayout* layout, const ConstTensor* in,
                  const MutableTensor* out) {
  WithFormat<QuantizeWork>(*options, MakePass(*options, *layout), epgc::cuda::TableOfOne(*in),
                           epgc::cuda::TableOfOne(*out));
}

}  // extern "C"
