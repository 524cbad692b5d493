#include "paddle_lite_offload/offload_choice.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

#include "framework/plan/simulator.h"
#include "framework/plan/update_split.h"
#include "paddle_lite_offload/flag_conditions.h"
#include "paddle_lite_offload/plan_run.h"

namespace plo {
namespace {

// Bytes per element, by dtypes and optimizer.
UpdateTraffic TrafficOf(const TrainConfig& config) {
  const bool wide = config.dtype == "fp32";
  const double param = wide ? 4 : 2;
  const double grad = config.grad_dtype == "fp32" ? 4 : param;
  const double moments = config.optimizer == "sgd" ? 4 : 8;
  UpdateTraffic traffic;
  // An fp32 master is what goes up; another one is rounded into a buffer.
  traffic.host_update = 2 * (4 + moments) + grad + (wide ? 0 : param);
  traffic.grad = grad;
  traffic.param = param;
  traffic.streamed = moments + (wide ? 0 : 4);
  return traffic;
}

void Offload(TrainConfig& config, double fraction) {
  config.offload = fraction > 0 ? "optimizer" : "none";
  config.offload_fraction = fraction;
}

class Chooser {
 public:
  Chooser(const TrainConfig& config, int world_size, DeviceKind device,
          const Machine& machine)
      : config_(config),
        world_size_(world_size),
        device_(device),
        machine_(machine),
        given_share_(StreamedFraction(config)) {
    config_.dump_ir_dir.clear();
    config_.device_memory_limit = config_.host_memory_limit = 0;
    TrainConfig resident = config_;
    Offload(resident, 0);
    resident.offload_streamed_fraction = "0";
    const PreparedProgram prepared = PlanRun(resident, world_size_, device_);
    for (const Bucket& bucket : prepared.program.buckets) {
      if (!bucket.trainable) continue;
      elements_.push_back(
          prepared.program.var(bucket.param_slice).shape.numel());
    }
    resident_bytes_ = prepared.plan.device.arena_bytes;
    if (machine_.rates) {
      backward_seconds_ =
          SimulateStep(prepared.plan, prepared.program, machine_.rates->rates)
              .backward_ms /
          1e3;
    }
  }

  size_t buckets() const { return elements_.size(); }
  int64_t resident_bytes() const { return resident_bytes_; }

  // Of which `fraction` of the elements are the last `count` buckets'.
  double Fraction(size_t count) const {
    const auto sum = [](auto begin, auto end) {
      return static_cast<double>(std::accumulate(begin, end, int64_t{0}));
    };
    const double all = sum(elements_.begin(), elements_.end());
    return count == buckets()
               ? 1
               : sum(elements_.end() - count, elements_.end()) / all;
  }

  // Ways to deal buckets out, best first: as fast as can be, all streamed,
  // which is least on the host, and none, which is least on the device.
  std::vector<std::optional<double>> Ways() const {
    if (given_share_) return {given_share_};
    if (!machine_.rates) return {0.0};
    return {std::nullopt, 1.0, 0.0};
  }

  // The share to stream of the last `count` buckets.
  double Share(std::optional<double> way, size_t count) const {
    if (way) return *way;
    return BestStreamedFraction(
        {elements_.end() - static_cast<std::ptrdiff_t>(count), elements_.end()},
        TrafficOf(config_), machine_.rates->rates, backward_seconds_);
  }

  Plan PlanWith(std::optional<double> way, size_t count) const {
    TrainConfig trial = config_;
    Offload(trial, Fraction(count));
    trial.offload_streamed_fraction = RoundTrip(Share(way, count));
    return PlanRun(trial, world_size_, device_).plan;
  }

  // The fastest share that keeps to the limit or, without one, leaves the peak
  // as it is. Gradients of streamed buckets stay on the device until their
  // update, which small activations do not make up for.
  double ShareWithin(size_t count, int64_t device_limit) const {
    constexpr int64_t kRise = 200;  // at most one part of so many
    double share = Share(std::nullopt, count);
    // Planning takes long for models so large that the rest does not matter.
    const int64_t owned =
        std::accumulate(elements_.begin(), elements_.end(), int64_t{0});
    const double waiting = TrafficOf(config_).grad * share * Fraction(count) *
                           static_cast<double>(owned);
    if (waiting <= static_cast<double>(resident_bytes_ / kRise)) return share;
    int64_t most = device_limit;
    if (most == 0) {
      most = PlanWith(0.0, count).device.arena_bytes;
      most += most / kRise;
    }
    constexpr double kLeast = 0.05;
    while (share >= kLeast &&
           PlanWith(share, count).device.arena_bytes > most) {
      share /= 2;
    }
    return share >= kLeast ? share : 0;
  }

  // The fewest buckets to offload, of which `most` suffice.
  size_t LeastCount(std::optional<double> way, int64_t device_limit,
                    size_t most) const {
    size_t low = 0, high = most;  // low is too few
    while (low + 1 < high) {
      const size_t middle = low + (high - low) / 2;
      const bool fits =
          PlanWith(way, middle).device.arena_bytes <= device_limit;
      (fits ? high : low) = middle;
    }
    return high;
  }

