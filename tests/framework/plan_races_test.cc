// The race checker, and plans of random programs under it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/framework/plan_test_util.h"

namespace plo {
namespace {

using ::testing::HasSubstr;

std::string RaceOf(const Plan& plan, const Program& program, int rank = 0) {
  try {
    CheckRaces(plan, program, rank);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    return error.what();
  }
  return "";
}

TEST(RacesTest, NamesBothOps) {
  TestProgram t;
  const VarId a = t.Temp("a", 64);
  t.Micro({}, {a});
  const OpId read = t.Micro({a}, {}, StreamKind::kComm);
  Plan plan = t.Build();
  plan.graphs[0].launches[LaunchOf(plan, read)].waits.clear();
  EXPECT_THAT(RaceOf(plan, t.program),
              HasSubstr("op 'op' #1 on stream comm is not ordered after op "
                        "'op' #0 on stream compute"));
}

TEST(RacesTest, ReadsMustSeeTheStorageTheyName) {
  TestProgram t;
  const VarId a = t.Temp("a", 64);
  const VarId b = t.Temp("b", 64);
  t.Micro({}, {a});
  t.Micro({}, {b});
  t.Micro({a}, {});
  t.Micro({b}, {});
  Plan plan = t.Build();
  // As if a's lifetime had been cut short: one stream, so no race, but a is
  // gone when it is read.
  plan.storages[0].offset = plan.storages[1].offset = 0;
  EXPECT_THAT(RaceOf(plan, t.program),
              HasSubstr("op 'op' #2 reads bytes 0..64 of device memory as 'a', "
                        "but they were last written as 'b' by op 'op' #1"));
}

TEST(RacesTest, TempsMustBeWrittenFirst) {
  TestProgram t;
  const VarId a = t.Temp("a", 64);
  t.Micro({a}, {});
  const Plan plan = t.Build();
  EXPECT_THAT(RaceOf(plan, t.program), HasSubstr("last written never"));
}

TEST(RacesTest, ATempOnTopOfAParamIsFound) {
  TestProgram t;
  const VarId p = t.Add("p", 64, VarKind::kParam);
  const VarId a = t.Temp("a", 64);
  t.Micro({p}, {a});
  t.Micro({a}, {});
  Plan plan = t.Build();
  plan.storages[1].offset = 32;
  EXPECT_THAT(RaceOf(plan, t.program), HasSubstr("as 'p'"));
}

TEST(RacesTest, OperandsMustLieInTheirStorage) {
  TestProgram t;
  const VarId s = t.State("s", 256);
  t.Micro({}, {t.View("slice", s, 0, 128, 128)});
  const Plan plan = t.Build();
  EXPECT_EQ(RaceOf(plan, t.program, 1), "");
  EXPECT_THAT(RaceOf(plan, t.program, 2),
              HasSubstr("touches bytes 256..384 of 's', which has 256"));
}

TEST(RacesTest, RanksLookAtTheirOwnSlices) {
  TestProgram t;
  t.program.world_size = 2;
  const VarId s = t.State("s", 256);
  const VarId slice = t.View("slice", s, 0, 128, 128);
  const VarId high = t.View("high", s, 128, 128);
  t.Micro({}, {slice});
  const OpId read = t.Micro({high}, {}, StreamKind::kComm);
  Plan plan = t.Build();
  plan.graphs[0].launches[LaunchOf(plan, read)].waits.clear();
  EXPECT_EQ(RaceOf(plan, t.program, 0), "");
  EXPECT_THAT(RaceOf(plan, t.program, 1), HasSubstr("race"));
}

// --- Random programs ---

struct FuzzOptions {
  bool control_edges = true;
};

class RandomProgram {
 public:
  RandomProgram(uint32_t seed, FuzzOptions options)
      : random_(seed), options_(options) {
    program_.program.accumulate_steps = Pick(1, 4);
    program_.program.world_size = Pick(1, 3);
    for (int i = Pick(1, 3); i > 0; --i) {
      const VarId s = program_.State(StrCat("s", i), 4 * Pick(1, 300));
      AddViews(s);
      states_.push_back(s);
    }
    if (Pick(0, 2) == 0) {
      micro_.push_back(program_.Add("feed", 128, VarKind::kFeed));
    }
    const int count = Pick(3, 25);
    for (int i = 0; i < count; ++i) Add(Section::kMicro);
    update_ = micro_;
    const int updates = Pick(0, 12);
    for (int i = 0; i < updates; ++i) Add(Section::kUpdate);
    if (options_.control_edges) AddEdges();
  }

