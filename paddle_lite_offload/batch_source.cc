#include "paddle_lite_offload/batch_source.h"

#include <cmath>
#include <random>
#include <utility>
#include <vector>

#include "paddle_lite_offload/data.h"
#include "paddle_lite_offload/hasher.h"

namespace plo {
namespace {

// Numbers of one sample, whatever was drawn before. The standard fixes the
// output of mt19937_64 but not of its distributions.
class SampleRandom {
 public:
  SampleRandom(int64_t seed, int64_t sample)
      : engine_(static_cast<uint64_t>(seed) * 0x9e3779b97f4a7c15ull +
                static_cast<uint64_t>(sample)) {}
  uint64_t Below(uint64_t bound) { return engine_() % bound; }
  // In [-1, 1).
  double Symmetric() {
    return static_cast<double>(engine_() >> 11) * 0x1p-52 - 1.0;
  }

 private:
  std::mt19937_64 engine_;
};

// Each token follows from the one before by a fixed rule; one in eight is
// random.
class SyntheticTokens : public BatchSource {
 public:
  explicit SyntheticTokens(const TrainConfig& config)
      : seed_(config.seed),
        vocab_size_(static_cast<uint64_t>(config.vocab_size)),
        seq_len_(config.seq_len) {}

  void Fill(int64_t sample, const Row& row) const override {
    SampleRandom random(seed_, sample);
    auto* tokens = reinterpret_cast<int32_t*>(row.at("tokens"));
    auto* labels = reinterpret_cast<int32_t*>(row.at("labels"));
    uint64_t token = random.Below(vocab_size_);
    for (int64_t i = 0; i < seq_len_; ++i) {
      tokens[i] = static_cast<int32_t>(token);
      const bool noise = random.Below(8) == 0;
      const uint64_t other = random.Below(vocab_size_);
      token = noise ? other : (token * 5 + 7) % vocab_size_;
      labels[i] = static_cast<int32_t>(token);
    }
  }
  std::string Describe() const override { return "synthetic tokens"; }

 private:
  int64_t seed_;
  uint64_t vocab_size_;
  int64_t seq_len_;
};

class FileTokens : public BatchSource {
 public:
  FileTokens(const char* flag, std::unique_ptr<SequenceDataset> dataset)
      : flag_(flag), dataset_(std::move(dataset)) {}

  void Fill(int64_t sample, const Row& row) const override {
    try {
      dataset_->Fill(sample, reinterpret_cast<int32_t*>(row.at("tokens")),
                     reinterpret_cast<int32_t*>(row.at("labels")));
    } catch (const Error& error) {
      throw error.WithContext(flag_);
    }
  }
  std::string Describe() const override {
    const DataFile& file = dataset_->file();
    return StrCat(flag_, " of ", file.bytes(), " bytes with hash ",
                  DigestText(file.ContentHash()));
  }

 private:
  const char* const flag_;
  std::unique_ptr<SequenceDataset> dataset_;
};

// y is a smooth function of x.
class SyntheticRegression : public BatchSource {
 public:
  explicit SyntheticRegression(const TrainConfig& config)
      : seed_(config.seed) {}

  void Fill(int64_t sample, const Row& row) const override {
    const MlpConfig shape;
    SampleRandom random(seed_, sample);
    auto* x = reinterpret_cast<float*>(row.at("x"));
    auto* y = reinterpret_cast<float*>(row.at("y"));
    for (int64_t i = 0; i < shape.inputs; ++i) {
      x[i] = static_cast<float>(random.Symmetric());
    }
    for (int64_t j = 0; j < shape.outputs; ++j) {
      double sum = 0;
      for (int64_t i = 0; i < shape.inputs; ++i) {
        sum += ((i * 7 + j * 3) % 5 - 2) * static_cast<double>(x[i]);
      }
      y[j] = static_cast<float>(std::sin(0.5 * sum));
    }
  }
  std::string Describe() const override { return "synthetic vectors"; }

 private:
  int64_t seed_;
};

}  // namespace

std::unique_ptr<BatchSource> MakeBatchSource(const TrainConfig& config) {
  if (config.model == "mlp") {
    return std::make_unique<SyntheticRegression>(config);
  }
  const SequenceOptions options{config.seq_len, config.vocab_size,
                                static_cast<uint64_t>(config.seed)};
  const bool text = !config.text.empty();
  if (!text && config.tokens.empty()) {
    return std::make_unique<SyntheticTokens>(config);
  }
  try {
    return std::make_unique<FileTokens>(
        text ? "--text" : "--tokens",
        text ? SequenceDataset::OpenText(config.text, options)
             : SequenceDataset::OpenTokens(config.tokens, options));
  } catch (const Error& error) {
    throw error.WithContext(text ? "--text" : "--tokens");
  }
}

Feeds MakeBatch(const BatchSource& source, const Program& program,
                int64_t data_step, int rank) {
  const int64_t micro_steps = program.accumulate_steps;
  Feeds feeds;
  std::map<std::string, int64_t, std::less<>> row_bytes;
  int64_t rows = 0;  // of one micro-step
  for (VarId id : program.vars()) {
    const Var& var = program.var(id);
    if (var.kind != VarKind::kFeed) continue;
    rows = var.shape[micro_steps > 1 ? 1 : 0];
    HostTensor tensor;
    tensor.dtype = var.dtype;
    tensor.shape = var.shape;
    tensor.data.resize(static_cast<size_t>(var.bytes()));
    row_bytes[var.name] = var.bytes() / (micro_steps * rows);
    feeds[var.name] = std::move(tensor);
  }
  for (int64_t micro = 0; micro < micro_steps; ++micro) {
    const int64_t first =
        ((data_step * micro_steps + micro) * program.world_size + rank) * rows;
    for (int64_t b = 0; b < rows; ++b) {
      BatchSource::Row row;
      for (auto& [name, tensor] : feeds) {
        row[name] = tensor.data.data() + (micro * rows + b) * row_bytes[name];
      }
      source.Fill(first + b, row);
    }
  }
  return feeds;
}

}  // namespace plo