 private:
  TrainConfig config_;  // without limits
  const int world_size_;
  const DeviceKind device_;
  const Machine& machine_;
  const std::optional<double> given_share_;
  std::vector<int64_t> elements_;  // that a rank updates, by bucket
  int64_t resident_bytes_ = 0;     // the peak without offload
  double backward_seconds_ = 0;
};

// The number that comes nearest, as offload_optimizer finds it.
size_t BucketsOf(const Chooser& chooser, double fraction) {
  size_t count = 0;
  while (count < chooser.buckets() &&
         chooser.Fraction(count) + chooser.Fraction(count + 1) <=
             2 * fraction) {
    ++count;
  }
  return count;
}

struct Choice {
  size_t count = 0;  // of buckets
  double share = 0;  // of these
};

// Of several choices, the one with the fewest bytes.
struct Nearest {
  Choice choice;
  int64_t bytes = std::numeric_limits<int64_t>::max();

  void Offer(const Choice& other, int64_t its_bytes) {
    if (its_bytes >= bytes) return;
    choice = other;
    bytes = its_bytes;
  }
  bool empty() const { return bytes == std::numeric_limits<int64_t>::max(); }
};

// How many buckets to offload so that the plan fits, as many as there are or
// nearly; 0 where none was found. More offload is less memory, as a rule: other
// buckets are streamed then, with slots of their own.
size_t MostThatFits(const Chooser& chooser, std::optional<double> way,
                    int64_t device_limit, Nearest& smallest) {
  constexpr size_t kTries = 16;
  const size_t all = chooser.buckets();
  for (size_t i = 0; i < std::min(kTries, all); ++i) {
    const size_t count = all - i * all / std::min(kTries, all);
    const int64_t bytes = chooser.PlanWith(way, count).device.arena_bytes;
    smallest.Offer({count, chooser.Share(way, count)}, bytes);
    if (bytes <= device_limit) return count;
  }
  return 0;
}

// Where nothing keeps to both limits, what comes near: planning will say which
// is too low, and by how much.
Choice ChooseWithin(const Chooser& chooser, int64_t device_limit,
                    int64_t host_limit) {
  if (chooser.resident_bytes() <= device_limit) return {};
  Nearest on_device;  // to the host's limit
  Nearest smallest;
  smallest.Offer({}, chooser.resident_bytes());
  for (const std::optional<double> way : chooser.Ways()) {
    const size_t most = MostThatFits(chooser, way, device_limit, smallest);
    if (most == 0) continue;
    const size_t count = chooser.LeastCount(way, device_limit, most);
    const Choice choice = {count, chooser.Share(way, count)};
    if (host_limit == 0) return choice;
    const int64_t pinned = chooser.PlanWith(way, count).pinned.arena_bytes;
    if (pinned <= host_limit) return choice;
    on_device.Offer(choice, pinned);
  }
  return on_device.empty() ? smallest.choice : on_device.choice;
}

}  // namespace

bool ChoosesByMachine(const TrainConfig& config) {
  return config.offload != "none" &&
         (config.offload == "auto" || !StreamedFraction(config));
}

bool ChoosesByMemory(const TrainConfig& config) {
  return config.offload == "auto" && config.device_memory_limit == 0;
}

TrainConfig ChooseOffload(const TrainConfig& config, int world_size,
                          DeviceKind device, const Machine& machine) {
  if (!ChoosesByMachine(config)) return config;
  TrainConfig chosen = config;
  if (config.offload != "auto" && !machine.rates) {
    chosen.offload_streamed_fraction = "0";
    return chosen;
  }
  const int64_t limit = config.device_memory_limit > 0
                            ? config.device_memory_limit
                            : machine.device_memory;
  PLO_ENFORCE(config.offload != "auto" || limit > 0, kInvalidArgument,
              "--offload=auto needs --device_memory_limit where there is no "
              "GPU whose free memory it could fill");
  const Chooser chooser(config, world_size, device, machine);
  if (config.offload != "auto") {
    const size_t count = BucketsOf(chooser, config.offload_fraction);
    chosen.offload_streamed_fraction =
        RoundTrip(chooser.ShareWithin(count, config.device_memory_limit));
    return chosen;
  }
  const Choice choice = ChooseWithin(chooser, limit, config.host_memory_limit);
  Offload(chosen, chooser.Fraction(choice.count));
  chosen.offload_streamed_fraction = RoundTrip(choice.share);
  chosen.device_memory_limit = limit;
  for (const IdleFlag& flag : FindIdleFlags(chosen)) {
    ResetFlag(flag.name, chosen);
  }
  return chosen;
}

std::string DescribeChoice(const TrainConfig& given,
                           const TrainConfig& chosen) {
  if (!ChoosesByMachine(given)) return "";
  const std::string share =
      "--offload_streamed_fraction=" + chosen.offload_streamed_fraction;
  if (given.offload != "auto") return share;
  if (chosen.offload == "none") return "--offload=none";
  return StrCat("--offload=", chosen.offload,
                " --offload_fraction=", RoundTrip(chosen.offload_fraction), " ",
                share);
}

}  // namespace plo
