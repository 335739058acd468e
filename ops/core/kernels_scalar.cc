// The obvious kernels, for every CPU. Loops run over one group without branches, so that compilers vectorize them.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "ops/core/kernels.h"

namespace epgc {
namespace {

#include "ops/core/convert-inl.h"

// Bit i of a plane's word. A table, because not every CPU can shift each lane of a vector by its own distance.
struct BitTable {
  uint32_t bit[kGroupSize];
  constexpr BitTable() : bit() {
    for (int i = 0; i < kGroupSize; ++i) bit[i] = 1u << i;
  }
};
constexpr BitTable kPlane;

template <int kBits>
void PackImages(const uint16_t* images, uint32_t* words) {
  if constexpr (kBits == 16) {
    std::memcpy(words, images, kGroupSize * sizeof(uint16_t));
  } else {
    unsigned char high_bytes[kGroupSize];
    for (int i = 0; i < kGroupSize; ++i) high_bytes[i] = static_cast<unsigned char>(images[i] >> 8);
    std::memcpy(words, high_bytes, sizeof(high_bytes));
    for (int plane = 8; plane < kBits; ++plane) {
      uint32_t word = 0;
      for (int i = 0; i < kGroupSize; ++i) word |= (images[i] >> (15 - plane) & 1) != 0 ? kPlane.bit[i] : 0;
      words[plane] = word;
    }
  }
}

template <int kBits>
void UnpackImages(const uint32_t* words, uint16_t* images) {
  if constexpr (kBits == 16) {
    std::memcpy(images, words, kGroupSize * sizeof(uint16_t));
  } else {
    unsigned char high_bytes[kGroupSize];
    std::memcpy(high_bytes, words, sizeof(high_bytes));
    for (int i = 0; i < kGroupSize; ++i) {
      uint32_t image = static_cast<uint32_t>(high_bytes[i]) << 8;
      for (int plane = 8; plane < kBits; ++plane) {
        image |= (words[plane] & kPlane.bit[i]) != 0 ? 1u << (15 - plane) : 0;
      }
      images[i] = static_cast<uint16_t>(image);
    }
  }
}

struct Scalar {
  template <int kBits, Rounding kRounding, bool /*kOrdinary*/>
  static void Encode(const float* values, int64_t groups, float factor, RandomKey key, uint64_t index,
                     uint32_t* words) {
    if constexpr (kBits == 32) {
      std::memcpy(words, values, static_cast<size_t>(groups * kGroupSize) * sizeof(float));
    } else {
      for (; groups > 0; --groups, values += kGroupSize, index += kGroupSize, words += kBits) {
        const uint32_t high = RandomHighWord(key, index);
        const uint32_t low = static_cast<uint32_t>(index);
        uint16_t images[kGroupSize];
        for (int i = 0; i < kGroupSize; ++i) {
          const uint32_t random = kRounding == Rounding::kStochastic ? RandomWord(key.low, high, low + i) : 0;
          images[i] = EncodeImage<kBits, kRounding>(FloatToBits(values[i] * factor), random);
        }
        PackImages<kBits>(images, words);
      }
    }
  }

  template <int kBits, bool kAdd>
  static void Decode(const uint32_t* words, int64_t groups, float factor, float* values) {
    for (; groups > 0; --groups, values += kGroupSize, words += kBits) {
      float decoded[kGroupSize];
      if constexpr (kBits == 32) {
        std::memcpy(decoded, words, sizeof(decoded));
      } else {
        uint16_t images[kGroupSize];
        UnpackImages<kBits>(words, images);
        for (int i = 0; i < kGroupSize; ++i) decoded[i] = BitsToFloat(DecodeImage<kBits>(images[i])) * factor;
      }
      for (int i = 0; i < kGroupSize; ++i) {
        if constexpr (kAdd) values[i] += decoded[i];
        if constexpr (!kAdd) std::memcpy(values + i, decoded + i, sizeof(float));
      }
    }
  }

  static uint32_t Largest(const float* values, int64_t size) {
    int32_t largest = 0;  // signed, which SSE2 can compare
    for (int64_t i = 0; i < size; ++i) {
      const int32_t a = static_cast<int32_t>(FloatToBits(values[i]) & ~kFloatSign);
      largest = a > largest ? a : largest;
    }
    return static_cast<uint32_t>(largest);
  }

  static uint32_t LargestFinite(const float* values, int64_t size) {
    int32_t largest = 0;
    for (int64_t i = 0; i < size; ++i) {
      const int32_t a = static_cast<int32_t>(FloatToBits(values[i]) & ~kFloatSign);
      const int32_t finite = a < static_cast<int32_t>(kFloatInfinity) ? a : 0;
      largest = finite > largest ? finite : largest;
    }
    return static_cast<uint32_t>(largest);
  }

  static void Multiply(float* values, int64_t size, float factor) {
    for (int64_t i = 0; i < size; ++i) values[i] *= factor;
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

constexpr KernelTable kScalarKernels = MakeKernelTable<Scalar>("scalar");

}  // namespace

const KernelTable* ScalarKernels() { return &kScalarKernels; }

}  // namespace epgc
