#include "passes/bucket_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace plo {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A forward program of ops that only say who reads which param where.
class LayoutTest : public ::testing::Test {
 protected:
  VarId Param(const std::string& name, int64_t numel, bool trainable = true,
              DType dtype = DType::kFp32) {
    Var var;
    var.name = name;
    var.dtype = dtype;
    var.shape = {numel};
    var.kind = VarKind::kParam;
    var.region = "made_here";
    var.param.trainable = trainable;
    return program_.AddVar(var);
  }
  void Read(const std::string& region, std::vector<VarId> params,
            Role role = Role::kForward) {
    OpSpec spec;
    spec.type = "reader";
    spec.inputs = {{"x", std::move(params)}};
    spec.region = region;
    spec.role = role;
    program_.Append(Section::kMicro, std::move(spec));
  }
  // Names of the members of each bucket.
  std::vector<std::vector<std::string>> Names(
      const std::vector<Bucket>& buckets) const {
    std::vector<std::vector<std::string>> names;
    for (const Bucket& bucket : buckets) {
      names.emplace_back();
      for (const Bucket::Member& member : bucket.members) {
        names.back().push_back(program_.var(member.param).name);
      }
    }
    return names;
  }

  Program program_;
};

TEST_F(LayoutTest, MembersAreAlignedAndEveryRankOwnsTheSame) {
  const VarId a = Param("a", 130), b = Param("b", 1), c = Param("c", 128);
  Read("layer0/fc", {a, b, c});
  const auto buckets = LayOutBuckets(program_, {.degree = 3});
  ASSERT_EQ(buckets.size(), 1u);
  EXPECT_THAT(buckets[0].members,
              ElementsAre(Bucket::Member{a, 0, 130}, Bucket::Member{b, 256, 1},
                          Bucket::Member{c, 384, 128}));
  EXPECT_EQ(buckets[0].numel, 768);  // 512 up to a multiple of 3 * 128
  EXPECT_EQ(buckets[0].shard_numel, 256);
  const auto gaps = BucketGaps(buckets[0]);
  ASSERT_EQ(gaps.size(), 3u);
  EXPECT_EQ(gaps[0].begin, 130);
  EXPECT_EQ(gaps[0].end, 256);
  EXPECT_EQ(gaps[1].begin, 257);
  EXPECT_EQ(gaps[2].begin, 512);
  EXPECT_EQ(gaps[2].end, 768);
}

TEST_F(LayoutTest, FollowsForwardOrderAndBlocks) {
  const VarId a = Param("a", 8), b = Param("b", 8), c = Param("c", 8);
  Read("layer0/fc", {c});
  Read("layer0/norm", {a});
  Read("layer1/fc", {b});
  EXPECT_THAT(Names(LayOutBuckets(program_, {})),
              ElementsAre(ElementsAre("c", "a"), ElementsAre("b")));
}

TEST_F(LayoutTest, CapsBucketsAndGivesLargeParamsTheirOwn) {
  const VarId a = Param("a", 100), big = Param("big", 300), b = Param("b", 100),
              c = Param("c", 100);
  Read("layer0", {a, big, b, c});
  EXPECT_THAT(
      Names(LayOutBuckets(program_, {.degree = 1, .bucket_bytes = 800})),
      ElementsAre(ElementsAre("a", "b"), ElementsAre("big"), ElementsAre("c")));
}

TEST_F(LayoutTest, TiedParamsStandAlone) {
  const VarId table = Param("table", 8), pos = Param("pos", 8);
  const VarId twice = Param("twice", 8);
  Read("embedding", {table, pos});
  Read("layer0/a", {twice});
  Read("layer0/b", {twice});
  Read("head", {table});
  EXPECT_THAT(Names(LayOutBuckets(program_, {})),
              ElementsAre(ElementsAre("table"), ElementsAre("pos"),
                          ElementsAre("twice")));
}

TEST_F(LayoutTest, BackwardReadersDoNotTie) {
  const VarId a = Param("a", 8), b = Param("b", 8);
  Read("layer0", {a, b});
  Read("layer1", {a}, Role::kBackward);
  EXPECT_THAT(Names(LayOutBuckets(program_, {})),
              ElementsAre(ElementsAre("a", "b")));
}

TEST_F(LayoutTest, SeparatesFrozenParamsAndDTypes) {
  const VarId a = Param("a", 8), frozen = Param("frozen", 8, false),
              half = Param("half", 8, true, DType::kBf16), b = Param("b", 8);
  Read("layer0", {a, frozen, half, b});
  const auto buckets = LayOutBuckets(program_, {});
  EXPECT_THAT(Names(buckets),
              ElementsAre(ElementsAre("a", "b"), ElementsAre("frozen"),
                          ElementsAre("half")));
  EXPECT_TRUE(buckets[0].trainable);
  EXPECT_FALSE(buckets[1].trainable);
}

TEST_F(LayoutTest, UnusedParamsComeLast) {
  Param("unused", 8);
  const VarId a = Param("a", 8);
  Read("layer0", {a});
  EXPECT_THAT(Names(LayOutBuckets(program_, {})),
              ElementsAre(ElementsAre("a"), ElementsAre("unused")));
}

TEST_F(LayoutTest, MoreRanksThanElementsAndEmptyParams) {
  const VarId empty = Param("empty", 0);
  Read("layer0", {empty});
  const auto buckets = LayOutBuckets(program_, {.degree = 1000});
  ASSERT_EQ(buckets.size(), 1u);
  EXPECT_EQ(buckets[0].numel, 128000);
  EXPECT_EQ(buckets[0].shard_numel, 128);
  ASSERT_EQ(BucketGaps(buckets[0]).size(), 1u);
  EXPECT_EQ(BucketGaps(buckets[0])[0].end, 128000);
}

TEST_F(LayoutTest, AFullBucketHasNoGap) {
  const VarId a = Param("a", 128), b = Param("b", 128);
  Read("layer0", {a, b});
  EXPECT_THAT(BucketGaps(LayOutBuckets(program_, {.degree = 2})[0]), IsEmpty());
}

TEST_F(LayoutTest, RefusesParamsThatAreViews) {
  const VarId a = Param("a", 128), b = Param("b", 64);
  program_.mutable_var(b).view_of = a;
  Read("layer0", {b});
  EXPECT_THROW(LayOutBuckets(program_, {}), Error);
}

}  // namespace
}  // namespace plo
