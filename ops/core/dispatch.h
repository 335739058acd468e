// Chooses the kernels for this CPU; codec.h has the functions that name them.
#ifndef EPGC_OPS_CORE_DISPATCH_H_
#define EPGC_OPS_CORE_DISPATCH_H_

#include "ops/core/kernels.h"

namespace epgc {

// The table in use, chosen at the first call; nullptr where ActiveIsa() is.
const KernelTable* ActiveKernels();

}  // namespace epgc

#endif  // EPGC_OPS_CORE_DISPATCH_H_
