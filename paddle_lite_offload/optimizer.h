// Optimizers: their hyperparameters, the params they treat differently, and
// the pipeline entry that puts them into a program.
//
//   plo::Optimizer optimizer = plo::AdamW({.lr = 3e-4, .weight_decay = 0.1});
//   optimizer.groups.push_back({.pattern = "embedding/*", .trainable = false});
//   optimizer.ApplyGroups(program);
//   pipeline += optimizer.PipelineEntry();
#ifndef PLO_PADDLE_LITE_OFFLOAD_OPTIMIZER_H_
#define PLO_PADDLE_LITE_OFFLOAD_OPTIMIZER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "framework/ir/program.h"

namespace plo {

struct LrSchedule {
  std::string kind = "constant";  // or "linear", "cosine"
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;  // where linear and cosine end
  double min_ratio = 0;     // of lr, at the end
};

// Settings for the params whose name matches `pattern`, in which '*' stands for
// any characters and '?' for one. Absent settings stay as they are.
struct ParamGroup {
  std::string pattern;
  std::optional<bool> trainable = {};
  std::optional<bool> need_clip = {};
  std::optional<bool> weight_decay = {};
  std::optional<double> lr_scale = {};
};

struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  LrSchedule schedule = {};
};

struct SgdOptions {
  double lr = 1e-2;
  double momentum = 0.9;
  bool nesterov = false;
  double weight_decay = 0;
  LrSchedule schedule = {};
};

// Layers already exempt biases and norms from weight decay; groups change that
// and more, the later of two matching groups winning.
struct Optimizer {
  std::string type;  // "adamw", "adam", "sgd"
  double lr = 0;
  double beta1 = 0, beta2 = 0, eps = 0;
  double momentum = 0;
  bool nesterov = false;
  double weight_decay = 0;
  LrSchedule schedule = {};
  std::vector<ParamGroup> groups;

  // Throws InvalidArgument naming the hyperparameter that makes no sense.
  void Validate() const;
  // "insert_optimizer(type=adamw,lr=0.001,...)". Validates.
  std::string PipelineEntry() const;
  // Writes the groups into the params' attributes. Throws NotFound for a
  // pattern that matches no param.
  void ApplyGroups(Program& program) const;
};

// Decoupled weight decay.
Optimizer AdamW(const AdamOptions& options = {});
// Weight decay added to the gradient.
Optimizer Adam(const AdamOptions& options = {});
Optimizer Sgd(const SgdOptions& options = {});

// True if `pattern` covers all of `text`.
bool MatchesPattern(std::string_view pattern, std::string_view text);

// The shortest decimal that reads back as the same double.
std::string RoundTrip(double value);

}  // namespace plo

#endif  // PLO_PADDLE_LITE_OFFLOAD_OPTIMIZER_H_
