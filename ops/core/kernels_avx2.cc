// Kernels for CPUs with AVX2 and F16C. A group is four registers of float32 and two of 16-bit images: `even` holds the
// values 0-7 and 16-23, `odd` the others, because this is the order that packing to and from bytes works in.
#include "ops/core/kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

// The build has no -m flags, lest code meant for every CPU use these instructions: the region covers this file only,
// after the includes.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,f16c")
#endif

namespace epgc {
namespace {

#include "ops/core/convert-inl.h"

struct ImagePair {
  __m256i even;
  __m256i odd;
};

inline __m256i Set32(uint32_t value) { return _mm256_set1_epi32(static_cast<int>(value)); }
inline __m256i Set16(uint16_t value) { return _mm256_set1_epi16(static_cast<int16_t>(value)); }
inline __m256i Bits(__m256 x) { return _mm256_castps_si256(x); }
inline __m256 Float(__m256i x) { return _mm256_castsi256_ps(x); }
inline __m256i Load(const uint32_t* words) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words)); }
inline void Store(__m256i x, uint32_t* words) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(words), x); }
inline __m256i Magnitude(__m256i pattern) { return _mm256_and_si256(pattern, Set32(~kFloatSign)); }
inline __m256i Sign(__m256i pattern) { return _mm256_and_si256(pattern, Set32(kFloatSign)); }

// The upper halves of the lanes, which hold images.
inline __m256i UpperHalves(__m256i first, __m256i second) {
  const __m256i mixed = _mm256_packus_epi32(_mm256_srli_epi32(first, 16), _mm256_srli_epi32(second, 16));
  return _mm256_permute4x64_epi64(mixed, 0xD8);
}

// --- float32 to images ---

// Rounds to kMantissa mantissa bits as binary16 has them, subnormals included: adding and subtracting 1.5 * 2^k, whose
// last bit is worth the gap, leaves a multiple of the gap. Too large and non-finite values stay so.
template <int kMantissa, bool kOrdinary>
inline __m256 RoundToGap(__m256 x) {
  const __m256i exponent = _mm256_and_si256(Bits(x), Set32(kFloatInfinity));
  __m256i in_range = _mm256_max_epi32(exponent, Set32(kHalfMinExponent << 23));
  if constexpr (!kOrdinary) in_range = _mm256_min_epi32(in_range, Set32(143u << 23));
  const __m256 magic = Float(_mm256_add_epi32(in_range, Set32(((23u - kMantissa) << 23) + 0x400000u)));
  const __m256 rounded = _mm256_sub_ps(_mm256_add_ps(x, magic), magic);
  return Float(_mm256_or_si256(Bits(rounded), Sign(Bits(x))));
}

// Makes 65536 and more infinite, which the conversion would cut to the largest finite value.
inline __m256 OverflowToInfinity(__m256 x) {
  const __m256 too_large = _mm256_cmp_ps(Float(Magnitude(Bits(x))), _mm256_set1_ps(65536.0f), _CMP_GE_OQ);
  const __m256i infinity = _mm256_or_si256(Sign(Bits(x)), Set32(kFloatInfinity));
  return _mm256_blendv_ps(x, Float(infinity), too_large);
}

