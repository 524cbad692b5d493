// plo compare: variants of one training run, each in fresh worker processes.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "framework/ir/file_io.h"
#include "paddle_lite_offload/cli.h"
#include "paddle_lite_offload/cli_variants.h"
#include "paddle_lite_offload/launch.h"
#include "paddle_lite_offload/report.h"
#include "paddle_lite_offload/report_fields.h"

namespace plo {
namespace {

struct CompareFlags {
  TrainConfig config;
  int64_t nproc = 1;
  std::string variants;
  std::string report;
  std::string json;
  bool quiet = false;
};

// A folder that goes away with everything in it.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::error_code error;
    path_ = std::filesystem::temp_directory_path(error);
    if (error) {
      const char* dir = std::getenv("TMPDIR");
      throw FileError("TMPDIR: cannot use", dir != nullptr ? dir : "/tmp",
                      error.value());
    }
    std::string name = (path_ / "plo_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) {
      throw FileError("cannot make a folder like", name, errno);
    }
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

struct VariantResult {
  nlohmann::json report;  // {"error": reason} when it failed
  int signal = 0;         // that stops the comparison
};

VariantResult Failed(const std::string& reason) {
  return {{{"error", reason}}, 0};
}

// Nothing that is wrong with a variant should show only after others have run.
// A limit that cannot be met is a result.
std::vector<std::optional<VariantResult>> CheckVariants(
    const std::vector<Variant>& variants, std::vector<FlagPath> outputs) {
  std::vector<std::optional<VariantResult>> failed(variants.size());
  std::vector<FlagPath> inputs;
  for (size_t i = 0; i < variants.size(); ++i) {
    const std::string who = "variant '" + variants[i].name + "'";
    try {
      CheckRun(variants[i].config, variants[i].nproc);
    } catch (const UsageError& error) {
      throw UsageError(who + ": " + error.what());
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kOutOfMemory) throw error.WithContext(who);
      failed[i] = Failed(error.what());
    }
    for (FlagPath& file : RunOutputs(variants[i].config)) {
      file.flag += " of " + who;
      outputs.push_back(std::move(file));
    }
    for (FlagPath& file : RunInputs(variants[i].config)) {
      inputs.push_back(std::move(file));
    }
  }
  CheckOutputs(outputs, inputs);
  return failed;
}

VariantResult RunVariant(const Variant& variant, const std::string& json_path) {
  CliArgs argv = {"/proc/self/exe", "train"};
  for (const auto& [name, value] : variant.flags) {
    argv.push_back("--" + name + "=" + value);
  }
  argv.push_back("--json=" + json_path);
  argv.push_back("--quiet");
  const LaunchResult run =
      RunLocalWorkers(variant.nproc, argv, {.show_stdout = false});
  if (run.signal != 0) return {{{"error", "interrupted"}}, run.signal};
  if (run.status != 0) return Failed(run.failure);
  return {nlohmann::json::parse(ReadFile(json_path)), 0};
}

void PrintComparison(const nlohmann::json& comparison) {
  std::printf("%s", FormatComparisonTable(comparison).c_str());
  for (const nlohmann::json& variant : comparison.at("variants")) {
    const std::string sample = StringField(variant, "sample");
    if (sample.empty()) continue;
    std::printf("\nsample of %s:\n%s\n", StringField(variant, "name").c_str(),
                sample.c_str());
  }
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
  set.Add("quiet", &flags.quiet, "print no table");
  RejectPositional("compare", set.Parse(args));
  if (set.asked_for_help()) {
    std::printf("usage: plo compare --variants=... [--flag=value ...]\n\n%s",
                set.Help().c_str());
    return 0;
  }
  std::vector<Variant> variants = ParseVariants(flags.variants);
  const FlagValues common = set.given();
  ResolveVariants(set, common, &flags.config, &flags.nproc, &variants);
  const auto failed = CheckVariants(
      variants, {{"--json", flags.json}, {"--report", flags.report}});

  const ScratchFolder scratch;
  std::vector<std::pair<std::string, nlohmann::json>> results;
  int status = 0;
  for (size_t i = 0; i < variants.size() && status < 128; ++i) {
    std::fprintf(stderr, "== %s (%zu of %zu)\n", variants[i].name.c_str(),
                 i + 1, variants.size());
    VariantResult result =
        failed[i] ? *failed[i]
                  : RunVariant(variants[i], scratch.File(StrCat(i, ".json")));
    if (result.report.contains("error")) status = 1;
    if (result.signal != 0) status = 128 + result.signal;
    results.emplace_back(variants[i].name, std::move(result.report));
  }
  const nlohmann::json comparison = MakeComparison(results);
  // The table first: it must not be lost with a file.
  if (!flags.quiet) PrintComparison(comparison);
  if (!flags.json.empty()) WriteFile(flags.json, JsonText(comparison));
  if (!flags.report.empty()) {
    WriteFile(flags.report, FormatComparisonHtml(comparison));
  }
  return status;
}

}  // namespace plo
