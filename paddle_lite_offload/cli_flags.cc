#include "paddle_lite_offload/cli_flags.h"

#include <gflags/gflags.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <type_traits>

#include "framework/ir/file_io.h"
#include "framework/ir/spelling.h"
#include "paddle_lite_offload/train_config_fields.h"

namespace plo {
namespace {

// Flag files may include flag files; this deep they include themselves.
constexpr int kMaxFlagFileDepth = 8;
// glog's own flags that a user may set.
constexpr const char* kLoggingFlags[] = {"v", "vmodule", "minloglevel"};

template <typename T>
std::string DefaultText(const T& value) {
  if constexpr (std::is_same_v<T, bool>) return value ? "true" : "false";
  if constexpr (std::is_same_v<T, std::string>) return value;
  if constexpr (std::is_same_v<T, double>) return RoundTrip(value);
  if constexpr (std::is_same_v<T, int64_t>) return std::to_string(value);
}

std::string TypeName(const std::string& gflags_type) {
  if (gflags_type == "bool") return "true or false";
  if (gflags_type == "double") return "a number that fits 64 bits";
  return "an integer that fits 64 bits";
}

}  // namespace

int64_t ParseByteCount(std::string_view text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  std::string_view unit(rest, static_cast<size_t>(end - rest));
  int shift = 0;
  if (!unit.empty() && unit != "B") {
    const size_t prefix = std::string_view("KMGT").find(unit[0]);
    const std::string_view suffix = unit.substr(1);
    const bool known = prefix != std::string_view::npos &&
                       (suffix.empty() || suffix == "iB" || suffix == "B");
    PLO_ENFORCE(known, kInvalidArgument, "'", text,
                "' is no number of bytes; write 512MiB or 8GiB");
    shift = 10 * static_cast<int>(prefix + 1);
  }
  PLO_ENFORCE(error == std::errc() && std::isfinite(value), kInvalidArgument,
              "'", text, "' is no number of bytes; write 512MiB or 8GiB");
  const double bytes = std::ldexp(value, shift);
  PLO_ENFORCE(!std::signbit(bytes) && bytes < 0x1p63, kInvalidArgument, "'",
              text, "' is out of range for a number of bytes");
  // Less than a byte must not become 0, which means no limit.
  const bool whole =
      shift == 0 ? bytes == std::floor(bytes) : bytes >= 1 || value == 0;
  PLO_ENFORCE(whole, kInvalidArgument, "'", text,
              "' is no whole number of bytes");
  return static_cast<int64_t>(bytes);
}

std::string FormatByteCount(int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  for (; std::fabs(value) >= 1024 && unit < 4; ++unit) value /= 1024;
  char text[32];
  std::snprintf(text, sizeof(text), unit == 0 ? "%.0f %s" : "%.2f %s", value,
                kUnits[unit]);
  return text;
}

// --- Registration ---

template <typename T>
void FlagSet::Register(const char* name, T* storage, const char* help) {
  flags_[name] = {DefaultText(*storage), help, nullptr};
  order_.push_back(name);
  gflags::CommandLineFlagInfo info;
  if (gflags::GetCommandLineFlagInfo(name, &info)) {
    // glog has a flag of this name (log_dir): share it.
    flags_[name].after_set = [storage](const std::string& value) {
      if constexpr (std::is_same_v<T, std::string>) *storage = value;
    };
    return;
  }
  // gflags keeps pointers to both values: the default lives as long as it.
  static std::vector<std::unique_ptr<T>> defaults;
  defaults.push_back(std::make_unique<T>(*storage));
  gflags::FlagRegisterer(name, help, "plo", storage, defaults.back().get());
}

void FlagSet::Add(const char* name, bool* storage, const char* help) {
  Register(name, storage, help);
}
void FlagSet::Add(const char* name, int64_t* storage, const char* help) {
  Register(name, storage, help);
}
void FlagSet::Add(const char* name, double* storage, const char* help) {
  Register(name, storage, help);
}
void FlagSet::Add(const char* name, std::string* storage, const char* help) {
  Register(name, storage, help);
}

void FlagSet::AddBytes(const char* name, int64_t* storage, const char* help) {
  static std::vector<std::unique_ptr<std::string>> texts;
  texts.push_back(std::make_unique<std::string>(std::to_string(*storage)));
  Register(name, texts.back().get(), help);
  flags_[name].after_set = [storage](const std::string& value) {
    *storage = ParseByteCount(value);
  };
}

void FlagSet::AddConfig(TrainConfig* config) {
  VisitFields(*config, [this](const char* name, auto field, const char* help) {
    if constexpr (std::is_same_v<decltype(field), ByteCount>) {
      AddBytes(name, field.bytes, help);
    } else {
      Add(name, field, help);
    }
  });
}

// --- Parsing ---

bool FlagSet::IsBool(const std::string& name) const {
  gflags::CommandLineFlagInfo info;
  return flags_.count(name) > 0 &&
         gflags::GetCommandLineFlagInfo(name.c_str(), &info) &&
         info.type == "bool";
}

void FlagSet::Set(const std::string& name, const std::string& value) {
  const auto flag = flags_.find(name);
  const bool logging =
      std::find(std::begin(kLoggingFlags), std::end(kLoggingFlags), name) !=
      std::end(kLoggingFlags);
  gflags::CommandLineFlagInfo info;
  if ((flag == flags_.end() && !logging) ||
      !gflags::GetCommandLineFlagInfo(name.c_str(), &info)) {
    throw UsageError("unknown flag '--" + name + "'" +
                     DidYouMean(name, order_));
  }
  if (gflags::SetCommandLineOption(name.c_str(), value.c_str()).empty()) {
    throw UsageError("--" + name + "=" + value + ": expected " +
                     TypeName(info.type));
  }
  if (info.type == "double" && !std::isfinite(std::atof(value.c_str()))) {
    throw UsageError("--" + name + "=" + value + ": expected a finite number");
  }
  if (flag != flags_.end() && flag->second.after_set) {
    try {
      flag->second.after_set(value);
    } catch (const Error& error) {
      throw UsageError("--" + name + ": " + error.message());
    }
  }
  given_.emplace_back(name, value);
}

void FlagSet::ReadFlagFile(const std::string& path, int depth,
                           std::vector<std::string>& positional) {
  if (depth > kMaxFlagFileDepth) {
    throw UsageError("--flagfile=" + path + ": flag files include each other");
  }
  std::istringstream file;
  try {
    file.str(ReadFile(path));
  } catch (const Error& error) {
    throw UsageError("--flagfile: " + error.message());
  }
  std::vector<std::string> args;
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find_first_not_of(" \t\r");
    if (first == std::string::npos || line[first] == '#') continue;
    const size_t last = line.find_last_not_of(" \t\r");
    args.push_back(line.substr(first, last - first + 1));
  }
  ParseInto(args, depth + 1, positional);
}

