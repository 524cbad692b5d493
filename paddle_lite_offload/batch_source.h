// The feeds of each step. Row i of a step's global batch is the same sample on
// any number of ranks and micro-steps.
#ifndef PLO_PADDLE_LITE_OFFLOAD_BATCH_SOURCE_H_
#define PLO_PADDLE_LITE_OFFLOAD_BATCH_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "framework/ir/program.h"
#include "framework/runtime/executor.h"
#include "paddle_lite_offload/train_config.h"

namespace plo {

class BatchSource {
 public:
  virtual ~BatchSource() = default;
  // Where to write one sample of each feed.
  using Row = std::map<std::string, std::byte*, std::less<>>;
  // `sample` counts all samples of the run from 0.
  virtual void Fill(int64_t sample, const Row& row) const = 0;
  // Where the samples come from, such that ranks of the same config that say
  // the same draw the same ones: "--text of 812 bytes with hash ...". Of large
  // files not all bytes count; see DataFile::ContentHash().
  virtual std::string Describe() const = 0;
};

// What the config asks for: text, token file, or synthetic samples that a
// model can learn. Throws NotFound, InvalidArgument.
std::unique_ptr<BatchSource> MakeBatchSource(const TrainConfig& config);

// The feeds of `rank` for a step of `program`, in its dtypes and shapes. Sample
// ((data_step * A + micro) * world + rank) * B + b is row b of micro-step
// `micro`.
Feeds MakeBatch(const BatchSource& source, const Program& program,
                int64_t data_step, int rank);

}  // namespace plo

#endif  // PLO_PADDLE_LITE_OFFLOAD_BATCH_SOURCE_H_
