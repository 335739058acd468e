// A warp and the values of one block: from tensors of any type, alignment and size to its lanes' registers and back.
#ifndef EPGC_OPS_CUDA_WARP_VALUES_H_
#define EPGC_OPS_CUDA_WARP_VALUES_H_

#include <cstdint>

#include "ops/core/codec.h"
#include "ops/core/format.h"
#include "ops/cuda/device.h"
#include "ops/cuda/tensor_table.h"
#include "ops/cuda/warp_words.h"

namespace epgc {
namespace cuda {

template <DType kDType>
EPGC_DEVICE constexpr int ElementSize() {
  return kDType == DType::kFloat32 ? 4 : kDType == DType::kFloat64 ? 8 : 2;
}

// --- One element ---

template <DType kDType>
EPGC_DEVICE float LoadElement(const char* in) {
  if constexpr (kDType == DType::kFloat32) return LoadAnywhere<float>(in);
  if constexpr (kDType == DType::kFloat16) return BitsToFloat(WidenHalf(LoadAnywhere<uint16_t>(in)));
  if constexpr (kDType == DType::kBFloat16) {
    return BitsToFloat(static_cast<uint32_t>(LoadAnywhere<uint16_t>(in)) << 16);
  }
  if constexpr (kDType == DType::kFloat64) return static_cast<float>(LoadAnywhere<double>(in));
}

template <DType kDType>
EPGC_DEVICE void StoreElement(float value, char* out) {
  if constexpr (kDType == DType::kFloat32) StoreAnywhere(value, out);
  if constexpr (kDType == DType::kFloat16) StoreAnywhere(NarrowFloat(value), out);
  if constexpr (kDType == DType::kBFloat16) StoreAnywhere(NarrowToBFloat16(FloatToBits(value)), out);
  if constexpr (kDType == DType::kFloat64) StoreAnywhere(static_cast<double>(value), out);
}

// --- Four at an address that is a multiple of 16 bytes, or of their size if that is less ---

struct alignas(16) TwoDoubles {
  double value[2];
};

template <DType kDType>
EPGC_DEVICE void LoadFour(const char* in, float* x) {
  if constexpr (kDType == DType::kFloat32) {
    const Quad quad = LoadAligned<Quad>(in);
    EPGC_UNROLL for (int k = 0; k < 4; ++k) x[k] = BitsToFloat(quad.word[k]);
  } else if constexpr (kDType == DType::kFloat64) {
    EPGC_UNROLL for (int half = 0; half < 2; ++half) {
      const TwoDoubles two = LoadAligned<TwoDoubles>(in + 16 * half);
      x[2 * half] = static_cast<float>(two.value[0]);
      x[2 * half + 1] = static_cast<float>(two.value[1]);
    }
  } else {
    const Pair pair = LoadAligned<Pair>(in);
    EPGC_UNROLL for (int k = 0; k < 4; ++k) {
      const uint32_t bits = pair.word[k / 2] >> 16 * (k % 2) & 0xFFFFu;
      x[k] = BitsToFloat(kDType == DType::kFloat16 ? WidenHalf(static_cast<uint16_t>(bits)) : bits << 16);
    }
  }
}

template <DType kDType>
EPGC_DEVICE void StoreFour(const float* x, char* out) {
  if constexpr (kDType == DType::kFloat32) {
    StoreAligned(Quad{{FloatToBits(x[0]), FloatToBits(x[1]), FloatToBits(x[2]), FloatToBits(x[3])}}, out);
  } else if constexpr (kDType == DType::kFloat64) {
    StoreAligned(TwoDoubles{{static_cast<double>(x[0]), static_cast<double>(x[1])}}, out);
    StoreAligned(TwoDoubles{{static_cast<double>(x[2]), static_cast<double>(x[3])}}, out + 16);
  } else {
    uint32_t narrow[4];
    EPGC_UNROLL for (int k = 0; k < 4; ++k) {
      narrow[k] = kDType == DType::kFloat16 ? NarrowFloat(x[k]) : NarrowToBFloat16(FloatToBits(x[k]));
    }
    StoreAligned(Pair{{narrow[0] | narrow[1] << 16, narrow[2] | narrow[3] << 16}}, out);
  }
}

// --- A block ---

// Calls function(constant), whose `value` is the type, so that the function is compiled for each.
template <DType kDType>
struct DTypeConstant {
  static constexpr DType value = kDType;
};

template <typename Function>
EPGC_DEVICE void WithDType(DType dtype, Function&& function) {
  if (dtype == DType::kFloat32) return function(DTypeConstant<DType::kFloat32>());
  if (dtype == DType::kFloat16) return function(DTypeConstant<DType::kFloat16>());
  if (dtype == DType::kBFloat16) return function(DTypeConstant<DType::kBFloat16>());
  function(DTypeConstant<DType::kFloat64>());
}

// A run of a block's values that lies in one tensor.
struct Piece {
  int offset;  // of its first value in the block
  int size;
  char* data;
  DType dtype;
};

// Whether `piece` is a whole block that can be loaded and stored four values at a time.
EPGC_DEVICE bool IsDirect(const Piece& piece) {
  const bool is_wide = piece.dtype == DType::kFloat32 || piece.dtype == DType::kFloat64;
  return piece.size == kBlockSize && reinterpret_cast<uintptr_t>(piece.data) % (is_wide ? 16 : 8) == 0;
}

// Walks through the pieces of the `size` values from `position` on.
template <typename Table>
class PieceCursor {
 public:
  EPGC_DEVICE PieceCursor(const Table& table, int64_t position, int size)
      : table_(table), position_(position), size_(size), tensor_(table.Find(position)) {}

