// Runs training programs on thread comms, one thread per rank.
#ifndef PLO_TESTS_PASSES_RANK_RUNNER_H_
#define PLO_TESTS_PASSES_RANK_RUNNER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
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

// `degree` ranks, small buckets, clipping to 0.5.
DefaultPipelineOptions Sharded(int64_t degree, DType dtype = DType::kFp32);

// A program of params that differ in their attributes, one of them unused.
// Regions "first" and "second"; "second/probe", which starts at zero and never
// moves, multiplies the feed "loud".
Program OddParams();

}  // namespace plo

#endif  // PLO_TESTS_PASSES_RANK_RUNNER_H_
