#include "ops/cuda/codec_cuda.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/tensor_table.h"

namespace epgc {
namespace cuda {
namespace {

template <int kBits, Rounding kRounding, int kCapacity>
__global__ void __launch_bounds__(kThreads, kBits == 32 ? kBlocksPerMultiprocessor : 0)
    PackKernel(BlockRange range, const __grid_constant__ Pass pass,
               const __grid_constant__ TensorTable<kCapacity> table, uint32_t* out) {
  __shared__ Stage stages[kBlockWarps];
  const uint32_t number = NumberOf(range);
  if (number < range.last) {
    PackBlock<kBits, kRounding>(DeviceWarp(), pass, table, number, &stages[WarpInBlock()], out);
  }
}

template <int kBits, Rounding kRounding, int kCapacity>
const char* LaunchPack(const Pass& pass, const ConstTensor* tensors, int64_t num_tensors, uint32_t* out,
                       CUstream_st* stream) {
  const auto launch = [&](const TensorTable<kCapacity>& table, int64_t first, int64_t last) {
    const BlockRange range = {static_cast<uint32_t>(first), static_cast<uint32_t>(last)};
    return Launch(&PackKernel<kBits, kRounding, kCapacity>, range, stream, pass, table, out);
  };
  return ForEachTable<kCapacity>(pass.layout, tensors, num_tensors, launch);
}

}  // namespace
}  // namespace cuda

const char* PackOnCuda(const CodecOptions& options, const ShardLayout& layout, const ConstTensor* tensors,
                       int64_t num_tensors, uint32_t* out, CUstream_st* stream) {
  if (const char* error = cuda::CheckBlocks(layout)) return error;
  const cuda::Pass pass = cuda::MakePass(options, layout);
  return cuda::WithBits(options.bits, [&](auto bits) {
    return cuda::WithRounding<bits.value>(options.rounding, [&](auto rounding) {
      constexpr int kBits = decltype(bits)::value;
      constexpr Rounding kRounding = decltype(rounding)::value;
      return cuda::FitsSmallTable(tensors, num_tensors)
                 ? cuda::LaunchPack<kBits, kRounding, cuda::kSmallTable>(pass, tensors, num_tensors, out, stream)
                 : cuda::LaunchPack<kBits, kRounding, cuda::kLargeTable>(pass, tensors, num_tensors, out, stream);
    });
  });
}

}  // namespace epgc
