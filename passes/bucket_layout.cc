#include "passes/bucket_layout.h"

#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "framework/ir/checked_math.h"

namespace plo {
namespace {

constexpr char kBucketElements[] = "the elements of a bucket";

std::string_view Block(std::string_view region) {
  return region.substr(0, region.find('/'));
}

int64_t AlignUp(int64_t value, int64_t alignment) {
  const int64_t rest = value % alignment;
  return rest == 0 ? value
                   : CheckedAdd(value, alignment - rest, kBucketElements);
}

struct ParamUse {
  VarId param = kNoId;
  std::string_view block;  // of the first reader
  bool tied = false;
};

// All params, in the order of their first use.
std::vector<ParamUse> CollectUses(const Program& program) {
  std::vector<ParamUse> uses;
  std::unordered_map<VarId, size_t> position;
  for (const auto& op : program.ops(Section::kMicro)) {
    if (op->role != Role::kForward) continue;
    for (const Slot& slot : op->inputs) {
      for (VarId v : slot.vars) {
        if (program.var(v).kind != VarKind::kParam) continue;
        const std::string_view block = Block(op->region);
        const auto [it, fresh] = position.emplace(v, uses.size());
        if (fresh) {
          uses.push_back({v, block, false});
        } else if (uses[it->second].block != block) {
          uses[it->second].tied = true;
        }
      }
    }
  }
  for (VarId v : program.Params()) {
    if (position.count(v) == 0) {
      uses.push_back({v, Block(program.var(v).region), false});
    }
  }
  return uses;
}

class BucketMaker {
 public:
  BucketMaker(const Program& program, const BucketLayoutOptions& options)
      : program_(program), options_(options) {}

  void Add(const ParamUse& use) {
    if (use.block != block_) {
      open_.clear();
      block_ = use.block;
    }
    const Var& param = program_.var(use.param);
    PLO_ENFORCE(!param.is_view(), kInvalidArgument, "param ", Describe(param),
                " is a view; only params with bytes of their own go into "
                "buckets");
    const int64_t bytes = param.bytes();
    if (use.tied || bytes > options_.bucket_bytes) {
      Append(NewBucket(param), param);
      return;
    }
    const auto key = std::make_tuple(param.param.trainable, param.dtype);
    auto it = open_.find(key);
    if (it == open_.end() || it->second.bytes > options_.bucket_bytes - bytes) {
      it = open_.insert_or_assign(key, Open{NewBucket(param), 0}).first;
    }
    it->second.bytes += bytes;
    Append(it->second.bucket, param);
  }

  std::vector<Bucket> Finish() {
    const int64_t quantum =
        CheckedMul(kBucketAlignment, options_.degree, kBucketElements);
    for (Bucket& bucket : buckets_) {
      // At least one quantum: a bucket of empty params still has a storage.
      bucket.numel = std::max(AlignUp(bucket.numel, quantum), quantum);
      bucket.shard_numel = bucket.numel / options_.degree;
    }
    return std::move(buckets_);
  }

 private:
  struct Open {
    size_t bucket;
    int64_t bytes;
  };

  size_t NewBucket(const Var& param) {
    Bucket bucket;
    bucket.name = StrCat("bucket", buckets_.size());
    bucket.trainable = param.param.trainable;
    buckets_.push_back(std::move(bucket));
    return buckets_.size() - 1;
  }

  void Append(size_t index, const Var& param) {
    Bucket& bucket = buckets_[index];
    const int64_t offset = AlignUp(bucket.numel, kBucketAlignment);
    const int64_t numel = param.shape.numel();
    bucket.members.push_back({param.id, offset, numel});
    bucket.numel = CheckedAdd(offset, numel, kBucketElements);
  }

  const Program& program_;
  const BucketLayoutOptions options_;
  std::string_view block_;
  std::map<std::tuple<bool, DType>, Open> open_;
  std::vector<Bucket> buckets_;
};

}  // namespace

std::vector<Bucket> LayOutBuckets(const Program& program,
                                  const BucketLayoutOptions& options) {
  BucketMaker maker(program, options);
  for (const ParamUse& use : CollectUses(program)) maker.Add(use);
  return maker.Finish();
}

std::vector<BucketGap> BucketGaps(const Bucket& bucket) {
  std::vector<BucketGap> gaps;
  int64_t end = 0;
  for (const Bucket::Member& member : bucket.members) {
    if (member.offset > end) gaps.push_back({end, member.offset});
    end = member.offset + member.numel;
  }
  if (bucket.numel > end) gaps.push_back({end, bucket.numel});
  return gaps;
}

}  // namespace plo
