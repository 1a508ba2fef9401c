#include "planner/program_runner.h"

#include "absl/strings/str_cat.h"
#include "planner/base/check.h"

namespace lime {
namespace {

constexpr int32_t kPages = -1;  // in the place of a micro-batch: pages of a layer

template <typename... What>
absl::Status Wrong(const What&... what) {
  return absl::InvalidArgumentError(absl::StrCat("program runner: ", what...));
}

}  // namespace

ProgramRunner::ProgramRunner(std::vector<const Program*> programs, int64_t loads_limit, int loads_under_way)
    : programs_(std::move(programs)), loads_limit_(loads_limit), loads_under_way_(loads_under_way) {
  LIME_CHECK(!programs_.empty());
  LIME_CHECK_GE(loads_under_way, 1);
  for (const Program* program : programs_) {
    LIME_CHECK(program->loads == loads()) << "loads of device " << program->device;
    for (const Instruction& instruction : program->step) {
      if (const auto* recv = std::get_if<Recv>(&instruction)) arrivals_[{recv->stage, recv->microbatch}] = 0;
      if (const auto* await = std::get_if<AwaitKv>(&instruction)) arrivals_[{await->layer, kPages}] = 0;
    }
  }
}

absl::Status ProgramRunner::OnEvent(const Event& event, double now_ms, std::vector<Action>& actions) {
  LIME_RETURN_IF_ERROR(std::visit([this](const auto& typed) { return On(typed); }, event));
  Advance(now_ms, actions);
  TryLoad(actions);
  return absl::OkStatus();
}

const Instruction* ProgramRunner::waiting() const {
  return computing_ || steps_.empty() ? nullptr : &programs_[steps_.front()]->step[at_];
}

absl::Status ProgramRunner::On(const BeginStep& event) {
  if (event.program < 0 || event.program >= static_cast<int32_t>(programs_.size())) return Wrong("no program ", event.program);
  if (static_cast<int64_t>(steps_.size()) >= kMaxAhead) return Wrong(kMaxAhead, " steps were begun already");
  steps_.push_back(event.program);
  return absl::OkStatus();
}

absl::Status ProgramRunner::On(const Arrived& event) {
  if (event.microbatch < 0) return Wrong("no micro-batch ", event.microbatch);
  return CountArrival({event.stage, event.microbatch});
}

absl::Status ProgramRunner::On(const KvArrived& event) {
  return CountArrival({event.layer, kPages});
}

absl::Status ProgramRunner::CountArrival(std::pair<int32_t, int32_t> key) {
  const auto found = arrivals_.find(key);
  if (found == arrivals_.end()) return Wrong("nothing is awaited for stage or layer ", key.first, ", micro-batch ", key.second);
  if (found->second >= kMaxAhead) return Wrong(kMaxAhead, " messages are early for stage or layer ", key.first);
  ++found->second;
  return absl::OkStatus();
}

absl::Status ProgramRunner::On(const Loaded& event) {
  if (loads_ended_ == loads_begun_ || event.load != loads_ended_) return Wrong("load ", event.load, " is not under way");
  ++loads_ended_;
  return absl::OkStatus();
}

absl::Status ProgramRunner::On(const Computed&) {
  if (!computing_) return Wrong("nothing is being computed");
  computing_ = false;
  ++at_;
  return absl::OkStatus();
}

void ProgramRunner::Advance(double now_ms, std::vector<Action>& actions) {
  while (!computing_ && !steps_.empty()) {
    const std::vector<Instruction>& step = programs_[steps_.front()]->step;
    if (at_ == step.size()) {
      actions.push_back(StepEnded{step_++});
      steps_.pop_front();
      at_ = 0;
      continue;
    }
    const Instruction& instruction = step[at_];
    const size_t before = actions.size();
    if (!std::visit([&](const auto& typed) { return Do(typed, actions); }, instruction)) {
      if (!computing_ && waiting_since_ms_ < 0) waiting_since_ms_ = now_ms;
      return;
    }
    if (waiting_since_ms_ >= 0) {
      const Waited waited{step_, instruction, waiting_since_ms_, now_ms};
      waiting_since_ms_ = -1;
      if (now_ms > waited.begin_ms) actions.insert(actions.begin() + static_cast<std::ptrdiff_t>(before), waited);
    }
    ++at_;
  }
}

void ProgramRunner::TryLoad(std::vector<Action>& actions) {
  while (!loads().empty() && loads_begun_ - loads_ended_ < loads_under_way_ && loads_begun_ < loads_limit_) {
    const Prefetch& load = loads()[loads_begun_ % static_cast<int64_t>(loads().size())];
    if (loads_begun_ - load.window >= evicted_) return;  // negative: there has always been room
    actions.push_back(StartLoad{loads_begun_++, load});
  }
}

bool ProgramRunner::TakeArrival(std::pair<int32_t, int32_t> key) {
  int64_t& count = arrivals_.at(key);
  if (count == 0) return false;
  --count;
  return true;
}

bool ProgramRunner::Do(const Recv& recv, std::vector<Action>&) {
  return TakeArrival({recv.stage, recv.microbatch});
}

bool ProgramRunner::Do(const AwaitWeights& await, std::vector<Action>&) {
  return loads_ended_ > step_ * static_cast<int64_t>(loads().size()) + await.load;
}

bool ProgramRunner::Do(const AwaitKv& await, std::vector<Action>&) {
  return TakeArrival({await.layer, kPages});
}

bool ProgramRunner::Do(const Compute& compute, std::vector<Action>& actions) {
  computing_ = true;
  actions.push_back(StartCompute{step_, compute});
  return false;
}

bool ProgramRunner::Do(const Evict& evict, std::vector<Action>& actions) {
  actions.push_back(Release{evicted_++, loads()[evict.load].bytes});
  return true;
}

bool ProgramRunner::Do(const Send& send, std::vector<Action>& actions) {
  actions.push_back(StartSend{step_, send});
  return true;
}

bool ProgramRunner::Do(const SendKv& send, std::vector<Action>& actions) {
  actions.push_back(StartSendKv{step_, send});
  return true;
}

}  // namespace lime
