#include "paddle_lite_offload/metrics_log.h"

#include <filesystem>
#include <nlohmann/json.hpp>

namespace plo {

MetricsLog::MetricsLog(const std::string& dir) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  const std::string path = dir + "/metrics.jsonl";
  file_.open(path);
  PLO_ENFORCE(!error && file_.good(), kNotFound, "cannot write '", path, "'");
}

void MetricsLog::Write(const StepMetrics& metrics) {
  constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
  const StepResult& result = metrics.result;
  nlohmann::json line = {
      {"step", metrics.step},
      {"loss_metrics/global_avg_loss", result.loss},
      {"grad_norm", result.grad_norm},
      {"lr", result.lr},
      {"throughput(tps)", metrics.tokens_per_second},
      {"time_metrics/end_to_end(s)", metrics.step_ms / 1000.0},
      {"memory/max_reserved(GiB)",
       static_cast<double>(metrics.peak_bytes) / kGib},
      {"n_tokens_seen", metrics.tokens_seen},
      {"skipped", result.skipped}};
  if (result.loss_scale) line["loss_scale"] = *result.loss_scale;
  file_ << line.dump() << '\n' << std::flush;
}

}  // namespace plo
