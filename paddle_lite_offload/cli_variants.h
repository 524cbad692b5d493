// --variants of plo compare.
#ifndef PLO_PADDLE_LITE_OFFLOAD_CLI_VARIANTS_H_
#define PLO_PADDLE_LITE_OFFLOAD_CLI_VARIANTS_H_

#include <string>
#include <utility>
#include <vector>

#include "paddle_lite_offload/cli_flags.h"
#include "paddle_lite_offload/cli_outputs.h"

namespace plo {

using FlagValues = std::vector<std::pair<std::string, std::string>>;

struct Variant {
  std::string name;
  FlagValues own;  // of --variants
  // The whole run, once ResolveVariants is through.
  TrainConfig config;
  int nproc = 1;
  FlagValues flags;
};

// "base:offload=none;full:offload=optimizer,offload_mode=sync". Throws
// UsageError.
std::vector<Variant> ParseVariants(const std::string& text);

// Sets each variant's own flags on top of the `common` ones, with which
// `config` and `nproc`, the storage of `set`, must agree; they do afterwards.
// A common flag that has no effect on some variants is left out there. Common
// outputs get the variant's name: trace.json becomes trace.NAME.json, a folder
// gets a folder inside. Throws UsageError.
void ResolveVariants(FlagSet& set, const FlagValues& common,
                     TrainConfig* config, int64_t* nproc,
                     std::vector<Variant>* variants);

}  // namespace plo

#endif  // PLO_PADDLE_LITE_OFFLOAD_CLI_VARIANTS_H_