  // Values that Next() has returned so far.
  EPGC_DEVICE int done() const { return done_; }

  EPGC_DEVICE bool HasNext() const { return done_ < size_ && tensor_ < table_.count; }

  EPGC_DEVICE Piece Next() {
    const int64_t here = position_ + done_;
    const int64_t left = table_.end[tensor_] - here;
    const DType dtype = static_cast<DType>(table_.dtype[tensor_]);
    const int element_size = dtype == DType::kFloat32 ? 4 : dtype == DType::kFloat64 ? 8 : 2;
    const int piece_size = left < size_ - done_ ? static_cast<int>(left) : size_ - done_;
    char* data = table_.data[tensor_] + (here - table_.StartOf(tensor_)) * element_size;
    const Piece piece = {done_, piece_size, data, dtype};
    done_ += piece_size;
    ++tensor_;
    return piece;
  }

 private:
  const Table& table_;
  const int64_t position_;
  const int size_;
  int tensor_;
  int done_ = 0;
};

template <DType kDType, typename Warp>
EPGC_DEVICE void LoadDirect(const Warp& warp, const char* data, typename Warp::template Lanes<Values>* values) {
  warp.Each([&](int lane) {
    const char* in = data + 4 * lane * ElementSize<kDType>();
    EPGC_UNROLL for (int i = 0; i < kLaneFours; ++i) {
      LoadFour<kDType>(in + kFourStride * i * ElementSize<kDType>(), (*values)[lane].x + 4 * i);
    }
  });
}

template <DType kDType, typename Warp>
EPGC_DEVICE void StoreDirect(const Warp& warp, const typename Warp::template Lanes<Values>& values, char* data) {
  warp.Each([&](int lane) {
    char* out = data + 4 * lane * ElementSize<kDType>();
    EPGC_UNROLL for (int i = 0; i < kLaneFours; ++i) {
      StoreFour<kDType>(values[lane].x + 4 * i, out + kFourStride * i * ElementSize<kDType>());
    }
  });
}

// A piece that is not direct goes through shared memory, element by element, so that the lanes' accesses are side by
// side.
template <DType kDType, typename Warp>
EPGC_DEVICE void GatherPiece(const Warp& warp, const Piece& piece, Stage* stage) {
  warp.Each([&](int lane) {
    EPGC_UNROLL_SOME for (int i = lane; i < piece.size; i += 32) {
      stage->word[piece.offset + i] = FloatToBits(LoadElement<kDType>(piece.data + i * ElementSize<kDType>()));
    }
  });
}

template <DType kDType, typename Warp>
EPGC_DEVICE void ScatterPiece(const Warp& warp, const Piece& piece, const Stage& stage) {
  warp.Each([&](int lane) {
    EPGC_UNROLL_SOME for (int i = lane; i < piece.size; i += 32) {
      StoreElement<kDType>(BitsToFloat(stage.word[piece.offset + i]), piece.data + i * ElementSize<kDType>());
    }
  });
}

// The `size` values from `position` on, and zeros beyond the last tensor and beyond `size`. No lane may be using
// `stage`.
template <typename Warp, typename Table>
EPGC_DEVICE void LoadValues(const Warp& warp, const Table& table, int64_t position, int size, Stage* stage,
                            typename Warp::template Lanes<Values>* values) {
  PieceCursor<Table> cursor(table, position, size);
  while (cursor.HasNext()) {
    const Piece piece = cursor.Next();
    if (IsDirect(piece)) {
      WithDType(piece.dtype, [&](auto dtype) { LoadDirect<decltype(dtype)::value>(warp, piece.data, values); });
      return;
    }
    WithDType(piece.dtype, [&](auto dtype) { GatherPiece<decltype(dtype)::value>(warp, piece, stage); });
  }
  warp.Each([&](int lane) {
    for (int i = cursor.done() + lane; i < kBlockSize; i += 32) stage->word[i] = 0;
  });
  warp.Sync();
  LoadDirect<DType::kFloat32>(warp, reinterpret_cast<const char*>(stage->word), values);
  warp.Sync();
}

// Writes the first `size` values to `position` and on, as far as there are tensors. No lane may be using `stage`.
template <typename Warp, typename Table>
EPGC_DEVICE void StoreValues(const Warp& warp, const Table& table, int64_t position, int size,
                             const typename Warp::template Lanes<Values>& values, Stage* stage) {
  PieceCursor<Table> cursor(table, position, size);
  while (cursor.HasNext()) {
    const bool is_first = cursor.done() == 0;
    const Piece piece = cursor.Next();
    if (IsDirect(piece)) {
      WithDType(piece.dtype, [&](auto dtype) { StoreDirect<decltype(dtype)::value>(warp, values, piece.data); });
      return;
    }
    if (is_first) {
      StoreDirect<DType::kFloat32>(warp, values, reinterpret_cast<char*>(stage->word));
      warp.Sync();
    }
    WithDType(piece.dtype, [&](auto dtype) { ScatterPiece<decltype(dtype)::value>(warp, piece, *stage); });
  }
}

}  // namespace cuda
}  // namespace epgc

#endif  // EPGC_OPS_CUDA_WARP_VALUES_H_
