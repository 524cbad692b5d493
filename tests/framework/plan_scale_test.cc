// A program with the memory shape of a sharded, offloaded transformer: how
// tightly it packs, up to 96 layers.
#include <gtest/gtest.h>

#include "tests/framework/plan_test_util.h"

namespace plo {
namespace {

constexpr StreamKind kCompute = StreamKind::kCompute;
constexpr StreamKind kComm = StreamKind::kComm;
constexpr StreamKind kHost = StreamKind::kHost;

struct Model {
  int layers = 4;
  int64_t hidden = 1024;
  int64_t tokens = 4096;
  int64_t vocab = 50304;
  int accumulate_steps = 1;
  int depth = 2;      // buckets in flight
  bool cheap = true;  // recompute norms and activations
};

class Transformer {
 public:
  explicit Transformer(const Model& model) : model_(model) {
    t_.program.world_size = 2;
    t_.program.accumulate_steps = model.accumulate_steps;
    const VarId ids = t_.Add("ids", 4 * model.tokens * model.accumulate_steps,
                             VarKind::kFeed);
    const int64_t h = model.hidden;
    embedding_ = t_.Add("embedding", 2 * model.vocab * h, VarKind::kParam);
    embedding_grad_ = t_.Temp("embedding@grad", 2 * model.vocab * h);
    VarId x = Forward({ids, embedding_}, h);
    for (int i = 0; i < model.layers; ++i) x = ForwardLayer(x, i);
    const VarId loss = t_.Temp("loss", 4);
    VarId dx = t_.Temp("dx_head", 2 * model.tokens * h);
    Scratch({x, embedding_}, {loss}, 40 << 20);
    Scratch({x, embedding_}, {dx, embedding_grad_}, 40 << 20);
    for (int i = model.layers; i-- > 0;) dx = BackwardLayer(dx, i);
    t_.Micro({ids, dx, embedding_grad_}, {embedding_grad_});
    Reduce(model.layers, embedding_grad_, 2 * model.vocab * h);
    const VarId norm = t_.State("norm", 64);
    t_.Update(shards_, {norm});
    Optimize(model.layers, embedding_, 2 * model.vocab * h, norm);
    for (int i = 0; i < model.layers; ++i) {
      Optimize(i, params_[i], Bytes(), norm);
    }
  }

  Plan Build() const {
    PlanOptions options;
    options.fetches = {t_.program.FindVar("norm")};
    return t_.Build(options);
  }
  const Program& program() const { return t_.program; }

 private:
  struct Saved {
    VarId in, ln1, stats1, qkv, attn, lse, sum, ln2, stats2, fc1, gelu;
  };
  int64_t Bytes() const { return 2 * 12 * model_.hidden * model_.hidden; }

  VarId Fresh(int64_t width) {
    return t_.Temp(StrCat("v", next_++), 2 * model_.tokens * width);
  }
  VarId Stats() { return t_.Temp(StrCat("v", next_++), 8 * model_.tokens); }
  VarId Forward(std::vector<VarId> in, int64_t width) {
    const VarId out = Fresh(width);
    t_.Micro(std::move(in), {out});
    return out;
  }
  void Scratch(std::vector<VarId> in, std::vector<VarId> out, int64_t bytes) {
    const OpId op =
        t_.Micro(std::move(in), std::move(out), kCompute, "scratch");
    t_.program.mutable_op(op).attrs.Set("bytes", bytes);
  }

  VarId ForwardLayer(VarId x, int layer) {
    const int64_t h = model_.hidden;
    const VarId p = t_.Add(StrCat("layer", layer), Bytes(), VarKind::kParam);
    params_.push_back(p);
    Saved s;
    s.in = x;
    s.ln1 = Fresh(h);
    s.stats1 = Stats();
    t_.Micro({x, p}, {s.ln1, s.stats1});
    s.qkv = Fresh(3 * h);
    Scratch({s.ln1, p}, {s.qkv}, 8 << 20);
    s.attn = Fresh(h);
    s.lse = Stats();
    t_.Micro({s.qkv}, {s.attn, s.lse});
    const VarId proj = Fresh(h);
    Scratch({s.attn, p}, {proj}, 8 << 20);
    s.sum = Fresh(h);
    s.ln2 = Fresh(h);
    s.stats2 = Stats();
    t_.Micro({x, proj, p}, {s.sum, s.ln2, s.stats2});
    s.fc1 = Fresh(4 * h);
    Scratch({s.ln2, p}, {s.fc1}, 8 << 20);
    s.gelu = Fresh(4 * h);
    t_.Micro({s.fc1}, {s.gelu});
    const VarId fc2 = Fresh(h);
    Scratch({s.gelu, p}, {fc2}, 8 << 20);
    saved_.push_back(s);
    const VarId out = Fresh(h);
    t_.Micro({s.sum, fc2}, {out});
    return out;
  }

