// What a simulated stage writes to its disk, or to the host of its KV, and reads from there: KV and
// weights.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/plan/plan_residency.h"
#include "tests/sim/hash_model.h"
#include "tests/sim/sim_stage.h"

namespace lime {

// ---- KV

void SimStage::FollowBook() {
  while (const std::optional<KvBook::Ended> ended = book_.NextEnded()) {
    for (std::vector<int32_t>& pages : backend_.shown(ended->sequence)) pages.clear();
    if (lent_ != nullptr && !world_.Plants(PlantedBug::kForgottenEnd, 30)) lent_->Free(ended->sequence, ended->life);
    lives_[static_cast<size_t>(ended->sequence)] = ended->life + 1;
  }
  NoteCuts();
  if (const std::optional<KvBook::PageCopy> copy = book_.NextCopy(); copy && !world_.Plants(PlantedBug::kForgottenCopy, 30)) {
    for (int64_t layer = 0; layer < std::ssize(layers_); ++layer) {
      for (int64_t i = 0; i < copy->pages; ++i) {
        const int32_t from = book_.pages().Pages(copy->from, layer)[static_cast<size_t>(i)];
        const int32_t to = book_.pages().Pages(copy->to, layer)[static_cast<size_t>(i)];
        if (from < 0 || to < 0) return world_.Violation(device().name, ": a page is copied that is away");
        std::memcpy(backend_.KvPage(to), backend_.KvPage(from), static_cast<size_t>(plan_.page_bytes));
      }
    }
  }
  if (const std::optional<StateBook::Restore> restore = book_.NextRestore(); restore && !world_.Plants(PlantedBug::kForgottenRestore, 30)) {
    for (const int32_t layer : StateLayersOn(plan_, device_))
      std::ranges::copy(backend_.Snapshot(restore->from, restore->snapshot, layer), backend_.State(restore->to, layer).begin());
  }
  bool changed = false;
  while (const std::optional<int32_t> sequence = book_.NextShown()) {
    for (size_t layer = 0; layer < layers_.size(); ++layer)
      backend_.SetPages(*sequence, layers_[layer], book_.pages().Pages(*sequence, static_cast<int64_t>(layer)));
    changed = true;
    if (!layers_.empty()) MayShowTwice(*sequence);
  }
  if (changed) CheckHolders();
  if (!logic_ && lent_ != nullptr) return;  // the host is not there yet
  if (const std::optional<KvAway::Piece> piece = book_.NextWrite()) WriteLayer(*piece, 0);
}

// What a slot keeps of its life before counts as written in the new one.
void SimStage::NoteCuts() {
  for (int32_t s = 0; s < plan_.sequences; ++s) {
    const int64_t life = book_.away().life(s);
    if (std::exchange(lives_[static_cast<size_t>(s)], life) == life) continue;
    for (int64_t layer = 0; layer < std::ssize(layers_); ++layer) {
      for (int64_t piece = 0; piece < book_.away().written(s); ++piece) on_disk_[{layer, s, piece}].life = life;
    }
  }
}

// The planted bug: a page of another sequence.
void SimStage::MayShowTwice(int32_t sequence) {
  if (plan_.sequences < 2) return;
  std::vector<int32_t>& pages = backend_.shown(sequence)[static_cast<size_t>(layers_.front())];
  const std::vector<int32_t>& other = backend_.shown((sequence + 1) % plan_.sequences)[static_cast<size_t>(layers_.front())];
  if (!pages.empty() && !other.empty() && other.front() >= 0 && world_.Plants(PlantedBug::kDoubleHolder, 30)) pages.back() = other.front();
}

void SimStage::CheckHolders() {
  std::vector<int32_t> holder(static_cast<size_t>(backend_.KvBytes() / plan_.page_bytes), -1);
  for (int32_t s = 0; s < plan_.sequences; ++s) {
    for (const std::vector<int32_t>& pages : backend_.shown(s)) {
      for (const int32_t page : pages) {
        if (page < 0) continue;
        if (page >= present_pages_) return world_.Violation(device().name, ": over budget: page ", page, " of ", present_pages_);
        int32_t& of = holder[static_cast<size_t>(page)];
        if (of >= 0) return world_.Violation(device().name, ": page ", page, " has two holders, slots ", of, " and ", s);
        of = s;
      }
    }
  }
}

// As StageKv's writer: a layer after another, each as it is when its turn comes.
void SimStage::WriteLayer(KvAway::Piece piece, int64_t layer) {
  if (book_.away().life(piece.sequence) != piece.life) return EndWrite(piece, absl::CancelledError("its sequence has ended"));
  if (layer == std::ssize(layers_)) return EndWrite(piece, absl::OkStatus());
  if (lent_ == nullptr && disk_.full()) return EndWrite(piece, absl::ResourceExhaustedError("the disk is full"));
  Piece content(static_cast<size_t>(KvPieceBytes(plan_)));
  const std::span<const int32_t> pages = book_.pages().Pages(piece.sequence, layer);
  for (int64_t i = 0; i < kKvPiecePages; ++i) {
    const int32_t page = pages[static_cast<size_t>(piece.piece * kKvPiecePages + i)];
    if (page < 0) return world_.Violation(device().name, ": a piece is written that is away");
    std::memcpy(content.data() + i * plan_.page_bytes, backend_.KvPage(page), static_cast<size_t>(plan_.page_bytes));
  }
  if (lent_ != nullptr) {
    lending_ = {piece, layer};
    return lent_->Lend(piece, layer, content);
  }
  disk_.Transfer(KvPieceBytes(plan_), [this, alive = std::weak_ptr(alive_), piece, layer, content = std::move(content)](bool good) mutable {
    if (alive.expired()) return;
    if (!good) return EndWrite(piece, absl::DataLossError("a write failed"));
    on_disk_[{layer, piece.sequence, piece.piece}] = {.life = piece.life, .piece = std::move(content)};
    WriteLayer(piece, layer + 1);
  });
}

void SimStage::EndWrite(const KvAway::Piece& piece, const absl::Status& status) {
  if (world_.tracing) world_.Say(device().name, ": piece ", piece.piece, " of slot ", piece.sequence, " written: ", status.message());
  After(0, [this, piece, status] {  // not while it is followed
    book_.Written(piece, status);
    if (!logic_) return;
    logic_->MayTryOrders();
    CarryOut();
  });
}

// What is on the disk of the part's positions: as it was loaded, or where it has gone since then,
// as it is there.
absl::Status SimStage::AttendToDisk(int32_t part, const MicroBatch& batch) {
  const PlanPart& what = plan_.parts[static_cast<size_t>(part)];
  const int64_t layer = LayerIndex(what.block.layer), first = what.kv_begin / kKvPiece, pieces = what.kv_end / kKvPiece - first;
  const Load* const load = OldestLoad(part);
  if (load == nullptr || !load->ended) return absl::InternalError("computes with KV that is not loaded");
  std::vector<const std::byte*> places(static_cast<size_t>(plan_.sequences * pieces));
  for (const BatchRow& row : batch.rows) {
    const int32_t s = row.sequence;
    const int64_t life = book_.away().life(s);
    for (int64_t i = 0; i < std::min(pieces, book_.away().away(s) - first); ++i) {
      const std::vector<Piece>& loaded = load->pieces[static_cast<size_t>(s)];
      const bool there = load->lives[static_cast<size_t>(s)] == life && i < std::ssize(loaded);
      const OnDisk& disk = on_disk_[{layer, s, first + i}];
      if (!there && disk.life != life) return absl::InternalError(absl::StrCat("piece ", first + i, " of slot ", s, " is nowhere"));
      places[static_cast<size_t>(s * pieces + i)] = there ? loaded[static_cast<size_t>(i)].data() : disk.piece.data();
    }
  }
  return backend_.AttendToPieces(what.block.layer, first, first + pieces, places);
}

bool SimStage::HandOver(SimKvHandover& handover) {
  if (!logic_ || !(health().ok() || lost_)) return false;
  for (const int32_t layer : StateLayersOn(plan_, device_)) {
    for (int32_t s = 0; s < plan_.sequences; ++s) {
      for (int64_t copy = 0; copy <= plan_.state_snapshots; ++copy) {
        const auto state = StateAt(s, copy, layer);
        handover[{layer, s}].insert(handover[{layer, s}].end(), state.begin(), state.end());
      }
    }
  }
  for (const int32_t layer : layers_) {
    for (int32_t s = 0; s < plan_.sequences; ++s) {
      std::vector<uint64_t>& kv = handover[{layer, s}];
      const int64_t end = std::ssize(backend_.shown(s)[static_cast<size_t>(layer)]) * kPageTokens;
      for (int64_t p = 0; p < end; ++p) {
        const int32_t page = backend_.PageOf(s, layer, p);
        const auto disk = on_disk_.find({LayerIndex(layer), s, p / kKvPiece});
        const int64_t in_piece = p % kKvPiece;
        kv.push_back(page >= 0                ? backend_.KvAt(page, p % kPageTokens)
                     : disk != on_disk_.end() ? HashBackend::KvAt(disk->second.piece.data() + in_piece / kPageTokens * plan_.page_bytes,
                                                                  plan_.page_bytes, in_piece % kPageTokens)
                                              : 0);
      }
    }
  }
  return true;
}

// ---- Loads

void SimStage::Carry(const ProgramRunner::StartLoad& start) {
  Load load{.number = start.load, .part = start.what.part, .bytes = start.what.ring_bytes()};
  const PlanPart& part = plan_.parts[static_cast<size_t>(load.part)];
  if (start.what.becomes_resident) return StartResidentLoad(start);
  const std::optional<Bytes> place = PlaceInRing(load.bytes);
  if (!place) return;
  load.place = *place;
  if (part.is_kv()) {
    const int64_t first = part.kv_begin / kKvPiece, pieces = part.kv_end / kKvPiece - first;
    for (int32_t s = 0; s < plan_.sequences; ++s) {
      load.lives.push_back(book_.away().life(s));
      load.pieces.emplace_back(static_cast<size_t>(std::clamp<int64_t>(book_.away().away(s) - first, 0, pieces)));
    }
  }
  loads_.push_back(std::move(load));
  disk_.Transfer(start.what.bytes, [this, alive = std::weak_ptr(alive_), number = start.load](bool good) {
    if (!alive.expired()) EndLoad(number, good);
  });
}

// As StageWeights: the largest piece beyond what the plan counts, for what stays unused before the
// ring begins again.
void SimStage::MakeRing(Bytes ring) {
  Bytes largest = 0;
  for (const int part : PartsOn(plan_, device_)) largest = std::max(largest, plan_.parts[static_cast<size_t>(part)].bytes);
  ring_ = ring;
  places_ = ByteRing(ring == 0 ? 0 : ring + largest);
}

// Nothing where it is not the load's alone.
std::optional<Bytes> SimStage::PlaceInRing(Bytes bytes) {
  in_ring_ += bytes;
  const std::optional<Bytes> place = places_.Allocate(bytes);
  if (in_ring_ > ring_ || !place) {
    world_.Violation(device().name, ": over budget: ", in_ring_, " bytes in a ring of ", ring_, place ? "" : ", and no place for them");
    return std::nullopt;
  }
  for (const Load& other : loads_) {
    if (*place + bytes <= other.place || other.place + other.bytes <= *place) continue;
    world_.Violation(device().name, ": loads in one place: ", bytes, " bytes at ", *place, ", and ", other.bytes, " at ", other.place);
    return std::nullopt;
  }
  return place;
}

// Into memory of its own, which is there from now on.
void SimStage::StartResidentLoad(const ProgramRunner::StartLoad& start) {
  const PlanPart& part = plan_.parts[static_cast<size_t>(start.what.part)];
  const auto loaded = [this, load = start.load] {
    logic_->OnLoaded(load, world_.clock.now_ms(), actions_);
    CarryOut();
  };
  if (part.is_kv()) return After(0.1, loaded);
  in_memory_[static_cast<size_t>(start.what.part)] = true;
  CheckBudget();
  disk_.Transfer(start.what.bytes, [this, alive = std::weak_ptr(alive_), loaded](bool good) {
    if (alive.expired()) return;
    if (!good) return Fail(absl::DataLossError("a read failed"));
    loaded();
  });
}

void SimStage::EndLoad(int64_t number, bool good) {
  const auto load = std::ranges::find(loads_, number, &Load::number);
  if (load == loads_.end()) return world_.Violation(device().name, ": load ", number, " was released before it ended");
  if (!good) return Fail(absl::DataLossError("a read failed"));
  const PlanPart& part = plan_.parts[static_cast<size_t>(load->part)];
  load->ended = true;
  if (part.is_kv()) {
    ReadPieces(*load);
  } else {
    load->weights = HashModel::WeightsOf(part.block, part.rows);
  }
  if (world_.Plants(PlantedBug::kForgottenWait, 5)) return;
  logic_->OnLoaded(number, world_.clock.now_ms(), actions_);
  CarryOut();
}

// Of every sequence as far as the pieces are its own still.
void SimStage::ReadPieces(Load& load) const {
  const PlanPart& part = plan_.parts[static_cast<size_t>(load.part)];
  for (size_t s = 0; s < load.pieces.size(); ++s) {
    for (size_t i = 0; i < load.pieces[s].size(); ++i) {
      const auto disk =
          on_disk_.find({LayerIndex(part.block.layer), static_cast<int32_t>(s), part.kv_begin / kKvPiece + static_cast<int64_t>(i)});
      if (disk == on_disk_.end() || disk->second.life != load.lives[s]) {
        load.pieces[s].resize(i);
        break;
      }
      load.pieces[s][i] = disk->second.piece;
    }
  }
}

void SimStage::Carry(const ProgramRunner::Release& release) {
  if (loads_.empty() || loads_.front().number != release.load || !loads_.front().ended)
    return world_.Violation(device().name, ": load ", release.load, " is released out of its turn");
  if (!world_.Plants(PlantedBug::kOverBudget, 10)) in_ring_ -= loads_.front().bytes;
  places_.ReleaseOldest();
  loads_.pop_front();
}

const SimStage::Load* SimStage::OldestLoad(int32_t part) const {
  const auto load = std::ranges::find(loads_, part, &Load::part);
  return load == loads_.end() ? nullptr : &*load;
}

HashModel::Weights SimStage::WeightsAt(int32_t part, int64_t step) {
  if (!StreamsIn(part, step)) {
    if (!in_memory_[static_cast<size_t>(part)])
      world_.Violation(device().name, ": computes with ", PartName(plan_, part), ", which is gone");
    return HashModel::WeightsOf(plan_.parts[static_cast<size_t>(part)].block, plan_.parts[static_cast<size_t>(part)].rows);
  }
  const Load* const load = OldestLoad(part);
  if (load != nullptr && load->ended) return load->weights;
  world_.Violation(device().name, ": computes with ", PartName(plan_, part), ", which is not loaded");
  return {};
}

// ---- Units

void SimStage::Carry(const StageLogic::StartUnitRead& start) {
  const PlanPart& part = plan_.parts[static_cast<size_t>(start.part)];
  Place& place = unit_places_[{start.part, start.place}];
  if (start.place < 0 || start.place >= part.places) return world_.Violation(device().name, ": a unit is read into place ", start.place);
  if (place.reading || place.computing) return world_.Violation(device().name, ": place ", start.place, " is read into while it is in use");
  if (place.freed) return world_.Violation(device().name, ": a unit is read into place ", start.place, ", which is freed");
  const bool loads = std::ranges::any_of(loads_, [](const Load& load) { return !load.ended; });
  if (start.ahead && loads) return world_.Violation(device().name, ": a unit is read ahead beside a load");
  world_.ahead.wasted += place.ahead ? 1 : 0;
  place = {.unit = start.unit, .reading = true, .ahead = start.ahead};
  disk_.Transfer(part.unit_bytes, [this, alive = std::weak_ptr(alive_), start](bool good) {
    if (alive.expired()) return;
    absl::Status result = good ? absl::OkStatus() : absl::DataLossError("a read failed");
    // The disk can stop some of the reads.
    if (cancelled_reads_.erase(start.number) > 0 && world_.random.Chance(60)) result = absl::CancelledError("the read was cancelled");
    Place& read = unit_places_[{start.part, start.place}];
    read.reading = false;
    if (!result.ok()) read = {};
    if (world_.Plants(PlantedBug::kForgottenUnit, 5)) return;
    logic_->OnUnitRead(start.number, result, world_.clock.now_ms(), actions_);
    CarryOut();
  });
}

void SimStage::Carry(const StageLogic::CancelUnitRead& cancel) {
  ++world_.ahead.cancelled;
  cancelled_reads_.insert(cancel.number);
}

void SimStage::Carry(const ResidencyLogic::SetPlaces& set) {
  After(world_.Between(0.2, 10), [this, set] {
    for (const PartPlaces& to : set.places) SetPlaces(to);
    CheckBudget();
    residency_->OnPlacesSet(changes_);
    CarryResidency();
    CarryOut();
  });
}

void SimStage::SetPlaces(const PartPlaces& to) {
  const bool fewer = to.places < logic_->NumPlaces(to.part);
  for (const int32_t place : logic_->SetPlaces(to.part, to.places)) {
    if (fewer) {
      FreeMemoryOf(to.part, place);
    } else {
      unit_places_[{to.part, place}] = {};
      ++world_.places.made;
    }
  }
}

void SimStage::Carry(const StageLogic::FreePlace& free) {
  for (int32_t i = 0; i < free.count; ++i) FreeMemoryOf(free.part, free.place + i);
  world_.places.freed_later += free.count;
}

void SimStage::FreeMemoryOf(int32_t part, int32_t place) {
  Place& freed = unit_places_[{part, place}];
  if (freed.reading || freed.computing || freed.freed)
    return world_.Violation(device().name, ": place ", place, " of part ", part, " is freed while it is in use, or again");
  world_.ahead.wasted += freed.ahead ? 1 : 0;
  freed = {.freed = true};
  ++world_.places.freed;
}

Bytes SimStage::FreedOf(int32_t part) const {
  const int64_t freed =
      std::ranges::count_if(unit_places_, [part](const auto& place) { return place.first.first == part && place.second.freed; });
  return freed * plan_.parts[static_cast<size_t>(part)].unit_bytes;
}

// The guess comes while the part's units are computed, or later.
void SimStage::GuessUnits(int32_t part) {
  const auto next =
      std::find_if(plan_.parts.begin() + part + 1, plan_.parts.end(), [](const PlanPart& p) { return p.on_demand() && !p.hosted(); });
  if (next == plan_.parts.end() || StageOf(plan_, static_cast<int>(next - plan_.parts.begin())) != StageOf(plan_, part)) return;
  std::vector<int32_t> experts(std::min<size_t>(kMaxAheadPlaces, static_cast<size_t>(spec_.config.experts->count)));
  experts.resize(backend_.GuessUnits(plan_.parts[static_cast<size_t>(part)].block, next->block, {}, experts));
  for (auto of = next; of != plan_.parts.end() && of->block == next->block; ++of) {
    if (of->ahead_places == 0) continue;
    const auto number = static_cast<int32_t>(of - plan_.parts.begin());
    std::vector<int32_t> units = experts;
    for (int32_t& expert : units) expert = UnitOf(number, expert);
    std::erase(units, -1);
    if (units.empty()) continue;
    After(world_.Between(0, 0.1), [this, number, units = std::move(units)] {
      if (dead_) return;
      if (plan_.parts[static_cast<size_t>(number)].hosted()) return asked_units_->Guess(number, units);
      logic_->OnUnitsGuessed(number, units, actions_);
      CarryOut();
    });
  }
}

int32_t SimStage::UnitOf(int32_t part, int32_t expert) const {
  const auto units = UnitsIn(plan_.parts[static_cast<size_t>(part)].rows);
  const auto unit = std::ranges::find(units, expert, [](const auto& rows) { return rows.front().expert; });
  return unit == units.end() ? -1 : static_cast<int32_t>(unit - units.begin());
}

HashModel::Weights SimStage::WeightsOfUnit(int32_t part, const UnitInPlace& unit) {
  const PlanPart& what = plan_.parts[static_cast<size_t>(part)];
  const Place& place = unit_places_[{part, unit.place}];
  if (place.unit != unit.unit || place.reading)
    world_.Violation(device().name, ": computes with unit ", unit.unit, " in place ", unit.place, ", which is not there");
  return HashModel::WeightsOf(what.block, UnitsIn(what.rows)[static_cast<size_t>(place.unit)]);
}

}  // namespace lime
