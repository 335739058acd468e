// The formats of docs/wire_format.md, one value at a time. Everything the kernels of every instruction set and of
// CUDA have to agree on is here.
//
// A code of 8, 9, 11 or 16 bits is handled as the top bits of a 16-bit *image*, zeros below: 8, 11 and 16 bits are the
// top of a binary16, 9 bits the top of a bfloat16. Packing a group is then the same for all of them.
#ifndef EPGC_OPS_CORE_FORMAT_H_
#define EPGC_OPS_CORE_FORMAT_H_

#include <cstdint>
#include <cstring>

#include "ops/core/codec.h"

#if defined(__CUDACC__)
#define EPGC_HD __host__ __device__
#else
#define EPGC_HD
#endif

namespace epgc {

inline constexpr int kNumFormats = 5;
inline constexpr int kNumRoundings = 3;
inline constexpr int64_t kGroupsPerBlock = kBlockSize / kGroupSize;

inline constexpr uint32_t kFloatSign = 0x80000000u;
inline constexpr uint32_t kFloatInfinity = 0x7F800000u;
inline constexpr uint32_t kFloatHiddenBit = 0x00800000u;
// Exponent field of 2^-14, the smallest normal binary16; below it 8, 11 and 16 bits are subnormal.
inline constexpr uint32_t kHalfMinExponent = 113;
inline constexpr uint16_t kHalfInfinity = 0x7C00;
inline constexpr uint16_t kHalfNaN = 0x7E00;

// Row of the kernel tables for `bits`, or -1.
EPGC_HD constexpr int FormatIndex(int bits) {
  switch (bits) {
    case 8:
      return 0;
    case 9:
      return 1;
    case 11:
      return 2;
    case 16:
      return 3;
    case 32:
      return 4;
    default:
      return -1;
  }
}

EPGC_HD inline uint32_t FloatToBits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

EPGC_HD inline float BitsToFloat(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// 2^exponent for exponents of normal float32 numbers, -126..127.
EPGC_HD inline float PowerOfTwo(int exponent) { return BitsToFloat(static_cast<uint32_t>(exponent + 127) << 23); }

// The shift of a block (section 3) from the pattern of its largest finite magnitude.
EPGC_HD inline int BlockShift(uint32_t largest_finite) {
  if (largest_finite == 0) return 0;
  int exponent = static_cast<int>(largest_finite >> 23) - 127;
  if (exponent == -127) {
    exponent = -150;
    for (uint32_t rest = largest_finite; rest != 0; rest >>= 1) ++exponent;
  }
  const int shift = 14 - exponent;
  return shift > 126 ? 126 : shift;  // never below 14 - 127 = -113
}

// What is added to `v` before its low `drop` bits are cut off (section 4). 1 <= drop <= 31.
template <Rounding kRounding>
EPGC_HD inline uint32_t RoundingIncrement(uint32_t v, uint32_t drop, uint32_t random) {
  if constexpr (kRounding == Rounding::kStochastic) return random >> (32 - drop);
  if constexpr (kRounding == Rounding::kNearest) return (1u << (drop - 1)) - 1 + (v >> drop & 1);
  return 0;
}

// Magnitude of the code of 8, 11 or 16 bits for the float32 magnitude `a`, which is not a NaN.
template <int kBits, Rounding kRounding>
EPGC_HD inline uint32_t EncodeHalfMagnitude(uint32_t a, uint32_t random) {
  constexpr uint32_t kInfinity = kHalfInfinity >> (16 - kBits);
  const uint32_t field = a >> 23;
  const uint32_t at_least_1 = field < 1 ? 1 : field;
  const uint32_t base = at_least_1 > kHalfMinExponent ? kHalfMinExponent : at_least_1;
  // Both cases of section 4 in one: `base` is 113 for normal numbers, the exponent itself for subnormal ones.
  uint32_t v = a - ((base - 1) << 23);
  uint32_t drop = 29 - kBits + kHalfMinExponent - base;
  const uint32_t excess = drop > 31 ? drop - 31 : 0;
  v = excess > 31 ? 0 : v >> (excess & 31);
  drop -= excess;
  const uint32_t magnitude = (v + RoundingIncrement<kRounding>(v, drop, random)) >> drop;
  return magnitude > kInfinity ? kInfinity : magnitude;
}

// The 16-bit image of a float32 pattern's code of kBits = 8, 9, 11 or 16 bits. `random` matters to kStochastic only.
template <int kBits, Rounding kRounding>
EPGC_HD inline uint16_t EncodeImage(uint32_t pattern, uint32_t random) {
  const uint32_t a = pattern & ~kFloatSign;
  const uint32_t sign = pattern >> 31 << 15;
  if constexpr (kBits == 9) {
    const uint32_t finite = a > kFloatInfinity ? kFloatInfinity : a;
    const uint32_t magnitude = (finite + RoundingIncrement<kRounding>(finite, 23, random)) >> 23;
    return static_cast<uint16_t>((a > kFloatInfinity ? 0 : sign) | magnitude << 7);
  } else {
    const uint32_t image = sign | EncodeHalfMagnitude<kBits, kRounding>(a, random) << (16 - kBits);
    return static_cast<uint16_t>(a > kFloatInfinity ? kHalfNaN : image);
  }
}

// The float32 pattern of a binary16 one. NaNs are made quiet and keep their payload and sign.
EPGC_HD inline uint32_t WidenHalf(uint16_t half) {
  const uint32_t a = half & 0x7FFFu;
  const uint32_t sign = static_cast<uint32_t>(half >> 15) << 31;
  const bool subnormal = a < 0x400;
  // A subnormal one is read as 2^-14 too large, and an exact difference of normal numbers puts that right.
  const uint32_t exponent = subnormal ? kHalfMinExponent : kHalfMinExponent - 1;
  const float excess = BitsToFloat(subnormal ? kHalfMinExponent << 23 : 0);
  const uint32_t magnitude = FloatToBits(BitsToFloat((a << 13) + (exponent << 23)) - excess);
  const uint32_t special = (a >= kHalfInfinity ? kFloatInfinity : 0) | (a > kHalfInfinity ? 0x400000u : 0);
  return sign | magnitude | special;
}

// The float32 pattern of an image of kBits = 8, 9, 11 or 16 bits.
template <int kBits>
EPGC_HD inline uint32_t DecodeImage(uint16_t image) {
  if constexpr (kBits == 9) return static_cast<uint32_t>(image) << 16;
  return WidenHalf(image);
}

// binary16 and bfloat16 outputs: to nearest, ties to even; every NaN becomes the canonical quiet one.
EPGC_HD inline uint16_t NarrowToHalf(uint32_t pattern) { return EncodeImage<16, Rounding::kNearest>(pattern, 0); }

EPGC_HD inline uint16_t NarrowToBFloat16(uint32_t pattern) {
  const uint32_t rounded = (pattern + 0x7FFFu + (pattern >> 16 & 1)) >> 16;
  return static_cast<uint16_t>((pattern & ~kFloatSign) > kFloatInfinity ? 0x7FC0u : rounded);
}

}  // namespace epgc

#endif  // EPGC_OPS_CORE_FORMAT_H_