template <int kBits, Rounding kRounding, bool kOrdinary>
inline __m128i ToHalf(__m256 x) {
  if constexpr (kRounding == Rounding::kTruncate) {
    return _mm256_cvtps_ph(kOrdinary ? x : OverflowToInfinity(x), _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
  } else if constexpr (kBits == 16) {
    return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  } else {
    return _mm256_cvtps_ph(RoundToGap<kBits - 6, kOrdinary>(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
}

inline __m256i CanonicalNaN(__m256i images) {
  const __m256i magnitude = _mm256_and_si256(images, Set16(0x7FFF));
  return _mm256_blendv_epi8(images, Set16(kHalfNaN), _mm256_cmpgt_epi16(magnitude, Set16(kHalfInfinity)));
}

// The image of EncodeImage<kBits, kStochastic> in the upper half of each lane, for kBits = 8, 11, 16.
template <int kBits>
inline __m256i StochasticHalf(__m256i pattern, __m256i random) {
  const __m256i a = Magnitude(pattern);
  const __m256i base = _mm256_min_epu32(_mm256_max_epu32(_mm256_srli_epi32(a, 23), Set32(1)), Set32(kHalfMinExponent));
  const __m256i v = _mm256_sub_epi32(a, _mm256_slli_epi32(_mm256_sub_epi32(base, Set32(1)), 23));
  const __m256i wanted = _mm256_sub_epi32(Set32(29 - kBits + kHalfMinExponent), base);
  const __m256i drop = _mm256_min_epu32(wanted, Set32(31));
  const __m256i increment = _mm256_srlv_epi32(random, _mm256_sub_epi32(Set32(32), drop));
  const __m256i kept = _mm256_srlv_epi32(v, _mm256_sub_epi32(wanted, drop));
  const __m256i code = _mm256_srlv_epi32(_mm256_add_epi32(kept, increment), drop);
  const __m256i magnitude = _mm256_min_epu32(code, Set32(kHalfInfinity >> (16 - kBits)));
  const __m256i image = _mm256_or_si256(_mm256_slli_epi32(magnitude, 32 - kBits), Sign(pattern));
  return _mm256_blendv_epi8(image, Set32(kHalfNaN << 16), _mm256_cmpgt_epi32(a, Set32(kFloatInfinity)));
}

// The image of EncodeImage<9, kRounding> in the upper half of each lane.
template <Rounding kRounding, bool kOrdinary>
inline __m256i PowerOfTwoImage(__m256i pattern, __m256i random) {
  const __m256i a = Magnitude(pattern);
  const __m256i finite = kOrdinary ? a : _mm256_min_epi32(a, Set32(kFloatInfinity));
  __m256i rounded = finite;
  if constexpr (kRounding == Rounding::kStochastic) rounded = _mm256_add_epi32(finite, _mm256_srli_epi32(random, 9));
  if constexpr (kRounding == Rounding::kNearest) {
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(finite, 23), Set32(1));
    rounded = _mm256_add_epi32(_mm256_add_epi32(finite, Set32(0x3FFFFF)), odd);
  }
  if constexpr (kOrdinary) return _mm256_or_si256(rounded, Sign(pattern));
  const __m256i is_nan = _mm256_cmpgt_epi32(a, Set32(kFloatInfinity));
  return _mm256_or_si256(rounded, _mm256_andnot_si256(is_nan, Sign(pattern)));
}

// RandomWord() of the 8 elements from `index_low` on.
inline __m256i RandomWords(RandomKey key, uint32_t high, uint32_t index_low) {
  const __m256i lanes = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), Set32(index_low));
  __m256i x = _mm256_xor_si256(lanes, Set32(key.low));
  x = _mm256_mullo_epi32(_mm256_xor_si256(x, _mm256_srli_epi32(x, 16)), Set32(kRandomMultiplier1));
  x = _mm256_xor_si256(_mm256_xor_si256(x, _mm256_srli_epi32(x, 13)), Set32(high));
  x = _mm256_mullo_epi32(x, Set32(kRandomMultiplier2));
  return _mm256_xor_si256(x, _mm256_srli_epi32(x, 16));
}

// The images of 8 values in the upper halves of the lanes, for the modes that work on integers.
template <int kBits, Rounding kRounding, bool kOrdinary>
inline __m256i ImageByInteger(__m256 x, RandomKey key, uint64_t index) {
  __m256i random = _mm256_setzero_si256();
  if constexpr (kRounding == Rounding::kStochastic) {
    random = RandomWords(key, RandomHighWord(key, index), static_cast<uint32_t>(index));
  }
  if constexpr (kBits == 9) {
    return PowerOfTwoImage<kRounding, kOrdinary>(Bits(x), random);
  } else {
    return StochasticHalf<kBits>(Bits(x), random);
  }
}

// Images of the values 0-7 in `first` and 16-23 in `second`, or 8-15 and 24-31; `index` is that of the first one.
template <int kBits, Rounding kRounding, bool kOrdinary>
inline __m256i Images(__m256 first, __m256 second, RandomKey key, uint64_t index) {
  if constexpr (kBits == 9 || kRounding == Rounding::kStochastic) {
    return UpperHalves(ImageByInteger<kBits, kRounding, kOrdinary>(first, key, index),
                       ImageByInteger<kBits, kRounding, kOrdinary>(second, key, index + 16));
  } else {
    const __m256i images =
        _mm256_set_m128i(ToHalf<kBits, kRounding, kOrdinary>(second), ToHalf<kBits, kRounding, kOrdinary>(first));
    return kOrdinary ? images : CanonicalNaN(images);
  }
}

// --- Images to words and back ---

template <int kBits>
inline void StoreImages(ImagePair images, uint32_t* words) {
  if constexpr (kBits == 16) {
    Store(_mm256_permute2x128_si256(images.even, images.odd, 0x20), words);
    Store(_mm256_permute2x128_si256(images.even, images.odd, 0x31), words + 8);
  } else {
    Store(_mm256_packus_epi16(_mm256_srli_epi16(images.even, 8), _mm256_srli_epi16(images.odd, 8)), words);
    __m256i low_bytes =
        _mm256_packus_epi16(_mm256_and_si256(images.even, Set16(0xFF)), _mm256_and_si256(images.odd, Set16(0xFF)));
    for (int plane = 8; plane < kBits; ++plane) {
      words[plane] = static_cast<uint32_t>(_mm256_movemask_epi8(low_bytes));
      low_bytes = _mm256_slli_epi16(low_bytes, 1);
    }
  }
}

// Bytes of all ones where `word` has a 1.
inline __m256i SpreadBits(uint32_t word) {
  const __m256i source = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201u));
  const __m256i bytes = _mm256_shuffle_epi8(Set32(word), source);
  return _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
}

