// The fields of TrainConfig as a table: names, places, help texts. Flags and
// JSON are made from it, so that a new field is one line here.
#ifndef PLO_PADDLE_LITE_OFFLOAD_TRAIN_CONFIG_FIELDS_H_
#define PLO_PADDLE_LITE_OFFLOAD_TRAIN_CONFIG_FIELDS_H_

#include "paddle_lite_offload/train_config.h"

namespace plo {

// A number of bytes: "8GiB" on the command line.
struct ByteCount {
  int64_t* bytes;
};

// Calls visit(name, pointer or ByteCount, help) for each field, in order.
template <typename Visit>
void VisitFields(TrainConfig& c, Visit visit) {
  visit("model", &c.model, "mlp or gpt");
  visit("layers", &c.layers, "transformer blocks, or hidden layers of an mlp");
  visit("hidden", &c.hidden, "width of the model");
  visit("heads", &c.heads, "attention heads");
  visit("kv_heads", &c.kv_heads, "key and value heads; 0: as many as heads");
  visit("ffn_hidden", &c.ffn_hidden, "feed-forward width; 0: 4 * hidden");
  visit("seq_len", &c.seq_len, "tokens per sample");
  visit("vocab_size", &c.vocab_size, "token ids are in [0, vocab_size)");
  visit("tied_head", &c.tied_head, "the head uses the token embedding");
  visit("dropout", &c.dropout, "probability to drop an activation");
  visit("seed", &c.seed, "of initial values, dropout and synthetic data");

  visit("text", &c.text, "train on the bytes of this file");
  visit("tokens", &c.tokens, "train on this file of uint16 or uint32 ids");
  visit("micro_batch", &c.micro_batch, "samples per rank and micro-step");
  visit("accumulate_steps", &c.accumulate_steps,
        "micro-steps per optimizer step");
  visit("steps", &c.steps, "optimizer steps");

  visit("dtype", &c.dtype, "fp32, bf16 or fp16");
  visit("grad_dtype", &c.grad_dtype, "of gradient buckets: same or fp32");
  visit("grad_reduce_dtype", &c.grad_reduce_dtype,
        "of the sums over ranks: same (as the gradient buckets) or a dtype");
  visit("loss_scale", &c.loss_scale,
        "dynamic, none or a number; auto: dynamic for fp16");
  visit("init_loss_scale", &c.init_loss_scale, "of a dynamic loss scale");
  visit("min_loss_scale", &c.min_loss_scale, "of a dynamic loss scale");
  visit("loss_scale_growth", &c.loss_scale_growth,
        "factor after loss_scale_window good steps");
  visit("loss_scale_backoff", &c.loss_scale_backoff,
        "factor after a step with a non-finite gradient");
  visit("loss_scale_window", &c.loss_scale_window,
        "good steps before the loss scale grows");
  visit("clip_norm", &c.clip_norm, "largest global gradient norm; 0: any");

  visit("optimizer", &c.optimizer, "adamw, adam or sgd");
  visit("lr", &c.lr, "learning rate");
  visit("weight_decay", &c.weight_decay, "for all but norms and biases");
  visit("beta1", &c.beta1, "of adam and adamw");
  visit("beta2", &c.beta2, "of adam and adamw");
  visit("eps", &c.eps, "of adam and adamw");
  visit("momentum", &c.momentum, "of sgd");
  visit("lr_schedule", &c.lr_schedule, "constant, linear or cosine");
  visit("warmup_steps", &c.warmup_steps, "steps until lr is reached");
  visit("min_lr_ratio", &c.min_lr_ratio,
        "of lr, at the end of a linear or cosine schedule");
  visit("freeze", &c.freeze,
        "patterns of params that are not trained, joined by '+'");

  visit("sharding_stage", &c.sharding_stage,
        "0 nothing, 1 optimizer state, 2 and gradients (3 is not built yet)");
  visit("sharding_degree", &c.sharding_degree,
        "ranks that share; 0: the world size (others are not built yet)");
  visit("bucket_mb", &c.bucket_mb, "MiB of params reduced together");
  visit("recompute", &c.recompute,
        "activations to compute twice: none, cheap, selective or full");
  visit("offload", &c.offload,
        "none or optimizer; auto: as little as the device's memory allows");
  visit("offload_fraction", &c.offload_fraction,
        "share of the optimizer state kept in host memory");
  visit("offload_streamed_fraction", &c.offload_streamed_fraction,
        "share of that state updated on the device, to which it travels; "
        "auto: what the rates make fastest, 0 without rates");
  visit("offload_mode", &c.offload_mode,
        "overlap hides the update under the next step, sync does not");
  visit("offload_activations", &c.offload_activations,
        "regions whose activations wait in host memory (not built yet)");
  visit("prefetch_depth", &c.prefetch_depth, "buckets in flight");
  visit("device_memory_limit", ByteCount{&c.device_memory_limit},
        "for example 8GiB; 0: none");
  visit("host_memory_limit", ByteCount{&c.host_memory_limit},
        "of pinned memory; 0: none");

  visit("device", &c.device,
        "cpu or cuda; auto: a GPU if there is one, and always for plan");
  visit("cuda_graphs", &c.cuda_graphs,
        "replay a step's kernels as CUDA graphs; not while tracing");
  visit("rates", &c.rates,
        "file of what the machine does per second (default: what plo "
        "calibrate measured, else an H200's; none for the CPU)");
  visit("save_dir", &c.save_dir, "folder of checkpoints (not built yet)");
  visit("save_every", &c.save_every,
        "steps between checkpoints (not built yet)");
  visit("resume", &c.resume, "checkpoint to continue from (not built yet)");
  visit("log_dir", &c.log_dir, "folder of metrics.jsonl");
  visit("trace", &c.trace, "file of a Chrome trace of the last steps");
  visit("dump_ir_dir", &c.dump_ir_dir, "folder of the program after each pass");
  visit("generate", &c.generate, "bytes to sample after the last step");
  visit("temperature", &c.temperature, "of sampling; 0: the likeliest byte");
  visit("prompt", &c.prompt, "text that the samples continue");
}

}  // namespace plo

#endif  // PLO_PADDLE_LITE_OFFLOAD_TRAIN_CONFIG_FIELDS_H_
