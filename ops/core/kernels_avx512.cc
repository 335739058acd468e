// Kernels for CPUs with AVX-512 F, BW, VL and DQ. A group is two registers of float32 and one of 16-bit images, whose
// bit planes are its masks.
#include "ops/core/kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

// The build has no -m flags, lest code meant for every CPU use these instructions: the region covers this file only,
// after the includes.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,f16c"))), \
                             apply_to = function)
#else
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC bug 105593: these two come from its own intrinsics
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,f16c")
#endif

namespace epgc {
namespace {

#include "ops/core/convert-inl.h"

// Fixed rounding, and no compiler fuses these into an FMA, which would round differently.
constexpr int kToNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
inline __m512 Add(__m512 a, __m512 b) { return _mm512_add_round_ps(a, b, kToNearest); }
inline __m512 Sub(__m512 a, __m512 b) { return _mm512_sub_round_ps(a, b, kToNearest); }
inline __m512 Mul(__m512 a, __m512 b) { return _mm512_mul_round_ps(a, b, kToNearest); }

inline __m512i Set32(uint32_t value) { return _mm512_set1_epi32(static_cast<int>(value)); }
inline __m512i Set16(uint16_t value) { return _mm512_set1_epi16(static_cast<int16_t>(value)); }
inline __m512i Bits(__m512 x) { return _mm512_castps_si512(x); }
inline __m512 Float(__m512i x) { return _mm512_castsi512_ps(x); }

// a | (b & c)
inline __m512i OrAnd(__m512i a, __m512i b, __m512i c) { return _mm512_ternarylogic_epi32(a, b, c, 0xF8); }

inline __m512i Join(__m256i low, __m256i high) { return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1); }

// The upper halves of 32 lanes, which hold images.
inline __m512i UpperHalves(__m512i low, __m512i high) {
  alignas(64) static constexpr uint16_t kOdd[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                                                    33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  return _mm512_permutex2var_epi16(low, _mm512_load_si512(kOdd), high);
}

// --- float32 to images ---

// Rounds to kMantissa mantissa bits as binary16 has them, subnormals included: adding and subtracting 1.5 * 2^k, whose
// last bit is worth the gap, leaves a multiple of the gap. Too large and non-finite values stay so.
template <int kMantissa, bool kOrdinary>
inline __m512 RoundToGap(__m512 x) {
  const __m512i exponent = _mm512_and_si512(Bits(x), Set32(kFloatInfinity));
  __m512i in_range = _mm512_max_epu32(exponent, Set32(kHalfMinExponent << 23));
  if constexpr (!kOrdinary) in_range = _mm512_min_epu32(in_range, Set32(143u << 23));
  const __m512 magic = Float(_mm512_add_epi32(in_range, Set32(((23u - kMantissa) << 23) + 0x400000u)));
  const __m512 rounded = Sub(Add(x, magic), magic);
  return Float(OrAnd(Bits(rounded), Bits(x), Set32(kFloatSign)));
}

// Makes 65536 and more infinite, which the conversion would cut to the largest finite value.
inline __m512 OverflowToInfinity(__m512 x) {
  const __mmask16 too_large = _mm512_cmp_ps_mask(_mm512_abs_ps(x), _mm512_set1_ps(65536.0f), _CMP_GE_OQ);
  return Float(_mm512_mask_mov_epi32(Bits(x), too_large, OrAnd(Set32(kFloatInfinity), Bits(x), Set32(kFloatSign))));
}

template <int kBits, Rounding kRounding, bool kOrdinary>
inline __m256i ToHalf(__m512 x) {
  if constexpr (kRounding == Rounding::kTruncate) {
    return _mm512_cvtps_ph(kOrdinary ? x : OverflowToInfinity(x), _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
  } else if constexpr (kBits == 16) {
    return _mm512_cvtps_ph(x, kToNearest);
  } else {
    return _mm512_cvtps_ph(RoundToGap<kBits - 6, kOrdinary>(x), kToNearest);
  }
}

inline __m512i CanonicalNaN(__m512i images) {
  const __m512i magnitude = _mm512_and_si512(images, Set16(0x7FFF));
  return _mm512_mask_mov_epi16(images, _mm512_cmpgt_epu16_mask(magnitude, Set16(kHalfInfinity)), Set16(kHalfNaN));
}

// The image of EncodeImage<kBits, kStochastic> in the upper half of each lane, for kBits = 8, 11, 16.
template <int kBits>
inline __m512i StochasticHalf(__m512i pattern, __m512i random) {
  const __m512i a = _mm512_and_si512(pattern, Set32(~kFloatSign));
  const __m512i base = _mm512_min_epu32(_mm512_max_epu32(_mm512_srli_epi32(a, 23), Set32(1)), Set32(kHalfMinExponent));
  const __m512i v = _mm512_sub_epi32(a, _mm512_slli_epi32(_mm512_sub_epi32(base, Set32(1)), 23));
  const __m512i wanted = _mm512_sub_epi32(Set32(29 - kBits + kHalfMinExponent), base);
  const __m512i drop = _mm512_min_epu32(wanted, Set32(31));
  const __m512i increment = _mm512_srlv_epi32(random, _mm512_sub_epi32(Set32(32), drop));
  const __m512i kept = _mm512_srlv_epi32(v, _mm512_sub_epi32(wanted, drop));
  const __m512i code = _mm512_srlv_epi32(_mm512_add_epi32(kept, increment), drop);
  const __m512i magnitude = _mm512_min_epu32(code, Set32(kHalfInfinity >> (16 - kBits)));
  const __m512i image = OrAnd(_mm512_slli_epi32(magnitude, 32 - kBits), pattern, Set32(kFloatSign));
  return _mm512_mask_mov_epi32(image, _mm512_cmpgt_epu32_mask(a, Set32(kFloatInfinity)), Set32(kHalfNaN << 16));
}

// The image of EncodeImage<9, kRounding> in the upper half of each lane.
template <Rounding kRounding, bool kOrdinary>
inline __m512i PowerOfTwoImage(__m512i pattern, __m512i random) {
  const __m512i a = _mm512_and_si512(pattern, Set32(~kFloatSign));
  const __m512i finite = kOrdinary ? a : _mm512_min_epu32(a, Set32(kFloatInfinity));
  __m512i rounded = finite;
  if constexpr (kRounding == Rounding::kStochastic) rounded = _mm512_add_epi32(finite, _mm512_srli_epi32(random, 9));
  if constexpr (kRounding == Rounding::kNearest) {
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(finite, 23), Set32(1));
    rounded = _mm512_add_epi32(_mm512_add_epi32(finite, Set32(0x3FFFFF)), odd);
  }
  if constexpr (kOrdinary) return OrAnd(rounded, pattern, Set32(kFloatSign));
  const __mmask16 is_number = _mm512_cmple_epu32_mask(a, Set32(kFloatInfinity));
  return _mm512_mask_or_epi32(rounded, is_number, rounded, _mm512_and_si512(pattern, Set32(kFloatSign)));
}

// RandomWord() of 16 elements; `low` holds the lower halves of their indices.
inline __m512i RandomWords(RandomKey key, uint32_t high, __m512i low) {
  __m512i x = _mm512_xor_si512(low, Set32(key.low));
  x = _mm512_mullo_epi32(_mm512_xor_si512(x, _mm512_srli_epi32(x, 16)), Set32(kRandomMultiplier1));
  x = _mm512_xor_si512(_mm512_xor_si512(x, _mm512_srli_epi32(x, 13)), Set32(high));
  x = _mm512_mullo_epi32(x, Set32(kRandomMultiplier2));
  return _mm512_xor_si512(x, _mm512_srli_epi32(x, 16));
}

template <int kBits, Rounding kRounding, bool kOrdinary>
inline __m512i ImagesByInteger(__m512 low, __m512 high, __m512i random_low, __m512i random_high) {
  if constexpr (kBits == 9) {
    return UpperHalves(PowerOfTwoImage<kRounding, kOrdinary>(Bits(low), random_low),
                       PowerOfTwoImage<kRounding, kOrdinary>(Bits(high), random_high));
  } else {
    return UpperHalves(StochasticHalf<kBits>(Bits(low), random_low), StochasticHalf<kBits>(Bits(high), random_high));
  }
}

template <int kBits, Rounding kRounding, bool kOrdinary>
inline __m512i Images(__m512 low, __m512 high, RandomKey key, uint64_t index) {
  if constexpr (kRounding == Rounding::kStochastic) {
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i first = _mm512_add_epi32(lanes, Set32(static_cast<uint32_t>(index)));
    const uint32_t high_word = RandomHighWord(key, index);
    return ImagesByInteger<kBits, kRounding, kOrdinary>(
        low, high, RandomWords(key, high_word, first), RandomWords(key, high_word, _mm512_add_epi32(first, Set32(16))));
  } else if constexpr (kBits == 9) {
    return ImagesByInteger<kBits, kRounding, kOrdinary>(low, high, _mm512_setzero_si512(), _mm512_setzero_si512());
  } else {
    const __m512i images = Join(ToHalf<kBits, kRounding, kOrdinary>(low), ToHalf<kBits, kRounding, kOrdinary>(high));
    return kOrdinary ? images : CanonicalNaN(images);
  }
}

// --- Images to words and back ---

template <int kBits>
inline void StoreImages(__m512i images, uint32_t* words) {
  if constexpr (kBits == 16) {
    _mm512_storeu_si512(words, images);
  } else {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(words), _mm512_cvtepi16_epi8(_mm512_srli_epi16(images, 8)));
    for (int plane = 8; plane < kBits; ++plane) {
      words[plane] = _mm512_test_epi16_mask(images, Set16(static_cast<uint16_t>(1u << (15 - plane))));
    }
  }
}

template <int kBits>
inline __m512i LoadImages(const uint32_t* words) {
  if constexpr (kBits == 16) {
    return _mm512_loadu_si512(words);
  } else {
    const __m256i high_bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words));
    __m512i images = _mm512_slli_epi16(_mm512_cvtepu8_epi16(high_bytes), 8);
    for (int plane = 8; plane < kBits; ++plane) {
      const __m512i bit = Set16(static_cast<uint16_t>(1u << (15 - plane)));
      images = _mm512_or_si512(images, _mm512_maskz_mov_epi16(words[plane], bit));
    }
    return images;
  }
}

