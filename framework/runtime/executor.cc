#include "framework/runtime/executor.h"

#include "framework/runtime/executor_core.h"

namespace plo {

struct Executor::Impl : ExecutorCore {
  using ExecutorCore::ExecutorCore;
};

Executor::Executor(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Executor::~Executor() = default;

std::unique_ptr<Executor> Executor::Create(
    const Program& program, Plan plan, Device& device, Comm* comm,
    const ExecutorOptions& options,
    const std::vector<const Program*>& eval_programs) {
  auto impl = std::make_unique<Impl>(program, std::move(plan), device, comm,
                                     options, eval_programs);
  return std::unique_ptr<Executor>(new Executor(std::move(impl)));
}

void Executor::RunStartup() { impl_->RunStartup(); }
StepId Executor::Run(const Feeds& feeds) { return impl_->Run(feeds); }
std::vector<HostTensor> Executor::Fetch(StepId step) {
  return impl_->Fetch(step);
}
std::vector<HostTensor> Executor::RunEval(int index, const Feeds& feeds) {
  return impl_->RunEval(index, feeds);
}
void Executor::Drain() { impl_->Drain(); }
HostTensor Executor::ReadVar(std::string_view name) {
  return impl_->ReadVar(name);
}
void Executor::WriteVar(std::string_view name, const HostTensor& value) {
  impl_->WriteVar(name, value);
}
int64_t Executor::data_step() const { return impl_->data_step; }
void Executor::set_data_step(int64_t step) { impl_->data_step = step; }
const Plan& Executor::plan() const { return impl_->plan; }
const Program& Executor::program() const { return impl_->program; }
MemoryMeasurement Executor::MeasureMemory() { return impl_->MeasureMemory(); }
std::vector<TraceEvent> Executor::TakeTrace() { return impl_->TakeTrace(); }

}  // namespace plo
