// Trains a small GPT on the bytes of a text with bf16 weights, gradient
// clipping and the optimizer state in host memory, then lets it write.
// Usage: cpp_gpt [STEPS [TEXT_FILE]]
#include <cstdio>
#include <cstdlib>
#include <string>

#include "paddle_lite_offload/trainer.h"

int main(int argc, char** argv) {
  plo::TrainConfig config;
  config.model = "gpt";
  config.device = "cpu";
  config.layers = 2;
  config.hidden = 64;
  config.heads = 4;
  config.seq_len = 64;
  config.micro_batch = 8;
  config.accumulate_steps = 2;
  config.steps = argc > 1 ? std::atoi(argv[1]) : 200;
  // Without a file: a made-up sequence that is easy to learn.
  if (argc > 2) config.text = argv[2];

  config.dtype = "bf16";
  config.lr = 3e-3;
  config.lr_schedule = "cosine";
  config.warmup_steps = 10;
  config.clip_norm = 1;
  config.offload = "optimizer";
  config.generate = 40;

  try {
    // What will it need? No device is touched to answer that.
    const plo::TrainReport plan = plo::PlanReport(config, /*world_size=*/1);
    std::printf("%lld params, planned peak %lld bytes\n",
                static_cast<long long>(plan.parameters),
                static_cast<long long>(plan.memory.planned_peak_bytes));

    plo::TrainerOptions options;
    options.on_step = [&](const plo::StepMetrics& metrics) {
      if (metrics.step % 20 != 0 && metrics.step != config.steps) return;
      std::printf("step %lld loss %.4f %.1f ms\n",
                  static_cast<long long>(metrics.step), metrics.result.loss,
                  metrics.step_ms);
    };
    plo::Trainer trainer(config, options);
    trainer.Run();

    const plo::TrainReport report = trainer.Report();
    std::printf("measured peak %lld bytes, %.1f host bytes per param\n",
                static_cast<long long>(report.memory.measured->peak_bytes),
                *report.memory.host_state_bytes_per_param);
    std::printf("%s\n", trainer.Generate().c_str());
  } catch (const plo::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
