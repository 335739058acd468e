// The warp of ops/cuda/warp.h on a CPU: 32 lanes, one after the other, now upwards and now downwards, so that a lane
// that needs what another does in the same call of `Each` is found out.
#ifndef EPGC_TESTS_OPS_CUDA_HOST_WARP_H_
#define EPGC_TESTS_OPS_CUDA_HOST_WARP_H_

#include <cstdint>

namespace epgc {
namespace cuda {

class HostWarp {
 public:
  template <typename T>
  class Lanes {
   public:
    T& operator[](int lane) { return of_[lane]; }
    const T& operator[](int lane) const { return of_[lane]; }

   private:
    T of_[32];
  };

  template <typename Function>
  void Each(Function&& function) const {
    downwards_ = !downwards_;
    for (int i = 0; i < 32; ++i) function(downwards_ ? 31 - i : i);
  }

  void Sync() const {}

  Lanes<uint32_t> ShuffleXor(const Lanes<uint32_t>& x, int mask) const {
    Lanes<uint32_t> result;
    for (int lane = 0; lane < 32; ++lane) result[lane] = x[lane ^ mask];
    return result;
  }

  uint32_t Largest(const Lanes<uint32_t>& x) const {
    uint32_t largest = 0;
    for (int lane = 0; lane < 32; ++lane) largest = x[lane] > largest ? x[lane] : largest;
    return largest;
  }

 private:
  mutable bool downwards_ = false;
};

}  // namespace cuda
}  // namespace epgc

#endif  // EPGC_TESTS_OPS_CUDA_HOST_WARP_H_
