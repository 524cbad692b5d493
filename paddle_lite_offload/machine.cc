#include "paddle_lite_offload/machine.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

#include "framework/runtime/device.h"
#include "glog/logging.h"

namespace plo {
namespace {

// Handles and workspaces of libraries, and kernels loaded when first used.
constexpr int64_t kLibraryReserve = int64_t{1} << 30;

// As part of a file name.
std::string Plain(const std::string& text) {
  std::string plain;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (!plain.empty() && plain.back() != '_') {
      plain += '_';
    }
  }
  while (!plain.empty() && plain.back() == '_') plain.pop_back();
  return plain;
}

std::string ProcessorModel() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    return line.substr(std::min(line.find(':') + 1, line.size()));
  }
  return "";
}

std::string CacheFolder() {
  // The standard has relative paths ignored.
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && cache[0] == '/') return cache;
  const char* home = std::getenv("HOME");
  return home != nullptr && home[0] != '\0' ? std::string(home) + "/.cache"
                                            : "";
}

}  // namespace

std::string DeviceModel(DeviceKind device) {
  if (device == DeviceKind::kCuda) return Plain(CudaDeviceModel());
  return Plain("cpu " + ProcessorModel());
}

std::string CachedRatesPath(const std::string& device_model, int world_size) {
  const std::string folder = CacheFolder();
  if (folder.empty() || device_model.empty()) return "";
  return StrCat(folder, "/paddle_lite_offload/rates_", device_model, "_",
                world_size, ".json");
}

std::optional<NamedRates> FindRates(const TrainConfig& config,
                                    DeviceKind device, int world_size) {
  if (!config.rates.empty()) {
    try {
      return NamedRates{LoadRates(config.rates), "--rates"};
    } catch (const Error& error) {
      throw error.WithContext("--rates");
    }
  }
  const std::string cached = CachedRatesPath(DeviceModel(device), world_size);
  std::error_code ignored;
  if (!cached.empty() && std::filesystem::exists(cached, ignored)) {
    try {
      return NamedRates{LoadRates(cached), "cached in " + cached};
    } catch (const Error& error) {
      LOG(WARNING) << "measured rates are not used: " << error.what();
    }
  }
  if (device == DeviceKind::kCpu) return std::nullopt;
  return NamedRates{Rates(), "built in"};
}

int64_t FreeDeviceMemory(DeviceKind device, int ordinal) {
  if (device == DeviceKind::kCpu || !CudaDeviceAvailable()) return 0;
  CudaDeviceOptions options;
  options.ordinal = ordinal;
  const DeviceStats stats = CreateCudaDevice(options)->stats();
  const int64_t free = stats.driver_free_bytes.value_or(0);
  return std::max<int64_t>(free - kLibraryReserve, 1);
}

void AgreeOnMachine(Comm& all_ranks, Machine& machine) {
  Comm& comm = all_ranks.host();
  Rates rates = machine.rates ? machine.rates->rates : Rates();
  std::vector<double> row = {machine.rates ? 1.0 : 0.0};
  for (const auto& [name, number] : NumbersOf(rates)) row.push_back(*number);
  comm.Broadcast(row.data(), static_cast<int64_t>(row.size() * sizeof(double)),
                 0, nullptr);
  size_t next = 1;
  for (const auto& [name, number] : NumbersOf(rates)) *number = row[next++];
  if (row[0] == 0) {
    machine.rates.reset();
  } else if (machine.rates) {
    machine.rates->rates = rates;
  } else {
    machine.rates = NamedRates{rates, "of rank 0"};
  }
  int64_t least = -machine.device_memory;
  comm.AllReduce(&least, 1, DType::kInt64, Reduction::kMax, nullptr);
  machine.device_memory = -least;
}

std::string Describe(const NamedRates& rates) {
  return StrCat(rates.rates.name, " (", rates.source, ")");
}

}  // namespace plo
