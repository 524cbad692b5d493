#include "passes/pass.h"

#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <utility>

#include "framework/ir/file_io.h"
#include "framework/ir/program_text.h"
#include "framework/ir/verifier.h"

namespace plo {
namespace {

std::string_view Trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  const size_t end = text.find_last_not_of(" \t\r\n");
  return text.substr(begin, end - begin + 1);
}

template <typename T>
bool ReadNumber(std::string_view text, T* value) {
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

// Splits at commas outside parentheses.
std::vector<std::string_view> SplitEntries(std::string_view pipeline) {
  std::vector<std::string_view> entries;
  int depth = 0;
  size_t start = 0;
  for (size_t i = 0; i <= pipeline.size(); ++i) {
    if (i == pipeline.size() || (pipeline[i] == ',' && depth == 0)) {
      entries.push_back(Trim(pipeline.substr(start, i - start)));
      start = i + 1;
    } else if (pipeline[i] == '(') {
      ++depth;
    } else if (pipeline[i] == ')') {
      --depth;
    }
  }
  return entries;
}

void ParseOptions(std::string_view entry, std::string_view list,
                  PassOptions& options) {
  if (Trim(list).empty()) return;
  for (std::string_view pair : SplitEntries(list)) {
    const size_t equals = pair.find('=');
    const std::string_view key = Trim(pair.substr(0, equals));
    PLO_ENFORCE(equals != std::string_view::npos && !key.empty(),
                kInvalidArgument, "pipeline entry '", entry,
                "': expected key=value, found '", pair, "'");
    options.Set(std::string(key), std::string(Trim(pair.substr(equals + 1))));
  }
}

void Dump(const std::string& dir, size_t index, std::string_view name,
          const Program& program) {
  if (dir.empty()) return;
  MakeFolder(dir);
  char number[16];
  std::snprintf(number, sizeof(number), "%02zu_", index);
  SaveProgram(program, StrCat(dir, "/", number, name, ".txt"));
}

// Unlike ProgramHash() the same before and after a pass is noted as applied.
uint64_t HashWithoutHistory(Program& program) {
  std::vector<std::string> history = std::exchange(program.applied_passes, {});
  const uint64_t hash = ProgramHash(program);
  program.applied_passes = std::move(history);
  return hash;
}

}  // namespace

// --- PassOptions ---

void PassOptions::Set(std::string key, std::string value) {
  const auto [it, fresh] =
      values_.emplace(std::move(key), std::make_pair(std::move(value), false));
  PLO_ENFORCE(fresh, kInvalidArgument, pass_name_, ": option '", it->first,
              "' is given twice");
}

const std::string* PassOptions::Take(std::string_view key) {
  const auto it = values_.find(key);
  if (it == values_.end()) return nullptr;
  it->second.second = true;
  return &it->second.first;
}

int64_t PassOptions::Int(std::string_view key, int64_t fallback) {
  const std::string* text = Take(key);
  if (text == nullptr) return fallback;
  int64_t value = 0;
  PLO_ENFORCE(ReadNumber(*text, &value), kInvalidArgument, pass_name_,
              ": option ", key, "=", *text, " is not a 64-bit integer");
  return value;
}

double PassOptions::Float(std::string_view key, double fallback) {
  const std::string* text = Take(key);
  if (text == nullptr) return fallback;
  double value = 0;
  PLO_ENFORCE(ReadNumber(*text, &value) && std::isfinite(value),
              kInvalidArgument, pass_name_, ": option ", key, "=", *text,
              " is not a finite number");
  return value;
}

bool PassOptions::Bool(std::string_view key, bool fallback) {
  const std::string* text = Take(key);
  if (text == nullptr) return fallback;
  if (*text == "true" || *text == "1") return true;
  PLO_ENFORCE(*text == "false" || *text == "0", kInvalidArgument, pass_name_,
              ": option ", key, "=", *text, " is neither true nor false");
  return false;
}

std::string PassOptions::String(std::string_view key,
                                std::string_view fallback) {
  const std::string* text = Take(key);
  return text == nullptr ? std::string(fallback) : *text;
}

std::vector<std::string> PassOptions::List(std::string_view key) {
  const std::string* text = Take(key);
  std::vector<std::string> items;
  if (text == nullptr || text->empty()) return items;
  size_t start = 0;
  while (true) {
    const size_t plus = text->find('+', start);
    items.push_back(text->substr(start, plus - start));
    PLO_ENFORCE(!items.back().empty(), kInvalidArgument, pass_name_,
                ": option ", key, "=", *text, " has an empty item");
    if (plus == std::string::npos) return items;
    start = plus + 1;
  }
}

void PassOptions::Finish() const {
  for (const auto& [key, value] : values_) {
    PLO_ENFORCE(value.second, kInvalidArgument, pass_name_,
                ": unknown option '", key, "'");
  }
}

// --- PassRegistry ---

PassRegistry& PassRegistry::Global() {
  static PassRegistry registry;
  return registry;
}

void PassRegistry::Register(std::string name, PassFactory factory) {
  const auto [it, fresh] = factories_.emplace(std::move(name), factory);
  PLO_ENFORCE(fresh, kFailedPrecondition, "pass '", it->first,
              "' is registered twice");
}

const PassFactory& PassRegistry::Get(std::string_view name) const {
  const auto it = factories_.find(name);
  if (it != factories_.end()) return it->second;
  std::string known;
  for (const auto& [other, unused] : factories_) {
    known += (known.empty() ? "" : ", ") + other;
  }
  PLO_THROW(kNotFound, "no pass '", name, "'; the passes are ", known);
}

std::vector<std::string> PassRegistry::Names() const {
  std::vector<std::string> names;
  for (const auto& [name, unused] : factories_) names.push_back(name);
  return names;
}

// --- PassManager ---

PassManager PassManager::Parse(std::string_view pipeline) {
  PassManager manager;
  if (Trim(pipeline).empty()) return manager;
  for (std::string_view entry : SplitEntries(pipeline)) {
    const size_t open = entry.find('(');
    const std::string name(Trim(entry.substr(0, open)));
    PLO_ENFORCE(!name.empty(), kInvalidArgument, "pipeline '", pipeline,
                "' has an entry without a pass name");
    PassOptions options(name);
    if (open != std::string_view::npos) {
      PLO_ENFORCE(entry.back() == ')' &&
                      entry.find_first_of("()", open + 1) == entry.size() - 1,
                  kInvalidArgument, "pipeline entry '", entry,
                  "': unbalanced parentheses");
      ParseOptions(entry, entry.substr(open + 1, entry.size() - open - 2),
                   options);
    } else {
      PLO_ENFORCE(entry.find(')') == std::string_view::npos, kInvalidArgument,
                  "pipeline entry '", entry, "': unbalanced parentheses");
    }
    try {
      auto pass = PassRegistry::Global().Get(name)(options);
      options.Finish();
      manager.entries_.push_back({std::string(entry), std::move(pass)});
    } catch (const Error& error) {
      // An unknown pass is bad usage of the pipeline, like a bad option.
      const ErrorCode code = error.code() == ErrorCode::kNotFound
                                 ? ErrorCode::kInvalidArgument
                                 : error.code();
      throw Error(code, error.message())
          .WithContext(StrCat("pipeline entry '", entry, "'"));
    }
  }
  return manager;
}

void PassManager::Run(Program& program) {
  records_.clear();
  NormalizeProgram(program);
  Verify(program);
  Dump(dump_dir_, 0, "input", program);
  uint64_t hash = HashWithoutHistory(program);
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    PassRecord record;
    record.text = entry.text;
    record.ops_before = static_cast<int64_t>(program.op_count());
    const auto start = std::chrono::steady_clock::now();
    try {
      record.changed = entry.pass->Run(program);
      NormalizeProgram(program);
      const uint64_t new_hash = HashWithoutHistory(program);
      PLO_ENFORCE(record.changed == (new_hash != hash), kInternal,
                  record.changed ? "the pass reports a change, but the program "
                                   "is as it was"
                                 : "the pass reports no change, but the "
                                   "program changed");
      hash = new_hash;
      if (record.changed) Verify(program);
    } catch (const Error& error) {
      throw error.WithContext("while running " + entry.text);
    }
    program.applied_passes.push_back(entry.text);
    record.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
            .count();
    record.ops_after = static_cast<int64_t>(program.op_count());
    records_.push_back(std::move(record));
    Dump(dump_dir_, i + 1, entry.pass->name(), program);
  }
}

}  // namespace plo
