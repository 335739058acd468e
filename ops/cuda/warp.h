// The warp that runs the logic of warp_codec.h on a device. tests/ops/cuda/host_warp.h is the one for a CPU.
//
// Logic that is written for a warp keeps what each lane has of its own in a `Lanes<T>`, works on it in `Each`, whose
// function is called for every lane, and lets lanes talk to each other between two calls of `Each` only.
#ifndef EPGC_OPS_CUDA_WARP_H_
#define EPGC_OPS_CUDA_WARP_H_

#include <cstdint>

#include "ops/cuda/device.h"

namespace epgc {
namespace cuda {

inline constexpr int kWarpSize = 32;

class DeviceWarp {
 public:
  template <typename T>
  class Lanes {
   public:
    EPGC_DEVICE T& operator[](int) { return own_; }
    EPGC_DEVICE const T& operator[](int) const { return own_; }

   private:
    T own_;
  };

  template <typename Function>
  EPGC_DEVICE void Each(Function&& function) const {
    function(static_cast<int>(threadIdx.x % kWarpSize));
  }

  // Makes what the lanes wrote to shared memory visible to all of them.
  EPGC_DEVICE void Sync() const { __syncwarp(); }

  // What the lane whose number differs by `mask` has.
  EPGC_DEVICE Lanes<uint32_t> ShuffleXor(const Lanes<uint32_t>& x, int mask) const {
    Lanes<uint32_t> result;
    result[0] = __shfl_xor_sync(kEveryLane, x[0], mask);
    return result;
  }

  EPGC_DEVICE uint32_t Largest(const Lanes<uint32_t>& x) const {
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(kEveryLane, x[0]);
#else
    uint32_t largest = x[0];
    for (int mask = kWarpSize / 2; mask > 0; mask /= 2) {
      largest = max(largest, __shfl_xor_sync(kEveryLane, largest, mask));
    }
    return largest;
#endif
  }

 private:
  static constexpr unsigned kEveryLane = 0xFFFFFFFFu;
};

}  // namespace cuda
}  // namespace epgc

#endif  // EPGC_OPS_CUDA_WARP_H_
