// The passes of codec.h on a GPU: the same arguments, but for pointers to the GPU's memory and a stream, the same bits.
//
// A launcher returns when the work is in the stream; it neither waits nor allocates nor copies. The arrays of tensors
// are read before it returns, the tensors' values when the stream comes to it. It returns nullptr, or what went wrong,
// a text that lives for ever. The calling thread's current device must be the stream's.
#ifndef EPGC_OPS_CUDA_CODEC_CUDA_H_
#define EPGC_OPS_CUDA_CODEC_CUDA_H_

#include <cstdint>

#include "ops/core/codec.h"

// What a cudaStream_t points to; no header of CUDA is needed here.
struct CUstream_st;

namespace epgc {

// One launch for up to 220 tensors that are not empty; more are cut into launches of up to 1800.
const char* PackOnCuda(const CodecOptions& options, const ShardLayout& layout, const ConstTensor* tensors,
                       int64_t num_tensors, uint32_t* out, CUstream_st* stream);

const char* ReduceOnCuda(const CodecOptions& options, const ShardLayout& layout, const uint32_t* rows, int64_t num_rows,
                         float scale, uint32_t* out, CUstream_st* stream);

// As PackOnCuda.
const char* UnpackOnCuda(const CodecOptions& options, const ShardLayout& layout, const uint32_t* packed,
                         const MutableTensor* tensors, int64_t num_tensors, CUstream_st* stream);

// `in` and `out` have the same dtype and size, and may be the same buffer.
const char* QuantizeOnCuda(const CodecOptions& options, ConstTensor in, MutableTensor out, CUstream_st* stream);

}  // namespace epgc

#endif  // EPGC_OPS_CUDA_CODEC_CUDA_H_
