// The launch contract of torchrun, mpirun and srun wrappers: environment
// variables. PLO_MASTER_PORT goes before MASTER_PORT, for launchers that use
// the latter themselves.
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "framework/ir/error.h"
#include "framework/runtime/comm.h"

namespace plo {
namespace {

std::optional<std::string> ReadEnv(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

int ParseInt(const char* name, const std::string& text, int min, int max) {
  int value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  PLO_ENFORCE(error == std::errc() && stop == end, kInvalidArgument, name,
              " is \"", text, "\", expected an integer");
  PLO_ENFORCE(value >= min && value <= max, kInvalidArgument, name, " is ",
              value, ", expected ", min, " to ", max);
  return value;
}

int RequireInt(const char* name, int min, int max) {
  const auto text = ReadEnv(name);
  PLO_ENFORCE(text.has_value(), kInvalidArgument, name,
              " is not set, but WORLD_SIZE is");
  return ParseInt(name, *text, min, max);
}

constexpr int kMaxRanks = 1 << 20;

}  // namespace

LaunchInfo ReadLaunchInfo() {
  LaunchInfo info;
  const auto world_size = ReadEnv("WORLD_SIZE");
  if (!world_size) {
    PLO_ENFORCE(!ReadEnv("RANK"), kInvalidArgument,
                "WORLD_SIZE is not set, but RANK is");
    return info;
  }
  info.world_size = ParseInt("WORLD_SIZE", *world_size, 1, kMaxRanks);
  const int last = info.world_size - 1;
  if (info.world_size > 1 || ReadEnv("RANK")) {
    info.rank = RequireInt("RANK", 0, last);
  }
  // Without the local variables: every rank has a host of its own.
  if (const auto text = ReadEnv("LOCAL_WORLD_SIZE")) {
    info.local_world_size =
        ParseInt("LOCAL_WORLD_SIZE", *text, 1, info.world_size);
  }
  if (const auto text = ReadEnv("LOCAL_RANK")) {
    info.local_rank =
        ParseInt("LOCAL_RANK", *text, 0, info.local_world_size - 1);
  }
  if (info.world_size == 1) return info;
  const auto address = ReadEnv("MASTER_ADDR");
  PLO_ENFORCE(address.has_value() && !address->empty(), kInvalidArgument,
              "MASTER_ADDR is not set, but WORLD_SIZE is ", info.world_size);
  info.master_addr = *address;
  if (const auto port = ReadEnv("PLO_MASTER_PORT")) {
    info.master_port = ParseInt("PLO_MASTER_PORT", *port, 1, 65535);
    return info;
  }
  info.master_port = RequireInt("MASTER_PORT", 1, 65535);
  // torchrun's agent listens on MASTER_PORT itself when it says so.
  const auto agent_store = ReadEnv("TORCHELASTIC_USE_AGENT_STORE");
  if (agent_store && *agent_store == "True") {
    info.master_port += info.master_port < 65535 ? 1 : -1;
  }
  return info;
}

}  // namespace plo
