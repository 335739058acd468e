// GPU kernels: one launch on the stream that TensorFlow computes on. Plain C++, since the launchers and TensorFlow's
// stream need no header of CUDA; empty in a build without CUDA.
#if defined(EPGC_HAVE_CUDA)

#include <vector>

#include "codec_kernels.h"
#include "ops/cuda/codec_cuda.h"
#include "xla/stream_executor/stream.h"

namespace epgc {
namespace {

using ::tensorflow::DEVICE_GPU;

// TensorFlow's own custom ops take the stream from Eigen's GpuDevice, whose header needs CUDA's and a second set of
// macros; it is this one.
CUstream_st* StreamOf(OpKernelContext* ctx) {
  return static_cast<CUstream_st*>(ctx->op_device_context()->stream()->platform_specific_handle().stream);
}

void Report(OpKernelContext* ctx, const char* error) {
  if (error == nullptr) return;
  ctx->CtxFailure(absl::InternalError(
      absl::StrCat("The CUDA kernel of ", ctx->op_kernel().type_string(), " could not be launched: ", error, ".")));
}

struct CudaPasses {
  static absl::Status Check() { return absl::OkStatus(); }

  static void Pack(OpKernelContext* ctx, const CodecOptions& options, const ShardLayout& layout,
                   const std::vector<ConstTensor>& tensors, uint32_t* out) {
    const int64_t num_tensors = static_cast<int64_t>(tensors.size());
    Report(ctx, PackOnCuda(options, layout, tensors.data(), num_tensors, out, StreamOf(ctx)));
  }

  static void Reduce(OpKernelContext* ctx, const CodecOptions& options, const ShardLayout& layout, const uint32_t* rows,
                     int64_t num_rows, float scale, uint32_t* out) {
    Report(ctx, ReduceOnCuda(options, layout, rows, num_rows, scale, out, StreamOf(ctx)));
  }

  static void Unpack(OpKernelContext* ctx, const CodecOptions& options, const ShardLayout& layout,
                     const uint32_t* packed, const std::vector<MutableTensor>& tensors) {
    const int64_t num_tensors = static_cast<int64_t>(tensors.size());
    Report(ctx, UnpackOnCuda(options, layout, packed, tensors.data(), num_tensors, StreamOf(ctx)));
  }

  static void Quantize(OpKernelContext* ctx, const CodecOptions& options, ConstTensor in, MutableTensor out) {
    Report(ctx, QuantizeOnCuda(options, in, out, StreamOf(ctx)));
  }
};

// The step is read before the launch.
REGISTER_KERNEL_BUILDER(Name("EpgcPack").Device(DEVICE_GPU).HostMemory("step"), PackOp<CudaPasses>);
REGISTER_KERNEL_BUILDER(Name("EpgcReduce").Device(DEVICE_GPU).HostMemory("step"), ReduceOp<CudaPasses>);
REGISTER_KERNEL_BUILDER(Name("EpgcUnpack").Device(DEVICE_GPU), UnpackOp<CudaPasses>);
REGISTER_KERNEL_BUILDER(Name("EpgcQuantize").Device(DEVICE_GPU).HostMemory("step"), QuantizeOp<CudaPasses>);

}  // namespace
}  // namespace epgc

#endif  // defined(EPGC_HAVE_CUDA)
