#include "ops/core/dispatch.h"

#include <atomic>
#include <cstdlib>
#include <cstring>

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif

namespace epgc {
namespace {

#if defined(__x86_64__) || defined(__i386__)

// __builtin_cpu_supports() asks the operating system as well; older compilers do not know "f16c".
bool CpuHasAvx2() {
  unsigned eax, ebx, ecx, edx;
  const bool has_f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx >> 29 & 1) != 0;
  return has_f16c && __builtin_cpu_supports("avx2");
}

bool CpuHasAvx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

#else

bool CpuHasAvx2() { return false; }
bool CpuHasAvx512() { return false; }

#endif

// What this CPU can run, best first.
struct Runnable {
  const KernelTable* tables[3] = {};
  const char* names[4] = {};
  int count = 0;

  Runnable() {
    if (CpuHasAvx512()) Add(Avx512Kernels());
    if (CpuHasAvx2()) Add(Avx2Kernels());
    Add(ScalarKernels());
  }

  void Add(const KernelTable* table) {
    if (table == nullptr) return;
    tables[count] = table;
    names[count++] = table->name;
  }

  const KernelTable* Find(const char* name) const {
    for (int i = 0; i < count; ++i) {
      if (std::strcmp(names[i], name) == 0) return tables[i];
    }
    return nullptr;
  }
};

const Runnable& GetRunnable() {
  static const Runnable runnable;
  return runnable;
}

const KernelTable* ChooseKernels() {
  const char* forced = std::getenv("EPGC_FORCE_ISA");
  if (forced == nullptr || forced[0] == '\0') return GetRunnable().tables[0];
  return GetRunnable().Find(forced);
}

std::atomic<const KernelTable*>& Active() {
  static std::atomic<const KernelTable*> active(ChooseKernels());
  return active;
}

}  // namespace

const KernelTable* ActiveKernels() { return Active().load(std::memory_order_acquire); }

const char* ActiveIsa() {
  const KernelTable* kernels = ActiveKernels();
  return kernels == nullptr ? nullptr : kernels->name;
}

const char* const* RunnableIsas() { return GetRunnable().names; }

bool SetIsaForTest(const char* name) {
  const KernelTable* kernels = GetRunnable().Find(name);
  if (kernels != nullptr) Active().store(kernels, std::memory_order_release);
  return kernels != nullptr;
}

}  // namespace epgc