  TestProgram& get() { return program_; }

  Plan Build() {
    PlanOptions options;
    if (!micro_.empty()) options.fetches = {micro_.back()};
    return program_.Build(options);
  }

 private:
  int Pick(int low, int high) {
    return low + static_cast<int>(random_() % (high - low + 1));
  }
  template <typename T>
  const T& PickOf(const std::vector<T>& from) {
    return from[random_() % from.size()];
  }

  void AddViews(VarId of) {
    const int64_t bytes = program_.program.var(of).bytes();
    for (int i = Pick(0, 2); i > 0; --i) {
      const int64_t begin = 4 * Pick(0, static_cast<int>(bytes / 4) - 1);
      const int64_t length = 4 * Pick(1, static_cast<int>((bytes - begin) / 4));
      states_.push_back(program_.View(program_.program.UniqueName("view"), of,
                                      begin, length));
    }
  }

  StreamKind Stream() {
    return Pick(0, 2) > 0 ? StreamKind::kCompute
                          : static_cast<StreamKind>(Pick(1, 4));
  }

  void Add(Section section) {
    Pick(0, 7) == 0 ? AddBucket(section) : AddOp(section);
  }

  void AddOp(Section section) {
    std::vector<VarId>& temps = section == Section::kMicro ? micro_ : update_;
    std::vector<VarId> in, out;
    for (int i = Pick(0, 2); i > 0 && !temps.empty(); --i) {
      in.push_back(PickOf(temps));
    }
    if (Pick(0, 3) == 0) in.push_back(PickOf(states_));
    if (Pick(0, 3) == 0) out.push_back(PickOf(states_));
    const StreamKind stream = Stream();
    std::string type = "op";
    if (Pick(0, 3) > 0) {
      const bool unary = in.size() == 1 && out.empty() && Pick(0, 1) == 0;
      const int64_t bytes =
          unary ? program_.program.var(in[0]).bytes() : 4 * Pick(1, 300);
      if (unary) type = "unary";
      const VarId temp = program_.Temp(program_.program.UniqueName("t"), bytes);
      out.push_back(temp);
      temps.push_back(temp);
    }
    ops_.push_back(program_.Op(section, stream, in, out, type));
    if (type == "op" && Pick(0, 4) == 0) {
      program_.program.mutable_op(ops_.back()).type = "scratch";
      program_.program.mutable_op(ops_.back())
          .attrs.Set("bytes", 4 * Pick(1, 300));
    }
    if (section == Section::kMicro && Pick(0, 5) == 0) {
      program_.program.mutable_op(ops_.back()).first_micro_only = true;
    }
  }

  // A temp filled piece by piece, its gaps cleared, then updated in place.
  void AddBucket(Section section) {
    const VarId bucket =
        program_.Temp(program_.program.UniqueName("bucket"), 768);
    for (int i = 0; i < 3; ++i) {
      const VarId piece = program_.View(program_.program.UniqueName("piece"),
                                        bucket, 256 * i, 4 * Pick(1, 64));
      ops_.push_back(program_.Op(section, Stream(), {}, {piece}));
      if (Pick(0, 2) == 0) AddOp(section);
    }
    for (int i = Pick(1, 2); i > 0; --i) {
      ops_.push_back(program_.Op(section, Stream(), {bucket}, {bucket}));
    }
    (section == Section::kMicro ? micro_ : update_).push_back(bucket);
  }

