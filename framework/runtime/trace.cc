#include "framework/runtime/trace.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <iomanip>
#include <set>
#include <sstream>
#include <utility>

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

using Interval = std::pair<double, double>;  // begin and end, us

// In order and disjoint.
std::vector<Interval> Union(std::vector<Interval> intervals) {
  std::sort(intervals.begin(), intervals.end());
  std::vector<Interval> joined;
  for (const Interval& next : intervals) {
    if (joined.empty() || next.first > joined.back().second) {
      joined.push_back(next);
    } else {
      joined.back().second = std::max(joined.back().second, next.second);
    }
  }
  return joined;
}

double LengthOf(const std::vector<Interval>& disjoint) {
  double length = 0;
  for (const auto& [begin, end] : disjoint) length += end - begin;
  return length;
}

// How long both are under way.
double Overlap(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  double length = 0;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const double end = std::min(a[i].second, b[j].second);
    length += std::max(0.0, end - std::max(a[i].first, b[j].first));
    ++(a[i].second < b[j].second ? i : j);
  }
  return length;
}

}  // namespace

std::vector<StreamUse> SummarizeStreams(const std::vector<TraceEvent>& events) {
  std::set<int64_t> steps;
  for (const TraceEvent& event : events) steps.insert(event.data_step);
  if (steps.empty()) return {};
  const int64_t last = *steps.rbegin();
  const auto counts = [&](const TraceEvent& event) {
    return steps.size() == 1 || event.data_step != last;
  };
  const auto count = static_cast<double>(std::max<size_t>(steps.size() - 1, 1));
  std::array<std::vector<Interval>, kStreamCount> of_stream;
  std::array<int64_t, kStreamCount> bytes{};
  std::vector<Interval> computing;  // the last step's too
  for (const TraceEvent& event : events) {
    const Interval interval(event.start_us, event.start_us + event.duration_us);
    if (event.stream == StreamKind::kCompute) computing.push_back(interval);
    if (!counts(event)) continue;
    const auto stream = static_cast<size_t>(event.stream);
    of_stream[stream].push_back(interval);
    bytes[stream] += event.bytes;
  }
  computing = Union(std::move(computing));
  std::vector<StreamUse> uses;
  for (size_t stream = 0; stream < of_stream.size(); ++stream) {
    if (of_stream[stream].empty()) continue;
    const std::vector<Interval> busy = Union(std::move(of_stream[stream]));
    const double busy_us = LengthOf(busy);
    StreamUse& use = uses.emplace_back();
    use.stream = static_cast<StreamKind>(stream);
    use.busy_ms = busy_us / 1000 / count;
    use.exposed_ms = use.stream == StreamKind::kCompute
                         ? use.busy_ms
                         : (busy_us - Overlap(busy, computing)) / 1000 / count;
    use.gigabytes_per_second =
        busy_us > 0 ? static_cast<double>(bytes[stream]) / 1000 / busy_us : 0;
  }
  return uses;
}

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
        << ",\"args\":{\"data_step\":" << event.data_step
        << ",\"bytes\":" << event.bytes << "}}";
  }
  out << "\n]}\n";
  WriteFile(path, out.str());
}

}  // namespace plo
