#include "paddle_lite_offload/run_check.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <type_traits>

#include "paddle_lite_offload/train_config_fields.h"
#include "plo_version.h"

namespace plo {
namespace {

using nlohmann::json;

constexpr std::array<std::string_view, 11> kOfEachHost = {"text",
                                                          "tokens",
                                                          "device",
                                                          "device_memory_limit",
                                                          "host_memory_limit",
                                                          "rates",
                                                          "save_dir",
                                                          "resume",
                                                          "log_dir",
                                                          "trace",
                                                          "dump_ir_dir"};

// Text of any encoding as JSON.
std::string Dump(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

// What each rank passed, by rank.
std::vector<std::string> GatherTexts(Comm& all_ranks, const std::string& text) {
  Comm& comm = all_ranks.host();
  auto longest = static_cast<int64_t>(text.size());
  comm.AllReduce(&longest, 1, DType::kInt64, Reduction::kMax, nullptr);
  std::string padded = text;
  padded.resize(static_cast<size_t>(longest), '\0');
  std::string all(padded.size() * static_cast<size_t>(comm.size()), '\0');
  comm.AllGather(padded.data(), all.data(), longest, DType::kBool, nullptr);
  std::vector<std::string> texts;
  for (int rank = 0; rank < comm.size(); ++rank) {
    texts.push_back(
        all.substr(padded.size() * static_cast<size_t>(rank), padded.size()));
    texts.back().resize(texts.back().find_last_not_of('\0') + 1);
  }
  return texts;
}

// [name, value] pairs; empty if `text` is none of ours.
json ParseFacts(const std::string& text) {
  json facts = json::parse(text, nullptr, /*allow_exceptions=*/false);
  return facts.is_array() ? facts : json::array();
}

std::string Text(const json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

}  // namespace

std::vector<RunFact> RunFacts(const TrainConfig& config, DeviceKind device,
                              const BatchSource& source) {
  std::vector<RunFact> facts = {
      {"version", PLO_VERSION " (commit " PLO_COMMIT ")"},
      {"device", device == DeviceKind::kCuda ? "cuda" : "cpu"}};
  TrainConfig copy = config;
  VisitFields(copy, [&](const char* name, auto field, const char*) {
    if (std::count(kOfEachHost.begin(), kOfEachHost.end(), name) > 0) return;
    if constexpr (!std::is_same_v<decltype(field), ByteCount>) {
      facts.push_back({StrCat("--", name), Text(json(*field))});
    }
  });
  facts.push_back({"data", source.Describe()});
  return facts;
}

void CheckSameRun(Comm& comm, const std::vector<RunFact>& facts) {
  json own = json::array();
  for (const RunFact& fact : facts) own.push_back({fact.name, fact.value});
  std::vector<json> by_rank;
  for (const std::string& text : GatherTexts(comm, Dump(own))) {
    by_rank.push_back(ParseFacts(text));
  }
  const json& first = by_rank[0];
  for (size_t i = 0; i < first.size(); ++i) {
    const std::string name = first[i][0].get<std::string>();
    for (size_t rank = 1; rank < by_rank.size(); ++rank) {
      const json& theirs = by_rank[rank];
      const json fact = i < theirs.size() ? theirs[i] : json({name, "none"});
      PLO_ENFORCE(fact == first[i], kFailedPrecondition, "the ranks differ in ",
                  name, ": rank 0 has ", first[i][1].get<std::string>(),
                  ", rank ", rank, " has ", fact[1].get<std::string>());
    }
  }
}

}  // namespace plo
