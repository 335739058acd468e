#include "ops/cuda/codec_cuda.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/tensor_table.h"

namespace epgc {
namespace cuda {
namespace {

template <int kBits, int kCapacity>
__global__ void __launch_bounds__(kThreads)
    UnpackKernel(BlockRange range, const __grid_constant__ Pass pass,
                 const __grid_constant__ TensorTable<kCapacity> table, const uint32_t* packed) {
  __shared__ Stage stages[kBlockWarps];
  const uint32_t number = NumberOf(range);
  if (number < range.last) {
    UnpackBlock<kBits>(DeviceWarp(), pass, table, number, &stages[WarpInBlock()], packed);
  }
}

template <int kBits, int kCapacity>
const char* LaunchUnpack(const Pass& pass, const uint32_t* packed, const MutableTensor* tensors, int64_t num_tensors,
                         CUstream_st* stream) {
  const auto launch = [&](const TensorTable<kCapacity>& table, int64_t first, int64_t last) {
    const BlockRange range = {static_cast<uint32_t>(first), static_cast<uint32_t>(last)};
    return Launch(&UnpackKernel<kBits, kCapacity>, range, stream, pass, table, packed);
  };
  return ForEachTable<kCapacity>(pass.layout, tensors, num_tensors, launch);
}

}  // namespace
}  // namespace cuda

const char* UnpackOnCuda(const CodecOptions& options, const ShardLayout& layout, const uint32_t* packed,
                         const MutableTensor* tensors, int64_t num_tensors, CUstream_st* stream) {
  if (const char* error = cuda::CheckBlocks(layout)) return error;
  const cuda::Pass pass = cuda::MakePass(options, layout);
  return cuda::WithBits(options.bits, [&](auto bits) {
    constexpr int kBits = decltype(bits)::value;
    return cuda::FitsSmallTable(tensors, num_tensors)
               ? cuda::LaunchUnpack<kBits, cuda::kSmallTable>(pass, packed, tensors, num_tensors, stream)
               : cuda::LaunchUnpack<kBits, cuda::kLargeTable>(pass, packed, tensors, num_tensors, stream);
  });
}

}  // namespace epgc
