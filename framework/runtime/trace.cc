#include "framework/runtime/trace.h"

#include <cstdio>
#include <iomanip>
#include <sstream>

#include "framework/ir/file_io.h"

namespace plo {
namespace {

std::string Quote(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", c);
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + '"';
}

}  // namespace

void WriteChromeTrace(const std::string& path,
                      const std::vector<TraceEvent>& events, int rank) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(3);
  out << "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
      << R"({"name":"process_name","ph":"M","pid":)" << rank
      << R"(,"args":{"name":"rank )" << rank << "\"}}";
  for (int stream = 0; stream < kStreamCount; ++stream) {
    const auto kind = static_cast<StreamKind>(stream);
    out << ",\n"
        << R"({"name":"thread_name","ph":"M","pid":)" << rank
        << ",\"tid\":" << stream
        << ",\"args\":{\"name\":" << Quote(std::string(Name(kind))) << "}}";
  }
  for (const TraceEvent& event : events) {
    out << ",\n{\"name\":" << Quote(event.name)
        << ",\"ph\":\"X\",\"pid\":" << rank
        << ",\"tid\":" << static_cast<int>(event.stream)
        << ",\"ts\":" << event.start_us << ",\"dur\":" << event.duration_us
        << ",\"args\":{\"data_step\":" << event.data_step << "}}";
  }
  out << "\n]}\n";
  WriteFile(path, out.str());
}

}  // namespace plo
