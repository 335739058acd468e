#include "ops/cuda/codec_cuda.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/tensor_table.h"

namespace epgc {
namespace cuda {
namespace {

template <int kBits, Rounding kRounding>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    QuantizeKernel(BlockRange range, const __grid_constant__ Pass pass, const __grid_constant__ TensorTable<1> in,
                   const __grid_constant__ TensorTable<1> out) {
  __shared__ Stage stages[kBlockWarps];
  const uint32_t number = NumberOf(range);
  if (number < range.last) {
    QuantizeBlock<kBits, kRounding>(DeviceWarp(), pass, in, out, number, &stages[WarpInBlock()]);
  }
}

}  // namespace
}  // namespace cuda

const char* QuantizeOnCuda(const CodecOptions& options, ConstTensor in, MutableTensor out, CUstream_st* stream) {
  const ShardLayout layout = MakeShardLayout(in.size, 1, options);
  if (const char* error = cuda::CheckBlocks(layout)) return error;
  if (in.size == 0) return nullptr;
  const cuda::Pass pass = cuda::MakePass(options, layout);
  const cuda::BlockRange range = {0, static_cast<uint32_t>(layout.shard_blocks)};
  const auto source = cuda::TableOfOne(in), target = cuda::TableOfOne(out);
  return cuda::WithBits(options.bits, [&](auto bits) {
    return cuda::WithRounding<bits.value>(options.rounding, [&](auto rounding) {
      return cuda::Launch(&cuda::QuantizeKernel<decltype(bits)::value, decltype(rounding)::value>, range, stream, pass,
                          source, target);
    });
  });
}

}  // namespace epgc
