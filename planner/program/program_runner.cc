#include "planner/program/program_runner.h"

#include <algorithm>

#include "planner/base/check.h"

namespace lime {
ProgramRunner::ProgramRunner(std::vector<const Program*> programs, int64_t loads_limit, int loads_under_way)
    : loads_limit_(loads_limit), loads_under_way_(loads_under_way) {
  LIME_CHECK_GE(loads_under_way, 1);
  generations_.push_back(MakeGeneration(std::move(programs), 0, 0));
  for (const Program* program : generations_.front().programs) {
    for (const Instruction& instruction : program->step) {
      if (const auto* recv = std::get_if<Recv>(&instruction)) arrivals_[{recv->stage, recv->microbatch}] = 0;
    }
  }
}

ProgramRunner::Generation ProgramRunner::MakeGeneration(std::vector<const Program*> programs, int64_t first_step, int64_t first_load) {
  LIME_CHECK(!programs.empty());
  for (const Program* program : programs) {
    LIME_CHECK(program->loads == programs.front()->loads) << "loads of device " << program->device;
  }
  return {std::move(programs), first_step, first_load};
}

const ProgramRunner::Generation& ProgramRunner::OfStep() const {
  size_t i = generations_.size() - 1;
  while (generations_[i].first_step > step_) --i;
  return generations_[i];
}

const ProgramRunner::Generation& ProgramRunner::OfNextLoad() const {
  size_t i = generations_.size() - 1;
  while (generations_[i].first_load > loads_begun_) --i;
  return generations_[i];
}

absl::Status ProgramRunner::OnEvent(const Event& event, double now_ms, std::vector<Action>& actions) {
  LIME_RETURN_IF_ERROR(std::visit([this](const auto& typed) { return On(typed); }, event));
  Advance(now_ms, actions);
  TryLoad(actions);
  return absl::OkStatus();
}

const Instruction* ProgramRunner::waiting() const {
  return computing_ || steps_.empty() ? nullptr : &Current();
}

std::optional<int> ProgramRunner::awaited_part() const {
  const Instruction* const instruction = waiting();
  if (const auto* units = instruction == nullptr ? nullptr : std::get_if<ComputeUnits>(instruction)) return units->part;
  const auto* const weights = instruction == nullptr ? nullptr : std::get_if<AwaitWeights>(instruction);
  return weights == nullptr ? std::nullopt : std::optional(OfStep().programs[steps_.front()]->loads[weights->load].part);
}

absl::Status ProgramRunner::On(const BeginStep& event) {
  if (event.program < 0 || event.program >= static_cast<int32_t>(generations_.front().programs.size()))
    return Invalid("program runner: there is no program ", event.program);
  if (static_cast<int64_t>(steps_.size()) >= kMaxAhead) return Invalid("program runner: ", kMaxAhead, " steps were begun already");
  steps_.push_back(event.program);
  return absl::OkStatus();
}

absl::Status ProgramRunner::On(const Arrived& event) {
  if (event.microbatch < 0) return Invalid("program runner: there is no micro-batch ", event.microbatch);
  return CountArrival({event.stage, event.microbatch});
}

absl::Status ProgramRunner::On(const KvArrived& event) {
  if (!asked_ || asked_->part != event.part || asked_->microbatch != event.microbatch || answered_)
    return Invalid("program runner: KV of part ", event.part, " for micro-batch ", event.microbatch, " arrived, but was not asked for");
  answered_ = true;
  return absl::OkStatus();
}

absl::Status ProgramRunner::On(const UnitsChosen& event) {
  if (!units_ || units_->asked.part != event.part || units_->asked.microbatch != event.microbatch || units_->chosen >= 0 ||
      event.units < 0) {
    return Invalid("program runner: ", event.units, " units of part ", event.part, " were chosen for micro-batch ", event.microbatch,
                   ", but were not asked for");
  }
  units_->chosen = event.units;
  return absl::OkStatus();
}

absl::Status ProgramRunner::On(const UnitsReady& event) {
  const bool expected = units_ && units_->asked.part == event.part && units_->asked.microbatch == event.microbatch && event.units > 0 &&
                        event.units <= units_->chosen - units_->ready;
  if (!expected) {
    return Invalid("program runner: ", event.units, " units of part ", event.part, " are ready for micro-batch ", event.microbatch,
                   ", but not as many were chosen");
  }
  units_->ready += event.units;
  return absl::OkStatus();
}

absl::Status ProgramRunner::On(const HostAnswered& event) {
  const auto host = std::ranges::find_if(
      hosts_, [&](const AskedHost& of) { return of.asked.part == event.part && of.asked.microbatch == event.microbatch && !of.answered; });
  if (host == hosts_.end()) {
    return Invalid("program runner: units of part ", event.part, " are computed for micro-batch ", event.microbatch,
                   ", but their host was not asked");
  }
  host->answered = true;
  return absl::OkStatus();
}

absl::Status ProgramRunner::CountArrival(std::pair<int32_t, int32_t> key) {
  const auto found = arrivals_.find(key);
  if (found == arrivals_.end())
    return Invalid("program runner: no message is expected for stage ", key.first, ", micro-batch ", key.second);
  if (found->second >= kMaxAhead) return Invalid("program runner: ", kMaxAhead, " messages are early for stage ", key.first);
  ++found->second;
  return absl::OkStatus();
}

absl::Status ProgramRunner::On(const Loaded& event) {
  if (loads_ended_ == loads_begun_ || event.load != loads_ended_) return Invalid("program runner: load ", event.load, " is not under way");
  ++loads_ended_;
  return absl::OkStatus();
}

absl::Status ProgramRunner::On(const Computed& event) {
  if (!computing_) return Invalid("program runner: nothing is being computed");
  const bool by_units = std::holds_alternative<ComputeUnits>(Current());
  const int32_t most = by_units ? units_->ready - units_->computed : 0;
  if (event.units < (by_units ? 1 : 0) || event.units > most)
    return Invalid("program runner: ", event.units, " units were computed, but ", most, " were ready");
  computing_ = false;
  if (by_units) {
    units_->computed += event.units;
  } else {
    ++at_;
  }
  return absl::OkStatus();
}

absl::Status ProgramRunner::On(const Change& event) {
  const Generation& now = generations_.front();
  if (!settled()) return Invalid("program runner: residency is changing already");
  if (event.entering.size() != now.programs.size() || event.settled.size() != now.programs.size()) {
    return Invalid("program runner: a change has ", event.settled.size(), " programs, but there are ", now.programs.size());
  }
  const int64_t border = BorderStep();
  Generation entering = MakeGeneration(event.entering, border, now.first_load + (border - now.first_step) * now.num_loads());
  const int64_t behind = entering.first_load + entering.num_loads();
  generations_.push_back(std::move(entering));
  generations_.push_back(MakeGeneration(event.settled, border + 1, behind));
  border_noted_ = room_made_ = false;
  return absl::OkStatus();
}

absl::Status ProgramRunner::On(const RoomMade&) {
  if (settled()) return Invalid("program runner: room was made, but no change waits for it");
  room_made_ = true;
  return absl::OkStatus();
}

// The current step has begun if an instruction of it was done or waits.
int64_t ProgramRunner::BorderStep() const {
  const Generation& now = generations_.front();
  const int64_t begun = loads_begun_ - now.first_load, loads = now.num_loads();
  const int64_t unread = loads > 0 ? now.first_step + (begun + loads - 1) / loads : 0;
  return std::max(unread, step_ + (steps_.empty() ? 0 : 1));
}

void ProgramRunner::NoteBorder(std::vector<Action>& actions) {
  if (settled() || border_noted_ || step_ < generations_[1].first_step) return;
  border_noted_ = true;
  actions.push_back(Border{generations_[1].first_step});
}

void ProgramRunner::EndStep(std::vector<Action>& actions) {
  actions.push_back(StepEnded{step_++});
  steps_.erase(steps_.begin());
  at_ = 0;
  NoteBorder(actions);
  if (settled() || step_ <= generations_[1].first_step) return;
  // All loads of ended steps were evicted.
  generations_.erase(generations_.begin(), generations_.begin() + 2);
}

void ProgramRunner::Advance(double now_ms, std::vector<Action>& actions) {
  NoteBorder(actions);
  while (!computing_ && !steps_.empty()) {
    const std::vector<Instruction>& step = OfStep().programs[steps_.front()]->step;
    if (at_ == step.size()) {
      EndStep(actions);
      continue;
    }
    const Instruction& instruction = step[at_];
    const size_t before = actions.size();
    const bool done = std::visit([&](const auto& typed) { return Do(typed, actions); }, instruction);
    if (!done && !computing_) {
      if (waiting_since_ms_ < 0) waiting_since_ms_ = now_ms;
      return;
    }
    if (waiting_since_ms_ >= 0) NoteWaited(instruction, now_ms, before, actions);
    if (done) ++at_;
  }
}

// The wait comes before the actions that followed it.
void ProgramRunner::NoteWaited(const Instruction& instruction, double now_ms, size_t before, std::vector<Action>& actions) {
  int32_t part = -1;
  if (const auto* await = std::get_if<AwaitWeights>(&instruction)) part = OfStep().loads()[static_cast<size_t>(await->load)].part;
  if (const auto* units = std::get_if<ComputeUnits>(&instruction)) part = units->part;
  const Waited waited{step_, instruction, part, waiting_since_ms_, now_ms};
  waiting_since_ms_ = -1;
  if (now_ms > waited.begin_ms) actions.insert(actions.begin() + static_cast<std::ptrdiff_t>(before), waited);
}

void ProgramRunner::TryLoad(std::vector<Action>& actions) {
  while (loads_begun_ - loads_ended_ < loads_under_way_ && loads_begun_ < loads_limit_) {
    const Generation& of = OfNextLoad();
    if (of.num_loads() == 0) return;
    const Prefetch& load = of.loads()[(loads_begun_ - of.first_load) % of.num_loads()];
    if (!MayBegin(load)) return;
    in_ring_ += load.ring_bytes();
    actions.push_back(StartLoad{loads_begun_++, load});
  }
}

// Within one residency, windows alone guarantee room. After a border, loads from before it count
// too. A ring that a change adds exists once the change has made room.
bool ProgramRunner::MayBegin(const Prefetch& load) const {
  if (loads_begun_ - load.loads_in_ring >= evicted_) return false;  // negative: there was always room
  if (load.becomes_resident) return room_made_;
  return in_ring_ + load.bytes <= (room_made_ ? OfNextLoad() : generations_.front()).programs.front()->ring_bytes;
}

bool ProgramRunner::ConsumeArrival(std::pair<int32_t, int32_t> key) {
  int64_t& count = arrivals_.at(key);
  if (count == 0) return false;
  --count;
  return true;
}

bool ProgramRunner::Do(const Recv& recv, std::vector<Action>&) {
  return ConsumeArrival({recv.stage, recv.microbatch});
}

bool ProgramRunner::Do(const AwaitWeights& await, std::vector<Action>&) {
  const Generation& of = OfStep();
  return loads_ended_ > of.first_load + (step_ - of.first_step) * of.num_loads() + await.load;
}

bool ProgramRunner::Do(const AskKv& ask, std::vector<Action>& actions) {
  asked_ = ask;
  actions.push_back(StartAskKv{step_, ask});
  return true;
}

bool ProgramRunner::Do(const AwaitKv&, std::vector<Action>&) {
  if (!answered_) return false;
  asked_.reset();
  answered_ = false;
  return true;
}

bool ProgramRunner::Do(const AskUnits& ask, std::vector<Action>& actions) {
  units_ = Units{.asked = ask};
  actions.push_back(StartAskUnits{step_, ask});
  return true;
}

bool ProgramRunner::Do(const ComputeUnits& compute, std::vector<Action>& actions) {
  if (units_->computed == units_->chosen) {
    units_.reset();
    return true;
  }
  if (units_->ready == units_->computed) return false;
  computing_ = true;
  actions.push_back(StartComputeUnits{step_, compute});
  return false;
}

bool ProgramRunner::Do(const AskHost& ask, std::vector<Action>& actions) {
  hosts_.push_back({.asked = ask});
  actions.push_back(StartAskHost{step_, ask});
  return true;
}

bool ProgramRunner::Do(const AwaitHost& await, std::vector<Action>&) {
  const auto host = std::ranges::find_if(hosts_, [&](const AskedHost& of) { return of.asked.part == await.part; });
  if (!host->answered) return false;
  hosts_.erase(host);
  return true;
}

bool ProgramRunner::Do(const Compute& compute, std::vector<Action>& actions) {
  computing_ = true;
  actions.push_back(StartCompute{step_, compute});
  return false;
}

bool ProgramRunner::Do(const Evict& evict, std::vector<Action>& actions) {
  const Prefetch& load = OfStep().loads()[static_cast<size_t>(evict.load)];
  in_ring_ -= load.ring_bytes();
  if (!load.becomes_resident) actions.push_back(Release{evicted_, load.bytes});
  ++evicted_;
  return true;
}

bool ProgramRunner::Do(const Send& send, std::vector<Action>& actions) {
  actions.push_back(StartSend{step_, send});
  return true;
}

TimelineSpan SpanOf(const ProgramRunner::Waited& waited) {
  TimelineSpan span = {.begin_ms = waited.begin_ms, .end_ms = waited.end_ms, .step = static_cast<int32_t>(waited.step)};
  if (const auto* recv = std::get_if<Recv>(&waited.what)) {
    span.kind = TimelineSpan::Kind::kWaitInput, span.stage = recv->stage, span.microbatch = recv->microbatch, span.peer = recv->from;
  } else if (const auto* await = std::get_if<AwaitKv>(&waited.what)) {
    span.kind = TimelineSpan::Kind::kWaitKv, span.stage = await->stage, span.microbatch = await->microbatch, span.peer = await->from;
  } else if (const auto* host = std::get_if<AwaitHost>(&waited.what)) {
    span.kind = TimelineSpan::Kind::kWaitHost, span.stage = host->stage, span.microbatch = host->microbatch, span.peer = host->from;
  } else {
    span.kind = TimelineSpan::Kind::kWaitWeights, span.part = waited.part;
  }
  return span;
}

}  // namespace lime
