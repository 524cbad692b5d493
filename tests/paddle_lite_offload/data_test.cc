#include "paddle_lite_offload/data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <set>
#include <vector>

#include "framework/ir/error.h"
#include "tests/framework/unprivileged.h"

namespace plo {
namespace {

using testing::HasSubstr;

// A file that lives as long as the test.
class DataTest : public testing::Test {
 protected:
  DataTest()
      : path_(testing::TempDir() + "plo_data_" + std::to_string(getpid())) {}
  ~DataTest() override { std::remove(path_.c_str()); }

  void Write(const std::string& content) const {
    std::ofstream(path_, std::ios::binary) << content;
  }
  template <typename T>
  void WriteIds(const std::vector<T>& ids) const {
    Write(std::string(reinterpret_cast<const char*>(ids.data()),
                      ids.size() * sizeof(T)));
  }

  template <typename Function>
  static std::string ErrorOf(const Function& function) {
    try {
      function();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  std::string TextError(const SequenceOptions& options) const {
    return ErrorOf([&] { SequenceDataset::OpenText(path_, options); });
  }
  std::string TokenError(const SequenceOptions& options) const {
    return ErrorOf([&] { SequenceDataset::OpenTokens(path_, options); });
  }

  const std::string path_;
};

std::string Letters(int64_t count) {
  std::string text;
  for (int64_t i = 0; i < count; ++i) {
    text += static_cast<char>('a' + i % 23);
  }
  return text;
}

TEST_F(DataTest, LabelsAreTheNextTokens) {
  const std::string text = Letters(1000) + "\xff";
  Write(text);
  const auto data = SequenceDataset::OpenText(path_, {16, 256, 3});
  EXPECT_EQ(data->token_count(), 1001);
  std::vector<int32_t> tokens(16), labels(16);
  for (int64_t sample = 0; sample < 200; ++sample) {
    data->Fill(sample, tokens.data(), labels.data());
    const int64_t start = data->StartOf(sample);
    for (int64_t i = 0; i < 16; ++i) {
      ASSERT_EQ(tokens[i], static_cast<uint8_t>(text[start + i]));
      ASSERT_EQ(labels[i], static_cast<uint8_t>(text[start + i + 1]));
    }
  }
}

TEST_F(DataTest, EpochVisitsEveryWindowOnce) {
  for (int64_t count : {17, 33, 50, 1000, 4099}) {
    Write(Letters(count));
    const auto data = SequenceDataset::OpenText(path_, {16, 256, 7});
    const int64_t windows = data->epoch_samples();
    ASSERT_GE(windows, 1);
    std::set<std::vector<int64_t>> orders;
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      std::set<int64_t> starts;
      std::vector<int64_t> order;
      for (int64_t i = 0; i < windows; ++i) {
        const int64_t start = data->StartOf(epoch * windows + i);
        EXPECT_GE(start, 0);
        EXPECT_LE(start + 16, count - 1);
        starts.insert(start);
        order.push_back(start);
      }
      EXPECT_EQ(static_cast<int64_t>(starts.size()), windows) << count;
      // Windows touch and do not overlap.
      EXPECT_EQ(*starts.rbegin() - *starts.begin(), (windows - 1) * 16);
      orders.insert(order);
    }
    if (windows > 10) {
      EXPECT_EQ(orders.size(), 3u);
    }
  }
}

TEST_F(DataTest, SamplesDependOnSeedAndNumberOnly) {
  Write(Letters(5000));
  const auto a = SequenceDataset::OpenText(path_, {16, 256, 1});
  const auto b = SequenceDataset::OpenText(path_, {16, 256, 1});
  const auto c = SequenceDataset::OpenText(path_, {16, 256, 2});
  int differences = 0;
  for (int64_t sample = 999; sample >= 0; --sample) {
    EXPECT_EQ(a->StartOf(sample), b->StartOf(sample));
    differences += a->StartOf(sample) != c->StartOf(sample);
  }
  EXPECT_GT(differences, 900);
}

TEST_F(DataTest, ShortestUsableFile) {
  Write(Letters(17));
  const auto data = SequenceDataset::OpenText(path_, {16, 256, 0});
  EXPECT_EQ(data->epoch_samples(), 1);
  EXPECT_EQ(data->StartOf(12345), 0);
}

TEST_F(DataTest, TokensAreUint16WhereTheVocabularyFits) {
  WriteIds<uint16_t>({5, 60000, 7, 65535, 1});
  const auto data = SequenceDataset::OpenTokens(path_, {4, 65536, 0});
  std::vector<int32_t> tokens(4), labels(4);
  data->Fill(0, tokens.data(), labels.data());
  EXPECT_THAT(tokens, testing::ElementsAre(5, 60000, 7, 65535));
  EXPECT_THAT(labels, testing::ElementsAre(60000, 7, 65535, 1));
}

TEST_F(DataTest, TokensAreUint32ForLargerVocabularies) {
  WriteIds<uint32_t>({5, 70000, 100});
  const auto data = SequenceDataset::OpenTokens(path_, {2, 70001, 0});
  std::vector<int32_t> tokens(2), labels(2);
  data->Fill(0, tokens.data(), labels.data());
  EXPECT_THAT(tokens, testing::ElementsAre(5, 70000));
  EXPECT_THAT(labels, testing::ElementsAre(70000, 100));
}

TEST_F(DataTest, TokenOutOfRangeIsNamedWithItsPosition) {
  WriteIds<uint16_t>({5, 6, 300, 1, 2});
  EXPECT_EQ(TokenError({2, 300, 0}),
            "InvalidArgument: token id 300 at position 2 of \"" + path_ +
                "\" is out of range [0, 300)");
  Write("abcdef");
  EXPECT_THAT(TextError({2, 100, 0}),
              HasSubstr("token id 100 at position 3 of"));
  WriteIds<uint32_t>({1, 0xFFFFFFFF, 2});
  EXPECT_THAT(TokenError({2, 100000, 0}),
              HasSubstr("token id 4294967295 at position 1 of"));
}

TEST_F(DataTest, LargeFilesAreCheckedAsTheyAreRead) {
  // Sparse: one bad id behind 65 MiB of zeros.
  Write("");
  ASSERT_EQ(truncate(path_.c_str(), 65 << 20), 0);
  std::ofstream(path_, std::ios::binary | std::ios::app) << "\xff\xff";
  const int64_t tokens = (65 << 19) + 1;
  const auto data = SequenceDataset::OpenTokens(path_, {(65 << 19), 500, 0});
  std::vector<int32_t> x(65 << 19), y(65 << 19);
  EXPECT_EQ(ErrorOf([&] { data->Fill(0, x.data(), y.data()); }),
            StrCat("InvalidArgument: token id 65535 at position ", tokens - 1,
                   " of \"", path_, "\" is out of range [0, 500)"));
}

TEST_F(DataTest, BadFilesAreNamed) {
  EXPECT_EQ(TextError({}), "NotFound: no file \"" + path_ + "\"");
  Write("");
  EXPECT_EQ(TextError({}), "InvalidArgument: \"" + path_ + "\" is empty");
  Write(Letters(128));
  EXPECT_EQ(TextError({128, 256, 0}),
            "InvalidArgument: \"" + path_ +
                "\" has 128 tokens, fewer than seq_len + 1 = 129");
  Write("abc");
  EXPECT_EQ(TokenError({1, 256, 0}),
            "InvalidArgument: \"" + path_ +
                "\" has 3 bytes, which is no whole number of 2-byte tokens "
                "(vocab_size 256)");
  EXPECT_EQ(ErrorOf([] { SequenceDataset::OpenText("/", {}); }),
            "InvalidArgument: \"/\" is a directory");
  EXPECT_EQ(ErrorOf([] { SequenceDataset::OpenText("/dev/null", {}); }),
            "InvalidArgument: \"/dev/null\" is not a regular file");
}

TEST_F(DataTest, TheHashSeesAllOfASmallFile) {
  std::set<uint64_t> hashes;
  for (const char* text : {"abcdefghij", "abcdefghix", "xbcdefghij", "abcde"}) {
    Write(text);
    hashes.insert(DataFile(path_).ContentHash());
  }
  EXPECT_EQ(hashes.size(), 4u);
}

TEST_F(DataTest, TheHashSeesTheEndsOfALargeFileAndPagesBetween) {
  constexpr int64_t kBytes = 80 << 20;
  const auto hash_with = [&](int64_t changed) {
    Write("");
    EXPECT_EQ(truncate(path_.c_str(), kBytes), 0);
    std::fstream file(path_, std::ios::binary | std::ios::in | std::ios::out);
    if (changed >= 0) file.seekp(changed).put('x');
    file.close();
    return DataFile(path_).ContentHash();
  };
  std::set<uint64_t> hashes = {hash_with(-1)};
  for (const int64_t at :
       {int64_t{0}, int64_t{(1 << 20) - 1}, kBytes / 2, kBytes - 1}) {
    hashes.insert(hash_with(at));
  }
  EXPECT_EQ(hashes.size(), 5u);
}

TEST_F(DataTest, FileThatChangesWhileItIsRead) {
  Write(Letters(4096));
  const auto data = SequenceDataset::OpenText(path_, {16, 200, 0});
  std::vector<int32_t> x(16), y(16);
  const auto fill_all = [&] {
    for (int64_t i = 0; i < data->epoch_samples(); ++i) {
      data->Fill(i, x.data(), y.data());
    }
  };
  fill_all();
  ASSERT_EQ(truncate(path_.c_str(), 10), 0);
  EXPECT_EQ(ErrorOf([&] {
              data->Fill(0, x.data(), y.data());
            }).find("DataLoss: \"" + path_ + "\" had 4096 bytes when"),
            0u);
  Write(std::string(4096, '\xff'));
  EXPECT_THAT(ErrorOf(fill_all), HasSubstr("token id 255 at position"));
}

TEST_F(DataTest, FifoDoesNotBlock) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(TextError({}),
            "InvalidArgument: \"" + path_ + "\" is not a regular file");
}

TEST_F(DataTest, UnreadableFileIsNamed) {
  Write("secret");
  chmod(path_.c_str(), 0);
  const Unprivileged user({path_});
  if (!user) GTEST_SKIP() << "root may read every file";
  EXPECT_EQ(TextError({}), "InvalidArgument: cannot read \"" + path_ +
                               "\": Permission denied");
}

}  // namespace
}  // namespace plo
