// The dynamic loss scale.
//
// A skipped step counts as bad and resets the count of good ones, and the other
// way round. After decr_every_n bad steps in a row the scale shrinks, not below
// min_scale; after incr_every_n good ones it grows, but not past finite.
#ifndef PLO_OPERATORS_UPDATE_LOSS_SCALING_H_
#define PLO_OPERATORS_UPDATE_LOSS_SCALING_H_

#include <cstdint>

#include "framework/ir/op_registry.h"
#include "operators/host_device.h"

namespace plo {

struct LossScaleRule {
  double incr_ratio, decr_ratio, min_scale;
  int64_t incr_every_n, decr_every_n;
};

struct LossScale {
  float scale;
  int32_t good, bad;  // steps in a row
};

inline LossScaleRule MakeLossScaleRule(const AttrMap& attrs) {
  return {attrs.GetFloat("incr_ratio"), attrs.GetFloat("decr_ratio"),
          attrs.GetFloat("min_scale"), attrs.GetInt("incr_every_n"),
          attrs.GetInt("decr_every_n")};
}

PLO_HOST_DEVICE void UpdateLossScale(const LossScaleRule& rule, bool skipped,
                                     LossScale& state) {
  if (skipped) {
    state.good = 0;
    if (++state.bad < rule.decr_every_n) return;
    state.bad = 0;
    const double shrunk = state.scale * rule.decr_ratio;
    state.scale =
        static_cast<float>(shrunk < rule.min_scale ? rule.min_scale : shrunk);
  } else {
    state.bad = 0;
    if (++state.good < rule.incr_every_n) return;
    state.good = 0;
    const float grown = static_cast<float>(state.scale * rule.incr_ratio);
    if (grown < __builtin_inff()) state.scale = grown;
  }
}

}  // namespace plo

#endif  // PLO_OPERATORS_UPDATE_LOSS_SCALING_H_
