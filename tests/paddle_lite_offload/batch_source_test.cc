#include "paddle_lite_offload/batch_source.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace plo {
namespace {

std::vector<int32_t> Ints(const HostTensor& tensor) {
  std::vector<int32_t> values(tensor.data.size() / sizeof(int32_t));
  std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  return values;
}

// A program with the feeds of `ranks` ranks, as the passes would leave them.
Program WithFeeds(int64_t micro_steps, int64_t rows, int ranks, int64_t seq) {
  Program program;
  program.accumulate_steps = static_cast<int>(micro_steps);
  program.world_size = ranks;
  for (const char* name : {"tokens", "labels"}) {
    Var var;
    var.name = name;
    var.dtype = DType::kInt32;
    var.kind = VarKind::kFeed;
    var.shape =
        micro_steps > 1 ? Shape{micro_steps, rows, seq} : Shape{rows, seq};
    program.AddVar(std::move(var));
  }
  return program;
}

TEST(BatchSource, GlobalBatchIsTheSameOnAnyLayout) {
  TrainConfig config;
  config.seq_len = 5;
  config.vocab_size = 17;
  const auto source = MakeBatchSource(config);
  // Twelve samples of step 3: by one rank at once, or by two ranks in three
  // micro-steps of two rows.
  const Feeds whole = MakeBatch(*source, WithFeeds(1, 12, 1, 5), 3, 0);
  const Program split = WithFeeds(3, 2, 2, 5);
  for (const char* name : {"tokens", "labels"}) {
    const std::vector<int32_t> expected = Ints(whole.at(name));
    std::vector<int32_t> got(expected.size());
    for (int rank = 0; rank < 2; ++rank) {
      const std::vector<int32_t> part =
          Ints(MakeBatch(*source, split, 3, rank).at(name));
      for (int64_t micro = 0; micro < 3; ++micro) {
        const int64_t row = (micro * 2 + rank) * 2;
        std::copy_n(part.begin() + micro * 10, 10, got.begin() + row * 5);
      }
    }
    EXPECT_EQ(got, expected);
  }
}

TEST(BatchSource, LabelsAreTheNextTokens) {
  TrainConfig config;
  config.seq_len = 9;
  config.vocab_size = 300;
  const auto source = MakeBatchSource(config);
  const Feeds feeds = MakeBatch(*source, WithFeeds(1, 1, 1, 9), 0, 0);
  const auto tokens = Ints(feeds.at("tokens"));
  const auto labels = Ints(feeds.at("labels"));
  for (int i = 0; i + 1 < 9; ++i) EXPECT_EQ(labels[i], tokens[i + 1]);
  for (int32_t token : tokens) {
    EXPECT_GE(token, 0);
    EXPECT_LT(token, 300);
  }
}

TEST(BatchSource, SeedChangesTheSamples) {
  TrainConfig config;
  config.seq_len = 9;
  const auto one = MakeBatchSource(config);
  config.seed = 1;
  const auto two = MakeBatchSource(config);
  const Program program = WithFeeds(1, 1, 1, 9);
  EXPECT_NE(Ints(MakeBatch(*one, program, 0, 0).at("tokens")),
            Ints(MakeBatch(*two, program, 0, 0).at("tokens")));
}

}  // namespace
}  // namespace plo