template <int kBits>
inline ImagePair LoadImages(const uint32_t* words) {
  const __m256i first = Load(words);
  if constexpr (kBits == 16) {
    const __m256i second = Load(words + 8);
    return {_mm256_permute2x128_si256(first, second, 0x20), _mm256_permute2x128_si256(first, second, 0x31)};
  } else {
    __m256i low_bytes = _mm256_setzero_si256();
    for (int plane = 8; plane < kBits; ++plane) {
      const __m256i bit = _mm256_set1_epi8(static_cast<char>(1 << (15 - plane)));
      low_bytes = _mm256_or_si256(low_bytes, _mm256_and_si256(SpreadBits(words[plane]), bit));
    }
    return {_mm256_unpacklo_epi8(low_bytes, first), _mm256_unpackhi_epi8(low_bytes, first)};
  }
}

template <int kBits>
inline __m256 Widen(__m128i images) {
  if constexpr (kBits == 9) return Float(_mm256_slli_epi32(_mm256_cvtepu16_epi32(images), 16));
  return _mm256_cvtph_ps(images);
}

template <bool kAdd>
inline void StoreOrAdd(__m256 decoded, float* values) {
  _mm256_storeu_ps(values, kAdd ? _mm256_add_ps(_mm256_loadu_ps(values), decoded) : decoded);
}

