// Runs training programs on thread comms, one thread per rank.
#ifndef PLO_TESTS_PASSES_RANK_RUNNER_H_
#define PLO_TESTS_PASSES_RANK_RUNNER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "framework/runtime/executor.h"
#include "paddle_lite_offload/engine.h"
#include "paddle_lite_offload/optimizer.h"
#include "passes/pipeline.h"

namespace plo {

using Poison = std::function<void(int step, int rank, const std::string& feed,
                                  std::vector<double>& values)>;

struct Job {
  std::function<Program()> build;
  DefaultPipelineOptions pipeline;
  Optimizer optimizer = AdamW({.lr = 1e-2, .schedule = {}});
  int steps = 3;
  Poison poison = {};
  // Called with the rank's engine before the first step (-1) and after each.
  std::function<void(int step, int rank, Engine&)> inspect = {};
  std::function<int(StreamKind, OpId)> delay_us = {};
};

struct Outcome {
  std::vector<StepResult> steps;
  MemoryMeasurement memory;
  PlacePeak planned;
  uint64_t digest = 0;
  std::map<std::string, std::vector<double>> params;
};

// Runs the job on all its ranks; rethrows the first error. Sample i of the
// global batch has the same values however the batch is divided.
std::vector<Outcome> RunJob(const Job& job);

// The outcome of rank 0, after checking that the ranks agree, and each with its
// plan.
Outcome RunAgreeing(const Job& job);

// Digests and, of each step, loss, norm and scale.
void ExpectSameBits(const Outcome& a, const Outcome& b,
                    const std::string& what);

// Params and optimizer states, by what they belong to, and the count of
// updates. Where an fp32 param has no master of its own, it is the master.
using States = std::map<std::string, std::vector<std::byte>>;
States Snapshot(Engine& engine);

// The job with each of these prefetch depths, then with each stream slowed down
// in turn: none of it changes a bit. Each with words for it.
std::vector<std::pair<std::string, Job>> OtherPaces(
    const Job& job, const std::vector<int64_t>& depths);

// `degree` ranks, small buckets, clipping to 0.5.
DefaultPipelineOptions Sharded(int64_t degree, DType dtype = DType::kFp32);

// A program of params that differ in their attributes, one of them unused.
// Regions "first" and "second"; "second/probe", which starts at zero and never
// moves, multiplies the feed "loud".
Program OddParams();

}  // namespace plo

#endif  // PLO_TESTS_PASSES_RANK_RUNNER_H_
