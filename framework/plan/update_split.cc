#include "framework/plan/update_split.h"

#include <algorithm>

namespace plo {
namespace {

constexpr double kAsSoon = 1.02;

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

double UpdateSeconds(double host, double streamed, const UpdateTraffic& traffic,
                     const Rates& rates, double hidden_seconds) {
  const double host_seconds =
      host * traffic.host_update / rates.host_adam_bytes;
  // Cores get the memory before the link does.
  const double spare =
      std::max(0.0, rates.host_memory_bytes - rates.host_adam_bytes);
  const double down = streamed * traffic.streamed;
  const double down_beside = host_seconds * std::min(spare, rates.d2h_bytes);
  const double up = host * traffic.param +
                    std::max(0.0, down - hidden_seconds * rates.h2d_bytes);
  return std::max(
      host_seconds + std::max(0.0, down - down_beside) / rates.d2h_bytes,
      up / rates.h2d_bytes);
}

double BestStreamedFraction(const std::vector<int64_t>& elements,
                            const UpdateTraffic& traffic, const Rates& rates,
                            double hidden_seconds) {
  std::vector<double> fractions, seconds;
  for (size_t k = 0; k <= elements.size(); ++k) {
    fractions.push_back(
        static_cast<double>(k) /
        static_cast<double>(std::max<size_t>(elements.size(), 1)));
    const std::vector<bool> streams = SplitUpdates(elements, fractions[k]);
    double host = 0, streamed = 0;
    for (size_t i = 0; i < elements.size(); ++i) {
      (streams[i] ? streamed : host) += static_cast<double>(elements[i]);
    }
    seconds.push_back(
        UpdateSeconds(host, streamed, traffic, rates, hidden_seconds));
  }
  const double best = *std::min_element(seconds.begin(), seconds.end());
  size_t k = elements.size();
  while (seconds[k] > kAsSoon * best) --k;
  return fractions[k];
}

}  // namespace plo
