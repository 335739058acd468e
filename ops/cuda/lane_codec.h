// What a lane does by itself: four consecutive values to the images of their codes and back.
//
// Values are either *ordinary* or not, and a block of ordinary ones takes a shorter way. EncodeImage() of format.h
// defines the results of both.
#ifndef EPGC_OPS_CUDA_LANE_CODEC_H_
#define EPGC_OPS_CUDA_LANE_CODEC_H_

#include <cstdint>

#include "ops/core/codec.h"
#include "ops/core/format.h"
#include "ops/core/random.h"
#include "ops/cuda/device.h"

namespace epgc {
namespace cuda {

// Images of four values, 0 and 1 in `first`, 0 and 2 in the lower halves. What lies below an image's code is undefined.
struct Images {
  uint32_t first;
  uint32_t second;
};

// Patterns of magnitudes below this are ordinary: they do not overflow, and NaN and infinity are not among them.
template <int kBits>
EPGC_DEVICE constexpr uint32_t OrdinaryLimit() {
  return kBits == 9 ? kFloatInfinity : (127u + 15u) << 23;
}

// Whether there is a shorter way.
template <int kBits, Rounding kRounding>
EPGC_DEVICE constexpr bool HasOrdinary() {
  return kBits < 32 && kRounding != Rounding::kStochastic;
}

// An ordinary value, rounded to nearest with kBits - 6 mantissa bits as binary16 has them: adding and subtracting
// 1.5 * 2^k, whose last bit is worth the gap, leaves a multiple of the gap.
template <int kBits>
EPGC_DEVICE float RoundToGap(float x) {
  constexpr uint32_t kLeast = kHalfMinExponent << 23;
  const uint32_t exponent = FloatToBits(x) & kFloatInfinity;
  const float magic = BitsToFloat((exponent > kLeast ? exponent : kLeast) + ((29u - kBits) << 23) + 0x400000u);
  const float rounded = (x + magic) - magic;
  return BitsToFloat(FloatToBits(rounded) | (FloatToBits(x) & kFloatSign));
}

// Images of two ordinary values.
template <int kBits, Rounding kRounding>
EPGC_DEVICE uint32_t EncodeOrdinaryPair(float first, float second) {
  if constexpr (kBits == 9) {
    uint32_t patterns[] = {FloatToBits(first), FloatToBits(second)};
    for (uint32_t& pattern : patterns) pattern += RoundingIncrement<kRounding>(pattern, 23, 0);
    return BytePerm(patterns[0], patterns[1], 0x7632);
  } else if constexpr (kBits == 16 || kRounding == Rounding::kTruncate) {
    return NarrowPair<kRounding>(first, second);
  } else {
    return NarrowPair<Rounding::kNearest>(RoundToGap<kBits>(first), RoundToGap<kBits>(second));
  }
}

// The random words of a block: with 32-bit arithmetic, since its indices have two upper halves at the most.
struct BlockRandom {
  uint32_t key_low;
  uint32_t first;             // lower half of the first index
  uint32_t high;              // RandomHighWord() from there on,
  uint32_t high_after_carry;  // and from the multiple of 2^32 on
};

EPGC_DEVICE BlockRandom MakeBlockRandom(RandomKey key, uint64_t index) {
  return {key.low, static_cast<uint32_t>(index), RandomHighWord(key, index),
          RandomHighWord(key, index + (uint64_t{1} << 32))};
}

// What all values of a block are encoded with.
struct BlockCoding {
  float factor;
  bool ordinary;
  BlockRandom random;
};

// Images of a block's four values from number `value` on, a multiple of 4.
template <int kBits, Rounding kRounding>
EPGC_DEVICE Images EncodeFour(const float* x, int value, const BlockCoding& coding) {
  const float factor = coding.factor;
  if constexpr (HasOrdinary<kBits, kRounding>()) {
    if (coding.ordinary) {
      return {EncodeOrdinaryPair<kBits, kRounding>(x[0] * factor, x[1] * factor),
              EncodeOrdinaryPair<kBits, kRounding>(x[2] * factor, x[3] * factor)};
    }
  }
  uint32_t image[4];
  const uint32_t index = coding.random.first + static_cast<uint32_t>(value);
  const uint32_t high = index < coding.random.first ? coding.random.high_after_carry : coding.random.high;
  EPGC_UNROLL for (int k = 0; k < 4; ++k) {
    uint32_t random = 0;
    if constexpr (kRounding == Rounding::kStochastic) {
      random = RandomWord(coding.random.key_low, high, index + static_cast<uint32_t>(k));
    }
    image[k] = EncodeImage<kBits, kRounding>(FloatToBits(x[k] * factor), random);
  }
  return {image[0] | image[1] << 16, image[2] | image[3] << 16};
}

// Cuts off what lies below the codes.
template <int kBits>
EPGC_DEVICE Images WholeImages(Images images) {
  constexpr uint32_t kCode = (0xFFFFu << (16 - kBits) & 0xFFFFu) * 0x10001u;
  return {images.first & kCode, images.second & kCode};
}

template <int kBits>
EPGC_DEVICE void DecodeFour(Images images, float factor, float* x) {
  if constexpr (kBits == 9) {
    x[0] = BitsToFloat(images.first << 16) * factor;
    x[1] = BitsToFloat(images.first & 0xFFFF0000u) * factor;
    x[2] = BitsToFloat(images.second << 16) * factor;
    x[3] = BitsToFloat(images.second & 0xFFFF0000u) * factor;
  } else {
    x[0] = WidenOfPair<false>(images.first) * factor;
    x[1] = WidenOfPair<true>(images.first) * factor;
    x[2] = WidenOfPair<false>(images.second) * factor;
    x[3] = WidenOfPair<true>(images.second) * factor;
  }
}

// The upper bytes of four images, in order, and the lower ones.
EPGC_DEVICE uint32_t HighBytes(Images images) { return BytePerm(images.first, images.second, 0x7531); }
EPGC_DEVICE uint32_t LowBytes(Images images) { return BytePerm(images.first, images.second, 0x6420); }

EPGC_DEVICE Images FromBytes(uint32_t high, uint32_t low) {
  return {BytePerm(low, high, 0x5140), BytePerm(low, high, 0x7362)};
}

// Moves `nibbles` up by one and puts bit 7 - kPlane of each of four bytes in, that of the lowest byte lowest. The
// product has them side by side in its top four bits, and its terms do not meet.
template <int kPlane>
EPGC_DEVICE uint32_t PushNibble(uint32_t nibbles, uint32_t bytes) {
  const uint32_t bits = bytes & (0x80808080u >> kPlane);
  return FunnelShiftLeft(bits * (0x00204081u << kPlane), nibbles, 4);
}

// The bytes with these bits, from the nibble at position `i`.
template <int kPlane>
EPGC_DEVICE uint32_t SpreadNibble(uint32_t nibbles, int i) {
  return ((nibbles >> 4 * i & 0xFu) * (0x10204080u >> kPlane)) & (0x80808080u >> kPlane);
}

}  // namespace cuda
}  // namespace epgc

#endif  // EPGC_OPS_CUDA_LANE_CODEC_H_