template <int kBits>
inline __m512 Widen(__m256i images) {
  if constexpr (kBits == 9) return Float(_mm512_slli_epi32(_mm512_cvtepu16_epi32(images), 16));
  return _mm512_cvtph_ps(images);
}

template <bool kAdd>
inline void StoreOrAdd(__m512 decoded, float* values) {
  _mm512_storeu_ps(values, kAdd ? Add(_mm512_loadu_ps(values), decoded) : decoded);
}

struct Avx512 {
  template <int kBits, Rounding kRounding, bool kOrdinary>
  static void Encode(const float* values, int64_t groups, float factor, RandomKey key, uint64_t index,
                     uint32_t* words) {
    if constexpr (kBits == 32) {
      std::memcpy(words, values, static_cast<size_t>(groups * kGroupSize) * sizeof(float));
    } else {
      const __m512 factors = _mm512_set1_ps(factor);
      for (; groups > 0; --groups, values += kGroupSize, index += kGroupSize, words += kBits) {
        PrefetchValues(values);
        const __m512 low = Mul(_mm512_loadu_ps(values), factors);
        const __m512 high = Mul(_mm512_loadu_ps(values + 16), factors);
        StoreImages<kBits>(Images<kBits, kRounding, kOrdinary>(low, high, key, index), words);
      }
    }
  }

