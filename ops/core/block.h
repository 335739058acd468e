// Where the blocks of a pack lie: section 3 of docs/wire_format.md, for the passes of the CPU and of CUDA.
#ifndef EPGC_OPS_CORE_BLOCK_H_
#define EPGC_OPS_CORE_BLOCK_H_

#include <cstdint>

#include "ops/core/codec.h"
#include "ops/core/format.h"

namespace epgc {

EPGC_HD constexpr int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

struct Block {
  int64_t first;         // its first value, counted from the start of the pack
  int64_t size;          // values; a multiple of kGroupSize
  int64_t shift_offset;  // bytes from the start of the packed words to its shift
  int64_t shift_bytes;   // 1, or more for the last block of a shard, which owns the padding
  int64_t word_offset;   // words from there to its first group
};

// The block `in_shard` of the shard `shard`.
EPGC_HD inline Block LocateBlock(const ShardLayout& layout, int bits, int64_t shard, int64_t in_shard) {
  const int64_t words_before = shard * layout.shard_words;
  const int64_t values_before = in_shard * kBlockSize;
  const int64_t values_left = layout.shard_elements - values_before;
  Block block;
  block.first = shard * layout.shard_elements + values_before;
  block.size = values_left < kBlockSize ? values_left : kBlockSize;
  block.shift_offset = words_before * 4 + in_shard;
  block.shift_bytes = in_shard + 1 == layout.shard_blocks ? layout.shift_words * 4 - in_shard : 1;
  block.word_offset = words_before + layout.shift_words + in_shard * kGroupsPerBlock * bits;
  return block;
}

// The shift of a block with scaling. Clamped, because the byte may come from a stranger and must not become an invalid
// factor.
EPGC_HD inline int ReadShift(const uint32_t* packed, const Block& block) {
  const int shift = reinterpret_cast<const int8_t*>(packed)[block.shift_offset];
  return shift < -113 ? -113 : shift > 126 ? 126 : shift;
}

}  // namespace epgc

#endif  // EPGC_OPS_CORE_BLOCK_H_
