// Where the time of a training step goes, from the traces of a run:
//
//   plo train --trace=/tmp/trace.json ...
//   bench_step /tmp/trace.json [/tmp/trace.json.rank1 ...]
//
// Per rank: the busy time of each stream, how much of it is exposed (the
// compute stream has nothing to do meanwhile), and the op types that take
// longest. Figures are per step, over the traced steps but the last. A
// collective is busy while it waits for other ranks.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "framework/ir/error.h"
#include "framework/ir/types.h"

namespace plo {
namespace {

constexpr size_t kTopOps = 14;

struct Span {
  double begin, end;  // us
};

struct Event {
  std::string type;
  size_t stream;
  Span span;
  int64_t step;
};

std::vector<Event> ReadTrace(const std::string& path) {
  std::ifstream file(path);
  PLO_ENFORCE(file, kNotFound, "cannot open the trace '", path, "'");
  const auto json = nlohmann::json::parse(file);
  std::vector<Event> events;
  for (const auto& event : json.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    const std::string name = event.at("name");
    const double start = event.at("ts"), duration = event.at("dur");
    events.push_back({name.substr(0, name.find(' ')),
                      event.at("tid"),
                      {start, start + duration},
                      event.at("args").at("data_step")});
    PLO_ENFORCE(events.back().stream < kStreamCount, kInvalidArgument, path,
                " has a row that is no stream");
  }
  return events;
}

// From the first compute op of the first step to that of the last: whole
// cycles, each with the update that runs beside the next forward.
Span WholeSteps(const std::vector<Event>& events, int64_t* steps) {
  std::map<int64_t, double> starts;
  for (const Event& event : events) {
    if (event.stream != static_cast<size_t>(StreamKind::kCompute)) continue;
    const auto [it, added] = starts.try_emplace(event.step, event.span.begin);
    if (!added) it->second = std::min(it->second, event.span.begin);
  }
  PLO_ENFORCE(starts.size() >= 2, kInvalidArgument,
              "the trace holds less than two steps");
  *steps = static_cast<int64_t>(starts.size()) - 1;
  return {starts.begin()->second, starts.rbegin()->second};
}

double Sum(const std::vector<Span>& spans) {
  double sum = 0;
  for (const Span& span : spans) sum += span.end - span.begin;
  return sum;
}

// Time in `spans` that lies in `covered` too; each is disjoint and ascending.
double Overlap(const std::vector<Span>& spans,
               const std::vector<Span>& covered) {
  double sum = 0;
  size_t from = 0;
  for (const Span& span : spans) {
    while (from < covered.size() && covered[from].end <= span.begin) ++from;
    for (size_t i = from; i < covered.size() && covered[i].begin < span.end;
         ++i) {
      sum += std::min(span.end, covered[i].end) -
             std::max(span.begin, covered[i].begin);
    }
  }
  return sum;
}

void Breakdown(const std::string& path) {
  const std::vector<Event> events = ReadTrace(path);
  int64_t steps = 0;
  const Span window = WholeSteps(events, &steps);
  struct OpTime {
    double us = 0;
    int64_t count = 0;
  };
  std::map<std::pair<std::string, size_t>, OpTime> ops;
  std::array<std::vector<Span>, kStreamCount> busy;
  for (const Event& event : events) {  // ascending by start
    const Span clipped = {std::max(event.span.begin, window.begin),
                          std::min(event.span.end, window.end)};
    if (clipped.begin >= clipped.end) continue;
    busy[event.stream].push_back(clipped);
    OpTime& time = ops[{event.type, event.stream}];
    time.us += clipped.end - clipped.begin;
    ++time.count;
  }
  const auto ms_per_step = [&](double us) {
    return us / 1e3 / static_cast<double>(steps);
  };
  const double step_us = window.end - window.begin;
  std::printf("%s: %lld steps of %.2f ms\n\n%-8s %9s %6s %11s %6s\n",
              path.c_str(), static_cast<long long>(steps), ms_per_step(step_us),
              "stream", "busy ms", "%", "exposed ms", "%");
  const auto& compute = busy[static_cast<size_t>(StreamKind::kCompute)];
  for (size_t stream = 0; stream < kStreamCount; ++stream) {
    const double total = Sum(busy[stream]);
    const double exposed = &busy[stream] == &compute
                               ? total
                               : total - Overlap(busy[stream], compute);
    std::printf("%-8s %9.2f %6.1f %11.2f %6.1f\n",
                std::string(Name(static_cast<StreamKind>(stream))).c_str(),
                ms_per_step(total), 100 * total / step_us, ms_per_step(exposed),
                100 * exposed / step_us);
  }
  std::vector<std::pair<std::pair<std::string, size_t>, OpTime>> top(
      ops.begin(), ops.end());
  std::sort(top.begin(), top.end(), [](const auto& a, const auto& b) {
    return a.second.us > b.second.us;
  });
  top.resize(std::min(top.size(), kTopOps));
  std::printf("\n%-28s %-8s %9s %6s %9s\n", "op", "stream", "ms", "%",
              "launches");
  for (const auto& [op, time] : top) {
    std::printf("%-28s %-8s %9.2f %6.1f %9.1f\n", op.first.c_str(),
                std::string(Name(static_cast<StreamKind>(op.second))).c_str(),
                ms_per_step(time.us), 100 * time.us / step_us,
                static_cast<double>(time.count) / static_cast<double>(steps));
  }
  std::printf("\n");
}

}  // namespace
}  // namespace plo

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: bench_step TRACE.json...\n");
    return 2;
  }
  try {
    for (int i = 1; i < argc; ++i) plo::Breakdown(argv[i]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
