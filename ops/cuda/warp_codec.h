// The passes of codec.h for one block, by one warp.
#ifndef EPGC_OPS_CUDA_WARP_CODEC_H_
#define EPGC_OPS_CUDA_WARP_CODEC_H_

#include <cstdint>

#include "ops/core/block.h"
#include "ops/core/codec.h"
#include "ops/core/format.h"
#include "ops/core/random.h"
#include "ops/cuda/device.h"
#include "ops/cuda/lane_codec.h"
#include "ops/cuda/warp_values.h"
#include "ops/cuda/warp_words.h"

namespace epgc {
namespace cuda {

// What all blocks of a pass share; an argument of the kernel.
struct Pass {
  ShardLayout layout;
  RandomKey key;
  bool scaled;
};

inline Pass MakePass(const CodecOptions& options, const ShardLayout& layout) {
  return {layout, MakeRandomKey(options.seed, options.step, options.stream), options.scaling == Scaling::kBlock};
}

// 32-bit division; the launchers refuse more blocks.
EPGC_DEVICE Block LocateBlock(const Pass& pass, int bits, uint32_t number) {
  const uint32_t shard_blocks = static_cast<uint32_t>(pass.layout.shard_blocks);
  const uint32_t shard = number / shard_blocks;
  return epgc::LocateBlock(pass.layout, bits, shard, number - shard * shard_blocks);
}

// The largest pattern of a magnitude below `limit` among a block's values, 0 if there is none.
template <typename Warp>
EPGC_DEVICE uint32_t LargestBelow(const Warp& warp, const typename Warp::template Lanes<Values>& values,
                                  uint32_t limit) {
  typename Warp::template Lanes<uint32_t> largest;
  warp.Each([&](int lane) {
    uint32_t own = 0;
    EPGC_UNROLL for (int i = 0; i < 4 * kLaneFours; ++i) {
      const uint32_t magnitude = FloatToBits(values[lane].x[i]) & ~kFloatSign;
      own = magnitude > own && magnitude < limit ? magnitude : own;
    }
    largest[lane] = own;
  });
  return warp.Largest(largest);
}

// How to encode a block's values, and the shift that says so.
template <int kBits, Rounding kRounding, typename Warp>
EPGC_DEVICE BlockCoding ChooseCoding(const Warp& warp, const Pass& pass,
                                     const typename Warp::template Lanes<Values>& values, int64_t index, int* shift) {
  BlockCoding coding = {1.0f, false, MakeBlockRandom(pass.key, static_cast<uint64_t>(index))};
  *shift = 0;
  if (kBits == 32 || (!pass.scaled && !HasOrdinary<kBits, kRounding>())) return coding;
  constexpr uint32_t kNoLimit = 0xFFFFFFFFu;
  const uint32_t largest = LargestBelow(warp, values, kNoLimit);
  coding.ordinary = largest < (pass.scaled ? kFloatInfinity : OrdinaryLimit<kBits>());
  if (pass.scaled) {
    *shift = BlockShift(largest < kFloatInfinity ? largest : LargestBelow(warp, values, kFloatInfinity));
    coding.factor = PowerOfTwo(*shift);
  }
  return coding;
}

// Encodes a block's values to their place in `out`. No lane may be using `stage`.
template <int kBits, Rounding kRounding, typename Warp>
EPGC_DEVICE void EncodeBlock(const Warp& warp, const Pass& pass, const Block& block,
                             const typename Warp::template Lanes<Values>& values, Stage* stage, uint32_t* out) {
  int shift = 0;
  const BlockCoding coding = ChooseCoding<kBits, kRounding>(warp, pass, values, block.first, &shift);
  uint32_t* words = out + block.word_offset;
  EncodeWords<kBits, kRounding>(warp, values, coding, stage->word + WordsPast16Bytes(words));
  StoreWords<kBits>(warp, *stage, static_cast<int>(block.size / kGroupSize) * kBits, words);
  if (!pass.scaled) return;
  warp.Each([&](int lane) {
    int8_t* shifts = reinterpret_cast<int8_t*>(out) + block.shift_offset;
    if (lane < block.shift_bytes) shifts[lane] = static_cast<int8_t>(lane == 0 ? shift : 0);
  });
}

EPGC_DEVICE int LoadShift(const Pass& pass, const uint32_t* packed, const Block& block) {
  return pass.scaled ? ReadShift(packed, block) : 0;
}

template <int kBits, Rounding kRounding, typename Warp, typename Table>
EPGC_DEVICE void PackBlock(const Warp& warp, const Pass& pass, const Table& table, uint32_t number, Stage* stage,
                           uint32_t* out) {
  const Block block = LocateBlock(pass, kBits, number);
  typename Warp::template Lanes<Values> values;
  LoadValues(warp, table, block.first, static_cast<int>(block.size), stage, &values);
  EncodeBlock<kBits, kRounding>(warp, pass, block, values, stage, out);
}

template <int kBits, typename Warp, typename Table>
EPGC_DEVICE void UnpackBlock(const Warp& warp, const Pass& pass, const Table& table, uint32_t number, Stage* stage,
                             const uint32_t* packed) {
  const Block block = LocateBlock(pass, kBits, number);
  if (table.count == 0 || block.first >= table.end[table.count - 1]) return;
  WordsInFlight<kBits, Warp> words;
  words.Load(warp, packed + block.word_offset, static_cast<int>(block.size / kGroupSize) * kBits);
  const float factor = PowerOfTwo(-LoadShift(pass, packed, block));
  typename Warp::template Lanes<Values> values;
  DecodeWords<kBits, false>(warp, words.Arrive(warp, stage), factor, &values);
  warp.Sync();
  StoreValues(warp, table, block.first, static_cast<int>(block.size), values, stage);
}

// Each row's words and shift are fetched while those of the row before are decoded.
template <int kBits, Rounding kRounding, typename Warp>
EPGC_DEVICE void ReduceBlock(const Warp& warp, const Pass& pass, const uint32_t* rows, int64_t num_rows, float scale,
                             uint32_t number, Stage* stage, uint32_t* out) {
  const Block block = LocateBlock(pass, kBits, number);
  const int count = static_cast<int>(block.size / kGroupSize) * kBits;
  WordsInFlight<kBits, Warp> words;
  typename Warp::template Lanes<Values> sum;
  // -0 plus the first row is that row, signs of zeros included.
  const float start = num_rows > 0 ? -0.0f : 0.0f;
  warp.Each([&](int lane) { EPGC_UNROLL for (int i = 0; i < 4 * kLaneFours; ++i) sum[lane].x[i] = start; });
  int shift = 0;
  const auto fetch = [&](const uint32_t* packed) {
    words.Load(warp, packed + block.word_offset, count);
    shift = LoadShift(pass, packed, block);
  };
  if (num_rows > 0) fetch(rows);
  for (int64_t row = 0; row < num_rows; ++row) {
    const float factor = PowerOfTwo(-shift);
    const uint32_t* arrived = words.Arrive(warp, stage);
    if (row + 1 < num_rows) fetch(rows + (row + 1) * pass.layout.shard_words);
    DecodeWords<kBits, true>(warp, arrived, factor, &sum);
    warp.Sync();
  }
  warp.Each([&](int lane) { EPGC_UNROLL for (int i = 0; i < 4 * kLaneFours; ++i) sum[lane].x[i] *= scale; });
  EncodeBlock<kBits, kRounding>(warp, pass, block, sum, stage, out);
}

// `in` and `out` are tables of one tensor each.
template <int kBits, Rounding kRounding, typename Warp, typename Table>
EPGC_DEVICE void QuantizeBlock(const Warp& warp, const Pass& pass, const Table& in, const Table& out, uint32_t number,
                               Stage* stage) {
  const Block block = LocateBlock(pass, kBits, number);
  typename Warp::template Lanes<Values> values;
  LoadValues(warp, in, block.first, static_cast<int>(block.size), stage, &values);
  int shift = 0;
  const BlockCoding coding = ChooseCoding<kBits, kRounding>(warp, pass, values, block.first, &shift);
  if constexpr (kBits < 32) {
    const float factor = PowerOfTwo(-shift);
    warp.Each([&](int lane) {
      EPGC_UNROLL for (int i = 0; i < kLaneFours; ++i) {
        float* x = values[lane].x + 4 * i;
        const Images images = EncodeFour<kBits, kRounding>(x, kFourStride * i + 4 * lane, coding);
        DecodeFour<kBits>(WholeImages<kBits>(images), factor, x);
      }
    });
  }
  StoreValues(warp, out, block.first, static_cast<int>(block.size), values, stage);
}

}  // namespace cuda
}  // namespace epgc

#endif  // EPGC_OPS_CUDA_WARP_CODEC_H_
