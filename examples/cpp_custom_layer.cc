// A layer of one's own, built from ops: a gated linear unit
// silu(x A) * (x B), written as a function like those of nn.h. The library does
// not know it; sharding, offload and recompute work on it all the same.
// Usage: cpp_custom_layer [STEPS]
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "paddle_lite_offload/engine.h"
#include "paddle_lite_offload/graph_builder.h"
#include "paddle_lite_offload/nn.h"

namespace {

// Params NAME/gate and NAME/value.
plo::Value GatedLinear(plo::GraphBuilder& g, std::string_view name,
                       plo::Value x, int64_t width, plo::Site site = PLO_HERE) {
  const auto scope = g.Region(name);
  const int64_t in = g.shape(x).dim(-1);
  const auto init = plo::Init::Normal(1 / std::sqrt(static_cast<double>(in)));
  const plo::Value gate = g.Param("gate", {in, width}, init, {}, site);
  const plo::Value value = g.Param("value", {in, width}, init, {}, site);
  return g.Mul(g.Silu(g.Matmul(x, gate)), g.Matmul(x, value));
}

}  // namespace

int main(int argc, char** argv) {
  constexpr int64_t kBatch = 64;
  plo::GraphBuilder g("gated", /*seed=*/7);
  const plo::Value x = g.Feed("x", plo::DType::kFp32, {kBatch, 8});
  const plo::Value y = g.Feed("y", plo::DType::kFp32, {kBatch, 1});
  plo::Value h = x;
  for (const char* name : {"layer0", "layer1"}) {
    h = GatedLinear(g, name, h, 32);
  }
  const plo::Value out = plo::nn::Linear(g, "head", h, 1);
  g.SetLoss(g.SumSquaredError(out, y), g.CountElements(y));

  // Half of the optimizer state lives in host memory.
  plo::DefaultPipelineOptions pipeline;
  pipeline.clip_norm = 1;
  pipeline.bucket_mb = 0.01;
  pipeline.offload_optimizer = true;
  pipeline.offload_fraction = 0.5;
  plo::Engine engine(g.Build(), plo::AdamW({.lr = 3e-3}), pipeline);

  const int steps = argc > 1 ? std::atoi(argv[1]) : 300;
  for (int step = 1; step <= steps; ++step) {
    std::vector<float> xs(kBatch * 8), ys(kBatch);
    for (int64_t i = 0; i < kBatch; ++i) {
      float sum = 0;
      for (int64_t j = 0; j < 8; ++j) {
        xs[i * 8 + j] = static_cast<float>(std::rand()) / RAND_MAX * 2 - 1;
        sum += j % 2 == 0 ? xs[i * 8 + j] : -xs[i * 8 + j];
      }
      ys[i] = std::sin(sum);
    }
    const plo::StepResult result = engine.Step(
        {{"x", plo::HostTensor::Of(plo::DType::kFp32, {kBatch, 8}, xs)},
         {"y", plo::HostTensor::Of(plo::DType::kFp32, {kBatch, 1}, ys)}});
    if (step % 100 == 0 || step == steps) {
      std::printf("step %d loss %.5f\n", step, result.loss);
    }
  }
  const plo::Plan& plan = engine.prepared().plan;
  std::printf("device peak %lld bytes, pinned %lld bytes\n",
              static_cast<long long>(plan.device.arena_bytes),
              static_cast<long long>(plan.pinned.arena_bytes));
}
