#include "ops/core/codec.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "ops/core/block.h"
#include "ops/core/dispatch.h"
#include "ops/core/format.h"
#include "ops/core/fp_environment.h"
#include "ops/core/kernels.h"
#include "ops/core/random.h"
#include "ops/core/tensor_cursor.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "The wire format is little-endian, and so must the machine be."
#endif

namespace epgc {
namespace {

// From so many values on, results are written around the caches, which could not hold them: a store into a cache reads
// the line from memory first.
constexpr int64_t kStreamedValues = 4 << 20;

// The block with the number `number` of the whole pack.
Block LocateBlock(const ShardLayout& layout, int bits, int64_t number) {
  return LocateBlock(layout, bits, number / layout.shard_blocks, number % layout.shard_blocks);
}

// The kernels and constants of one pass.
class Coder {
 public:
  explicit Coder(const CodecOptions& options)
      : kernels_(*ActiveKernels()),
        encode_(kernels_.encode.of[FormatIndex(options.bits)][static_cast<int>(options.rounding)]),
        encode_ordinary_(kernels_.encode_ordinary.of[FormatIndex(options.bits)][static_cast<int>(options.rounding)]),
        decode_(kernels_.decode[FormatIndex(options.bits)]),
        decode_add_(kernels_.decode_add[FormatIndex(options.bits)]),
        bits_(options.bits),
        scaled_(options.scaling == Scaling::kBlock),
        key_(MakeRandomKey(options.seed, options.step, options.stream)) {}

  const KernelTable& kernels() const { return kernels_; }

  bool Streams(const ShardLayout& layout) const {
    return kernels_.stream != nullptr && layout.shards * layout.shard_elements >= kStreamedValues;
  }

  // Codes `size` values whose first has the index `index` in the random stream, and returns their shift.
  int Encode(const float* values, int64_t size, int64_t index, uint32_t* words) const {
    EncodeKernel encode = encode_;
    int shift = 0;
    if (scaled_) {
      const uint32_t largest = kernels_.largest(values, size);
      const bool ordinary = largest < kFloatInfinity;
      if (ordinary) encode = encode_ordinary_;
      shift = BlockShift(ordinary ? largest : kernels_.largest_finite(values, size));
    }
    encode(values, size / kGroupSize, PowerOfTwo(shift), key_, static_cast<uint64_t>(index), words);
    return shift;
  }

  void Decode(const uint32_t* words, int64_t size, int shift, float* values) const {
    decode_(words, size / kGroupSize, PowerOfTwo(-shift), values);
  }

  void DecodeAdd(const uint32_t* words, int64_t size, int shift, float* values) const {
    decode_add_(words, size / kGroupSize, PowerOfTwo(-shift), values);
  }

  // The same for a block in its place among packed words.
  void EncodeBlock(const float* values, const Block& block, int64_t index, uint32_t* packed) const {
    PutShift(Encode(values, block.size, index, packed + block.word_offset), block, packed);
  }

  // And around the caches.
  void StreamBlock(const float* values, const Block& block, int64_t index, uint32_t* packed) const {
    alignas(kCacheLine) uint32_t words[kBlockSize];
    PutShift(Encode(values, block.size, index, words), block, packed);
    kernels_.stream(words, block.size / kGroupSize * bits_, packed + block.word_offset);
  }

  void PutShift(int shift, const Block& block, uint32_t* packed) const {
    if (!scaled_) return;
    char* shifts = reinterpret_cast<char*>(packed) + block.shift_offset;
    std::memset(shifts, 0, static_cast<size_t>(block.shift_bytes));
    *shifts = static_cast<char>(shift);
  }

  void DecodeBlock(const uint32_t* packed, const Block& block, float* values) const {
    Decode(packed + block.word_offset, block.size, ShiftOf(packed, block), values);
  }

  void DecodeAddBlock(const uint32_t* packed, const Block& block, float* values) const {
    DecodeAdd(packed + block.word_offset, block.size, ShiftOf(packed, block), values);
  }

 private:
  int ShiftOf(const uint32_t* packed, const Block& block) const { return scaled_ ? ReadShift(packed, block) : 0; }

