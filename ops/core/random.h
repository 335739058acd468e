// Random words of stochastic rounding: section 4 of docs/wire_format.md.
#ifndef EPGC_OPS_CORE_RANDOM_H_
#define EPGC_OPS_CORE_RANDOM_H_

#include <cstdint>

#include "ops/core/format.h"

namespace epgc {

inline constexpr uint32_t kRandomMultiplier1 = 0x85EBCA6Bu;
inline constexpr uint32_t kRandomMultiplier2 = 0xC2B2AE35u;

struct RandomKey {
  uint32_t low;
  uint32_t high;
};

// SplitMix64's step and output function.
EPGC_HD inline uint64_t Mix64(uint64_t z) {
  z += 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

EPGC_HD inline RandomKey MakeRandomKey(uint64_t seed, uint64_t step, uint64_t stream) {
  const uint64_t key = Mix64(Mix64(Mix64(seed) ^ step) ^ stream);
  return {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)};
}

// The part of the second xor that elements with the same index >> 32 share.
EPGC_HD inline uint32_t RandomHighWord(RandomKey key, uint64_t index) {
  return key.high ^ static_cast<uint32_t>(index >> 32) * 0x9E3779B9u;
}

// `high` is RandomHighWord(key, index).
EPGC_HD inline uint32_t RandomWord(uint32_t key_low, uint32_t high, uint32_t index_low) {
  uint32_t x = index_low ^ key_low;
  x = (x ^ x >> 16) * kRandomMultiplier1;
  x = (x ^ x >> 13 ^ high) * kRandomMultiplier2;
  return x ^ x >> 16;
}

}  // namespace epgc

#endif  // EPGC_OPS_CORE_RANDOM_H_
