// What the launchers share.
#ifndef EPGC_OPS_CUDA_LAUNCH_H_
#define EPGC_OPS_CUDA_LAUNCH_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "ops/core/codec.h"
#include "ops/cuda/warp.h"
#include "ops/cuda/warp_codec.h"

#if CUDART_VERSION < 12010
#error "The CUDA kernels need CUDA 12.1 or newer, whose launches take more than 4 KiB of arguments."
#endif

namespace epgc {
namespace cuda {

inline constexpr int kBlockWarps = 4;
inline constexpr int kThreads = kBlockWarps * kWarpSize;
// For kernels in which the compiler, left alone, would rather spill than use more registers: 96 of them.
inline constexpr int kBlocksPerMultiprocessor = 5;

// The blocks of values [first, last) that a launch works on, one a warp.
struct BlockRange {
  uint32_t first;
  uint32_t last;
};

// The number of this warp's block of values, and its part of the shared memory.
__device__ __forceinline__ int WarpInBlock() { return __shfl_sync(0xFFFFFFFFu, threadIdx.x / kWarpSize, 0); }
__device__ __forceinline__ uint32_t NumberOf(BlockRange range) {
  return range.first + blockIdx.x * kBlockWarps + WarpInBlock();
}

inline const char* CheckBlocks(const ShardLayout& layout) {
  return layout.shards * layout.shard_blocks < int64_t{1} << 31 ? nullptr : "more than 2^31 blocks of 1024 values";
}

// Launches `kernel` on `range`, which must not be empty. An earlier error that nobody has fetched
// is not taken for this launch's.
template <typename... Parameters, typename... Arguments>
const char* Launch(void (*kernel)(BlockRange, Parameters...), BlockRange range, CUstream_st* stream,
                   const Arguments&... arguments) {
  const unsigned grid = (range.last - range.first + kBlockWarps - 1) / kBlockWarps;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(grid);
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, range, arguments...);
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

// Calls function(constant), whose `value` is `bits` or `rounding`, so that the function is compiled for each.
template <typename Function>
const char* WithBits(int bits, Function&& function) {
  switch (bits) {
    case 8:
      return function(std::integral_constant<int, 8>());
    case 9:
      return function(std::integral_constant<int, 9>());
    case 11:
      return function(std::integral_constant<int, 11>());
    case 16:
      return function(std::integral_constant<int, 16>());
    case 32:
      return function(std::integral_constant<int, 32>());
    default:
      return "bits must be 8, 9, 11, 16 or 32";
  }
}

// 32 bits are not rounded, and have one kernel.
template <int kBits, typename Function>
const char* WithRounding(Rounding rounding, Function&& function) {
  if constexpr (kBits != 32) {
    if (rounding == Rounding::kNearest) return function(std::integral_constant<Rounding, Rounding::kNearest>());
    if (rounding == Rounding::kStochastic) return function(std::integral_constant<Rounding, Rounding::kStochastic>());
  }
  return function(std::integral_constant<Rounding, Rounding::kTruncate>());
}

}  // namespace cuda
}  // namespace epgc

#endif  // EPGC_OPS_CUDA_LAUNCH_H_
