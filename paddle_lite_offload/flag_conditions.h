// Flags that mean something only beside others: --momentum with sgd, --kv_heads
// with a gpt. Set where they mean nothing they are errors, never ignored.
#ifndef PLO_PADDLE_LITE_OFFLOAD_FLAG_CONDITIONS_H_
#define PLO_PADDLE_LITE_OFFLOAD_FLAG_CONDITIONS_H_

#include <string>
#include <vector>

#include "paddle_lite_offload/train_config.h"

namespace plo {

struct IdleFlag {
  std::string name;
  std::string needs;  // "--optimizer=sgd"
};

// The fields that differ from their defaults to no effect.
std::vector<IdleFlag> FindIdleFlags(const TrainConfig& config);

// "--momentum has no effect without --optimizer=sgd".
std::string Describe(const IdleFlag& flag);

// Gives the field of that name its default.
void ResetFlag(const std::string& name, TrainConfig& config);

}  // namespace plo

#endif  // PLO_PADDLE_LITE_OFFLOAD_FLAG_CONDITIONS_H_
