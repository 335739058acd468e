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

// The type that holds an element of kDType, or its pattern.
template <DType kDType>
struct ElementOf {
  using Type = float;
};
template <>
struct ElementOf<DType::kFloat16> {
  using Type = uint16_t;
};
template <>
struct ElementOf<DType::kBFloat16> {
  using Type = uint16_t;
};
template <>
struct ElementOf<DType::kFloat64> {
  using Type = double;
};
template <DType kDType>
using Element = typename ElementOf<kDType>::Type;

template <DType kDType>
EPGC_DEVICE constexpr int ElementSize() {
  return static_cast<int>(sizeof(Element<kDType>));
}

// --- One element ---

template <DType kDType>
EPGC_DEVICE float ToFloat(Element<kDType> x) {
  if constexpr (kDType == DType::kFloat16) return BitsToFloat(WidenHalf(x));
  if constexpr (kDType == DType::kBFloat16) return BitsToFloat(static_cast<uint32_t>(x) << 16);
  if constexpr (kDType == DType::kFloat64) return NarrowDouble(x);
  if constexpr (kDType == DType::kFloat32) return x;
}

template <DType kDType>
EPGC_DEVICE Element<kDType> FromFloat(float x) {
  if constexpr (kDType == DType::kFloat16) return NarrowFloat(x);
  if constexpr (kDType == DType::kBFloat16) return NarrowToBFloat16(FloatToBits(x));
  if constexpr (kDType == DType::kFloat32 || kDType == DType::kFloat64) return x;
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
    const TwoDoubles first = LoadAligned<TwoDoubles>(in), second = LoadAligned<TwoDoubles>(in + 16);
    EPGC_UNROLL for (int k = 0; k < 4; ++k) x[k] = ToFloat<kDType>((k < 2 ? first : second).value[k % 2]);
  } else {
    const Pair pair = LoadAligned<Pair>(in);
    EPGC_UNROLL for (int k = 0; k < 4; ++k) {
      x[k] = ToFloat<kDType>(static_cast<uint16_t>(pair.word[k / 2] >> 16 * (k % 2)));
    }
  }
}

template <DType kDType>
EPGC_DEVICE void StoreFour(const float* x, char* out) {
  if constexpr (kDType == DType::kFloat32) {
    StoreAligned(Quad{{FloatToBits(x[0]), FloatToBits(x[1]), FloatToBits(x[2]), FloatToBits(x[3])}}, out);
  } else if constexpr (kDType == DType::kFloat64) {
    StoreAligned(TwoDoubles{{x[0], x[1]}}, out);
    StoreAligned(TwoDoubles{{x[2], x[3]}}, out + 16);
  } else {
    uint32_t narrow[4];
    EPGC_UNROLL for (int k = 0; k < 4; ++k) narrow[k] = FromFloat<kDType>(x[k]);
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
  using T = Element<kDType>;
  uint32_t* out = stage->word + piece.offset;
  warp.Each([&](int lane) {
    if (IsAligned<T>(piece.data)) {
      EPGC_UNROLL_SOME for (int i = lane; i < piece.size; i += 32) {
        out[i] = FloatToBits(ToFloat<kDType>(LoadAligned<T>(piece.data + i * sizeof(T))));
      }
    } else {
      EPGC_NO_UNROLL for (int i = lane; i < piece.size; i += 32) {
        out[i] = FloatToBits(ToFloat<kDType>(LoadBytes<T>(piece.data + i * sizeof(T))));
      }
    }
  });
}

template <DType kDType, typename Warp>
EPGC_DEVICE void ScatterPiece(const Warp& warp, const Piece& piece, const Stage& stage) {
  using T = Element<kDType>;
  const uint32_t* in = stage.word + piece.offset;
  warp.Each([&](int lane) {
    if (IsAligned<T>(piece.data)) {
      EPGC_UNROLL_SOME for (int i = lane; i < piece.size; i += 32) {
        StoreAligned(FromFloat<kDType>(BitsToFloat(in[i])), piece.data + i * sizeof(T));
      }
    } else {
      EPGC_NO_UNROLL for (int i = lane; i < piece.size; i += 32) {
        StoreBytes(FromFloat<kDType>(BitsToFloat(in[i])), piece.data + i * sizeof(T));
      }
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
  warp.Each(
      [&](int lane) { EPGC_NO_UNROLL for (int i = cursor.done() + lane; i < kBlockSize; i += 32) stage->word[i] = 0; });
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
