#include "daemon/engine/stage_residency.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "common/steady_clock.h"
#include "daemon/logic/stage_programs.h"
#include "daemon/machine/system_memory.h"
#include "planner/plan/plan_blocks.h"
#include "planner/problem/memory_budget.h"

namespace lime {

StageResidency::StageResidency(const StageParts& parts, std::vector<Program> programs, Owner owner)
    : parts_(parts),
      plan_(parts.stage.plan),
      device_(parts.stage.device),
      owner_(std::move(owner)),
      logic_(plan_, std::move(programs), parts.kv->book(), LogicOptions()) {
  if (logic_.changes()) worker_.emplace();
}

ResidencyLogic::Options StageResidency::LogicOptions() const {
  ResidencyLogic::Options options{.device = device_,
                                  .by_order = parts_.pages_come,
                                  .layers = std::ssize(parts_.layers),
                                  .ring_comes = parts_.weights->ring_comes_and_goes()};
  if (!parts_.stage.follow_memory) return options;
  std::vector<bool> may(plan_.parts.size());
  for (const int part : PartsOn(plan_, device_)) may[part] = !plan_.parts[part].is_kv() && parts_.weights->MayStream(part);
  options.shedding = {
      .device = device_, .tied = parts_.spec.config.tie_embeddings, .rows_bytes = parts_.RowsBytes(), .may_stream = std::move(may)};
  if (parts_.spec.config.experts) options.token_units = parts_.spec.config.experts->per_token;
  return options;
}

StageResidency::~StageResidency() {
  Stop();
}

void StageResidency::Start(StageLogic& stage, StageCompute* compute) {
  owner_.mutex->AssertHeld();
  logic_.Start(stage);
  stage_ = &stage;
  compute_ = compute;
}

absl::Status StageResidency::Watch() {
  absl::MutexLock lock(owner_.mutex);  // the first sample waits for the lock
  const Bytes most = logic_.most();
  if (most <= 0) return absl::OkStatus();  // not asked for, or nothing can be evicted
  const Bytes reserve = PressureReserve(MachineMemory(), plan_.devices[device_].budget);
  const absl::Duration hold = parts_.stage.pressure_hold;
  resident_ = most;
  policy_.emplace(ResidencyPolicy::Options{.most = most,
                                           .reserve = reserve,
                                           .block = std::min(most, logic_.largest()),
                                           .emergency = reserve / 4,
                                           .hold = hold,
                                           .step_interval = hold / 2,
                                           .soon = 5 * hold,
                                           .longest_hold = 3 * hold});
  PressureMonitor::Options watching = parts_.stage.pressure.value_or(PressureMonitor::Options{});
  watching.reserve = reserve;
  watching.on_sample = [this, also = watching.on_sample](const MemorySample& sample) {
    OnSample(sample);
    if (also) also(sample);
  };
  LIME_ASSIGN_OR_RETURN(monitor_, PressureMonitor::Start(std::move(watching)));
  Look();
  return absl::OkStatus();
}

void StageResidency::Stop() {
  std::unique_ptr<PressureMonitor> monitor;
  {
    absl::MutexLock lock(owner_.mutex);
    logic_.Stop();
    monitor = std::move(monitor_);
  }
  monitor.reset();  // its thread may wait for the lock
  worker_.reset();
}

// ---- Events

void StageResidency::Look() {
  if (policy_) logic_.SetTarget(policy_->target());
}

// Thread: the monitor's.
void StageResidency::OnSample(const MemorySample& sample) {
  absl::MutexLock lock(owner_.mutex);
  if (policy_->OnSample(sample, resident_, absl::Now()) != resident_) TryChange();
}

void StageResidency::TryChange() {
  owner_.mutex->AssertHeld();
  Look();
  logic_.TryChange(actions_);
  Carry();
}

void StageResidency::Order(const Residency& to) {
  owner_.mutex->AssertHeld();
  Look();
  logic_.OnOrder(to, actions_);
  Carry();
}

void StageResidency::OnBorder() {
  owner_.mutex->AssertHeld();
  logic_.OnBorder(actions_);
  Carry();
}

void StageResidency::OnStepEnded() {
  owner_.mutex->AssertHeld();
  logic_.OnStepEnded(actions_);
  Carry();
}

// The worker makes memory present for what becomes resident, so that no token waits for that.
void StageResidency::StartResidentLoad(const ProgramRunner::StartLoad& start) {
  worker_->Post([this, start] {
    // None of it is on the disk (ResidencyLogic::IsFree).
    if (plan_.parts[start.what.part].is_kv()) return owner_.loaded(start.load, absl::OkStatus());
    absl::StatusOr<HugeBuffer> room = parts_.weights->Room(start.what.part);
    absl::MutexLock lock(owner_.mutex);
    if (!room.ok()) return owner_.fail(room.status());
    if (logic_.healthy())
      parts_.weights->StartResidentLoad(start.what.part, *std::move(room),
                                        [loaded = owner_.loaded, load = start.load](const absl::Status& status) { loaded(load, status); });
  });
}

// ---- Actions

void StageResidency::Carry() {
  parts_.kv->Follow();
  for (size_t i = 0; i < actions_.size(); ++i) {  // more may be appended meanwhile
    const ResidencyLogic::Action action = std::move(actions_[i]);
    std::visit([this](const auto& typed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(owner_.mutex) { Carry(typed); }, action);
  }
  actions_.clear();
}

void StageResidency::Carry(const ResidencyLogic::Prepare& prepare) {
  worker_->Post([this, prepare] { Compile(prepare); });
}

// Thread: the worker.
void StageResidency::Compile(const ResidencyLogic::Prepare& prepare) {
  const Plan& from = *prepare.from;
  ResidencyLogic::Prepared prepared;
  absl::StatusOr<std::unique_ptr<RowReader>> rows = nullptr;
  if (prepare.opens_rows) rows = parts_.OpenRows();
  const absl::Status status = [&] {
    LIME_RETURN_IF_ERROR(rows.status());
    LIME_ASSIGN_OR_RETURN(prepared.after, WithResidency(from, prepare.to));
    LIME_ASSIGN_OR_RETURN(prepared.entering, CompileAll(prepared.after, device_, &from));
    LIME_ASSIGN_OR_RETURN(prepared.settled, CompileAll(prepared.after, device_));
    const int64_t pages = prepared.after.devices[device_].kv_pages;
    return pages < from.devices[device_].kv_pages ? parts_.backend->ResizeKv(pages) : absl::OkStatus();
  }();
  absl::MutexLock lock(owner_.mutex);
  Look();
  if (status.ok()) {
    prepared.opened_rows = *rows != nullptr;
    if (prepared.opened_rows) rows_ = *std::move(rows);
    logic_.OnPrepared(std::move(prepared), SteadyMs(), actions_, *owner_.actions);
  } else {
    logic_.OnNotPrepared(!rows.ok(), status, actions_, *owner_.actions);
  }
  Carry();
  owner_.carry_out();
}

void StageResidency::Carry(const ResidencyLogic::ChangeWeights& change) {
  parts_.weights->Change(*change.after, change.border, change.evicts_embedding);
  if (!parts_.weights->MayEvict()) logic_.OnNothingEvicted(actions_);
}

void StageResidency::Carry(const ResidencyLogic::MakeRoom& make) {
  auto evicted = std::make_shared<EvictedWeights>(parts_.weights->ReleaseEvicted());
  if (make.reads_rows) compute_->ReadRowsWith(rows_.get());
  const bool needs_ring = parts_.weights->NeedsRing();
  worker_->Post([this, evicted, needs_ring, make]() mutable {
    evicted.reset();
    HugeBuffer memory;
    const absl::Status status = [&] {
      if (make.pages > make.pages_before) LIME_RETURN_IF_ERROR(parts_.backend->ResizeKv(make.pages));
      if (!needs_ring) return absl::OkStatus();
      LIME_ASSIGN_OR_RETURN(memory, parts_.weights->MakeRing(make.ring));
      return absl::OkStatus();
    }();
    absl::MutexLock lock(owner_.mutex);
    if (!status.ok()) return owner_.fail(status);
    if (needs_ring) parts_.weights->SetRing(std::move(memory));
    Look();
    logic_.OnRoomMade(SteadyMs(), actions_, *owner_.actions);
    Carry();
    owner_.carry_out();
  });
}

void StageResidency::Carry(const ResidencyLogic::SetPlaces& set) {
  worker_->Post([this, set] {
    absl::Status status;
    for (const PartPlaces& to : set.places) status.Update(SetPlaces(to));
    absl::MutexLock lock(owner_.mutex);
    if (!status.ok()) return owner_.fail(status);
    Look();
    logic_.OnPlacesSet(actions_);
    Carry();
    owner_.carry_out();
  });
}

// Thread: the worker, the only one that gives places their memory. So no unit is read into a place
// that it frees, and none of the places that it makes is freed meanwhile.
absl::Status StageResidency::SetPlaces(const PartPlaces& to) {
  std::vector<int32_t> changed;
  bool fewer = false;
  {
    absl::MutexLock lock(owner_.mutex);
    fewer = to.places < stage_->NumPlaces(to.part);
    const std::span<const int32_t> set = stage_->SetPlaces(to.part, to.places);
    changed.assign(set.begin(), set.end());
  }
  absl::Status status;
  for (size_t i = 0, run = 1; i < changed.size(); i += run, run = 1) {  // places that lie side by side go together
    while (i + run < changed.size() && changed[i + run] == changed[i] + static_cast<int32_t>(run)) ++run;
    const auto count = static_cast<int>(run);
    if (fewer) {
      parts_.weights->FreePlaces(to.part, changed[i], count);
    } else {
      status.Update(parts_.weights->MakePlaces(to.part, changed[i], count));
    }
  }
  return status;
}

void StageResidency::Carry(const ResidencyLogic::Resident& resident) {
  resident_ = resident.bytes;
}

void StageResidency::Carry(const ResidencyLogic::Most& most) {
  if (policy_) policy_->SetMost(most.bytes);
}

void StageResidency::Carry(const ResidencyLogic::Report& report) {
  if (parts_.stage.report) parts_.stage.report(report.sentence);
}

}  // namespace lime