  VarId BackwardLayer(VarId dx, int layer) {
    const int64_t h = model_.hidden;
    const VarId p = params_[layer];
    Saved s = saved_[layer];
    const VarId grad = t_.Temp(StrCat("grad", layer), Bytes());
    const auto part = [&](int64_t begin, int64_t parts) {
      return t_.View(StrCat("w", next_++), grad, 2 * begin * h * h,
                     2 * parts * h * h);
    };
    if (model_.cheap) {
      s.gelu = Fresh(4 * h);
      t_.Micro({s.fc1}, {s.gelu});
    }
    const OpId first = t_.Micro({s.gelu, dx}, {part(8, 4)}, kCompute, "op");
    const VarId dgelu = Forward({dx, p}, 4 * h);
    const VarId dfc1 = Fresh(4 * h);
    t_.Micro({s.fc1, dgelu}, {dfc1});
    if (model_.cheap) {
      s.ln2 = Fresh(h);
      t_.Micro({s.sum, p, s.stats2}, {s.ln2});
    }
    t_.Micro({s.ln2, dfc1}, {part(4, 4)});
    const VarId dln2 = Forward({dfc1, p}, h);
    const VarId dnorm2 = Forward({s.sum, s.stats2, dln2, p}, h);
    const VarId dsum = Forward({dnorm2, dx}, h);
    t_.Micro({s.attn, dsum}, {part(3, 1)});
    const VarId dattn = Forward({dsum, p}, h);
    const VarId dqkv = Fresh(3 * h);
    Scratch({s.qkv, s.attn, s.lse, dattn}, {dqkv}, 4 << 20);
    if (model_.cheap) {
      s.ln1 = Fresh(h);
      t_.Micro({s.in, p, s.stats1}, {s.ln1});
    }
    t_.Micro({s.ln1, dqkv}, {part(0, 3)});
    const VarId dln1 = Forward({dqkv, p}, h);
    const VarId dnorm1 = Forward({s.in, s.stats1, dln1, p}, h);
    const VarId din = Forward({dnorm1, dsum}, h);
    Reduce(layer, grad, Bytes());
    const int ahead = layer + model_.depth;
    if (ahead < model_.layers) t_.After(first, copies_[ahead]);
    return din;
  }

  void Reduce(int layer, VarId grad, int64_t bytes) {
    const VarId shard = t_.Temp(StrCat("shard", layer), bytes / 2);
    t_.Micro({grad}, {shard}, kComm, "reduce_scatter");
    const VarId stats = t_.State(StrCat("stats", layer), 64);
    t_.Micro({shard}, {stats}, kComm);
    shards_.push_back(stats);
    const VarId host = t_.Pinned(t_.State(StrCat("host", layer), bytes / 2));
    const OpId copy = t_.Micro({shard}, {host}, StreamKind::kD2H, "transfer");
    copies_.resize(model_.layers + 1);
    copies_[layer] = copy;
  }

  void Optimize(int layer, VarId param, int64_t bytes, VarId norm) {
    const VarId host = t_.program.GetVar(StrCat("host", layer));
    const VarId state = t_.Pinned(t_.State(StrCat("adam", layer), 3 * bytes));
    const VarId slice =
        t_.View(StrCat("slice", layer), param, 0, bytes / 2, bytes / 2);
    t_.Update({host, state, norm}, {state, host}, kHost);
    t_.Update({host}, {slice}, StreamKind::kH2D, "transfer");
    t_.Update({slice}, {param}, kComm, "all_gather");
  }

  const Model model_;
  TestProgram t_;
  int next_ = 0;
  VarId embedding_ = kNoId, embedding_grad_ = kNoId;
  std::vector<VarId> params_, shards_;
  std::vector<Saved> saved_;
  std::vector<OpId> copies_;
};

double Fragmentation(const Plan& plan) {
  return static_cast<double>(plan.device.fragmentation_bytes()) /
         static_cast<double>(plan.device.arena_bytes);
}

TEST(PlanScaleTest, TransformersPackWithinTwoPercent) {
  for (int layers : {1, 2, 4, 12, 24}) {
    for (int steps : {1, 4}) {
      for (bool cheap : {false, true}) {
        Model model;
        model.layers = layers;
        model.accumulate_steps = steps;
        model.cheap = cheap;
        const Transformer transformer(model);
        const Plan plan = transformer.Build();
        EXPECT_LE(Fragmentation(plan), 0.02)
            << layers << " layers, " << steps << " micro-steps, "
            << (cheap ? "recompute" : "no recompute");
        CheckRaces(plan, transformer.program());
      }
    }
  }
}

// Anything quadratic takes minutes here: the test would time out.
TEST(PlanScaleTest, NinetySixLayers) {
  Model model;
  model.layers = 96;
  model.hidden = 12288;
  model.accumulate_steps = 8;
  const Transformer transformer(model);
  const Plan plan = transformer.Build();
  EXPECT_LE(Fragmentation(plan), 0.02);
  CheckRaces(plan, transformer.program());
}

}  // namespace
}  // namespace plo
