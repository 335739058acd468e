// CPU kernels: one call of the core, split over TensorFlow's own threads.
#include <utility>
#include <vector>

#include "codec_kernels.h"
#include "tensorflow/core/platform/threadpool.h"

namespace epgc {
namespace {

using ::tensorflow::DEVICE_CPU;

// What one block costs in cycles, for ParallelFor's choice of how many threads to wake.
constexpr int64_t kCyclesPerBlock = 1500;

template <typename Function>
void ForBlocks(OpKernelContext* ctx, int64_t blocks, int64_t cost_factor, Function&& function) {
  if (blocks == 0) return;
  auto* workers = ctx->device()->tensorflow_cpu_worker_threads()->workers;
  // Deprecated in TensorFlow 2.21 in favour of a call that 2.18 does not have.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  workers->ParallelFor(blocks, kCyclesPerBlock * cost_factor, std::forward<Function>(function));
#pragma GCC diagnostic pop
}

struct CpuPasses {
  static absl::Status Check() {
    if (ActiveIsa() != nullptr) return absl::OkStatus();
    return absl::FailedPreconditionError(
        "EPGC_FORCE_ISA names no instruction set of this CPU; unset it or use one that "
        "tf_epgc.native.runnable_isas() lists.");
  }

  static void Pack(OpKernelContext* ctx, const CodecOptions& options, const ShardLayout& layout,
                   const std::vector<ConstTensor>& tensors, uint32_t* out) {
    ForBlocks(ctx, layout.shards * layout.shard_blocks, 1, [&](int64_t first, int64_t last) {
      epgc::Pack(options, layout, tensors.data(), static_cast<int64_t>(tensors.size()), first, last, out);
    });
  }

  static void Reduce(OpKernelContext* ctx, const CodecOptions& options, const ShardLayout& layout, const uint32_t* rows,
                     int64_t num_rows, float scale, uint32_t* out) {
    ForBlocks(ctx, layout.shard_blocks, num_rows + 1, [&](int64_t first, int64_t last) {
      epgc::Reduce(options, layout, rows, num_rows, scale, first, last, out);
    });
  }

  static void Unpack(OpKernelContext* ctx, const CodecOptions& options, const ShardLayout& layout,
                     const uint32_t* packed, const std::vector<MutableTensor>& tensors) {
    ForBlocks(ctx, layout.shards * layout.shard_blocks, 1, [&](int64_t first, int64_t last) {
      epgc::Unpack(options, layout, packed, tensors.data(), static_cast<int64_t>(tensors.size()), first, last);
    });
  }

  static void Quantize(OpKernelContext* ctx, const CodecOptions& options, ConstTensor in, MutableTensor out) {
    ForBlocks(ctx, (in.size + kBlockSize - 1) / kBlockSize, 2,
              [&](int64_t first, int64_t last) { epgc::Quantize(options, in, out, first, last); });
  }
};

REGISTER_KERNEL_BUILDER(Name("EpgcPack").Device(DEVICE_CPU), PackOp<CpuPasses>);
REGISTER_KERNEL_BUILDER(Name("EpgcReduce").Device(DEVICE_CPU), ReduceOp<CpuPasses>);
REGISTER_KERNEL_BUILDER(Name("EpgcUnpack").Device(DEVICE_CPU), UnpackOp<CpuPasses>);
REGISTER_KERNEL_BUILDER(Name("EpgcQuantize").Device(DEVICE_CPU), QuantizeOp<CpuPasses>);

}  // namespace
}  // namespace epgc
