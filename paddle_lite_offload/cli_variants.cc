#include "paddle_lite_offload/cli_variants.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "paddle_lite_offload/cli.h"
#include "paddle_lite_offload/flag_conditions.h"

namespace plo {
namespace {

// Flags of plo compare itself.
constexpr const char* kOfCompare[] = {"variants", "report", "json", "quiet"};

bool IsOfCompare(const std::string& flag) {
  return std::find(std::begin(kOfCompare), std::end(kOfCompare), flag) !=
         std::end(kOfCompare);
}

bool Contains(const FlagValues& flags, const std::string& name) {
  return std::any_of(flags.begin(), flags.end(),
                     [&](const auto& flag) { return flag.first == name; });
}

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (true) {
    const size_t end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == std::string::npos) return parts;
    begin = end + 1;
  }
}

// Names go into tables, JSON keys and file names.
void CheckName(const std::string& name, const std::string& part) {
  if (name.empty() || name.find('=') != std::string::npos) {
    throw UsageError("--variants: '" + part +
                     "' is not of the form NAME:flag=value,flag=value");
  }
  const bool printable = std::none_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
  try {
    (void)nlohmann::json(name).dump();
  } catch (const nlohmann::json::exception&) {
    throw UsageError("--variants: a name is not UTF-8 text");
  }
  if (!printable) {
    throw UsageError("--variants: a name has control characters");
  }
}

// The name as part of a path, different for different names.
std::string FileName(const std::string& name) {
  std::string safe;
  for (const char c : name) {
    if (c == '/' || c == '%' || (c == '.' && safe.empty())) {
      char escaped[4];
      std::snprintf(escaped, sizeof(escaped), "%%%02X", c);
      safe += escaped;
    } else {
      safe += c;
    }
  }
  return safe;
}

// What a variant writes, if all would write to the same place.
void SetOwnOutputs(const Variant& variant, FlagSet& set, TrainConfig& config) {
  const std::string name = FileName(variant.name);
  const auto place = [&](const char* flag, const std::string& common,
                         auto own_place) {
    if (common.empty() || Contains(variant.own, flag)) return;
    set.Set(flag, own_place(std::filesystem::path(common)).string());
  };
  const auto inside = [&](const std::filesystem::path& folder) {
    return folder / name;
  };
  place("log_dir", config.log_dir, inside);
  place("dump_ir_dir", config.dump_ir_dir, inside);
  place("trace", config.trace, [&](const std::filesystem::path& file) {
    return file.parent_path() /
           (file.stem().string() + "." + name + file.extension().string());
  });
}

}  // namespace

std::vector<Variant> ParseVariants(const std::string& text) {
  std::vector<Variant> variants;
  std::set<std::string> names;
  for (const std::string& part : Split(text, ';')) {
    if (part.empty()) continue;
    const size_t colon = part.find(':');
    Variant variant;
    variant.name = part.substr(0, colon);
    CheckName(variant.name, part);
    if (!names.insert(variant.name).second) {
      throw UsageError("--variants: two variants are named '" + variant.name +
                       "'");
    }
    if (colon != std::string::npos && colon + 1 < part.size()) {
      for (const std::string& flag : Split(part.substr(colon + 1), ',')) {
        const size_t equals = flag.find('=');
        if (equals == std::string::npos || equals == 0) {
          throw UsageError("--variants: '" + flag + "' of variant '" +
                           variant.name + "' is not of the form flag=value");
        }
        variant.own.emplace_back(flag.substr(0, equals),
                                 flag.substr(equals + 1));
      }
    }
    variants.push_back(std::move(variant));
  }
  if (variants.empty()) {
    throw UsageError(
        "plo compare needs --variants=\"base:offload=none;"
        "full:offload=optimizer\"");
  }
  return variants;
}

void ResolveVariants(FlagSet& set, const FlagValues& common,
                     TrainConfig* config, int64_t* nproc,
                     std::vector<Variant>* variants) {
  const TrainConfig common_config = *config;
  const int64_t common_nproc = *nproc;
  std::map<std::string, size_t> idle;  // common flags: in how many variants
  for (Variant& variant : *variants) {
    try {
      const size_t given = set.given().size();
      for (const auto& [name, value] : variant.own) {
        if (IsOfCompare(name)) throw UsageError("--" + name + " cannot vary");
        set.Set(name, value);
      }
      SetOwnOutputs(variant, set, *config);
      FlagValues flags = common;
      flags.insert(flags.end(), set.given().begin() + given, set.given().end());
      std::set<std::string> left_out;
      for (const IdleFlag& flag : FindIdleFlags(*config)) {
        if (Contains(variant.own, flag.name)) continue;
        left_out.insert(flag.name);
        ResetFlag(flag.name, *config);
        if (++idle[flag.name] == variants->size()) {
          throw UsageError(Describe(flag));
        }
      }
      for (const auto& flag : flags) {
        if (!IsOfCompare(flag.first) && left_out.count(flag.first) == 0) {
          variant.flags.push_back(flag);
        }
      }
      variant.nproc = LocalRanks(*nproc);
      variant.config = *config;
    } catch (const UsageError& error) {
      throw UsageError("variant '" + variant.name + "': " + error.what());
    }
    *config = common_config;
    *nproc = common_nproc;
  }
}

}  // namespace plo