struct Avx2 {
  template <int kBits, Rounding kRounding, bool kOrdinary>
  static void Encode(const float* values, int64_t groups, float factor, RandomKey key, uint64_t index,
                     uint32_t* words) {
    if constexpr (kBits == 32) {
      std::memcpy(words, values, static_cast<size_t>(groups * kGroupSize) * sizeof(float));
    } else {
      const __m256 factors = _mm256_set1_ps(factor);
      for (; groups > 0; --groups, values += kGroupSize, index += kGroupSize, words += kBits) {
        PrefetchValues(values);
        __m256 x[4];
        for (int i = 0; i < 4; ++i) x[i] = _mm256_mul_ps(_mm256_loadu_ps(values + 8 * i), factors);
        StoreImages<kBits>({Images<kBits, kRounding, kOrdinary>(x[0], x[2], key, index),
                            Images<kBits, kRounding, kOrdinary>(x[1], x[3], key, index + 8)},
                           words);
      }
    }
  }

  template <int kBits, bool kAdd>
  static void Decode(const uint32_t* words, int64_t groups, float factor, float* values) {
    const __m256 factors = _mm256_set1_ps(factor);
    for (; groups > 0; --groups, values += kGroupSize, words += kBits) {
      if constexpr (kBits == 32) {
        for (int i = 0; i < 32; i += 8) StoreOrAdd<kAdd>(Float(Load(words + i)), values + i);
      } else {
        if constexpr (kAdd) PrefetchWords<kBits>(words);
        const ImagePair images = LoadImages<kBits>(words);
        const __m128i eights[4] = {_mm256_castsi256_si128(images.even), _mm256_castsi256_si128(images.odd),
                                   _mm256_extracti128_si256(images.even, 1), _mm256_extracti128_si256(images.odd, 1)};
        for (int i = 0; i < 4; ++i) {
          StoreOrAdd<kAdd>(_mm256_mul_ps(Widen<kBits>(eights[i]), factors), values + 8 * i);
        }
      }
    }
  }

  static uint32_t Largest(const float* values, int64_t size) {
    __m256i largest[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (int64_t i = 0; i < size; i += 16) {
      for (int half = 0; half < 2; ++half) {
        const __m256i a = Magnitude(Bits(_mm256_loadu_ps(values + i + half * 8)));
        largest[half] = _mm256_max_epi32(largest[half], a);
      }
    }
    return LargestLane(_mm256_max_epi32(largest[0], largest[1]));
  }

  static uint32_t LargestFinite(const float* values, int64_t size) {
    __m256i largest = _mm256_setzero_si256();
    for (int64_t i = 0; i < size; i += 8) {
      const __m256i a = Magnitude(Bits(_mm256_loadu_ps(values + i)));
      const __m256i finite = _mm256_cmpgt_epi32(Set32(kFloatInfinity), a);
      largest = _mm256_max_epi32(largest, _mm256_and_si256(a, finite));
    }
    return LargestLane(largest);
  }

  static uint32_t LargestLane(__m256i lanes) {
    __m128i x = _mm_max_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
    x = _mm_max_epi32(x, _mm_shuffle_epi32(x, 0x4E));
    x = _mm_max_epi32(x, _mm_shuffle_epi32(x, 0xB1));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(x));
  }

  static void Multiply(float* values, int64_t size, float factor) {
    const __m256 factors = _mm256_set1_ps(factor);
    for (int64_t i = 0; i < size; i += 8) {
      _mm256_storeu_ps(values + i, _mm256_mul_ps(_mm256_loadu_ps(values + i), factors));
    }
  }

  static constexpr StreamKernel kStream = nullptr;

  template <DType kDType>
  static void ToFloat(const void* in, int64_t size, float* out) {
    ConvertToFloat<kDType>(in, size, out);
  }

  template <DType kDType>
  static void FromFloat(const float* in, int64_t size, void* out) {
    ConvertFromFloat<kDType>(in, size, out);
  }
};

constexpr KernelTable kAvx2Kernels = MakeKernelTable<Avx2>("avx2");

}  // namespace

const KernelTable* Avx2Kernels() { return &kAvx2Kernels; }

}  // namespace epgc

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#else  // defined(__x86_64__)

namespace epgc {

const KernelTable* Avx2Kernels() { return nullptr; }

}  // namespace epgc

#endif  // defined(__x86_64__)
