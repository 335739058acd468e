// The codec's interface: fused passes over packs of gradients. docs/wire_format.md is the specification.
//
// Nothing here allocates, throws, prints or starts threads. Each pass works on a range of blocks, so that the caller
// can split it over its own threads: blocks are numbered 0 .. shards * shard_blocks - 1, and disjoint ranges may
// run at the same time.
#ifndef EPGC_OPS_CORE_CODEC_H_
#define EPGC_OPS_CORE_CODEC_H_

#include <cstdint>

namespace epgc {

// The version that docs/wire_format.md describes; workers compare it at start-up.
inline constexpr int kProtocolVersion = 1;

inline constexpr int64_t kGroupSize = 32;
inline constexpr int64_t kBlockSize = 1024;

enum class DType : int { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2, kFloat64 = 3 };
enum class Rounding : int { kTruncate = 0, kNearest = 1, kStochastic = 2 };
enum class Scaling : int { kNone = 0, kBlock = 1 };

struct CodecOptions {
  int bits = 11;  // 8, 9, 11, 16 or 32; with 32, rounding is ignored and scaling must be kNone.
  Rounding rounding = Rounding::kNearest;
  Scaling scaling = Scaling::kNone;
  // Stochastic rounding only (section 4).
  uint64_t seed = 0;
  uint64_t step = 0;
  uint64_t stream = 0;
};

// How a pack of `elements` values is cut up.
struct ShardLayout {
  int64_t shards = 1;
  int64_t shard_elements = 0;  // a multiple of kGroupSize
  int64_t shard_blocks = 0;
  int64_t shift_words = 0;
  int64_t shard_words = 0;
};

struct ConstTensor {
  const void* data;  // any alignment
  int64_t size;      // elements
  DType dtype;
};

struct MutableTensor {
  void* data;
  int64_t size;
  DType dtype;
};

bool IsSupportedBits(int bits);

// Layout of `elements` >= 0 values over `shards` >= 1.
ShardLayout MakeShardLayout(int64_t elements, int64_t shards, const CodecOptions& options);

// Layout of shards that hold `shard_elements` (a multiple of kGroupSize) values each.
ShardLayout MakeShardLayoutOfSize(int64_t shard_elements, int64_t shards, const CodecOptions& options);

// Encodes blocks [first_block, last_block) of the pack that `tensors` form, laid end to end, into `out`
// (layout.shards * layout.shard_words words).
void Pack(const CodecOptions& options, const ShardLayout& layout, const ConstTensor* tensors, int64_t num_tensors,
          int64_t first_block, int64_t last_block, uint32_t* out);

// Decodes block by block the `num_rows` encoded shards at `rows` (layout.shard_words words each), adds them in float32
// in row order, multiplies by `scale` and encodes the result into `out` (layout.shard_words words). Blocks are
// numbered within the shard, so that last_block <= layout.shard_blocks.
void Reduce(const CodecOptions& options, const ShardLayout& layout, const uint32_t* rows, int64_t num_rows, float scale,
            int64_t first_block, int64_t last_block, uint32_t* out);

// Decodes blocks [first_block, last_block) of `packed` into `tensors`. Values beyond the last tensor's end are dropped.
void Unpack(const CodecOptions& options, const ShardLayout& layout, const uint32_t* packed,
            const MutableTensor* tensors, int64_t num_tensors, int64_t first_block, int64_t last_block);

// out = decode(encode(in)) for blocks [first_block, last_block) of one tensor (kBlockSize elements each, the last one
// may be shorter), as a pack of one shard would carry it. `in` and `out` have the same dtype and may be the same
// buffer.
void Quantize(const CodecOptions& options, ConstTensor in, MutableTensor out, int64_t first_block, int64_t last_block);

// Name of the instruction set in use: the best that this CPU has, or the one that the environment variable
// EPGC_FORCE_ISA names ("scalar", "avx2", "avx512"). nullptr if that variable names one that is unknown
// or that this CPU lacks; the passes above must not be called then.
const char* ActiveIsa();

// Names of those this CPU can run, best first; a null-terminated array.
const char* const* RunnableIsas();

// Selects one by name for the whole process, for tests. False if this CPU cannot run it.
bool SetIsaForTest(const char* name);

}  // namespace epgc

#endif  // EPGC_OPS_CORE_CODEC_H_
