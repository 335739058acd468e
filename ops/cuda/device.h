// What the kernels' logic needs of a machine, in two versions: for the device, and in plain C++ for the tests, which
// run the same logic on a CPU.
#ifndef EPGC_OPS_CUDA_DEVICE_H_
#define EPGC_OPS_CUDA_DEVICE_H_

#include <cstdint>
#include <cstring>

#include "ops/core/format.h"

#if defined(__CUDACC__)
#include <cuda_fp16.h>
#define EPGC_DEVICE __device__ __forceinline__
#define EPGC_UNROLL _Pragma("unroll")
#define EPGC_UNROLL_SOME _Pragma("unroll 4")
#define EPGC_NO_UNROLL _Pragma("unroll 1")
#else
#define EPGC_DEVICE inline
#define EPGC_UNROLL
#define EPGC_UNROLL_SOME
#define EPGC_NO_UNROLL
#endif

namespace epgc {
namespace cuda {

// 16 and 8 bytes that are read and written at once.
struct alignas(16) Quad {
  uint32_t word[4];
};
struct alignas(8) Pair {
  uint32_t word[2];
};

// Whether `data` is a multiple of T's size.
template <typename T>
EPGC_DEVICE bool IsAligned(const void* data) {
  return reinterpret_cast<uintptr_t>(data) % sizeof(T) == 0;
}

// Loads what lies aligned to its own size. For what does not, a device stops; on a CPU the value is wrong on purpose,
// so that tests notice.
template <typename T>
EPGC_DEVICE T LoadAligned(const void* in) {
#if defined(__CUDA_ARCH__)
  return *static_cast<const T*>(in);
#else
  T value = {};
  if (IsAligned<T>(in)) std::memcpy(&value, in, sizeof(T));
  return value;
#endif
}

template <typename T>
EPGC_DEVICE void StoreAligned(T value, void* out) {
#if defined(__CUDA_ARCH__)
  *static_cast<T*>(out) = value;
#else
  if (IsAligned<T>(out)) std::memcpy(out, &value, sizeof(T));
#endif
}

// Stores 16 bytes to global memory with one instruction, whatever the compiler makes of the branches around.
EPGC_DEVICE void StoreQuadGlobal(const Quad& quad, void* out) {
#if defined(__CUDA_ARCH__)
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(out)), "r"(quad.word[0]),
               "r"(quad.word[1]), "r"(quad.word[2]), "r"(quad.word[3])
               : "memory");
#else
  StoreAligned(quad, out);
#endif
}

// Loads what may lie anywhere, byte by byte.
template <typename T>
EPGC_DEVICE T LoadBytes(const char* in) {
  T value;
  for (unsigned i = 0; i < sizeof(T); ++i) reinterpret_cast<char*>(&value)[i] = in[i];
  return value;
}

template <typename T>
EPGC_DEVICE void StoreBytes(T value, char* out) {
  for (unsigned i = 0; i < sizeof(T); ++i) out[i] = reinterpret_cast<const char*>(&value)[i];
}

// Four of the bytes b3 b2 b1 b0 a3 a2 a1 a0; each digit of `selector` is the number of one, the last digit's lowest.
EPGC_DEVICE uint32_t BytePerm(uint32_t a, uint32_t b, uint32_t selector) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(a, b, selector);
#else
  const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    result |= static_cast<uint32_t>(bytes >> (selector >> 4 * i & 7) * 8 & 0xFF) << 8 * i;
  }
  return result;
#endif
}

// The upper word of high:low << distance, for distances 1..31.
EPGC_DEVICE uint32_t FunnelShiftLeft(uint32_t low, uint32_t high, uint32_t distance) {
#if defined(__CUDA_ARCH__)
  return __funnelshift_l(low, high, distance);
#else
  return high << distance | low >> (32 - distance);
#endif
}

// Two values as binary16, the first one in the lower half. Their magnitudes must be 2^15 at the most; for others a
// device has answers of its own, and a CPU wrong ones on purpose.
template <Rounding kRounding>
EPGC_DEVICE uint32_t NarrowPair(float first, float second) {
  static_assert(kRounding != Rounding::kStochastic, "the hardware has no such conversion");
#if defined(__CUDA_ARCH__)
  // sm_80 and newer convert two at once.
#if __CUDA_ARCH__ >= 800
  uint32_t halves;
  if constexpr (kRounding == Rounding::kTruncate) {
    asm("cvt.rz.f16x2.f32 %0, %1, %2;" : "=r"(halves) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(halves) : "f"(second), "f"(first));
  }
  return halves;
#else
  constexpr bool kTruncates = kRounding == Rounding::kTruncate;
  const __half low = kTruncates ? __float2half_rz(first) : __float2half_rn(first);
  const __half high = kTruncates ? __float2half_rz(second) : __float2half_rn(second);
  return static_cast<uint32_t>(__half_as_ushort(high)) << 16 | __half_as_ushort(low);
#endif
#else
  uint32_t halves = 0;
  const float values[] = {second, first};
  for (float value : values) {
    const bool in_range = (FloatToBits(value) & ~kFloatSign) <= (127u + 15u) << 23;
    halves = halves << 16 | (in_range ? EncodeImage<16, kRounding>(FloatToBits(value), 0) : 0xFFFFu);
  }
  return halves;
#endif
}

// float32 of the binary16 in the lower half of `halves`, or in its upper half. A NaN becomes a quiet one.
template <bool kUpper>
EPGC_DEVICE float WidenOfPair(uint32_t halves) {
  const uint16_t half = static_cast<uint16_t>(kUpper ? halves >> 16 : halves);
#if defined(__CUDA_ARCH__)
  return __half2float(__ushort_as_half(half));
#else
  return BitsToFloat(WidenHalf(half));
#endif
}

// NarrowToHalf() in few instructions.
EPGC_DEVICE uint16_t NarrowFloat(float value) {
#if defined(__CUDA_ARCH__)
  return value != value ? kHalfNaN : __half_as_ushort(__float2half_rn(value));
#else
  return NarrowToHalf(FloatToBits(value));
#endif
}

// float32 of a float64. A NaN keeps its sign and the upper bits of its payload and becomes a quiet one, as on CPUs; a
// device's conversion has one NaN for all.
EPGC_DEVICE float NarrowDouble(double value) {
  if (value == value) return static_cast<float>(value);
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint32_t sign = static_cast<uint32_t>(bits >> 32) & kFloatSign;
  return BitsToFloat(sign | kFloatInfinity | 0x400000u | (static_cast<uint32_t>(bits >> 29) & 0x3FFFFFu));
}

}  // namespace cuda
}  // namespace epgc

#endif  // EPGC_OPS_CUDA_DEVICE_H_
