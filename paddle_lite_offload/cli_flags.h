// The flags of a command: gflags' registry and value parsing, with a parser of
// our own in front of it, because gflags' exits with status 1 on bad usage.
#ifndef PLO_PADDLE_LITE_OFFLOAD_CLI_FLAGS_H_
#define PLO_PADDLE_LITE_OFFLOAD_CLI_FLAGS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "paddle_lite_offload/train_config.h"

namespace plo {

// A command line that cannot be understood: exit status 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Runs a check of flag values. What makes no sense or is not built yet is bad
// usage.
template <typename Check>
auto CheckUsage(Check check) {
  try {
    return check();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument &&
        error.code() != ErrorCode::kUnimplemented) {
      throw;
    }
    throw UsageError(error.what());
  }
}

// Flags live in gflags' registry for the rest of the process, so that one
// FlagSet per process is made, and their storage must outlive it.
class FlagSet {
 public:
  void Add(const char* name, bool* storage, const char* help);
  void Add(const char* name, int64_t* storage, const char* help);
  void Add(const char* name, double* storage, const char* help);
  void Add(const char* name, std::string* storage, const char* help);
  // Takes "8GiB", "512M" or plain bytes.
  void AddBytes(const char* name, int64_t* storage, const char* help);
  // One flag per field of the config.
  void AddConfig(TrainConfig* config);

  // Parses --name=value, --name value, --bool, --nobool and --flagfile=FILE;
  // returns the other arguments. Throws UsageError.
  std::vector<std::string> Parse(const std::vector<std::string>& args);
  // Sets one flag. Throws UsageError: unknown (with near names) or malformed.
  void Set(const std::string& name, const std::string& value);

  // What Parse and Set were given, in order.
  const std::vector<std::pair<std::string, std::string>>& given() const {
    return given_;
  }
  bool asked_for_help() const { return asked_for_help_; }
  // One line per flag: name, default, help.
  std::string Help() const;

 private:
  struct Flag {
    std::string default_text;
    std::string help;
    std::function<void(const std::string&)> after_set;  // may be null
  };
  template <typename T>
  void Register(const char* name, T* storage, const char* help);
  void ReadFlagFile(const std::string& path, int depth,
                    std::vector<std::string>& positional);
  void ParseInto(const std::vector<std::string>& args, int depth,
                 std::vector<std::string>& positional);
  bool IsBool(const std::string& name) const;

  std::map<std::string, Flag> flags_;
  std::vector<std::string> order_;
  std::vector<std::pair<std::string, std::string>> given_;
  bool asked_for_help_ = false;
};

// Bytes in "8GiB", "8GB", "8G", "512MiB", "1.5GiB", "4096". Throws
// InvalidArgument; also for "0.5", since no more than nothing is 0.
int64_t ParseByteCount(std::string_view text);
// "1.50 GiB".
std::string FormatByteCount(int64_t bytes);

}  // namespace plo

#endif  // PLO_PADDLE_LITE_OFFLOAD_CLI_FLAGS_H_
