#include "framework/plan/rates.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "framework/ir/file_io.h"

namespace plo {

std::vector<std::pair<const char*, double*>> NumbersOf(Rates& rates) {
  return {{"matmul_flops", &rates.matmul_flops},
          {"matmul_flops_fp32", &rates.matmul_flops_fp32},
          {"memory_bytes", &rates.memory_bytes},
          {"d2h_bytes", &rates.d2h_bytes},
          {"h2d_bytes", &rates.h2d_bytes},
          {"collective_bytes", &rates.collective_bytes},
          {"host_adam_bytes", &rates.host_adam_bytes},
          {"host_memory_bytes", &rates.host_memory_bytes},
          {"launch_us", &rates.launch_us}};
}

Rates LoadRates(const std::string& path) {
  const nlohmann::json json = nlohmann::json::parse(ReadFile(path), nullptr,
                                                    /*allow_exceptions=*/false);
  PLO_ENFORCE(json.is_object(), kInvalidArgument, "rates file '", path,
              "' is not a JSON object");
  Rates rates;
  const auto numbers = NumbersOf(rates);
  for (const auto& [key, value] : json.items()) {
    if (key == "name") {
      PLO_ENFORCE(value.is_string(), kInvalidArgument, "rates file '", path,
                  "': 'name' is not a string");
      rates.name = value.get<std::string>();
      continue;
    }
    const auto number =
        std::find_if(numbers.begin(), numbers.end(),
                     [&](const auto& entry) { return entry.first == key; });
    PLO_ENFORCE(number != numbers.end(), kInvalidArgument, "rates file '", path,
                "': unknown key '", key, "'");
    // Beyond these no machine lies, and times would overflow.
    constexpr double kLeast = 1e-3, kMost = 1e24;
    const double rate = value.is_number() ? value.get<double>() : 0;
    PLO_ENFORCE(rate >= kLeast && rate <= kMost, kInvalidArgument,
                "rates file '", path, "': '", key,
                "' must be a positive number (", kLeast, " to ", kMost,
                "), got ", value.dump());
    *number->second = value.get<double>();
  }
  if (json.contains("matmul_flops") && !json.contains("matmul_flops_fp32")) {
    rates.matmul_flops_fp32 = rates.matmul_flops;
  }
  return rates;
}

std::string RatesText(const Rates& rates) {
  Rates copy = rates;
  nlohmann::ordered_json json;
  json["name"] = rates.name;
  for (const auto& [name, number] : NumbersOf(copy)) json[name] = *number;
  return json.dump(2) + "\n";
}

}  // namespace plo
