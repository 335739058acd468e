// CPU kernels: checks, and one call of the core, split over TensorFlow's own threads.
#include <utility>
#include <vector>

#include "codec_attrs.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/threadpool.h"

namespace epgc {
namespace {

using ::tensorflow::DataType;
using ::tensorflow::DEVICE_CPU;
using ::tensorflow::OpInputList;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

// What one block costs in cycles, for ParallelFor's choice of how many threads to wake.
constexpr int64_t kCyclesPerBlock = 1500;

DType ToDType(DataType type) {
  switch (type) {
    case ::tensorflow::DT_HALF:
      return DType::kFloat16;
    case ::tensorflow::DT_BFLOAT16:
      return DType::kBFloat16;
    case ::tensorflow::DT_DOUBLE:
      return DType::kFloat64;
    default:
      return DType::kFloat32;
  }
}

const uint32_t* Words(const Tensor& tensor) { return static_cast<const uint32_t*>(tensor.data()); }
uint32_t* MutableWords(Tensor* tensor) { return static_cast<uint32_t*>(tensor->data()); }

// Reads the attributes that all kernels have, and splits blocks over the device's threads.
class CodecOp : public OpKernel {
 public:
  explicit CodecOp(OpKernelConstruction* ctx, bool encodes) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ReadCodecAttrs(ctx, &options_));
    if (encodes) OP_REQUIRES_OK(ctx, ReadRandomAttrs(ctx, &options_));
    OP_REQUIRES(
        ctx, ActiveIsa() != nullptr,
        absl::FailedPreconditionError("EPGC_FORCE_ISA names no instruction set of this CPU; unset it or use one "
                                      "that tf_epgc.native.runnable_isas() lists."));
  }

 protected:
  // The options of this call, whose step is the scalar input `step_input`. False after an error.
  bool OptionsOfStep(OpKernelContext* ctx, int step_input, CodecOptions* options) const {
    *options = options_;
    const Tensor& step = ctx->input(step_input);
    if (!::tensorflow::TensorShapeUtils::IsScalar(step.shape())) {
      ctx->CtxFailure(InvalidArgument("step must be a scalar, not of shape ", step.shape().DebugString(), "."));
      return false;
    }
    options->step = static_cast<uint64_t>(step.scalar<int64_t>()());
    return true;
  }

  template <typename Function>
  static void ForBlocks(OpKernelContext* ctx, int64_t blocks, int64_t cost_factor, Function&& function) {
    if (blocks == 0) return;
    auto* workers = ctx->device()->tensorflow_cpu_worker_threads()->workers;
    // Deprecated in TensorFlow 2.21 in favour of a call that 2.18 does not have.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    workers->ParallelFor(blocks, kCyclesPerBlock * cost_factor, std::forward<Function>(function));
#pragma GCC diagnostic pop
  }

  CodecOptions options_;
};

class PackOp : public CodecOp {
 public:
  explicit PackOp(OpKernelConstruction* ctx) : CodecOp(ctx, /*encodes=*/true) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("shards", &shards_));
  }

  void Compute(OpKernelContext* ctx) override {
    const int num_tensors = ctx->num_inputs() - 1;
    CodecOptions options;
    if (!OptionsOfStep(ctx, num_tensors, &options)) return;
    std::vector<ConstTensor> tensors(num_tensors);
    int64_t total = 0;
    for (int i = 0; i < num_tensors; ++i) {
      const Tensor& tensor = ctx->input(i);
      tensors[i] = {tensor.data(), tensor.NumElements(), ToDType(tensor.dtype())};
      total += tensor.NumElements();
    }
    const ShardLayout layout = MakeShardLayout(total, shards_, options);
    Tensor* codes = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({shards_, layout.shard_words}), &codes));
    uint32_t* out = MutableWords(codes);
    ForBlocks(ctx, layout.shards * layout.shard_blocks, 1, [&](int64_t first, int64_t last) {
      Pack(options, layout, tensors.data(), num_tensors, first, last, out);
    });
  }

 private:
  int shards_ = 1;
};

