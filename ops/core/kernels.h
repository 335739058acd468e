// The table of kernels that each instruction set fills in. A kernel works on whole groups of float32 values, at most
// one block of them, in whatever cache they lie; codec.cc brings the values there.
//
// Kernels expect the float environment of fp_environment.h. Pointers are aligned to their element's size.
#ifndef EPGC_OPS_CORE_KERNELS_H_
#define EPGC_OPS_CORE_KERNELS_H_

#include <cstdint>

#include "ops/core/codec.h"
#include "ops/core/format.h"
#include "ops/core/random.h"

namespace epgc {

// Multiplies `groups` * 32 values by `factor`, a power of two, and writes their codes. `index` is the first value's, a
// multiple of 32; it and `key` matter to stochastic rounding only. `encode_ordinary` may take a shorter way: there no
// value is NaN or infinite, and none reaches 2^15 when multiplied.
using EncodeKernel = void (*)(const float* values, int64_t groups, float factor, RandomKey key, uint64_t index,
                              uint32_t* words);

// Decodes `groups` groups, multiplies by `factor` and stores the values, or adds them to what `values` holds.
using DecodeKernel = void (*)(const uint32_t* words, int64_t groups, float factor, float* values);

// Copies so many 4-byte words around the caches. A fence has to follow before another thread reads them.
using StreamKernel = void (*)(const void* in, int64_t words, void* out);

// These fetch what is needed some blocks later, so that memory does not idle while a cached block is worked on.
// The distances are measured. Beyond the end of a buffer they do nothing.
inline void PrefetchValues(const float* group) {
#if defined(__GNUC__)
  const char* ahead = reinterpret_cast<const char*>(group) + 3 * kBlockSize * static_cast<int64_t>(sizeof(float));
  __builtin_prefetch(ahead);
  __builtin_prefetch(ahead + 64);
#endif
}

// Of a reduce's many rows each is a stream too short for the CPU to follow by itself.
template <int kBits>
inline void PrefetchWords(const uint32_t* group) {
#if defined(__GNUC__)
  __builtin_prefetch(reinterpret_cast<const char*>(group) + kGroupsPerBlock * kBits * 4);
#endif
}

constexpr int64_t kCacheLine = 64;

// Bytes before the first cache line that begins at `address` or later; at most `size`.
inline int64_t BytesBeforeLine(const void* address, int64_t size) {
  const auto before = static_cast<int64_t>((0 - reinterpret_cast<uintptr_t>(address)) % kCacheLine);
  return before < size ? before : size;
}

struct EncodeTable {
  EncodeKernel of[kNumFormats][kNumRoundings];  // [FormatIndex(bits)][rounding]
};

struct KernelTable {
  const char* name;
  EncodeTable encode;
  EncodeTable encode_ordinary;
  DecodeKernel decode[kNumFormats];
  DecodeKernel decode_add[kNumFormats];
  // Pattern of the largest magnitude of `size` values, a multiple of 32, and of the largest finite one; 0 if there is
  // none.
  uint32_t (*largest)(const float* values, int64_t size);
  uint32_t (*largest_finite)(const float* values, int64_t size);
  // values[i] *= factor; `size` is a multiple of 32.
  void (*multiply)(float* values, int64_t size, float factor);
  StreamKernel stream;  // nullptr without stores of whole cache lines: those of half a line were seen to be slow
  // Copies `size` elements, with conversion; by DType. The buffers of the other type may have any alignment.
  void (*to_float[4])(const void* in, int64_t size, float* out);
  void (*from_float[4])(const float* in, int64_t size, void* out);
};

// nullptr where the library is built for another architecture.
const KernelTable* ScalarKernels();
const KernelTable* Avx2Kernels();
const KernelTable* Avx512Kernels();

template <typename Isa, bool kOrdinary>
constexpr EncodeTable MakeEncodeTable() {
  constexpr auto kT = Rounding::kTruncate;
  constexpr auto kN = Rounding::kNearest;
  constexpr auto kS = Rounding::kStochastic;
  return {{{&Isa::template Encode<8, kT, kOrdinary>, &Isa::template Encode<8, kN, kOrdinary>,
            &Isa::template Encode<8, kS, kOrdinary>},
           {&Isa::template Encode<9, kT, kOrdinary>, &Isa::template Encode<9, kN, kOrdinary>,
            &Isa::template Encode<9, kS, kOrdinary>},
           {&Isa::template Encode<11, kT, kOrdinary>, &Isa::template Encode<11, kN, kOrdinary>,
            &Isa::template Encode<11, kS, kOrdinary>},
           {&Isa::template Encode<16, kT, kOrdinary>, &Isa::template Encode<16, kN, kOrdinary>,
            &Isa::template Encode<16, kS, kOrdinary>},
           {&Isa::template Encode<32, kT, kOrdinary>, &Isa::template Encode<32, kT, kOrdinary>,
            &Isa::template Encode<32, kT, kOrdinary>}}};
}

// Fills a table from the static members that each instruction set's class has: Encode<bits, rounding, ordinary>,
// Decode<bits, add>, Largest, LargestFinite, Multiply, kStream, ToFloat<dtype>, FromFloat<dtype>.
template <typename Isa>
constexpr KernelTable MakeKernelTable(const char* name) {
  return {name,
          MakeEncodeTable<Isa, false>(),
          MakeEncodeTable<Isa, true>(),
          {&Isa::template Decode<8, false>, &Isa::template Decode<9, false>, &Isa::template Decode<11, false>,
           &Isa::template Decode<16, false>, &Isa::template Decode<32, false>},
          {&Isa::template Decode<8, true>, &Isa::template Decode<9, true>, &Isa::template Decode<11, true>,
           &Isa::template Decode<16, true>, &Isa::template Decode<32, true>},
          &Isa::Largest,
          &Isa::LargestFinite,
          &Isa::Multiply,
          Isa::kStream,
          {&Isa::template ToFloat<DType::kFloat32>, &Isa::template ToFloat<DType::kFloat16>,
           &Isa::template ToFloat<DType::kBFloat16>, &Isa::template ToFloat<DType::kFloat64>},
          {&Isa::template FromFloat<DType::kFloat32>, &Isa::template FromFloat<DType::kFloat16>,
           &Isa::template FromFloat<DType::kBFloat16>, &Isa::template FromFloat<DType::kFloat64>}};
}

}  // namespace epgc

#endif  // EPGC_OPS_CORE_KERNELS_H_
