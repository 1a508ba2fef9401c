#include "daemon/logic/residency_logic.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/order.h"
#include "planner/plan/kv_spill.h"

namespace lime {
namespace {

// The plan with the ring through which evicted parts would go. The ring exists only while they
// stream, and then at least as much is evicted. Until then the budget here is larger than in truth.
Plan WithRing(Plan plan, int32_t device, Bytes ring) {
  PlanDevice& changed = plan.devices[device];
  const Bytes free = std::min(changed.memory.margin - changed.least_margin, ring);
  changed.memory.ring += ring;
  changed.memory.margin -= free;
  changed.budget += ring - free;
  // Not measured, since nothing was to stream.
  if (changed.disk_mb_per_ms <= 0) changed.disk_mb_per_ms = 1;
  return plan;
}

}  // namespace

ResidencyLogic::ResidencyLogic(const Plan& plan, std::vector<Program> programs, KvBook& book, Options options)
    : plan_(plan), options_(std::move(options)), book_(book), programs_(std::move(programs)), ordered_(ResidencyOf(plan)) {
  if (options_.shedding) {
    to_shed_.emplace(plan_, *options_.shedding);
    places_to_shed_.emplace(plan_, options_.device, options_.token_units);
    places_ = places_to_shed_->Choose(0);
    most_ = to_shed_->most() + places_to_shed_->most();
    NoteRing(programs_);
  }
  shed_.streamed = ordered_.streamed;
  residency_ = std::make_shared<Plan>(to_shed_ ? WithRing(plan_, options_.device, to_shed_->ring_to_make()) : plan_);
}

// While nothing streams, a ring that comes and goes does not exist: a change makes it.
void ResidencyLogic::NoteRing(std::vector<Program>& programs) const {
  if (!options_.ring_comes || !programs.front().loads.empty()) return;
  for (Program& program : programs) program.ring_bytes = 0;
}

// Positions of each sequence that may be away under a plan.
int64_t ResidencyLogic::ReachOf(const Plan& plan) const {
  return options_.layers == 0 ? 0 : PositionsAway(plan, Device(plan), ResidencyOf(plan).layer_pages);
}

bool ResidencyLogic::MustBegin() const {
  return change_.under_way && !change_.begun && stage_->inbox().steps_begun() >= change_.ordered_at + kResidencySteps;
}

bool ResidencyLogic::PagesCome() const {
  const bool grows =
      change_.under_way && (Device(*residency_).kv_pages > book_.pages().num_pages() || ReachOf(*residency_) > book_.reach());
  return grows && (!change_.begun || change_.at_work || stage_->runner().border() <= stage_->inbox().steps_begun());
}

// ---- What should be in memory

void ResidencyLogic::OnOrder(const Residency& to, Actions& actions) {
  target_ = to;
  TryChange(actions);
}

void ResidencyLogic::TryChange(Actions& actions) {
  if (stopped_ || !stage_->health().ok()) return;
  TryPlaces(actions);
  if (change_.under_way) return;
  if (target_ && IsFree(*target_)) return Begin(*std::exchange(target_, std::nullopt), /*by_order=*/true, actions);
  if (!target_bytes_ || !to_shed_) return;
  const WeightsToShed::Choice to_shed = ToShed(ordered_);
  if (to_shed.streamed == shed_.streamed && to_shed.embedding == shed_.embedding) return;
  // What comes back while nobody computes could not be evicted again until the next step ends.
  if (to_shed.bytes < shed_.bytes && Idle()) return;
  Begin(ordered_, /*by_order=*/false, actions);
}

// Gives no more of the pages that are to go. True once the sequences that hold them have ended.
bool ResidencyLogic::IsFree(const Residency& to) {
  const PlanDevice& device = Device(*residency_);
  const int64_t after = PagesOn(plan_, options_.device, to.layer_pages);
  const int64_t reach = options_.layers == 0 ? 0 : PositionsAway(plan_, device, to.layer_pages);
  book_.pages().SetNumPages(std::min(device.kv_pages, after));
  book_.SetReach(std::min(ReachOf(*residency_), reach));
  return book_.pages().Fits() && book_.most_away() <= reach;
}

// While nobody computes, evicts everything at once: a second change must wait for the next step.
WeightsToShed::Choice ResidencyLogic::ToShed(const Residency& ordered) const {
  if (!target_bytes_ || !to_shed_) return {.streamed = ordered.streamed, .embedding = shed_.embedding};
  const Bytes bytes = std::max<Bytes>(0, most_ - *target_bytes_ - places_to_shed_->Gone(PlacesToKeep()));
  return to_shed_->Choose(ordered, bytes > 0 && Idle() ? INT64_MAX : bytes, shed_.embedding);
}

// ---- Places of parts on demand

Bytes ResidencyLogic::largest() const {
  return std::max(to_shed_ ? to_shed_->largest() : 0, places_to_shed_ ? places_to_shed_->largest() : 0);
}

std::vector<PartPlaces> ResidencyLogic::PlacesToKeep() const {
  return places_to_shed_->Choose(std::max<Bytes>(0, most_ - *target_bytes_));
}

void ResidencyLogic::TryPlaces(Actions& actions) {
  if (sets_places_ || !target_bytes_ || !places_to_shed_) return;
  std::vector<PartPlaces> keep = PlacesToKeep();
  if (keep == places_) return;
  places_ = std::move(keep);
  sets_places_ = true;
  actions.push_back(SetPlaces{places_});
}

void ResidencyLogic::OnPlacesSet(Actions& actions) {
  sets_places_ = false;
  ReportResident(actions);
  TryChange(actions);
}

// Places that a visit uses are there until it ends.
Bytes ResidencyLogic::PlacesGone() const {
  if (!places_to_shed_ || stage_ == nullptr) return 0;
  return places_to_shed_->Gone([this](int32_t part) { return stage_->NumPlaces(part); });
}

// ---- A change

void ResidencyLogic::Begin(Residency ordered, bool by_order, Actions& actions) {
  ordered_ = std::move(ordered);
  WeightsToShed::Choice to_shed = ToShed(ordered_);
  change_ = {.under_way = true,
             .by_order = by_order,
             .ordered_at = stage_->inbox().steps_begun(),
             .pages_before = Device(*residency_).kv_pages,
             .to_shed = std::move(to_shed)};
  actions.push_back(Prepare{
      .from = residency_, .to = {ordered_.layer_pages, change_.to_shed.streamed}, .opens_rows = change_.to_shed.embedding && !has_rows_});
}

void ResidencyLogic::OnNotPrepared(bool no_rows, const absl::Status& why, Actions& actions, StageLogic::Actions& of_stage) {
  if (!to_shed_ || (!no_rows && shed_.bytes > 0)) return stage_->Fail(why, of_stage);
  actions.push_back(Report{absl::StrCat("memory is short, but the device cannot free as much as is needed: ", why.message())});
  if (no_rows) {
    WeightsToShed::Options shedding = *options_.shedding;
    shedding.embedding = false;
    to_shed_.emplace(plan_, std::move(shedding));
    most_ = to_shed_->most() + places_to_shed_->most();
    if (target_bytes_) actions.push_back(Most{most_});
  } else {
    to_shed_.reset();
  }
  if (change_.by_order && !target_) target_ = ordered_;
  change_ = {};
  TryChange(actions);
}

void ResidencyLogic::OnPrepared(Prepared prepared, double now_ms, Actions& actions, StageLogic::Actions& of_stage) {
  NoteRing(prepared.settled);
  entering_ = std::move(prepared.entering), settled_ = std::move(prepared.settled);
  residency_ = std::make_shared<Plan>(std::move(prepared.after));
  has_rows_ = has_rows_ || prepared.opened_rows;
  if (!stage_->health().ok()) return;
  const absl::Status status = stage_->OnChange(entering_, settled_, now_ms, of_stage);
  if (!status.ok()) return stage_->Fail(status, of_stage);
  change_.begun = true;
  const bool comes_back = change_.to_shed.bytes < shed_.bytes;
  if (target_bytes_ && !options_.shedding->tied && change_.to_shed.embedding && !shed_.embedding) {
    // The embedding does not come back.
    most_ -= plan_.embedding_bytes, change_.to_shed.bytes -= plan_.embedding_bytes;
    actions.push_back(Most{most_});
  }
  shed_ = change_.to_shed;
  if (comes_back) ReportResident(actions);
  actions.push_back(ChangeWeights{residency_, stage_->runner().border(), shed_.embedding});
  stage_->MayTryOrders();  // an order that waits may now fail for good
}

void ResidencyLogic::OnNothingEvicted(Actions& actions) {
  BeginRoom(actions);
}

void ResidencyLogic::OnBorder(Actions& actions) {
  book_.SetReach(ReachOf(*residency_));
  if (!change_.at_work && !change_.has_room) BeginRoom(actions);
}

// Parts leave memory first. Then pages come, and a ring for the parts that left.
void ResidencyLogic::BeginRoom(Actions& actions) {
  change_.at_work = true;
  const PlanDevice& device = Device(*residency_);
  actions.push_back(MakeRoom{.pages = device.kv_pages,
                             .pages_before = change_.pages_before,
                             .ring = device.memory.ring,
                             .reads_rows = shed_.embedding && !std::exchange(reads_rows_, shed_.embedding)});
}

void ResidencyLogic::OnRoomMade(double now_ms, Actions& actions, StageLogic::Actions& of_stage) {
  book_.pages().SetNumPages(Device(*residency_).kv_pages);
  change_.at_work = false, change_.has_room = true;
  ReportResident(actions);
  if (!stage_->runner().settled()) stage_->OnRoomMade(now_ms, of_stage);
  EndChange(actions);
  stage_->MayTryOrders();
}

void ResidencyLogic::ReportResident(Actions& actions) {
  places_gone_ = PlacesGone();
  if (target_bytes_) actions.push_back(Resident{std::max<Bytes>(0, most_ - shed())});
}

void ResidencyLogic::OnStepEnded(Actions& actions) {
  if (PlacesGone() != places_gone_) ReportResident(actions);  // some followed later
  EndChange(actions);
}

void ResidencyLogic::EndChange(Actions& actions) {
  if (!change_.has_room || !stage_->runner().settled()) return;
  programs_ = std::move(settled_);
  change_ = {};
  ++num_changes_;
  TryChange(actions);
}

}  // namespace lime