  void AddEdges() {
    for (int i = Pick(0, 4); i > 0; --i) {
      const OpId op = PickOf(ops_), earlier = PickOf(ops_);
      if (op != earlier) program_.After(op, earlier);
    }
  }

  std::mt19937 random_;
  FuzzOptions options_;
  TestProgram program_;
  std::vector<VarId> states_, micro_, update_;
  std::vector<OpId> ops_;
};

TEST(PlanFuzzTest, PlansOfRandomProgramsHaveNoRaces) {
  for (uint32_t seed = 0; seed < 1500; ++seed) {
    RandomProgram random(seed, {});
    const Plan plan = random.Build();
    const std::string race = RaceOf(plan, random.get().program);
    ASSERT_EQ(race, "") << "seed " << seed << "\n"
                        << plan.ToString(random.get().program);
  }
}

TEST(PlanFuzzTest, EveryWaitIsNeeded) {
  int removed = 0;
  for (uint32_t seed = 0; seed < 600; ++seed) {
    RandomProgram random(seed, {.control_edges = false});
    const Plan plan = random.Build();
    for (size_t i = 0; i < plan.graphs[0].launches.size(); ++i) {
      for (size_t w = 0; w < plan.graphs[0].launches[i].waits.size(); ++w) {
        Plan broken = plan;
        auto& waits = broken.graphs[0].launches[i].waits;
        waits.erase(waits.begin() + w);
        ++removed;
        ASSERT_NE(RaceOf(broken, random.get().program), "")
            << "seed " << seed << ": launch " << i << " without its wait " << w
            << "\n"
            << plan.ToString(random.get().program);
      }
    }
  }
  EXPECT_GT(removed, 1000);
}

// Moving a storage onto another one that lives at the same time must be seen.
TEST(PlanFuzzTest, OverlappingOffsetsAreFound) {
  int moved = 0;
  for (uint32_t seed = 0; seed < 150; ++seed) {
    RandomProgram random(seed, {});
    const Plan plan = random.Build();
    const LaunchIndex none = -1;
    std::vector<LaunchIndex> written(plan.storages.size(), none);
    std::vector<LaunchIndex> read = written;
    const auto& launches = plan.graphs[0].launches;
    for (size_t i = 0; i < launches.size(); ++i) {
      for (const Operand& operand : launches[i].operands) {
        LaunchIndex& write = written[operand.storage];
        if (operand.write && write < 0) write = static_cast<LaunchIndex>(i);
        if (operand.read) read[operand.storage] = static_cast<LaunchIndex>(i);
      }
    }
    for (size_t a = 0; a < plan.storages.size(); ++a) {
      for (size_t b = 0; b < plan.storages.size(); ++b) {
        const Storage& low = plan.storages[a];
        const Storage& high = plan.storages[b];
        // `high` is written between the write and the last read of `low`.
        if (low.persistent || high.persistent || low.place != high.place ||
            written[b] <= written[a] || written[b] >= read[a] ||
            launches[written[b]].first_micro_only !=
                launches[read[a]].first_micro_only) {
          continue;
        }
        Plan broken = plan;
        broken.storages[b].offset = low.offset;
        broken.device.arena_bytes += high.bytes;
        broken.pinned.arena_bytes += high.bytes;
        ++moved;
        ASSERT_NE(RaceOf(broken, random.get().program), "")
            << "seed " << seed << ": '" << high.name << "' over '" << low.name
            << "'\n"
            << plan.ToString(random.get().program);
      }
    }
  }
  EXPECT_GT(moved, 300);
}

TEST(PlanFuzzTest, PlansAreDeterministic) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    RandomProgram a(seed, {}), b(seed, {});
    EXPECT_EQ(a.Build().ToString(a.get().program),
              b.Build().ToString(b.get().program));
  }
}

}  // namespace
}  // namespace plo
