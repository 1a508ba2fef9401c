#include "daemon/engine/stage_residency.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/order.h"
#include "common/steady_clock.h"
#include "daemon/engine/stage_programs.h"
#include "daemon/weights/system_memory.h"
#include "planner/memory_budget.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_blocks.h"

namespace lime {
namespace {

// The plan with the ring that its parts would go through. Its memory is there while something streams for pressure, and never before as
// much was given: until then the budget has more than there is.
Plan WithRing(Plan plan, int32_t device, Bytes ring) {
  PlanDevice& changed = plan.devices[device];
  const Bytes free = std::min(changed.memory.margin - changed.least_margin, ring);
  changed.memory.ring += ring;
  changed.memory.margin -= free;
  changed.budget += ring - free;
  if (changed.disk_mb_per_ms <= 0) changed.disk_mb_per_ms = 1;  // nobody asked, since nothing was to stream
  return plan;
}

std::vector<bool> MayStream(const Plan& plan, const StageWeights& weights, int32_t device) {
  std::vector<bool> may(plan.parts.size());
  for (const int part : PartsOn(plan, device)) may[part] = !plan.parts[part].is_kv() && weights.MayStream(part);
  return may;
}

}  // namespace

StageResidency::StageResidency(const Plan& plan, std::vector<Program> programs, Options options)
    : plan_(plan), options_(std::move(options)), programs_(std::move(programs)), ordered_(ResidencyOf(plan)) {
  if (changes()) worker_.emplace();
  if (options_.watching) {
    to_give_.emplace(MakeToGive(/*embedding=*/true));
    most_ = to_give_->most();
    NoteRing(programs_);
  }
  given_.streamed = ordered_.streamed;
  residency_ = std::make_shared<Plan>(to_give_ ? WithRing(plan_, options_.device, to_give_->ring_to_make()) : plan_);
}

WeightsToGive StageResidency::MakeToGive(bool embedding) const {
  return WeightsToGive(plan_, {.device = options_.device,
                               .tied = options_.tied,
                               .embedding = embedding,
                               .rows_bytes = options_.rows_bytes,
                               .may_stream = MayStream(plan_, *options_.weights, options_.device)});
}

// A ring that comes and goes is not there while nothing streams: with the room that a change makes it comes.
void StageResidency::NoteRing(std::vector<Program>& programs) const {
  if (!options_.weights->ring_comes_and_goes() || !programs.front().loads.empty()) return;
  for (Program& program : programs) program.ring_bytes = 0;
}

StageResidency::~StageResidency() {
  Stop();
}

absl::Status StageResidency::Watch() {
  if (!to_give_ || most_ <= 0) return absl::OkStatus();  // nothing can be given back
  const Bytes reserve = PressureReserve(MachineMemory(), plan_.devices[options_.device].budget);
  absl::MutexLock lock(options_.mutex);  // its first sample waits
  const ResidencyPolicy::Options policy{.most = most_,
                                        .reserve = reserve,
                                        .block = std::min(most_, to_give_->largest()),
                                        .emergency = reserve / 4,
                                        .hold = options_.hold,
                                        .step_interval = options_.hold / 2,
                                        .soon = 5 * options_.hold,
                                        .longest_hold = 3 * options_.hold};
  LIME_ASSIGN_OR_RETURN(control_, ResidencyControl::Start(policy, *options_.watching, [this] { OnPressure(); }));
  return absl::OkStatus();
}

void StageResidency::Stop() {
  std::unique_ptr<ResidencyControl> control;
  {
    absl::MutexLock lock(options_.mutex);
    stopped_ = true;
    control = std::move(control_);
  }
  control.reset();  // whose thread may wait for the lock
  worker_.reset();
}

// Positions of each sequence that may be on the disk under a plan.
int64_t StageResidency::ReachOf(const Plan& plan) const {
  const int64_t layer_pages = ResidencyOf(plan).layer_pages;
  return options_.layers.empty() ? 0 : PositionsAway(plan, plan.devices[options_.device], layer_pages);
}

bool StageResidency::MustBegin() const {
  return change_.under_way && !change_.begun && options_.steps_begun() >= change_.ordered_at + kResidencySteps;
}

bool StageResidency::PagesCome() const {
  const bool grows = change_.under_way && (residency_->devices[options_.device].kv_pages > options_.kv->pages().num_pages() ||
                                           ReachOf(*residency_) > options_.kv->reach());
  return grows && (!change_.begun || change_.at_work || runner_->border() <= options_.steps_begun());
}

// ---- What is to be in memory

void StageResidency::Order(const Residency& to) {
  target_ = to;
  TryChange();
}

void StageResidency::OnPressure() {
  absl::MutexLock lock(options_.mutex);
  TryChange();
}

void StageResidency::TryChange() {
  if (change_.under_way || stopped_ || !options_.healthy()) return;
  if (target_ && IsFree(*target_)) return Begin(*std::exchange(target_, std::nullopt), /*by_order=*/true);
  if (control_ == nullptr || !to_give_) return;
  const WeightsToGive::Choice to_give = ToGive(ordered_);
  if (to_give.streamed == given_.streamed && to_give.embedding == given_.embedding) return;
  // What comes back while nobody computes could not be given again before the next step has ended.
  if (to_give.bytes < given_.bytes && options_.idle()) return;
  Begin(ordered_, /*by_order=*/false);
}

// Until those who hold pages that are to go have ended.
bool StageResidency::IsFree(const Residency& to) {
  const PlanDevice& device = residency_->devices[options_.device];
  const int64_t after = PagesInMemory(device, to.layer_pages) * NumLayers();
  const int64_t reach = options_.layers.empty() ? 0 : PositionsAway(plan_, device, to.layer_pages);
  options_.kv->pages().SetNumPages(std::min(device.kv_pages, after));
  options_.kv->SetReach(std::min(ReachOf(*residency_), reach));
  return options_.kv->pages().Fits() && options_.kv->most_away() <= reach;
}

// Where nobody computes all goes at once: of a second change the next step would have to be the first.
WeightsToGive::Choice StageResidency::ToGive(const Residency& ordered) {
  if (control_ == nullptr || !to_give_) return {.streamed = ordered.streamed, .embedding = given_.embedding};
  const Bytes bytes = std::max<Bytes>(0, most_ - control_->Target());
  return to_give_->Choose(ordered, bytes > 0 && options_.idle() ? INT64_MAX : bytes, given_.embedding);
}

// ---- A change

void StageResidency::Begin(Residency ordered, bool by_order) {
  ordered_ = std::move(ordered);
  WeightsToGive::Choice to_give = ToGive(ordered_);
  change_ = {.under_way = true,
             .by_order = by_order,
             .ordered_at = options_.steps_begun(),
             .pages_before = residency_->devices[options_.device].kv_pages,
             .to_give = std::move(to_give)};
  worker_->Post([this, from = residency_, to = Residency{ordered_.layer_pages, change_.to_give.streamed},
                 opens_rows = change_.to_give.embedding && rows_ == nullptr] { Prepare(*from, to, opens_rows); });
}

// Thread: the worker.
void StageResidency::Prepare(const Plan& from, const Residency& to, bool opens_rows) {
  std::vector<Program> entering, settled;
  absl::StatusOr<std::unique_ptr<RowReader>> rows = nullptr;
  if (opens_rows) rows = options_.open_rows();
  absl::StatusOr<Plan> after = WithResidency(from, to);
  const absl::Status status = [&] {
    LIME_RETURN_IF_ERROR(rows.status());
    LIME_RETURN_IF_ERROR(after.status());
    LIME_ASSIGN_OR_RETURN(entering, CompileAll(*after, options_.device, &from));
    LIME_ASSIGN_OR_RETURN(settled, CompileAll(*after, options_.device));
    const int64_t pages = after->devices[options_.device].kv_pages;
    return pages < from.devices[options_.device].kv_pages ? options_.backend->ResizeKv(pages) : absl::OkStatus();
  }();
  absl::MutexLock lock(options_.mutex);
  if (!status.ok()) return GiveLess(!rows.ok(), status);
  NoteRing(settled);
  entering_ = std::move(entering), settled_ = std::move(settled);
  residency_ = std::make_shared<Plan>(*std::move(after));
  if (*rows != nullptr) rows_ = *std::move(rows);
  BeginChange();
}

// What is ordered has to be; what is given for pressure does not.
void StageResidency::GiveLess(bool no_rows, const absl::Status& why) {
  if (!to_give_ || (!no_rows && given_.bytes > 0)) return options_.fail(why);
  if (options_.report) options_.report(absl::StrCat("memory is short, and less of it can be given back: ", why.message()));
  if (no_rows) {
    to_give_.emplace(MakeToGive(/*embedding=*/false));
    most_ = to_give_->most();
    if (control_ != nullptr) control_->SetMost(most_);
  } else {
    to_give_.reset();
  }
  if (change_.by_order && !target_) target_ = ordered_;
  change_ = {};
  TryChange();
}

void StageResidency::BeginChange() {
  if (!options_.healthy()) return;
  std::vector<ProgramRunner::Action> actions;
  const absl::Status status =
      runner_->OnEvent(ProgramRunner::Change{.entering = Pointers(entering_), .settled = Pointers(settled_)}, SteadyMs(), actions);
  if (!status.ok()) return options_.fail(status);
  change_.begun = true;
  const bool comes_back = change_.to_give.bytes < given_.bytes;
  if (control_ != nullptr && !options_.tied && change_.to_give.embedding && !given_.embedding) {
    most_ -= plan_.embedding_bytes, change_.to_give.bytes -= plan_.embedding_bytes;  // it does not come back
    control_->SetMost(most_);
  }
  given_ = change_.to_give;
  if (comes_back) TellResident();
  options_.weights->Change(*residency_, runner_->border(), given_.embedding);
  if (!options_.weights->Leaves()) MakeRoom();
  options_.carry(actions);
  options_.pump();  // what waited may know now that it waits in vain
}

// From this step on KV parts stream as they are to.
void StageResidency::OnBorder() {
  options_.kv->SetReach(ReachOf(*residency_));
  if (!change_.at_work && !change_.has_room) MakeRoom();
}

// Parts leave memory first; pages, and a ring for what left, come then.
void StageResidency::MakeRoom() {
  change_.at_work = true;
  auto leaving = std::make_shared<LeavingWeights>(options_.weights->TakeLeaving());
  if (given_.embedding && !std::exchange(reads_rows_, given_.embedding)) compute_->ReadRowsWith(rows_.get());
  const bool needs_ring = options_.weights->NeedsRing();
  worker_->Post([this, leaving, needs_ring, pages = residency_->devices[options_.device].kv_pages, before = change_.pages_before,
                 ring = residency_->devices[options_.device].memory.ring]() mutable {
    leaving.reset();
    HugeBuffer memory;
    const absl::Status status = [&] {
      if (pages > before) LIME_RETURN_IF_ERROR(options_.backend->ResizeKv(pages));
      if (!needs_ring) return absl::OkStatus();
      LIME_ASSIGN_OR_RETURN(memory, options_.weights->MakeRing(ring));
      return absl::OkStatus();
    }();
    absl::MutexLock lock(options_.mutex);
    if (!status.ok()) return options_.fail(status);
    if (needs_ring) options_.weights->SetRing(std::move(memory));
    options_.kv->pages().SetNumPages(pages);
    change_.at_work = false, change_.has_room = true;
    TellResident();
    if (!runner_->settled()) options_.post(ProgramRunner::RoomMade{});
    EndChange();
    options_.pump();
  });
}

void StageResidency::TellResident() {
  if (control_ != nullptr) control_->SetResident(std::max<Bytes>(0, most_ - given_.bytes));
}

void StageResidency::OnStepEnded() {
  EndChange();
  if (control_ != nullptr && control_->changed()) TryChange();
}

void StageResidency::EndChange() {
  if (!change_.has_room || !runner_->settled()) return;
  programs_ = std::move(settled_);
  change_ = {};
  ++num_changes_;
  TryChange();
}

// Memory for what is to stay is made present off the token's way.
void StageResidency::Keep(const ProgramRunner::StartLoad& start) {
  worker_->Post([this, start] {
    if (plan_.parts[start.what.part].is_kv()) return options_.loaded(start.load, absl::OkStatus());  // none of it is on the disk: IsFree
    absl::StatusOr<HugeBuffer> room = options_.weights->Room(start.what.part);
    absl::MutexLock lock(options_.mutex);
    if (!room.ok()) return options_.fail(room.status());
    if (options_.healthy())
      options_.weights->StartKeeping(start.what.part, *std::move(room),
                                     [loaded = options_.loaded, load = start.load](const absl::Status& status) { loaded(load, status); });
  });
}

}  // namespace lime
