// The pass contract, the pass manager and pipelines as text.
#ifndef PLO_PASSES_PASS_H_
#define PLO_PASSES_PASS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "framework/ir/program.h"

namespace plo {

// A rewrite of a Program. Passes see no device and no other pass.
class Pass {
 public:
  virtual ~Pass() = default;
  // The file stem and the token in a pipeline: "shard_optimizer".
  virtual std::string_view name() const = 0;
  // True exactly if the printed program changed. Collects first, mutates last:
  // the program is as it was when this throws.
  virtual bool Run(Program& program) = 0;
};

// The options of one pipeline entry: shard_optimizer(stage=2,degree=2).
// Getters throw InvalidArgument for malformed values; Finish() throws for
// options nobody asked for.
class PassOptions {
 public:
  explicit PassOptions(std::string_view pass_name) : pass_name_(pass_name) {}
  void Set(std::string key, std::string value);
  int64_t Int(std::string_view key, int64_t fallback);
  double Float(std::string_view key, double fallback);
  bool Bool(std::string_view key, bool fallback);
  std::string String(std::string_view key, std::string_view fallback);
  // '+'-separated.
  std::vector<std::string> List(std::string_view key);
  void Finish() const;

 private:
  const std::string* Take(std::string_view key);
  std::string pass_name_;
  std::map<std::string, std::pair<std::string, bool>, std::less<>> values_;
};

using PassFactory = std::function<std::unique_ptr<Pass>(PassOptions&)>;

// The passes by name; filled by RegisterBuiltinPasses() (passes/pipeline.h).
class PassRegistry {
 public:
  static PassRegistry& Global();
  void Register(std::string name, PassFactory factory);
  const PassFactory& Get(std::string_view name) const;  // throws NotFound
  std::vector<std::string> Names() const;

 private:
  std::map<std::string, PassFactory, std::less<>> factories_;
};

struct PassRecord {
  std::string text;  // the pipeline entry
  bool changed = false;
  double seconds = 0;
  int64_t ops_before = 0, ops_after = 0;
};

// Runs a pipeline. After each pass: Verify() if it changed the program; the
// program's hash must agree with the returned flag; errors gain "while running
// shard_optimizer(degree=2)"; the entry is added to Program::applied_passes.
class PassManager {
 public:
  // "a,b(x=1,y=z+w),c". Throws InvalidArgument naming the entry.
  static PassManager Parse(std::string_view pipeline);
  // Writes NN_name.txt after each pass into `dir` (and 00_input.txt).
  void set_dump_dir(std::string dir) { dump_dir_ = std::move(dir); }
  void Run(Program& program);
  const std::vector<PassRecord>& records() const { return records_; }

 private:
  struct Entry {
    std::string text;
    std::unique_ptr<Pass> pass;
  };
  std::vector<Entry> entries_;
  std::vector<PassRecord> records_;
  std::string dump_dir_;
};

}  // namespace plo

#endif  // PLO_PASSES_PASS_H_
