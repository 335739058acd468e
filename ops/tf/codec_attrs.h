// What the ops share: the attributes that describe a codec, and the shard layout that a buffer's shape implies.
#ifndef EPGC_OPS_TF_CODEC_ATTRS_H_
#define EPGC_OPS_TF_CODEC_ATTRS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "codec.h"
#include "tensorflow/core/platform/errors.h"

namespace epgc {

template <typename... Parts>
absl::Status InvalidArgument(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// Reads the codec's attributes from an `OpKernelConstruction` or a `shape_inference::InferenceContext`.
// InvalidArgument if `bits` is not supported, or scaling is asked for with 32 bits.
template <typename Context>
absl::Status ReadCodecAttrs(Context* ctx, CodecOptions* options) {
  int bits = 0;
  std::string rounding, scaling;
  TF_RETURN_IF_ERROR(ctx->GetAttr("bits", &bits));
  TF_RETURN_IF_ERROR(ctx->GetAttr("rounding", &rounding));
  TF_RETURN_IF_ERROR(ctx->GetAttr("scaling", &scaling));
  if (!IsSupportedBits(bits)) {
    return InvalidArgument("bits = ", bits, " is not a format of this codec; use 8, 9, 11, 16 or 32.");
  }
  options->bits = bits;
  options->rounding = rounding == "truncate"     ? Rounding::kTruncate
                      : rounding == "stochastic" ? Rounding::kStochastic
                                                 : Rounding::kNearest;
  options->scaling = scaling == "block" ? Scaling::kBlock : Scaling::kNone;
  if (bits == 32 && options->scaling == Scaling::kBlock) {
    return InvalidArgument("scaling = 'block' has no meaning for 32 bits; use 'none'.");
  }
  return absl::OkStatus();
}

// Reads `seed` and `stream`, which only the ops that encode have.
template <typename Context>
absl::Status ReadRandomAttrs(Context* ctx, CodecOptions* options) {
  int64_t seed = 0, stream = 0;
  TF_RETURN_IF_ERROR(ctx->GetAttr("seed", &seed));
  TF_RETURN_IF_ERROR(ctx->GetAttr("stream", &stream));
  options->seed = static_cast<uint64_t>(seed);
  options->stream = static_cast<uint64_t>(stream);
  return absl::OkStatus();
}

// The layout of shards of `shard_words` words, by inverting MakeShardLayoutOfSize, whose word count
// grows with every group. InvalidArgument if no shard has that many words.
inline absl::Status LayoutOfWords(int64_t shard_words, int64_t shards, const CodecOptions& options,
                                  ShardLayout* layout) {
  // A lower bound: every group costs `bits` words and at most one word of shifts.
  int64_t groups = shard_words / (options.bits + 1);
  for (;; ++groups) {
    *layout = MakeShardLayoutOfSize(groups * kGroupSize, shards, options);
    if (layout->shard_words == shard_words) return absl::OkStatus();
    if (layout->shard_words > shard_words) break;
    // Skip what is surely missing: a group adds at most bits + 1 words.
    groups += (shard_words - layout->shard_words - 1) / (options.bits + 1);
  }
  return InvalidArgument("A row of ", shard_words, " words is no shard of the ", options.bits,
                         "-bit format with scaling '", options.scaling == Scaling::kBlock ? "block" : "none",
                         "'; the rows must come from EpgcPack or EpgcReduce with the same bits and scaling.");
}

}  // namespace epgc

#endif  // EPGC_OPS_TF_CODEC_ATTRS_H_