class ReduceOp : public CodecOp {
 public:
  explicit ReduceOp(OpKernelConstruction* ctx) : CodecOp(ctx, /*encodes=*/true) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("scale", &scale_));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& rows = ctx->input(0);
    CodecOptions options;
    if (!OptionsOfStep(ctx, 1, &options)) return;
    OP_REQUIRES(
        ctx, rows.dims() == 2,
        InvalidArgument("rows must have shape [replicas, words of a shard], not ", rows.shape().DebugString(), "."));
    ShardLayout layout;
    OP_REQUIRES_OK(ctx, LayoutOfWords(rows.dim_size(1), 1, options, &layout));
    Tensor* codes = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({layout.shard_words}), &codes));
    const uint32_t* in = Words(rows);
    uint32_t* out = MutableWords(codes);
    const int64_t num_rows = rows.dim_size(0);
    ForBlocks(ctx, layout.shard_blocks, num_rows + 1,
              [&](int64_t first, int64_t last) { Reduce(options, layout, in, num_rows, scale_, first, last, out); });
  }

 private:
  float scale_ = 1.0f;
};

class UnpackOp : public CodecOp {
 public:
  explicit UnpackOp(OpKernelConstruction* ctx) : CodecOp(ctx, /*encodes=*/false) {}

  void Compute(OpKernelContext* ctx) override {
    const Tensor& codes = ctx->input(0);
    const int num_tensors = ctx->num_inputs() - 1;
    OP_REQUIRES(ctx, codes.dims() == 2 && codes.dim_size(0) > 0,
                InvalidArgument("codes must have shape [shards, words of a shard] with at least one shard, not ",
                                codes.shape().DebugString(), "."));
    int64_t total = 0;
    for (int i = 0; i < num_tensors; ++i) total += ctx->input(i + 1).NumElements();
    const ShardLayout layout = MakeShardLayout(total, codes.dim_size(0), options_);
    OP_REQUIRES(ctx, layout.shard_words == codes.dim_size(1),
                InvalidArgument("codes has ", codes.dim_size(1), " words a shard, but ", total, " values on ",
                                codes.dim_size(0), " shards make ", layout.shard_words,
                                "; bits, scaling and shapes must be those that packed it."));
    std::vector<MutableTensor> tensors(num_tensors);
    for (int i = 0; i < num_tensors; ++i) {
      Tensor* output = nullptr;
      OP_REQUIRES_OK(ctx, ctx->forward_input_or_allocate_output({i + 1}, i, ctx->input(i + 1).shape(), &output));
      tensors[i] = {output->data(), output->NumElements(), ToDType(output->dtype())};
    }
    const uint32_t* in = Words(codes);
    ForBlocks(ctx, layout.shards * layout.shard_blocks, 1, [&](int64_t first, int64_t last) {
      Unpack(options_, layout, in, tensors.data(), num_tensors, first, last);
    });
  }
};

class QuantizeOp : public CodecOp {
 public:
  explicit QuantizeOp(OpKernelConstruction* ctx) : CodecOp(ctx, /*encodes=*/true) {}

  void Compute(OpKernelContext* ctx) override {
    const Tensor& x = ctx->input(0);
    CodecOptions options;
    if (!OptionsOfStep(ctx, 1, &options)) return;
    const DType dtype = ToDType(x.dtype());
    const ConstTensor in = {x.data(), x.NumElements(), dtype};
    Tensor* y = nullptr;
    OP_REQUIRES_OK(ctx, ctx->forward_input_or_allocate_output({0}, 0, x.shape(), &y));
    const MutableTensor out = {y->data(), y->NumElements(), dtype};
    ForBlocks(ctx, (in.size + kBlockSize - 1) / kBlockSize, 2,
              [&](int64_t first, int64_t last) { Quantize(options, in, out, first, last); });
  }
};

REGISTER_KERNEL_BUILDER(Name("EpgcPack").Device(DEVICE_CPU), PackOp);
REGISTER_KERNEL_BUILDER(Name("EpgcReduce").Device(DEVICE_CPU), ReduceOp);
REGISTER_KERNEL_BUILDER(Name("EpgcUnpack").Device(DEVICE_CPU), UnpackOp);
REGISTER_KERNEL_BUILDER(Name("EpgcQuantize").Device(DEVICE_CPU), QuantizeOp);

}  // namespace
}  // namespace epgc
