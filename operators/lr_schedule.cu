// lr_schedule: see operators/lr_schedule.cc. applied_step stays on the device.
#include <numbers>
#include <string>

#include "operators/cuda_util.cuh"

namespace plo {
namespace {

enum class Kind { kConstant, kLinear, kCosine };

struct Schedule {
  Kind kind;
  double base_lr, warmup, length, min_ratio;
};

__global__ void LrSchedule(Schedule s, const int64_t* applied_step, float* lr) {
  const auto update = static_cast<double>(*applied_step + 1);
  double factor = 1.0;
  if (update <= s.warmup) {
    factor = update / s.warmup;
  } else if (s.kind != Kind::kConstant) {
    const double progress = fmin(1.0, (update - s.warmup) / s.length);
    const double left = s.kind == Kind::kLinear
                            ? 1.0 - progress
                            : 0.5 * (1.0 + cos(std::numbers::pi * progress));
    factor = s.min_ratio + (1.0 - s.min_ratio) * left;
  }
  *lr = static_cast<float>(s.base_lr * factor);
}

void LrScheduleKernel(KernelContext& context) {
  const AttrMap& attrs = context.attrs();
  const std::string& kind = attrs.GetString("kind");
  const int64_t warmup = attrs.GetInt("warmup_steps");
  Schedule s;
  s.kind = kind == "constant" ? Kind::kConstant
           : kind == "linear" ? Kind::kLinear
                              : Kind::kCosine;
  s.base_lr = attrs.GetFloat("base_lr");
  s.warmup = static_cast<double>(warmup);
  s.length = static_cast<double>(attrs.GetInt("total_steps") - warmup);
  s.min_ratio = attrs.GetFloat("min_ratio");
  LrSchedule<<<1, 1, 0, StreamOf(context)>>>(
      s, context.In("applied_step").as<const int64_t>(),
      context.Out("lr").as<float>());
  CheckLaunch("LrSchedule");
}

}  // namespace

void RegisterLrScheduleCuda(KernelRegistry& kernels) {
  kernels.Register("lr_schedule", DeviceKind::kCuda, LrScheduleKernel);
}

}  // namespace plo
