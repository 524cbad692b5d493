// plo compare: variants of one training run, each in fresh worker processes.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "paddle_lite_offload/batch_source.h"
#include "paddle_lite_offload/cli.h"
#include "paddle_lite_offload/cli_flags.h"
#include "paddle_lite_offload/launch.h"
#include "paddle_lite_offload/report.h"
#include "paddle_lite_offload/train_report.h"

namespace plo {
namespace {

using FlagValues = std::vector<std::pair<std::string, std::string>>;

struct CompareFlags {
  TrainConfig config;
  int64_t nproc = 1;
  std::string variants;
  std::string report;
  std::string json;
};

struct Variant {
  std::string name;
  FlagValues flags;
  int nproc = 1;
};

// A folder that goes away with everything in it.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name =
        (std::filesystem::temp_directory_path() / "plo_XXXXXX").string();
    PLO_ENFORCE(mkdtemp(name.data()) != nullptr, kUnavailable,
                "cannot make a folder like '", name, "'");
    path_ = name;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  std::string File(const std::string& name) const {
    return (path_ / name).string();
  }

 private:
  std::filesystem::path path_;
};

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

// "base:offload=none;full:offload=optimizer,offload_mode=sync".
std::vector<Variant> ParseVariants(const std::string& text) {
  std::vector<Variant> variants;
  std::set<std::string> names;
  for (const std::string& part : Split(text, ';')) {
    if (part.empty()) continue;
    const size_t colon = part.find(':');
    Variant variant;
    variant.name = part.substr(0, colon);
    if (variant.name.empty() || variant.name.find('=') != std::string::npos) {
      throw UsageError("--variants: '" + part +
                       "' is not of the form NAME:flag=value,flag=value");
    }
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
        variant.flags.emplace_back(flag.substr(0, equals),
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

// Sets each variant's flags on top of the common ones, so that a bad one fails
// before any is run.
void CheckVariants(FlagSet& set, CompareFlags& flags,
                   std::vector<Variant>& variants) {
  const CompareFlags common = flags;
  for (Variant& variant : variants) {
    try {
      for (const auto& [name, value] : variant.flags) {
        if (name == "variants" || name == "report" || name == "json") {
          throw UsageError("--" + name + " cannot vary");
        }
        set.Set(name, value);
      }
      PLO_ENFORCE(flags.nproc >= 1 && flags.nproc <= 1024, kInvalidArgument,
                  "--nproc must be in [1, 1024], got ", flags.nproc);
      variant.nproc = static_cast<int>(flags.nproc);
      ValidateTrainConfig(flags.config, variant.nproc);
      MakeBatchSource(flags.config);
    } catch (const UsageError& error) {
      throw UsageError("variant '" + variant.name + "': " + error.what());
    } catch (const Error& error) {
      throw error.WithContext("variant '" + variant.name + "'");
    }
    flags = common;
  }
}

nlohmann::json RunVariant(const FlagValues& common, const Variant& variant,
                          const std::string& json_path) {
  CliArgs argv = {"/proc/self/exe", "train"};
  for (const FlagValues* flags : {&common, &variant.flags}) {
    for (const auto& [name, value] : *flags) {
      if (name == "variants" || name == "report" || name == "json") continue;
      argv.push_back("--" + name + "=" + value);
    }
  }
  argv.push_back("--json=" + json_path);
  argv.push_back("--quiet");
  const int status = RunLocalWorkers(variant.nproc, argv);
  if (status != 0) {
    return {{"error", StrCat("ended with status ", status)}};
  }
  std::ifstream file(json_path);
  return nlohmann::json::parse(file);
}

}  // namespace

int CompareCommand(const CliArgs& args) {
  static CompareFlags flags;  // gflags keeps pointers into it
  FlagSet set;
  set.AddConfig(&flags.config);
  set.Add("nproc", &flags.nproc, "ranks to start on this machine");
  set.Add("variants", &flags.variants,
          "NAME:flag=value,flag=value;NAME:... - the first is the base");
  set.Add("report", &flags.report, "HTML file to write the comparison to");
  set.Add("json", &flags.json, "file to write the comparison to");
  RejectPositional("compare", set.Parse(args));
  if (set.asked_for_help()) {
    std::printf("usage: plo compare --variants=... [--flag=value ...]\n\n%s",
                set.Help().c_str());
    return 0;
  }
  const FlagValues common = set.given();
  std::vector<Variant> variants = ParseVariants(flags.variants);
  const CompareFlags outputs = flags;
  CheckVariants(set, flags, variants);

  const ScratchFolder scratch;
  std::vector<std::pair<std::string, nlohmann::json>> results;
  bool failed = false;
  for (size_t i = 0; i < variants.size(); ++i) {
    std::fprintf(stderr, "== %s (%zu of %zu)\n", variants[i].name.c_str(),
                 i + 1, variants.size());
    results.emplace_back(
        variants[i].name,
        RunVariant(common, variants[i], scratch.File(StrCat(i, ".json"))));
    failed = failed || results.back().second.contains("error");
  }
  const nlohmann::json comparison = MakeComparison(results);
  if (!outputs.json.empty()) {
    WriteFile(outputs.json, comparison.dump(2) + "\n");
  }
  if (!outputs.report.empty()) {
    WriteFile(outputs.report, FormatComparisonHtml(comparison));
  }
  std::printf("%s", FormatComparisonTable(comparison).c_str());
  return failed ? 1 : 0;
}

}  // namespace plo
