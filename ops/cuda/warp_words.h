// A warp and the codes of one block: 1024 values in its lanes' registers to the words of 32 groups and back.
//
// Lane l holds the values 128 i + 4 l + k for i = 0..7 and k = 0..3, so that it loads and stores four at a time. Of
// group 4 i + l / 8 it has the high bytes of word l % 8, and four bits, a nibble, of each plane. The eight lanes of a
// cluster have a plane's 8 x 8 nibbles; transposed, each lane has a word of it.
#ifndef EPGC_OPS_CUDA_WARP_WORDS_H_
#define EPGC_OPS_CUDA_WARP_WORDS_H_

#include <cstdint>

#include "ops/core/codec.h"
#include "ops/core/random.h"
#include "ops/cuda/device.h"
#include "ops/cuda/lane_codec.h"

namespace epgc {
namespace cuda {

inline constexpr int kLaneFours = 8;        // fours of values a lane holds
inline constexpr int kFourStride = 4 * 32;  // values from one to the next

// A lane's share of a block.
struct Values {
  float x[kLaneFours * 4];
};

// Shared memory of a warp: a block's values or its words, the latter moved by up to three words so that they lie as
// they do in global memory, relative to 16 bytes.
struct Stage {
  alignas(16) uint32_t word[kBlockSize + 4];
};

template <int kBits>
EPGC_DEVICE constexpr int NumPlanes() {
  return kBits < 16 ? kBits - 8 : 0;
}

// Words from the last multiple of 16 bytes to `words`.
EPGC_DEVICE int WordsPast16Bytes(const uint32_t* words) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(words) / 4 % 4);
}

// Lane j's nibble i becomes lane i's nibble j, within each eight lanes.
template <typename Warp>
EPGC_DEVICE void TransposeNibbles(const Warp& warp, typename Warp::template Lanes<uint32_t>* x) {
  auto other = warp.ShuffleXor(*x, 4);
  warp.Each([&](int lane) { (*x)[lane] = BytePerm((*x)[lane], other[lane], (lane & 4) != 0 ? 0x3276 : 0x5410); });
  other = warp.ShuffleXor(*x, 2);
  warp.Each([&](int lane) { (*x)[lane] = BytePerm((*x)[lane], other[lane], (lane & 2) != 0 ? 0x3715 : 0x6240); });
  other = warp.ShuffleXor(*x, 1);
  warp.Each([&](int lane) {
    const bool odd = (lane & 1) != 0;
    const uint32_t kept = odd ? 0xF0F0F0F0u : 0x0F0F0F0Fu;
    const uint32_t moved = FunnelShiftLeft(other[lane], other[lane], odd ? 28 : 4);
    (*x)[lane] = ((*x)[lane] & kept) | (moved & ~kept);
  });
}

// Takes bit 7 - kPlane of the bytes in `low`, and on to the planes after it.
template <int kBits, int kPlane = 0>
EPGC_DEVICE void PushPlanes(uint32_t low, uint32_t* planes) {
  if constexpr (kPlane < NumPlanes<kBits>()) {
    planes[kPlane] = PushNibble<kPlane>(planes[kPlane], low);
    PushPlanes<kBits, kPlane + 1>(low, planes);
  }
}

template <int kBits, int kPlane = 0>
EPGC_DEVICE uint32_t SpreadPlanes(const uint32_t* planes, int i) {
  if constexpr (kPlane < NumPlanes<kBits>()) {
    return SpreadNibble<kPlane>(planes[kPlane], i) | SpreadPlanes<kBits, kPlane + 1>(planes, i);
  }
  return 0;
}

// Where the lane's words of a block are: the high bytes of its four `i`, and after transposing, its word of plane 0.
template <int kBits>
EPGC_DEVICE int HighWord(int lane, int i) {
  return (4 * i + lane / 8) * kBits + lane % 8;
}
template <int kBits>
EPGC_DEVICE int PlaneWord(int lane) {
  return (4 * (lane % 8) + lane / 8) * kBits + 8;
}

// Codes of all 32 groups into `words` in shared memory, where no lane may be reading any more.
template <int kBits, Rounding kRounding, typename Warp>
EPGC_DEVICE void EncodeWords(const Warp& warp, const typename Warp::template Lanes<Values>& values,
                             const BlockCoding& coding, uint32_t* words) {
  constexpr int kPlanes = NumPlanes<kBits>();
  typename Warp::template Lanes<uint32_t> planes[kPlanes + 1];
  warp.Each([&](int lane) {
    uint32_t own[kPlanes + 1] = {};
    EPGC_UNROLL for (int i = kLaneFours - 1; i >= 0; --i) {
      const float* x = values[lane].x + 4 * i;
      const int value = kFourStride * i + 4 * lane;
      if constexpr (kBits == 32) {
        EPGC_UNROLL for (int k = 0; k < 4; ++k) words[value + k] = FloatToBits(x[k]);
      } else {
        const Images images = EncodeFour<kBits, kRounding>(x, value, coding);
        if constexpr (kBits == 16) {
          words[value / 2] = images.first;
          words[value / 2 + 1] = images.second;
        } else {
          words[HighWord<kBits>(lane, i)] = HighBytes(images);
          PushPlanes<kBits>(LowBytes(images), own);
        }
      }
    }
    EPGC_UNROLL for (int plane = 0; plane < kPlanes; ++plane) planes[plane][lane] = own[plane];
  });
  EPGC_UNROLL for (int plane = 0; plane < kPlanes; ++plane) {
    TransposeNibbles(warp, &planes[plane]);
    warp.Each([&](int lane) { words[PlaneWord<kBits>(lane) + plane] = planes[plane][lane]; });
  }
  warp.Sync();
}

