#include "daemon/logic/stage_logic.h"

#include <algorithm>
#include <numeric>
#include <type_traits>
#include <utility>

#include "daemon/logic/stage_programs.h"
#include "planner/base/check.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_blocks.h"
#include "planner/plan/plan_residency.h"
#include "planner/plan/sparse_parts.h"

namespace lime {
namespace {

std::vector<const Program*> Pointers(const std::vector<Program>& programs) {
  std::vector<const Program*> pointers(programs.size());
  for (size_t i = 0; i < programs.size(); ++i) pointers[i] = &programs[i];
  return pointers;
}

}  // namespace

StageLogic::StageLogic(const Plan& plan, int32_t device, const StageInbox::Shape& shape, const std::vector<Program>& programs, KvBook& book)
    : plan_(plan),
      device_(device),
      pages_come_(GrowsKv(plan) || SpillsKv(plan)),
      book_(book),
      inbox_(plan, device, shape),
      runner_(Pointers(programs), INT64_MAX, kLoadsUnderWay) {
  OpenCache();
  OpenSparse();
}

void StageLogic::OpenCache() {
  DemandCache::Shape shape;
  for (const int part : PartsOn(plan_, device_)) {
    const PlanPart& what = plan_.parts[static_cast<size_t>(part)];
    if (!what.has_experts_on_demand()) continue;
    parts_on_demand_.push_back(part);
    if (what.hosted()) hosted_parts_.push_back(part);
    shape.units = std::max(shape.units, static_cast<int32_t>(UnitsIn(what.rows).size()));
    shape.places.push_back(static_cast<int32_t>(what.places));
    shape.policies.push_back(what.policy);
    shape.ahead.push_back(what.ahead_places);
    shape.ring_places = std::min(shape.ring_places, shape.places.back());
  }
  if (parts_on_demand_.empty()) return;
  shape.reads_at_once = kLoadsUnderWay;
  absl::StatusOr<std::unique_ptr<DemandCache>> cache = DemandCache::Create(shape);
  LIME_CHECK(cache.ok()) << cache.status().message();  // the plan is valid
  cache_ = *std::move(cache);
  ready_.reserve(static_cast<size_t>(shape.units)), running_.reserve(static_cast<size_t>(shape.units));
}

// Memory for the units of one visit: of a sparse part, as many as it has neurons.
void StageLogic::OpenSparse() {
  std::vector<MaskWindow::Options> windows;
  size_t most = 0;
  for (const int part : PartsOn(plan_, device_)) {
    const PlanPart& what = plan_.parts[static_cast<size_t>(part)];
    if (!what.sparse()) continue;
    sparse_parts_.push_back(part);
    windows.push_back(
        {.neurons = static_cast<int32_t>(NeuronsOf(plan_, part)), .rows = static_cast<int32_t>(what.places), .masks = what.window_masks});
    most = std::max(most, static_cast<size_t>(windows.back().neurons));
  }
  if (windows.empty()) return;
  absl::StatusOr<std::unique_ptr<SparseVisits>> visits = SparseVisits::Create(windows);
  LIME_CHECK(visits.ok()) << visits.status().message();  // the plan is valid
  sparse_ = *std::move(visits);
  rows_set_.reserve(most);
  ready_.reserve(most), running_.reserve(most);
}

// ---- Events

void StageLogic::Start(Actions& actions) {
  std::vector<ProgramRunner::Action> started;
  runner_.Start(started);
  Follow(started, 0, actions);
}

absl::Status StageLogic::OnOrder(const Order& order) {
  LIME_RETURN_IF_ERROR(health_);
  LIME_RETURN_IF_ERROR(inbox_.AddOrder(order));
  MayTryOrders();
  return absl::OkStatus();
}

absl::Status StageLogic::OnActivation(ActivationMessage activation, double now_ms, Actions& actions) {
  LIME_RETURN_IF_ERROR(health_);
  LIME_ASSIGN_OR_RETURN(const std::optional<Visit> visit, inbox_.OnActivation(std::move(activation)));
  if (visit) PostArrived(*visit, now_ms, actions);
  PostTokens(now_ms, actions);
  return absl::OkStatus();
}

void StageLogic::OnComputed(std::span<const SampledToken> sampled, double now_ms, Actions& actions) {
  const auto units = static_cast<int32_t>(running_.size());
  const bool sparse = units > 0 && IsSparse(asked_.part);
  if (sparse) {
    sparse_->OnComputed(units);
    StartSparseReads(actions);
  } else if (units > 0) {
    for (const UnitInPlace& unit : running_) cache_->OnComputed(LayerOf(asked_.part), unit.unit);
    StartUnitReads(actions);
  }
  running_.clear();
  sampled_ = sampled;
  Post(ProgramRunner::Computed{.units = units}, now_ms, actions);
  sampled_ = {};
  if (sparse) PostReady(now_ms, actions);  // of the next round
}

void StageLogic::OnUnitsChosen(int32_t part, int32_t microbatch, std::span<const int32_t> units, double now_ms, Actions& actions) {
  if (!health_.ok()) return;
  asked_ = {.microbatch = microbatch, .part = part};
  if (IsSparse(part)) {
    const auto rows = static_cast<int32_t>(inbox_.batch(microbatch).rows.size());
    const absl::Status begun = rows > 0 ? sparse_->BeginNeurons(SparseIndexOf(part), units, rows) : absl::OkStatus();
    if (!begun.ok()) return Fail(begun, actions);
  } else if (!units.empty()) {
    const MicroBatch& batch = inbox_.batch(microbatch);
    const absl::Status begun = BeginUnits(part, units, static_cast<int32_t>(batch.rows.size()), IsDecode(batch));
    if (!begun.ok()) return Fail(begun, actions);
  }
  Post(ProgramRunner::UnitsChosen{.part = part, .microbatch = microbatch, .units = static_cast<int32_t>(units.size())}, now_ms, actions);
  if (units.empty()) return;
  if (IsSparse(part)) return GoOnWithSparse(now_ms, actions);
  StartUnitReads(actions);
  PostReady(now_ms, actions);
}

// ---- Sparse parts

void StageLogic::OnPiecesChosen(int32_t part, int32_t microbatch, int32_t pieces, const SparseVisits::LastMasks& last, double now_ms,
                                Actions& actions) {
  if (!health_.ok()) return;
  asked_ = {.microbatch = microbatch, .part = part};
  sparse_->BeginPieces(SparseIndexOf(part), pieces, last);
  Post(ProgramRunner::UnitsChosen{.part = part, .microbatch = microbatch, .units = pieces}, now_ms, actions);
  GoOnWithSparse(now_ms, actions);
}

void StageLogic::OnNeuronsRead(std::span<const int32_t> neurons, const absl::Status& result, double now_ms, Actions& actions) {
  if (!health_.ok()) return;
  if (!result.ok()) return Fail(result, actions);
  for (const int32_t neuron : neurons) sparse_->OnNeuronRead(neuron);
  PostReady(now_ms, actions);
}

void StageLogic::OnPieceRead(int32_t piece, const absl::Status& result, double now_ms, Actions& actions) {
  if (!health_.ok()) return;
  if (!result.ok()) return Fail(result, actions);
  sparse_->OnPieceRead(piece);
  PostReady(now_ms, actions);
}

SparseVisits::Counts StageLogic::neurons() const {
  SparseVisits::Counts sum;
  for (int32_t i = 0; i < std::ssize(sparse_parts_); ++i) {
    const SparseVisits::Counts& counts = sparse_->counts(i);
    sum.visits += counts.visits, sum.rows += counts.rows, sum.active += counts.active, sum.loaded += counts.loaded;
    sum.copied += counts.copied;
  }
  return sum;
}

int32_t StageLogic::SparseIndexOf(int32_t part) const {
  return static_cast<int32_t>(std::ranges::lower_bound(sparse_parts_, part) - sparse_parts_.begin());
}

std::span<const int32_t> StageLogic::SetPlaces(int32_t part, int32_t places) {
  if (!IsSparse(part)) return cache_->SetPlaces(LayerOf(part), places);
  const SparseVisits::Rows rows = sparse_->SetRows(SparseIndexOf(part), places);
  rows_set_.resize(static_cast<size_t>(rows.count));
  std::iota(rows_set_.begin(), rows_set_.end(), rows.first);
  return rows_set_;
}

// Behind a visit, rows that SetPlaces could not take go.
void StageLogic::StartSparseReads(Actions& actions) {
  if (const auto freed = sparse_->NextGivenBack())
    actions.push_back(FreePlace{sparse_parts_[static_cast<size_t>(freed->part)], freed->rows.first, freed->rows.count});
  if (!sparse_->IsUnderWay()) return;
  const int32_t part = sparse_parts_[static_cast<size_t>(sparse_->part())];
  if (const auto loads = sparse_->TakeLoads(); !loads.empty()) actions.push_back(StartNeuronReads{part, loads});
  while (const auto piece = sparse_->TakePiece()) actions.push_back(StartPieceRead{part, piece->unit, piece->place});
}

void StageLogic::GoOnWithSparse(double now_ms, Actions& actions) {
  StartSparseReads(actions);
  PostReady(now_ms, actions);
}

// ---- Experts on demand

// Begins a visit, and counts what it finds in memory.
absl::Status StageLogic::BeginUnits(int32_t part, std::span<const int32_t> units, int32_t rows, bool decodes) {
  const int32_t layer = LayerOf(part);
  const int64_t hits_before = cache_->counts(layer).hits;
  LIME_RETURN_IF_ERROR(cache_->Begin(layer, units, rows));
  const int64_t hits = cache_->counts(layer).hits - hits_before, misses = std::ssize(units) - hits;
  all_units_.hits += hits, all_units_.misses += misses;
  if (decodes) decode_units_.hits += hits, decode_units_.misses += misses;
  return absl::OkStatus();
}

void StageLogic::OnHostAnswered(int32_t part, int32_t microbatch, double now_ms, Actions& actions) {
  Post(ProgramRunner::HostAnswered{.part = part, .microbatch = microbatch}, now_ms, actions);
}

absl::Status StageLogic::OnUnitsAsked(int32_t part, std::span<const int32_t> units, int32_t rows, bool decodes, double now_ms,
                                      Actions& actions) {
  LIME_RETURN_IF_ERROR(health_);
  if (!std::ranges::binary_search(hosted_parts_, part)) return Invalid("part ", part, " is not of another device on this one");
  if (cache_->IsUnderWay(LayerOf(part))) return Invalid("units of part ", part, " are asked for while others of it are computed");
  LIME_RETURN_IF_ERROR(BeginUnits(part, units, rows, decodes));
  StartUnitReads(actions);
  PostReady(now_ms, actions);
  return absl::OkStatus();
}

void StageLogic::OnHostedComputed(int32_t part, std::span<const UnitInPlace> units, double now_ms, Actions& actions) {
  if (!health_.ok()) return;
  for (const UnitInPlace& unit : units) cache_->OnComputed(LayerOf(part), unit.unit);
  StartUnitReads(actions);
  PostReady(now_ms, actions);
}

void StageLogic::OnUnitsGuessed(int32_t part, std::span<const int32_t> units, Actions& actions) {
  if (!health_.ok()) return;
  cache_->Suggest(LayerOf(part), units);
  StartUnitReads(actions);
}

void StageLogic::OnUnitRead(int64_t number, const absl::Status& result, double now_ms, Actions& actions) {
  if (!health_.ok()) return;
  if (absl::IsCancelled(result) && !cache_->IsCancelled(number)) return Fail(result, actions);
  if (const absl::Status read = cache_->OnRead(number, result); !read.ok()) return Fail(read, actions);
  StartUnitReads(actions);
  PostReady(now_ms, actions);
}

void StageLogic::CancelUnitReads(Actions& actions) {
  while (const std::optional<int64_t> cancelled = cache_->NextCancel()) actions.push_back(CancelUnitRead{*cancelled});
}

// Places that SetPlaces could not take, before other units are read into them.
void StageLogic::FreePlaces(Actions& actions) {
  while (const std::optional<DemandCache::GivenBack> freed = cache_->NextGivenBack())
    actions.push_back(FreePlace{parts_on_demand_[static_cast<size_t>(freed->layer)], freed->place});
}

void StageLogic::StartUnitReads(Actions& actions) {
  FreePlaces(actions);
  CancelUnitReads(actions);
  while (const std::optional<DemandCache::Read> read = cache_->NextRead())
    actions.push_back(StartUnitRead{read->number, parts_on_demand_[static_cast<size_t>(read->what.layer)], read->what.unit,
                                    read->what.place, read->ahead});
}

// Loads have begun, or ended. Units are read ahead only while there are none.
void StageLogic::NoteLoads(int64_t more, Actions& actions) {
  loads_ += more;
  if (cache_ == nullptr) return;
  cache_->SetDiskBusy(loads_ > 0);
  CancelUnitReads(actions);
}

StageLogic::AheadUses StageLogic::units_ahead() const {
  AheadUses uses;
  for (int32_t layer = 0; layer < std::ssize(parts_on_demand_); ++layer) {
    const DemandCache::Counts& counts = cache_->counts(layer);
    uses.suggested += counts.suggested, uses.read += counts.ahead_read, uses.used += counts.ahead_used;
    const PlanPart& part = plan_.parts[static_cast<size_t>(parts_on_demand_[static_cast<size_t>(layer)])];
    uses.wasted += (counts.ahead_read - counts.ahead_used) * part.unit_bytes;
  }
  return uses;
}

void StageLogic::PostHostedReady(Actions& actions) {
  for (const int32_t part : hosted_parts_) {
    while (const std::optional<DemandCache::Unit> unit = cache_->NextReady(LayerOf(part)))
      actions.push_back(HostedReady{part, {unit->unit, unit->place}});
  }
}

// Tells the runner, and the driver, of the units that have come since.
void StageLogic::PostReady(double now_ms, Actions& actions) {
  PostHostedReady(actions);
  if (asked_.part < 0) return;
  int32_t come = 0;
  if (IsSparse(asked_.part)) {
    for (; const std::optional<SparseVisits::Unit> unit = sparse_->NextReady(); ++come) ready_.push_back({unit->unit, unit->place});
  } else {
    for (; const std::optional<DemandCache::Unit> unit = cache_->NextReady(LayerOf(asked_.part)); ++come)
      ready_.push_back({unit->unit, unit->place});
  }
  if (come > 0) Post(ProgramRunner::UnitsReady{.part = asked_.part, .microbatch = asked_.microbatch, .units = come}, now_ms, actions);
}

// The layer of a part on demand in the cache.
int32_t StageLogic::LayerOf(int32_t part) const {
  return static_cast<int32_t>(std::ranges::lower_bound(parts_on_demand_, part) - parts_on_demand_.begin());
}

void StageLogic::OnLoaded(int64_t load, double now_ms, Actions& actions) {
  NoteLoads(-1, actions);
  if (load != next_loaded_) {
    loaded_.insert(load);
  } else {
    Post(ProgramRunner::Loaded{next_loaded_++}, now_ms, actions);
    while (loaded_.erase(next_loaded_) > 0) Post(ProgramRunner::Loaded{next_loaded_++}, now_ms, actions);
  }
  if (cache_ != nullptr && health_.ok()) StartUnitReads(actions);
}

void StageLogic::OnKvArrived(int32_t part, int32_t microbatch, double now_ms, Actions& actions) {
  Post(ProgramRunner::KvArrived{.part = part, .microbatch = microbatch}, now_ms, actions);
}

absl::Status StageLogic::OnChange(const std::vector<Program>& entering, const std::vector<Program>& settled, double now_ms,
                                  Actions& actions) {
  std::vector<ProgramRunner::Action> followed;
  LIME_RETURN_IF_ERROR(
      runner_.OnEvent(ProgramRunner::Change{.entering = Pointers(entering), .settled = Pointers(settled)}, now_ms, followed));
  Follow(followed, now_ms, actions);
  return absl::OkStatus();
}

void StageLogic::OnRoomMade(double now_ms, Actions& actions) {
  Post(ProgramRunner::RoomMade{}, now_ms, actions);
}

void StageLogic::Fail(const absl::Status& why, Actions& actions) {
  if (!health_.ok()) return;
  health_ = why;
  actions.push_back(Failed{why});
}

// ---- Orders

void StageLogic::NextOrder(const Memory& memory, double now_ms, Actions& actions) {
  LIME_CHECK(HasOrder());
  may_try_orders_ = HasPagesFor(*inbox_.NextOrder(), memory, actions);
  if (may_try_orders_) std::visit([&](auto& what) { Execute(what, memory, now_ms, actions); }, inbox_.PopOrder().what);
}

// If pages come as sequences grow: gives the rows of a step their pages. False while the step, or a
// sequence that begins with copied pages, must wait.
bool StageLogic::HasPagesFor(const Order& order, const Memory& memory, Actions& actions) {
  if (const auto* admit = std::get_if<AdmitOrder>(&order.what); admit != nullptr && pages_come_ && KvBook::Copies(*admit))
    return book_.HasRoomFor(*admit) || !memory.pages_come;
  const auto* step = std::get_if<StepOrder>(&order.what);
  if (!pages_come_ || step == nullptr) return true;
  if (memory.must_begin) return false;  // it is tried again then
  const absl::StatusOr<bool> extended = book_.Extend(*step);
  if (!extended.ok() && !memory.pages_come) Fail(extended.status(), actions);
  return extended.ok() && *extended;
}

void StageLogic::Execute(const AdmitOrder& admit, const Memory&, double, Actions& actions) {
  absl::Status begun = book_.Begin(admit);
  if (begun.ok() && !pages_come_) begun = book_.Reserve(admit);
  if (!begun.ok()) return Fail(begun, actions);
  inbox_.Admit(admit);
  actions.push_back(Admitted{&admit});
}

void StageLogic::Execute(const RetireOrder& retire, const Memory&, double, Actions& actions) {
  if (retire.kept == 0) {
    book_.Release(retire.sequence);
  } else if (const absl::Status kept = book_.Keep(retire.sequence, retire.kept); !kept.ok()) {
    return Fail(kept, actions);
  }
  actions.push_back(Retired{retire.sequence});
}

void StageLogic::Execute(const RollbackOrder& back, const Memory&, double, Actions& actions) {
  if (const absl::Status there = book_.RollBack(back); !there.ok()) return Fail(there, actions);
  inbox_.RollBack(back);
  actions.push_back(RolledBack{back.sequence, back.positions});
}

void StageLogic::Execute(const ResidencyOrder& order, const Memory&, double, Actions& actions) {
  actions.push_back(ChangeResidency{&order});
}

void StageLogic::Execute(StepOrder& order, const Memory& memory, double now_ms, Actions& actions) {
  const absl::Status evicted = book_.Evict(order);
  if (!evicted.ok()) return Fail(evicted, actions);
  const absl::Status follows = book_.states().Begin(order);
  if (!follows.ok()) return Fail(follows, actions);
  book_.Reach(order);
  const std::vector<Program>& programs = memory.programs;
  const auto program =
      std::ranges::find_if(programs, [&](const Program& p) { return p.microbatches >= static_cast<int32_t>(order.microbatches.size()); });
  // Micro-batches beyond the ordered ones are empty.
  order.microbatches.resize(static_cast<size_t>(program->microbatches));
  const auto computes = std::ranges::count_if(program->step, [](const Instruction& what) {
    return std::holds_alternative<Compute>(what) || std::holds_alternative<ComputeUnits>(what);
  });
  actions.push_back(StepBegun{static_cast<int32_t>(computes)});
  const std::span<const Visit> came = inbox_.BeginStep(std::move(order.microbatches));
  Post(ProgramRunner::BeginStep{static_cast<int32_t>(program - programs.begin())}, now_ms, actions);
  for (const Visit& visit : came) PostArrived(visit, now_ms, actions);
  PostTokens(now_ms, actions);
}

// The runner hears of the current step only, so that early input is not taken for awaited input.
void StageLogic::PostArrived(const Visit& visit, double now_ms, Actions& actions) {
  Post(ProgramRunner::Arrived{.stage = visit.first, .microbatch = visit.second}, now_ms, actions);
}

// On the first device a micro-batch has arrived once all its tokens are known, in order.
void StageLogic::PostTokens(double now_ms, Actions& actions) {
  if (!IsFirst()) return;
  while (health_.ok()) {
    const std::optional<int32_t> microbatch = inbox_.NextWithTokens();
    if (!microbatch) return;
    PostArrived({0, *microbatch}, now_ms, actions);
  }
}

// ---- Events and what follows from them

void StageLogic::Post(const ProgramRunner::Event& event, double now_ms, Actions& actions) {
  if (!health_.ok()) return;
  std::vector<ProgramRunner::Action> followed;
  if (!spare_.empty()) followed.swap(spare_.back()), spare_.pop_back();
  const absl::Status status = runner_.OnEvent(event, now_ms, followed);
  if (!status.ok()) return Fail(status, actions);
  Follow(followed, now_ms, actions);
  followed.clear();
  spare_.push_back(std::move(followed));
}

void StageLogic::Follow(const std::vector<ProgramRunner::Action>& followed, double now_ms, Actions& actions) {
  for (const ProgramRunner::Action& action : followed) {
    if (!health_.ok()) return;
    std::visit([&](const auto& typed) { On(typed, now_ms, actions); }, action);
  }
}

template <typename Typed>
void StageLogic::On(const Typed& action, double now_ms, Actions& actions) {
  if constexpr (std::is_same_v<Typed, ProgramRunner::StartSend>) {
    // The next token waits for the first device, so it comes first. The coordinator hears of this
    // token while that device computes.
    if (action.what.payload == Payload::kToken && action.what.to == device_) {
      inbox_.OnTokens(action.step, sampled_);
      PostTokens(now_ms, actions);
    }
  } else if constexpr (std::is_same_v<Typed, ProgramRunner::StartLoad>) {
    NoteLoads(1, actions);
  } else if constexpr (std::is_same_v<Typed, ProgramRunner::StartComputeUnits>) {
    running_.swap(ready_);
    return actions.push_back(StartUnits{action.step, action.what, running_});
  } else if constexpr (std::is_same_v<Typed, ProgramRunner::StepEnded>) {
    for (int32_t m = 0; m < inbox_.num_batches(); ++m) book_.Computed(inbox_.batch(m));
    inbox_.EndStep();
    MayTryOrders();
  }
  actions.push_back(action);
}

}  // namespace lime