void FlagSet::ParseInto(const std::vector<std::string>& args, int depth,
                        std::vector<std::string>& positional) {
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    if (arg == "--") {
      positional.insert(positional.end(), args.begin() + i + 1, args.end());
      return;
    }
    if (arg.size() < 2 || arg[0] != '-') {
      positional.push_back(arg);
      continue;
    }
    std::string name = arg.substr(arg[1] == '-' ? 2 : 1);
    const size_t equals = name.find('=');
    bool has_value = equals != std::string::npos;
    std::string value = has_value ? name.substr(equals + 1) : "";
    name = name.substr(0, equals);
    if (name == "help" || name == "h") {
      asked_for_help_ = true;
      continue;
    }
    if (!has_value && IsBool(name)) {
      value = "true";
      has_value = true;
    } else if (!has_value && name.rfind("no", 0) == 0 &&
               IsBool(name.substr(2))) {
      name = name.substr(2);
      value = "false";
      has_value = true;
    }
    if (!has_value) {
      const bool known = flags_.count(name) > 0 || name == "flagfile";
      if (known && i + 1 == args.size()) {
        throw UsageError("flag '--" + name + "' needs a value");
      }
      if (known) value = args[++i];
    }
    if (name == "flagfile") {
      ReadFlagFile(value, depth, positional);
    } else {
      Set(name, value);
    }
  }
}

std::vector<std::string> FlagSet::Parse(const std::vector<std::string>& args) {
  std::vector<std::string> positional;
  ParseInto(args, 0, positional);
  return positional;
}

std::string FlagSet::Help() const {
  std::string text;
  for (const std::string& name : order_) {
    const Flag& flag = flags_.at(name);
    std::string left = "  --" + name;
    if (!flag.default_text.empty()) left += "=" + flag.default_text;
    if (left.size() < 34) left.resize(34, ' ');
    text += left + " " + flag.help + "\n";
  }
  return text;
}

}  // namespace plo
