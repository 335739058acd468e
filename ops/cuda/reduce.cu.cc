#include "ops/cuda/codec_cuda.h"
#include "ops/cuda/launch.h"

namespace epgc {
namespace cuda {
namespace {

template <int kBits, Rounding kRounding>
__global__ void __launch_bounds__(kThreads)
    ReduceKernel(BlockRange range, const __grid_constant__ Pass pass, const uint32_t* rows, int64_t num_rows,
                 float scale, uint32_t* out) {
  __shared__ Stage stages[kBlockWarps];
  const uint32_t number = NumberOf(range);
  if (number < range.last) {
    ReduceBlock<kBits, kRounding>(DeviceWarp(), pass, rows, num_rows, scale, number, &stages[WarpInBlock()], out);
  }
}

}  // namespace
}  // namespace cuda

const char* ReduceOnCuda(const CodecOptions& options, const ShardLayout& layout, const uint32_t* rows, int64_t num_rows,
                         float scale, uint32_t* out, CUstream_st* stream) {
  if (const char* error = cuda::CheckBlocks(layout)) return error;
  if (layout.shard_blocks == 0) return nullptr;
  const cuda::Pass pass = cuda::MakePass(options, layout);
  const cuda::BlockRange range = {0, static_cast<uint32_t>(layout.shard_blocks)};
  return cuda::WithBits(options.bits, [&](auto bits) {
    return cuda::WithRounding<bits.value>(options.rounding, [&](auto rounding) {
      return cuda::Launch(&cuda::ReduceKernel<decltype(bits)::value, decltype(rounding)::value>, range, stream, pass,
                          rows, num_rows, scale, out);
    });
  });
}

}  // namespace epgc
