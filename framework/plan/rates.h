// What a machine does per second: measured by `plo calibrate`, kept as JSON.
#ifndef PLO_FRAMEWORK_PLAN_RATES_H_
#define PLO_FRAMEWORK_PLAN_RATES_H_

#include <string>
#include <utility>
#include <vector>

namespace plo {

// Per rank, with all ranks at work. Defaults: one of two H200s of a host.
struct Rates {
  std::string name = "h200";
  double matmul_flops = 790e12;  // 16-bit
  double matmul_flops_fp32 = 50e12;
  double memory_bytes = 4.0e12;  // device memory traffic
  double d2h_bytes = 37e9;       // with both directions busy
  double h2d_bytes = 37e9;
  double collective_bytes = 160e9;
  double host_adam_bytes = 71e9;    // alone
  double host_memory_bytes = 92e9;  // updates and copies at once, their sum
  double launch_us = 3.8;
};

// The numbers by the names of their fields.
std::vector<std::pair<const char*, double*>> NumbersOf(Rates& rates);

// Reads {"matmul_flops": ..., ...}; absent keys keep their defaults, but
// matmul_flops_fp32 is then the matmul_flops of the file, if it has any. Throws
// NotFound / InvalidArgument (unknown key, non-positive rate).
Rates LoadRates(const std::string& path);

// What LoadRates reads; numbers round-trip.
std::string RatesText(const Rates& rates);

}  // namespace plo

#endif  // PLO_FRAMEWORK_PLAN_RATES_H_
