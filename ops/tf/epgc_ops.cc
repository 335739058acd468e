// Registration, shape functions and documentation of the ops; nothing that computes.
#include "codec_attrs.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace epgc {
namespace {

using ::tensorflow::shape_inference::DimensionHandle;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

// Elements of inputs [first, first + count) together, or -1 where a shape is not known.
int64_t TotalElements(InferenceContext* c, int first, int count) {
  int64_t total = 0;
  for (int i = first; i < first + count; ++i) {
    const DimensionHandle elements = c->NumElements(c->input(i));
    if (!c->ValueKnown(elements)) return -1;
    total += c->Value(elements);
  }
  return total;
}

absl::Status CheckStepIsScalar(InferenceContext* c, int input) {
  ShapeHandle unused;
  return c->WithRank(c->input(input), 0, &unused);
}

absl::Status PackShape(InferenceContext* c) {
  CodecOptions options;
  int shards = 0;
  TF_RETURN_IF_ERROR(ReadCodecAttrs(c, &options));
  TF_RETURN_IF_ERROR(c->GetAttr("shards", &shards));
  const int num_tensors = c->num_inputs() - 1;
  TF_RETURN_IF_ERROR(CheckStepIsScalar(c, num_tensors));
  const int64_t total = TotalElements(c, 0, num_tensors);
  const DimensionHandle words =
      total < 0 ? c->UnknownDim() : c->MakeDim(MakeShardLayout(total, shards, options).shard_words);
  c->set_output(0, c->Matrix(c->MakeDim(shards), words));
  return absl::OkStatus();
}

absl::Status ReduceShape(InferenceContext* c) {
  CodecOptions options;
  TF_RETURN_IF_ERROR(ReadCodecAttrs(c, &options));
  ShapeHandle rows;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &rows));
  TF_RETURN_IF_ERROR(CheckStepIsScalar(c, 1));
  const DimensionHandle words = c->Dim(rows, 1);
  if (c->ValueKnown(words)) {
    ShardLayout layout;
    TF_RETURN_IF_ERROR(LayoutOfWords(c->Value(words), 1, options, &layout));
  }
  c->set_output(0, c->Matrix(1, words));
  return absl::OkStatus();
}

absl::Status UnpackShape(InferenceContext* c) {
  CodecOptions options;
  TF_RETURN_IF_ERROR(ReadCodecAttrs(c, &options));
  ShapeHandle codes;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &codes));
  const int num_tensors = c->num_inputs() - 1;
  const int64_t total = TotalElements(c, 1, num_tensors);
  const DimensionHandle shards = c->Dim(codes, 0), words = c->Dim(codes, 1);
  if (total >= 0 && c->ValueKnown(shards) && c->ValueKnown(words) && c->Value(shards) > 0) {
    const int64_t expected = MakeShardLayout(total, c->Value(shards), options).shard_words;
    if (expected != c->Value(words)) {
      return InvalidArgument("codes has ", c->Value(words), " words a shard, but ", total, " values on ",
                             c->Value(shards), " shards make ", expected,
                             "; bits, scaling and shapes must be those that packed it.");
    }
  }
  for (int i = 0; i < num_tensors; ++i) c->set_output(i, c->input(i + 1));
  return absl::OkStatus();
}

absl::Status QuantizeShape(InferenceContext* c) {
  CodecOptions options;
  TF_RETURN_IF_ERROR(ReadCodecAttrs(c, &options));
  TF_RETURN_IF_ERROR(CheckStepIsScalar(c, 1));
  c->set_output(0, c->input(0));
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("EpgcPack")
    .Input("tensors: T")
    .Input("step: int64")
    .Output("codes: int32")
    .Attr("T: list({float, half, bfloat16, double}) >= 0")
    .Attr("shards: int >= 1")
    .Attr("bits: int")
    .Attr("rounding: {'truncate', 'nearest', 'stochastic'} = 'nearest'")
    .Attr("scaling: {'none', 'block'} = 'none'")
    .Attr("seed: int = 0")
    .Attr("stream: int = 0")
    .SetShapeFn(PackShape)
    .Doc(R"doc(
Encodes tensors, laid end to end, into equal shards of low-bit codes.

tensors: Any shapes and floating types; zero elements are allowed.
step: A scalar; with `seed`, `stream` and the element's index it chooses the random bits of stochastic rounding.
codes: Shape [shards, words of a shard]; the layout is section 3 of docs/wire_format.md.
)doc");

REGISTER_OP("EpgcReduce")
    .Input("rows: int32")
    .Input("step: int64")
    .Output("codes: int32")
    .Attr("scale: float = 1.0")
    .Attr("bits: int")
    .Attr("rounding: {'truncate', 'nearest', 'stochastic'} = 'nearest'")
    .Attr("scaling: {'none', 'block'} = 'none'")
    .Attr("seed: int = 0")
    .Attr("stream: int = 0")
    .SetShapeFn(ReduceShape)
    .Doc(R"doc(
Decodes the same shard of every replica, adds them in float32 in row order, scales and encodes the sum.

rows: Shape [replicas, words of a shard], as an all-to-all of EpgcPack's output gives them.
step: As for EpgcPack.
codes: Shape [1, words of a shard]: a row of what all replicas gather.
scale: What the sum is multiplied by: 1 for a sum, 1 / replicas for a mean.
)doc");

REGISTER_OP("EpgcUnpack")
    .Input("codes: int32")
    .Input("like: T")
    .Output("tensors: T")
    .Attr("T: list({float, half, bfloat16, double}) >= 0")
    .Attr("bits: int")
    .Attr("rounding: {'truncate', 'nearest', 'stochastic'} = 'nearest'")
    .Attr("scaling: {'none', 'block'} = 'none'")
    .SetShapeFn(UnpackShape)
    .Doc(R"doc(
Decodes a pack into tensors.

codes: Shape [shards, words of a shard].
like: Tensors of the shapes and types to decode into; only their shapes are read, and their buffers are
  reused for the outputs where nobody else needs them.
tensors: One for each of `like`.
)doc");

REGISTER_OP("EpgcQuantize")
    .Input("x: T")
    .Input("step: int64")
    .Output("y: T")
    .Attr("T: {float, half, bfloat16, double}")
    .Attr("bits: int")
    .Attr("rounding: {'truncate', 'nearest', 'stochastic'} = 'nearest'")
    .Attr("scaling: {'none', 'block'} = 'none'")
    .Attr("seed: int = 0")
    .Attr("stream: int = 0")
    .SetShapeFn(QuantizeShape)
    .Doc(R"doc(
Rounds every value to one that the format can hold: EpgcPack into one shard, then EpgcUnpack, in one pass.
)doc");

}  // namespace epgc
