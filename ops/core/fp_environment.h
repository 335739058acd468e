// The float environment that a pass runs in.
#ifndef EPGC_OPS_CORE_FP_ENVIRONMENT_H_
#define EPGC_OPS_CORE_FP_ENVIRONMENT_H_

#include <cstdint>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace epgc {

// While it lives, the thread computes as IEEE 754 has it: subnormals kept, rounding to nearest, no traps. TensorFlow's
// threads flush subnormals to zero. The thread's own environment comes back afterwards.
class ScopedIeeeEnvironment {
 public:
  ScopedIeeeEnvironment();
  ~ScopedIeeeEnvironment();
  ScopedIeeeEnvironment(const ScopedIeeeEnvironment&) = delete;
  ScopedIeeeEnvironment& operator=(const ScopedIeeeEnvironment&) = delete;

 private:
  uint64_t saved_ = 0;
};

#if defined(__SSE2__)

inline ScopedIeeeEnvironment::ScopedIeeeEnvironment() : saved_(_mm_getcsr()) {
  constexpr unsigned kDefaultMxcsr = 0x1F80;
  _mm_setcsr(kDefaultMxcsr);
}
inline ScopedIeeeEnvironment::~ScopedIeeeEnvironment() { _mm_setcsr(static_cast<unsigned>(saved_)); }

#elif defined(__aarch64__)

inline ScopedIeeeEnvironment::ScopedIeeeEnvironment() {
  asm volatile("mrs %0, fpcr" : "=r"(saved_) : : "memory");
  asm volatile("msr fpcr, %0" : : "r"(uint64_t{0}) : "memory");
}
inline ScopedIeeeEnvironment::~ScopedIeeeEnvironment() { asm volatile("msr fpcr, %0" : : "r"(saved_) : "memory"); }

#else

inline ScopedIeeeEnvironment::ScopedIeeeEnvironment() {}
inline ScopedIeeeEnvironment::~ScopedIeeeEnvironment() {}

#endif

}  // namespace epgc

#endif  // EPGC_OPS_CORE_FP_ENVIRONMENT_H_
