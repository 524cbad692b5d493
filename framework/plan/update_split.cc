#include "framework/plan/update_split.h"

#include <algorithm>

namespace plo {
namespace {

double UpdateSeconds(double host, double streamed, const UpdateTraffic& traffic,
                     const Rates& rates) {
  const double up = host * traffic.param + streamed * traffic.streamed;
  const double down = streamed * traffic.streamed;
  const double update = host * traffic.host_update;
  const double memory = update + up + down;
  return std::max({update / rates.host_adam_bytes, up / rates.h2d_bytes,
                   down / rates.d2h_bytes, memory / rates.host_memory_bytes});
}

}  // namespace

std::vector<bool> SplitUpdates(const std::vector<int64_t>& bytes,
                               double fraction) {
  double rest = 0;
  for (int64_t part : bytes) rest += static_cast<double>(part);
  double quota = fraction * rest;
  std::vector<bool> streams;
  double all = 0, streamed = 0;
  for (int64_t part : bytes) {
    const auto own = static_cast<double>(part);
    if (streams.empty() && own <= quota) {
      quota -= own;
      rest -= own;
      streams.push_back(true);
      continue;
    }
    all += own;
    streams.push_back((streamed + own / 2) * rest < quota * all);
    if (streams.back()) streamed += own;
  }
  return streams;
}

double BestStreamedFraction(const std::vector<int64_t>& elements,
                            const UpdateTraffic& traffic, const Rates& rates) {
  double best = 0, best_seconds = 0;
  for (size_t k = 0; k <= elements.size(); ++k) {
    const double fraction =
        static_cast<double>(k) /
        static_cast<double>(std::max<size_t>(elements.size(), 1));
    const std::vector<bool> streams = SplitUpdates(elements, fraction);
    double host = 0, streamed = 0;
    for (size_t i = 0; i < elements.size(); ++i) {
      (streams[i] ? streamed : host) += static_cast<double>(elements[i]);
    }
    const double seconds = UpdateSeconds(host, streamed, traffic, rates);
    if (k == 0 || seconds < best_seconds) {
      best = fraction;
      best_seconds = seconds;
    }
  }
  return best;
}

}  // namespace plo