  const KernelTable& kernels_;
  const EncodeKernel encode_;
  const EncodeKernel encode_ordinary_;
  const DecodeKernel decode_;
  const DecodeKernel decode_add_;
  const int bits_;
  const bool scaled_;
  const RandomKey key_;
};

// out = decode(encode(in)), which may be the same; `size` is a multiple of kGroupSize.
void QuantizeBlock(const Coder& coder, const float* in, int64_t size, int64_t index, float* out) {
  uint32_t words[kBlockSize];
  const int shift = coder.Encode(in, size, index, words);
  coder.Decode(words, size, shift, out);
}

}  // namespace

bool IsSupportedBits(int bits) { return FormatIndex(bits) >= 0; }

ShardLayout MakeShardLayout(int64_t elements, int64_t shards, const CodecOptions& options) {
  return MakeShardLayoutOfSize(CeilDiv(CeilDiv(elements, shards), kGroupSize) * kGroupSize, shards, options);
}

ShardLayout MakeShardLayoutOfSize(int64_t shard_elements, int64_t shards, const CodecOptions& options) {
  ShardLayout layout;
  layout.shards = shards;
  layout.shard_elements = shard_elements;
  layout.shard_blocks = CeilDiv(shard_elements, kBlockSize);
  layout.shift_words = options.scaling == Scaling::kBlock ? CeilDiv(layout.shard_blocks, 4) : 0;
  layout.shard_words = layout.shift_words + shard_elements / kGroupSize * options.bits;
  return layout;
}

void Pack(const CodecOptions& options, const ShardLayout& layout, const ConstTensor* tensors, int64_t num_tensors,
          int64_t first_block, int64_t last_block, uint32_t* out) {
  if (first_block >= last_block) return;
  const ScopedIeeeEnvironment ieee;
  const Coder coder(options);
  const int64_t start = LocateBlock(layout, options.bits, first_block).first;
  TensorCursor<ConstTensor> cursor(tensors, num_tensors, start);
  const bool streams = coder.Streams(layout);
  alignas(64) float scratch[kBlockSize];
  for (int64_t number = first_block; number < last_block; ++number) {
    const Block block = LocateBlock(layout, options.bits, number);
    const float* values = cursor.TakeDirect(block.size);
    if (values == nullptr) {
      cursor.Gather(coder.kernels(), block.size, scratch);
      values = scratch;
    }
    if (streams) {
      coder.StreamBlock(values, block, block.first, out);
    } else {
      coder.EncodeBlock(values, block, block.first, out);
    }
  }
  if (streams) std::atomic_thread_fence(std::memory_order_seq_cst);
}

void Reduce(const CodecOptions& options, const ShardLayout& layout, const uint32_t* rows, int64_t num_rows, float scale,
            int64_t first_block, int64_t last_block, uint32_t* out) {
  if (first_block >= last_block) return;
  const ScopedIeeeEnvironment ieee;
  const Coder coder(options);
  alignas(64) float sum[kBlockSize] = {};
  for (int64_t number = first_block; number < last_block; ++number) {
    const Block block = LocateBlock(layout, options.bits, number);
    for (int64_t row = 0; row < num_rows; ++row) {
      const uint32_t* packed = rows + row * layout.shard_words;
      if (row == 0) coder.DecodeBlock(packed, block, sum);
      if (row != 0) coder.DecodeAddBlock(packed, block, sum);
    }
    coder.kernels().multiply(sum, block.size, scale);
    coder.EncodeBlock(sum, block, block.first, out);
  }
}

void Unpack(const CodecOptions& options, const ShardLayout& layout, const uint32_t* packed,
            const MutableTensor* tensors, int64_t num_tensors, int64_t first_block, int64_t last_block) {
  if (first_block >= last_block) return;
  const ScopedIeeeEnvironment ieee;
  const Coder coder(options);
  const int64_t start = LocateBlock(layout, options.bits, first_block).first;
  TensorCursor<MutableTensor> cursor(tensors, num_tensors, start);
  const bool streams = coder.Streams(layout);
  alignas(64) float scratch[kBlockSize];
  for (int64_t number = first_block; number < last_block && !cursor.AtEnd(); ++number) {
    const Block block = LocateBlock(layout, options.bits, number);
    float* direct = cursor.TakeDirect(block.size);
    const bool in_place = direct != nullptr && !streams;
    coder.DecodeBlock(packed, block, in_place ? direct : scratch);
    if (direct == nullptr) {
      cursor.Scatter(coder.kernels(), block.size, scratch);
    } else if (streams) {
      coder.kernels().stream(scratch, block.size, direct);
    }
  }
  if (streams) std::atomic_thread_fence(std::memory_order_seq_cst);
}

void Quantize(const CodecOptions& options, ConstTensor in, MutableTensor out, int64_t first_block, int64_t last_block) {
  if (first_block >= last_block) return;
  const ScopedIeeeEnvironment ieee;
  const Coder coder(options);
  TensorCursor<ConstTensor> source(&in, 1, first_block * kBlockSize);
  TensorCursor<MutableTensor> target(&out, 1, first_block * kBlockSize);
  alignas(64) float scratch[kBlockSize];
  for (int64_t number = first_block; number < last_block; ++number) {
    const int64_t left = std::min(kBlockSize, in.size - number * kBlockSize);
    const int64_t size = CeilDiv(left, kGroupSize) * kGroupSize;
    const float* values = source.TakeDirect(size);
    float* direct = target.TakeDirect(size);
    if (values == nullptr) source.Gather(coder.kernels(), size, scratch);
    QuantizeBlock(coder, values != nullptr ? values : scratch, size, number * kBlockSize,
                  direct != nullptr ? direct : scratch);
    if (direct == nullptr) target.Scatter(coder.kernels(), size, scratch);
  }
}

}  // namespace epgc
