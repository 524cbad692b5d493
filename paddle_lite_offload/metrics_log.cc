#include "paddle_lite_offload/metrics_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string_view>

#include "framework/ir/file_io.h"

namespace plo {
namespace {

void KeepEarlierLog(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode) ||
      info.st_size == 0) {
    return;
  }
  std::string kept;
  for (int number = 1;; ++number) {
    kept = StrCat(path, ".", number);
    if (lstat(kept.c_str(), &info) != 0) break;
  }
  if (std::rename(path.c_str(), kept.c_str()) != 0) {
    throw FileError("cannot keep the log of an earlier run as", kept, errno);
  }
}

}  // namespace

std::string MetricsPath(const std::string& dir) {
  return dir + "/metrics.jsonl";
}

MetricsLog::MetricsLog(const std::string& dir) : path_(MetricsPath(dir)) {
  MakeFolder(dir);
  KeepEarlierLog(path_);
  fd_ =
      Fd(open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!fd_.valid()) throw FileError("cannot write", path_, errno);
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
  const std::string text = line.dump() + '\n';
  const off_t end = lseek(fd_.get(), 0, SEEK_END);
  for (std::string_view left = text; !left.empty();) {
    const ssize_t written = write(fd_.get(), left.data(), left.size());
    if (written >= 0) {
      left.remove_prefix(static_cast<size_t>(written));
    } else if (errno != EINTR) {
      const int error = errno;
      // Best effort: what follows a broken line is hard to read.
      [[maybe_unused]] const int cut = ftruncate(fd_.get(), end);
      throw FileError("cannot write", path_, error);
    }
  }
}

}  // namespace plo