  template <int kBits, bool kAdd>
  static void Decode(const uint32_t* words, int64_t groups, float factor, float* values) {
    const __m512 factors = _mm512_set1_ps(factor);
    for (; groups > 0; --groups, values += kGroupSize, words += kBits) {
      if constexpr (kBits == 32) {
        StoreOrAdd<kAdd>(_mm512_loadu_ps(words), values);
        StoreOrAdd<kAdd>(_mm512_loadu_ps(words + 16), values + 16);
      } else {
        if constexpr (kAdd) PrefetchWords<kBits>(words);
        const __m512i images = LoadImages<kBits>(words);
        const __m512 low = Widen<kBits>(_mm512_castsi512_si256(images));
        const __m512 high = Widen<kBits>(_mm512_extracti64x4_epi64(images, 1));
        StoreOrAdd<kAdd>(Mul(low, factors), values);
        StoreOrAdd<kAdd>(Mul(high, factors), values + 16);
      }
    }
  }

  static uint32_t Largest(const float* values, int64_t size) {
    // Without the sign bit, shifted out at the top.
    __m512i largest[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    for (int64_t i = 0; i < size; i += 32) {
      for (int half = 0; half < 2; ++half) {
        const __m512i magnitude = _mm512_slli_epi32(_mm512_loadu_si512(values + i + half * 16), 1);
        largest[half] = _mm512_max_epu32(largest[half], magnitude);
      }
    }
    return _mm512_reduce_max_epu32(_mm512_max_epu32(largest[0], largest[1])) >> 1;
  }

  static uint32_t LargestFinite(const float* values, int64_t size) {
    __m512i largest = _mm512_setzero_si512();
    for (int64_t i = 0; i < size; i += 16) {
      const __m512i a = _mm512_and_si512(_mm512_loadu_si512(values + i), Set32(~kFloatSign));
      const __mmask16 finite = _mm512_cmplt_epu32_mask(a, Set32(kFloatInfinity));
      largest = _mm512_mask_max_epu32(largest, finite, largest, a);
    }
    return _mm512_reduce_max_epu32(largest);
  }

  static void Multiply(float* values, int64_t size, float factor) {
    const __m512 factors = _mm512_set1_ps(factor);
    for (int64_t i = 0; i < size; i += 16) _mm512_storeu_ps(values + i, Mul(_mm512_loadu_ps(values + i), factors));
  }

  static void Stream(const void* in, int64_t words, void* out) {
    const char* from = static_cast<const char*>(in);
    char* to = static_cast<char*>(out);
    int64_t left = words * 4;
    const int64_t head = BytesBeforeLine(to, left);
    std::memcpy(to, from, static_cast<size_t>(head));
    for (from += head, to += head, left -= head; left >= 64; from += 64, to += 64, left -= 64) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(reinterpret_cast<const __m512i*>(from)));
    }
    std::memcpy(to, from, static_cast<size_t>(left));
  }

  static constexpr StreamKernel kStream = &Stream;

  template <DType kDType>
  static void ToFloat(const void* in, int64_t size, float* out) {
    ConvertToFloat<kDType>(in, size, out);
  }

  template <DType kDType>
  static void FromFloat(const float* in, int64_t size, void* out) {
    ConvertFromFloat<kDType>(in, size, out);
  }
};

constexpr KernelTable kAvx512Kernels = MakeKernelTable<Avx512>("avx512");

}  // namespace

const KernelTable* Avx512Kernels() { return &kAvx512Kernels; }

}  // namespace epgc

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#pragma GCC diagnostic pop
#endif

#else  // defined(__x86_64__)

namespace epgc {

const KernelTable* Avx512Kernels() { return nullptr; }

}  // namespace epgc

#endif  // defined(__x86_64__)
