// The ops' kernels, but for what does the work: checks, outputs, and one call of `Passes`, a class with static
// functions Pack, Reduce, Unpack and Quantize for one kind of device.
#ifndef EPGC_OPS_TF_CODEC_KERNELS_H_
#define EPGC_OPS_TF_CODEC_KERNELS_H_

#include <vector>

#include "codec_attrs.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace epgc {

using ::tensorflow::DataType;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

inline DType ToDType(DataType type) {
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

inline const uint32_t* Words(const Tensor& tensor) { return static_cast<const uint32_t*>(tensor.data()); }
inline uint32_t* MutableWords(Tensor* tensor) { return static_cast<uint32_t*>(tensor->data()); }

// Reads the attributes that all kernels have.
template <typename Passes>
class CodecOp : public OpKernel {
 public:
  explicit CodecOp(OpKernelConstruction* ctx, bool encodes) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ReadCodecAttrs(ctx, &options_));
    if (encodes) OP_REQUIRES_OK(ctx, ReadRandomAttrs(ctx, &options_));
    OP_REQUIRES_OK(ctx, Passes::Check());
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

  CodecOptions options_;
};

template <typename Passes>
class PackOp : public CodecOp<Passes> {
 public:
  explicit PackOp(OpKernelConstruction* ctx) : CodecOp<Passes>(ctx, /*encodes=*/true) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("shards", &shards_));
  }

  void Compute(OpKernelContext* ctx) override {
    const int num_tensors = ctx->num_inputs() - 1;
    CodecOptions options;
    if (!this->OptionsOfStep(ctx, num_tensors, &options)) return;
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
    Passes::Pack(ctx, options, layout, tensors, MutableWords(codes));
  }

 private:
  int shards_ = 1;
};

template <typename Passes>
class ReduceOp : public CodecOp<Passes> {
 public:
  explicit ReduceOp(OpKernelConstruction* ctx) : CodecOp<Passes>(ctx, /*encodes=*/true) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("scale", &scale_));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& rows = ctx->input(0);
    CodecOptions options;
    if (!this->OptionsOfStep(ctx, 1, &options)) return;
    OP_REQUIRES(
        ctx, rows.dims() == 2,
        InvalidArgument("rows must have shape [replicas, words of a shard], not ", rows.shape().DebugString(), "."));
    ShardLayout layout;
    OP_REQUIRES_OK(ctx, LayoutOfWords(rows.dim_size(1), 1, options, &layout));
    Tensor* codes = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({1, layout.shard_words}), &codes));
    Passes::Reduce(ctx, options, layout, Words(rows), rows.dim_size(0), scale_, MutableWords(codes));
  }

 private:
  float scale_ = 1.0f;
};

template <typename Passes>
class UnpackOp : public CodecOp<Passes> {
 public:
  explicit UnpackOp(OpKernelConstruction* ctx) : CodecOp<Passes>(ctx, /*encodes=*/false) {}

  void Compute(OpKernelContext* ctx) override {
    const Tensor& codes = ctx->input(0);
    const int num_tensors = ctx->num_inputs() - 1;
    OP_REQUIRES(ctx, codes.dims() == 2 && codes.dim_size(0) > 0,
                InvalidArgument("codes must have shape [shards, words of a shard] with at least one shard, not ",
                                codes.shape().DebugString(), "."));
    int64_t total = 0;
    for (int i = 0; i < num_tensors; ++i) total += ctx->input(i + 1).NumElements();
    const CodecOptions& options = this->options_;
    const ShardLayout layout = MakeShardLayout(total, codes.dim_size(0), options);
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
    Passes::Unpack(ctx, options, layout, Words(codes), tensors);
  }
};

template <typename Passes>
class QuantizeOp : public CodecOp<Passes> {
 public:
  explicit QuantizeOp(OpKernelConstruction* ctx) : CodecOp<Passes>(ctx, /*encodes=*/true) {}

  void Compute(OpKernelContext* ctx) override {
    const Tensor& x = ctx->input(0);
    CodecOptions options;
    if (!this->OptionsOfStep(ctx, 1, &options)) return;
    const DType dtype = ToDType(x.dtype());
    const ConstTensor in = {x.data(), x.NumElements(), dtype};
    Tensor* y = nullptr;
    OP_REQUIRES_OK(ctx, ctx->forward_input_or_allocate_output({0}, 0, x.shape(), &y));
    const MutableTensor out = {y->data(), y->NumElements(), dtype};
    Passes::Quantize(ctx, options, in, out);
  }
};

}  // namespace epgc

#endif  // EPGC_OPS_TF_CODEC_KERNELS_H_
