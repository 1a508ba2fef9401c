#include "daemon/engine/stage_residency.h"

#include <algorithm>
#include <utility>

#include "common/steady_clock.h"
#include "daemon/logic/stage_programs.h"
#include "daemon/weights/system_memory.h"
#include "planner/memory_budget.h"
#include "planner/plan/plan_blocks.h"

namespace lime {

StageResidency::StageResidency(const Plan& plan, std::vector<Program> programs, Options options)
    : plan_(plan), options_(std::move(options)), logic_(plan, std::move(programs), options_.kv->book(), LogicOptions()) {
  if (logic_.changes()) worker_.emplace();
}

ResidencyLogic::Options StageResidency::LogicOptions() const {
  ResidencyLogic::Options options{.device = options_.device,
                                  .by_order = options_.by_order,
                                  .layers = std::ssize(options_.layers),
                                  .ring_comes = options_.weights->ring_comes_and_goes()};
  if (!options_.watching) return options;
  std::vector<bool> may(plan_.parts.size());
  for (const int part : PartsOn(plan_, options_.device)) may[part] = !plan_.parts[part].is_kv() && options_.weights->MayStream(part);
  options.giving = {.device = options_.device, .tied = options_.tied, .rows_bytes = options_.rows_bytes, .may_stream = std::move(may)};
  return options;
}

StageResidency::~StageResidency() {
  Stop();
}

void StageResidency::Start(StageLogic& stage, StageCompute* compute) {
  logic_.Start(stage);
  compute_ = compute;
}

absl::Status StageResidency::Watch() {
  const Bytes most = logic_.most();
  if (most <= 0) return absl::OkStatus();  // not to be watched, or nothing can be given back
  const Bytes reserve = PressureReserve(MachineMemory(), plan_.devices[options_.device].budget);
  absl::MutexLock lock(options_.mutex);  // its first sample waits
  const ResidencyPolicy::Options policy{.most = most,
                                        .reserve = reserve,
                                        .block = std::min(most, logic_.largest()),
                                        .emergency = reserve / 4,
                                        .hold = options_.hold,
                                        .step_interval = options_.hold / 2,
                                        .soon = 5 * options_.hold,
                                        .longest_hold = 3 * options_.hold};
  LIME_ASSIGN_OR_RETURN(control_, ResidencyControl::Start(policy, *options_.watching, [this] { OnPressure(); }));
  Look();
  return absl::OkStatus();
}

void StageResidency::Stop() {
  std::unique_ptr<ResidencyControl> control;
  {
    absl::MutexLock lock(options_.mutex);
    logic_.Stop();
    control = std::move(control_);
  }
  control.reset();  // whose thread may wait for the lock
  worker_.reset();
}

// ---- Events

void StageResidency::Look() {
  if (control_ != nullptr) logic_.SetTarget(control_->Target());
}

void StageResidency::OnPressure() {
  absl::MutexLock lock(options_.mutex);
  TryChange();
}

void StageResidency::TryChange() {
  Look();
  logic_.TryChange(actions_);
  Carry();
}

void StageResidency::Order(const Residency& to) {
  Look();
  logic_.OnOrder(to, actions_);
  Carry();
}

void StageResidency::OnBorder() {
  logic_.OnBorder(actions_);
  Carry();
}

void StageResidency::OnStepEnded() {
  const bool changed = control_ != nullptr && control_->changed();
  if (changed) Look();
  logic_.OnStepEnded(actions_);
  if (changed) logic_.TryChange(actions_);
  Carry();
}

// Memory for what is to stay is made present off the token's way.
void StageResidency::Keep(const ProgramRunner::StartLoad& start) {
  worker_->Post([this, start] {
    if (plan_.parts[start.what.part].is_kv()) return options_.loaded(start.load, absl::OkStatus());  // none of it is on the disk: IsFree
    absl::StatusOr<HugeBuffer> room = options_.weights->Room(start.what.part);
    absl::MutexLock lock(options_.mutex);
    if (!room.ok()) return options_.fail(room.status());
    if (logic_.healthy())
      options_.weights->StartKeeping(start.what.part, *std::move(room),
                                     [loaded = options_.loaded, load = start.load](const absl::Status& status) { loaded(load, status); });
  });
}

// ---- Actions

void StageResidency::Carry() {
  options_.kv->Follow();
  for (size_t i = 0; i < actions_.size(); ++i) {  // of which there may come to be more
    const ResidencyLogic::Action action = std::move(actions_[i]);
    std::visit([this](const auto& typed) { Carry(typed); }, action);
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
  if (prepare.opens_rows) rows = options_.open_rows();
  const absl::Status status = [&] {
    LIME_RETURN_IF_ERROR(rows.status());
    LIME_ASSIGN_OR_RETURN(prepared.after, WithResidency(from, prepare.to));
    LIME_ASSIGN_OR_RETURN(prepared.entering, CompileAll(prepared.after, options_.device, &from));
    LIME_ASSIGN_OR_RETURN(prepared.settled, CompileAll(prepared.after, options_.device));
    const int64_t pages = prepared.after.devices[options_.device].kv_pages;
    return pages < from.devices[options_.device].kv_pages ? options_.backend->ResizeKv(pages) : absl::OkStatus();
  }();
  absl::MutexLock lock(options_.mutex);
  Look();
  if (status.ok()) {
    prepared.opened_rows = *rows != nullptr;
    if (prepared.opened_rows) rows_ = *std::move(rows);
    logic_.OnPrepared(std::move(prepared), SteadyMs(), actions_, *options_.actions);
  } else {
    logic_.OnNotPrepared(!rows.ok(), status, actions_, *options_.actions);
  }
  Carry();
  options_.carry_out();
}

void StageResidency::Carry(const ResidencyLogic::ChangeWeights& change) {
  options_.weights->Change(*change.after, change.border, change.embedding_leaves);
  if (!options_.weights->Leaves()) logic_.OnNothingLeaves(actions_);
}

void StageResidency::Carry(const ResidencyLogic::MakeRoom& make) {
  auto leaving = std::make_shared<LeavingWeights>(options_.weights->TakeLeaving());
  if (make.reads_rows) compute_->ReadRowsWith(rows_.get());
  const bool needs_ring = options_.weights->NeedsRing();
  worker_->Post([this, leaving, needs_ring, make]() mutable {
    leaving.reset();
    HugeBuffer memory;
    const absl::Status status = [&] {
      if (make.pages > make.pages_before) LIME_RETURN_IF_ERROR(options_.backend->ResizeKv(make.pages));
      if (!needs_ring) return absl::OkStatus();
      LIME_ASSIGN_OR_RETURN(memory, options_.weights->MakeRing(make.ring));
      return absl::OkStatus();
    }();
    absl::MutexLock lock(options_.mutex);
    if (!status.ok()) return options_.fail(status);
    if (needs_ring) options_.weights->SetRing(std::move(memory));
    Look();
    logic_.OnRoomMade(SteadyMs(), actions_, *options_.actions);
    Carry();
    options_.carry_out();
  });
}

void StageResidency::Carry(const ResidencyLogic::Resident& resident) {
  if (control_ != nullptr) control_->SetResident(resident.bytes);
}

void StageResidency::Carry(const ResidencyLogic::Most& most) {
  if (control_ != nullptr) control_->SetMost(most.bytes);
}

void StageResidency::Carry(const ResidencyLogic::Report& report) {
  if (options_.report) options_.report(report.sentence);
}

}  // namespace lime
