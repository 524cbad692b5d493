// Fits y = x0 * x1 with a small network. Usage: cpp_mlp [STEPS]
#include <cstdio>
#include <cstdlib>

#include "paddle_lite_offload/engine.h"
#include "paddle_lite_offload/graph_builder.h"
#include "paddle_lite_offload/nn.h"

int main(int argc, char** argv) {
  plo::GraphBuilder g;
  const plo::Value x = g.Feed("x", plo::DType::kFp32, {32, 2});
  const plo::Value y = g.Feed("y", plo::DType::kFp32, {32, 1});
  const plo::Value h =
      g.Tanh(plo::nn::Linear(g, "fc1", x, 16, {.init_std = 1}));
  const plo::Value out = plo::nn::Linear(g, "fc2", h, 1, {.init_std = 0.25});
  g.SetLoss(g.SumSquaredError(out, y), g.CountElements(y));

  plo::Engine engine(g.Build(), plo::AdamW({.lr = 1e-2}));
  const int steps = argc > 1 ? std::atoi(argv[1]) : 500;
  for (int step = 1; step <= steps; ++step) {
    std::vector<float> xs, ys;
    for (int i = 0; i < 32; ++i) {
      xs.push_back(static_cast<float>(std::rand()) / RAND_MAX * 2 - 1);
      xs.push_back(static_cast<float>(std::rand()) / RAND_MAX * 2 - 1);
      ys.push_back(xs[2 * i] * xs[2 * i + 1]);
    }
    const plo::StepResult result = engine.Step(
        {{"x", plo::HostTensor::Of(plo::DType::kFp32, {32, 2}, xs)},
         {"y", plo::HostTensor::Of(plo::DType::kFp32, {32, 1}, ys)}});
    if (step % 100 == 0 || step == steps) {
      std::printf("step %d loss %.5f\n", step, result.loss);
    }
  }
}