// The lane's four `i` of the words in shared memory, times `factor`.
template <int kBits>
EPGC_DEVICE void DecodeLaneFour(const uint32_t* words, const uint32_t* planes, int lane, int i, float factor,
                                float* x) {
  const int value = kFourStride * i + 4 * lane;
  if constexpr (kBits == 32) {
    EPGC_UNROLL for (int k = 0; k < 4; ++k) x[k] = BitsToFloat(words[value + k]);
  } else if constexpr (kBits == 16) {
    DecodeFour<kBits>({words[value / 2], words[value / 2 + 1]}, factor, x);
  } else {
    DecodeFour<kBits>(FromBytes(words[HighWord<kBits>(lane, i)], SpreadPlanes<kBits>(planes, i)), factor, x);
  }
}

// Values of the 32 groups in `words` in shared memory, times `factor`; kAdd adds them to what `values` holds.
template <int kBits, bool kAdd, typename Warp>
EPGC_DEVICE void DecodeWords(const Warp& warp, const uint32_t* words, float factor,
                             typename Warp::template Lanes<Values>* values) {
  constexpr int kPlanes = NumPlanes<kBits>();
  typename Warp::template Lanes<uint32_t> planes[kPlanes + 1];
  EPGC_UNROLL for (int plane = 0; plane < kPlanes; ++plane) {
    warp.Each([&](int lane) { planes[plane][lane] = words[PlaneWord<kBits>(lane) + plane]; });
    TransposeNibbles(warp, &planes[plane]);
  }
  warp.Each([&](int lane) {
    uint32_t own[kPlanes + 1] = {};
    EPGC_UNROLL for (int plane = 0; plane < kPlanes; ++plane) own[plane] = planes[plane][lane];
    EPGC_UNROLL for (int i = 0; i < kLaneFours; ++i) {
      float decoded[4];
      DecodeLaneFour<kBits>(words, own, lane, i, factor, decoded);
      EPGC_UNROLL for (int k = 0; k < 4; ++k) {
        float& x = (*values)[lane].x[4 * i + k];
        x = kAdd ? x + decoded[k] : decoded[k];
      }
    }
  });
}

// --- Words between global and shared memory ---

// The most quads that a lane moves for `kBits`: those that cover a block's words wherever they begin.
template <int kBits>
EPGC_DEVICE constexpr int LaneQuads() {
  return (kBits * 8 + 1 + 31) / 32;
}

// Part `part` of what the lane has of `count` words at `words`: the words of one quad, and zeros outside.
EPGC_DEVICE Quad LoadLaneQuad(const uint32_t* words, int count, int lane, int part) {
  const int first = 4 * (32 * part + lane) - WordsPast16Bytes(words);
  if (first >= 0 && first + 4 <= count) return LoadAligned<Quad>(words + first);
  Quad quad = {};
  EPGC_UNROLL for (int k = 0; k < 4; ++k) {
    if (first + k >= 0 && first + k < count) quad.word[k] = words[first + k];
  }
  return quad;
}

// Writes `count` words of `stage` to `out`; in `stage` they begin at the word WordsPast16Bytes(out).
template <int kBits, typename Warp>
EPGC_DEVICE void StoreWords(const Warp& warp, const Stage& stage, int count, uint32_t* out) {
  warp.Each([&](int lane) {
    EPGC_UNROLL for (int part = 0; part < LaneQuads<kBits>(); ++part) {
      const int first = 4 * (32 * part + lane) - WordsPast16Bytes(out);
      if (first >= count) continue;
      const Quad quad = LoadAligned<Quad>(stage.word + 4 * (32 * part + lane));
      if (first >= 0 && first + 4 <= count) {
        StoreQuadGlobal(quad, out + first);
      } else {
        EPGC_UNROLL for (int k = 0; k < 4; ++k) {
          if (first + k >= 0 && first + k < count) out[first + k] = quad.word[k];
        }
      }
    }
  });
}

// Words of one block on their way from global to shared memory, in registers.
template <int kBits, typename Warp>
class WordsInFlight {
 public:
  EPGC_DEVICE void Load(const Warp& warp, const uint32_t* words, int count) {
    past_ = WordsPast16Bytes(words);
    warp.Each([&](int lane) {
      EPGC_UNROLL for (int part = 0; part < LaneQuads<kBits>(); ++part) {
        quads_[lane].part[part] = LoadLaneQuad(words, count, lane, part);
      }
    });
  }

  // Puts them into `stage`, where no lane may be reading any more, and returns where they begin.
  EPGC_DEVICE const uint32_t* Arrive(const Warp& warp, Stage* stage) const {
    warp.Each([&](int lane) {
      EPGC_UNROLL for (int part = 0; part < LaneQuads<kBits>(); ++part) {
        const int first = 4 * (32 * part + lane);
        if (first < kBlockSize + 4) StoreAligned(quads_[lane].part[part], stage->word + first);
      }
    });
    warp.Sync();
    return stage->word + past_;
  }

 private:
  struct Parts {
    Quad part[LaneQuads<kBits>()];
  };
  typename Warp::template Lanes<Parts> quads_;
  int past_ = 0;
};

}  // namespace cuda
}  // namespace epgc

#endif  // EPGC_OPS_CUDA_WARP_WORDS_H_
