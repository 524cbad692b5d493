// What the collectives of all devices share.
#ifndef PLO_OPERATORS_COLLECTIVE_H_
#define PLO_OPERATORS_COLLECTIVE_H_

#include "framework/runtime/comm.h"
#include "framework/runtime/kernel.h"

namespace plo {

inline bool IsAlone(const KernelContext& ctx) {
  return ctx.env().comm == nullptr || ctx.env().comm->size() == 1;
}

inline Reduction ReductionOf(const KernelContext& ctx) {
  return ctx.attrs().GetString("reduction") == "sum" ? Reduction::kSum
                                                     : Reduction::kMax;
}

}  // namespace plo

#endif  // PLO_OPERATORS_COLLECTIVE_H_
