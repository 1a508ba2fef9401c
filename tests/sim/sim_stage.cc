#include "tests/sim/sim_stage.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/kv_takeover_plan.h"
#include "daemon/logic/hosting/kv_message.h"
#include "daemon/logic/stage_programs.h"
#include "planner/plan/hosting/kv_on_host.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_blocks.h"
#include "planner/plan/plan_residency.h"
#include "tests/planner/program_text.h"
#include "tests/sim/action_text.h"
#include "tests/sim/hash_model.h"

namespace lime {
namespace {

constexpr Bytes kRowBytes = sizeof(uint64_t);

std::vector<std::byte> Encode(const std::vector<uint64_t>& hidden) {
  std::vector<std::byte> bytes(hidden.size() * sizeof(uint64_t));
  if (!hidden.empty()) std::memcpy(bytes.data(), hidden.data(), bytes.size());
  return bytes;
}

}  // namespace

SimStage::SimStage(SimWorld& world, SimDisk& disk, const ModelSpec& spec, const Plan& plan, int32_t device, Peers peers)
    : world_(world),
      disk_(disk),
      spec_(spec),
      plan_(plan),
      device_(device),
      peers_(std::move(peers)),
      layers_(LayersOn(plan_, device)),
      backend_(spec, {.sequences = plan.sequences,
                      .pages = std::max(this->device().kv_pages, FullLayerPages(plan_) * std::ssize(layers_)),
                      .page_bytes = plan.page_bytes,
                      .snapshots = plan.state_snapshots}),
      book_(plan_, ShapeOf()),
      in_memory_(plan_.parts.size()),
      present_pages_(this->device().kv_pages),
      lives_(static_cast<size_t>(plan.sequences)) {}

KvBook::Shape SimStage::ShapeOf() const {
  const bool on_host = HasKvOnHost(device());
  return {.device = device_,
          .layers = std::ssize(layers_),
          .leaves = device().max_layer_pages > 0 && !layers_.empty() && (!on_host || HostedPieces(plan_, device()) > 0),
          .after_a_step = on_host};
}

absl::StatusOr<std::unique_ptr<SimStage>> SimStage::Install(SimWorld& world, SimDisk& disk, const ModelSpec& spec, const Plan& plan,
                                                            int32_t device, Peers peers, const Takeover& takeover) {
  std::unique_ptr<SimStage> stage(new SimStage(world, disk, spec, plan, device, std::move(peers)));
  LIME_ASSIGN_OR_RETURN(std::vector<Program> programs, CompileAll(stage->plan_, device));
  LIME_RETURN_IF_ERROR(stage->OpenKv());
  LIME_RETURN_IF_ERROR(stage->TakeOver(takeover));
  stage->OpenUnits();
  stage->AllocateMemory(std::move(programs));
  return stage;
}

absl::Status SimStage::OpenKv() {
  const auto now_ms = [this] { return world_.clock.now_ms(); };
  if (ShapeOf().leaves && HasKvOnHost(device())) {
    const LentKv::Options options{
        .device = device_,
        .layers = layers_,
        .backend = &backend_,
        .max_rows = MaxRows(plan_),
        .now_ms = now_ms,
        .send = [this](std::vector<std::byte> message, bool may_wait) { SendToPeer(device().kv_host, std::move(message), may_wait); }};
    LIME_ASSIGN_OR_RETURN(lent_, LentKv::Create(plan_, options, book_.away()));
  }
  if (device().memory.hosted == 0) return absl::OkStatus();
  LIME_ASSIGN_OR_RETURN(hosted_, HostedKv::Create(plan_, spec_,
                                                  {.device = device_,
                                                   .max_rows = MaxRows(plan_),
                                                   .backend = &backend_,
                                                   .send = [this](int32_t to, std::vector<std::byte> message, bool may_wait) {
                                                     SendToPeer(to, std::move(message), may_wait);
                                                   }}));
  return absl::OkStatus();
}

absl::Status SimStage::TakeOver(const Takeover& takeover) {
  if (takeover.sequences.empty()) return absl::OkStatus();
  LIME_ASSIGN_OR_RETURN(const std::vector<int64_t> away, AwayAtFirst(plan_, device_, takeover.sequences));
  LIME_RETURN_IF_ERROR(book_.TakeOver(takeover.sequences, away));
  FollowBook();
  for (size_t s = 0; s < takeover.sequences.size(); ++s) {
    const KvSequence& sequence = takeover.sequences[s];
    LIME_RETURN_IF_ERROR(TakeOverStates(sequence, *takeover.handover));
    for (const int32_t layer : layers_) {
      const auto found = takeover.handover->find({layer, sequence.from});
      if (found == takeover.handover->end() || std::ssize(found->second) < sequence.positions)
        return absl::NotFoundError(absl::StrCat("KV of layer ", layer, ", slot ", sequence.from));
      for (int64_t p = 0; p < sequence.positions; ++p) {
        const uint64_t kv = found->second[static_cast<size_t>(p)];
        if (p / kKvPiece < away[s]) {
          OnDisk& disk = on_disk_[{LayerIndex(layer), sequence.to, p / kKvPiece}];
          disk.life = book_.away().life(sequence.to);
          disk.piece.resize(static_cast<size_t>(KvPieceBytes(plan_)));
          std::memcpy(disk.piece.data() + p % kKvPiece * (plan_.page_bytes / kPageTokens), &kv, sizeof kv);
        } else {
          backend_.SetKv(backend_.PageOf(sequence.to, layer, p), p % kPageTokens, kv);
        }
      }
    }
  }
  return absl::OkStatus();
}

std::span<uint64_t> SimStage::StateAt(int32_t sequence, int64_t copy, int32_t layer) {
  const std::span<std::byte> state =
      copy == 0 ? backend_.State(sequence, layer) : backend_.Snapshot(sequence, static_cast<int32_t>(copy - 1), layer);
  return {reinterpret_cast<uint64_t*>(state.data()), state.size() / sizeof(uint64_t)};
}

absl::Status SimStage::TakeOverStates(const KvSequence& sequence, const SimKvHandover& handover) {
  for (const int32_t layer : StateLayersOn(plan_, device_)) {
    const auto found = handover.find({layer, sequence.from});
    for (int64_t copy = 0; copy < std::ssize(sequence.states); ++copy) {
      const std::span<uint64_t> state = StateAt(sequence.to, copy, layer);
      const auto at = static_cast<size_t>(copy) * state.size();
      if (sequence.states[static_cast<size_t>(copy)] == 0 || world_.Plants(PlantedBug::kForgottenTakeover, 30)) continue;
      if (found == handover.end() || found->second.size() < at + state.size())
        return absl::NotFoundError(absl::StrCat("state of layer ", layer, ", slot ", sequence.from));
      std::ranges::copy(std::span(found->second).subspan(at, state.size()), state.begin());
    }
  }
  return absl::OkStatus();
}

void SimStage::AllocateMemory(std::vector<Program> programs) {
  for (const PlanPart& part : plan_.parts) streamed_.push_back(part.streamed);
  streamed_before_ = streamed_;
  MakeRing(device().memory.ring);
  ResidencyLogic::Options options{
      .device = device_, .by_order = GrowsKv(plan_) || SpillsKv(plan_), .layers = std::ssize(layers_), .ring_comes = ring_ == 0};
  const bool here = std::ranges::find(plan_.stages, device_, &Stage::device) != plan_.stages.end();
  if (here && plan_.reads_once) {
    options.shedding = {.device = device_, .embedding = false, .may_stream = std::vector<bool>(plan_.parts.size())};
    for (const int part : PartsOn(plan_, device_)) {
      const PlanPart& what = plan_.parts[static_cast<size_t>(part)];
      options.shedding->may_stream[static_cast<size_t>(part)] = !what.is_kv() && !what.on_demand();
    }
    if (spec_.config.experts) options.token_units = spec_.config.experts->per_token;
  }
  for (const int part : PartsOn(plan_, device_))
    in_memory_[static_cast<size_t>(part)] = !streamed_[static_cast<size_t>(part)] && !plan_.parts[part].is_kv();
  residency_.emplace(plan_, std::move(programs), book_, std::move(options));
}

void SimStage::Begin() {
  book_.SetReach(residency_->Reach());
  const std::vector<Program>& programs = residency_->programs();
  logic_.emplace(
      plan_, device_,
      StageInbox::Shape{.vocab_size = spec_.config.vocab_size, .row_bytes = kRowBytes, .microbatches = programs.back().microbatches},
      programs, book_);
  residency_->Start(*logic_);
  CheckBudget();
  logic_->Start(actions_);
  CarryOut();
}

// ---- Events

absl::Status SimStage::OnOrder(const Order& order) {
  LIME_RETURN_IF_ERROR(logic_->OnOrder(order));
  CarryOut();
  return absl::OkStatus();
}

absl::Status SimStage::OnActivation(ActivationMessage message) {
  LIME_RETURN_IF_ERROR(logic_->OnActivation(std::move(message), world_.clock.now_ms(), actions_));
  CarryOut();
  return absl::OkStatus();
}

absl::Status SimStage::OnHosting(int32_t from, const std::vector<std::byte>& message) {
  if (IsUnitsMessage(message)) return OnUnits(from, message);
  LIME_ASSIGN_OR_RETURN(const KvMessage what, ParseKvMessage(message));
  LIME_RETURN_IF_ERROR(logic_->health());
  if (!std::holds_alternative<KvStored>(what) && !std::holds_alternative<KvRecords>(what) && !std::holds_alternative<KvFetched>(what)) {
    if (hosted_ == nullptr) return absl::InvalidArgumentError("this device is nobody's host");
    const bool asked = hosted_->asked();
    LIME_RETURN_IF_ERROR(hosted_->OnMessage(from, what));
    if (hosted_->asked() && !asked) AnswerOthers();
    return absl::OkStatus();
  }
  if (lent_ == nullptr || from != device().kv_host) return absl::InvalidArgumentError("it is not the host of this device's KV");
  LIME_ASSIGN_OR_RETURN(const auto answered, lent_->OnAnswer(what));
  if (lending_ && !lent_->lending()) {
    const auto [piece, layer] = *std::exchange(lending_, std::nullopt);
    After(0, [this, piece = piece, layer = layer] { WriteLayer(piece, layer + 1); });
  }
  if (answered) logic_->OnKvArrived(answered->first, answered->second, world_.clock.now_ms(), actions_);
  CarryOut();
  return absl::OkStatus();
}

// One question after another, beside what computes.
void SimStage::AnswerOthers() {
  After(world_.Between(0.02, 0.3), [this] {
    if (dead_) return;
    hosted_->BeginAnswer();
    if (const absl::Status status = hosted_->Answer(); !status.ok()) return world_.Violation(device().name, ": ", status.message());
    hosted_->EndAnswer();
    if (hosted_->asked()) AnswerOthers();
  });
}

void SimStage::SendToPeer(int32_t to, std::vector<std::byte> message, bool may_wait) {
  ActivationMessage activation{.header = {.epoch = plan_.epoch, .bytes = std::ssize(message), .hosting = true}};
  activation.payload = std::move(message), activation.may_wait = may_wait;
  peers_.send(to, std::move(activation));
}

void SimStage::Fail(const absl::Status& why) {
  if (!logic_) return;
  lost_ = health().ok();
  logic_->Fail(why, actions_);
  CarryOut();
}

// As StageEngine does.
void SimStage::CarryOut() {
  const auto carry = [this] {
    FollowBook();
    for (size_t i = 0; i < actions_.size(); ++i) {
      const StageLogic::Action action = actions_[i];
      if (world_.tracing) world_.Say(device().name, ": ", ActionText(action));
      std::visit([this](const auto& typed) { Carry(typed); }, action);
    }
    actions_.clear();
  };
  carry();
  while (logic_->HasOrder()) {
    logic_->NextOrder(residency_->memory(), world_.clock.now_ms(), actions_);
    carry();
  }
}

void SimStage::Carry(const StageLogic::Failed& failed) {
  if (!std::exchange(dead_, true)) peers_.failed(failed.why);
}

void SimStage::Carry(const ProgramRunner::StepEnded& ended) {
  ++steps_;
  if (lent_ != nullptr) lent_->EndStep();
  residency_->OnStepEnded(changes_);
  CarryResidency();
  peers_.step_ended(ended.step);
}

// ---- What is in memory

void SimStage::CarryResidency() {
  FollowBook();
  for (size_t i = 0; i < changes_.size(); ++i) {
    const ResidencyLogic::Action action = changes_[i];
    if (world_.tracing) world_.Say(device().name, ": ", ActionText(action));
    std::visit([this](const auto& typed) { Carry(typed); }, action);
  }
  changes_.clear();
}

void SimStage::Carry(const StageLogic::ChangeResidency& change) {
  residency_->OnOrder(change.order->to, changes_);
  CarryResidency();
}

void SimStage::Carry(const StageLogic::Retired&) {
  residency_->TryChange(changes_);
  CarryResidency();
}

void SimStage::Carry(const ProgramRunner::Border&) {
  residency_->OnBorder(changes_);
  CarryResidency();
}

void SimStage::Press(double share) {
  if (!logic_ || residency_->most() <= 0) return;
  residency_->SetTarget(static_cast<Bytes>(static_cast<double>(residency_->most()) * (1 - share)));
  residency_->TryChange(changes_);
  CarryResidency();
  CarryOut();
}

void SimStage::Carry(const ResidencyLogic::Prepare& prepare) {
  After(world_.Between(0.2, 10), [this, prepare] { Compile(prepare); });
}

void SimStage::Compile(const ResidencyLogic::Prepare& prepare) {
  ResidencyLogic::Prepared prepared;
  const absl::Status status = [&] {
    LIME_ASSIGN_OR_RETURN(prepared.after, WithResidency(*prepare.from, prepare.to));
    LIME_ASSIGN_OR_RETURN(prepared.entering, CompileAll(prepared.after, device_, prepare.from.get()));
    LIME_ASSIGN_OR_RETURN(prepared.settled, CompileAll(prepared.after, device_));
    return absl::OkStatus();
  }();
  if (status.ok()) {
    present_pages_ = std::min(present_pages_, prepared.after.devices[static_cast<size_t>(device_)].kv_pages);
    CheckHolders();
    residency_->OnPrepared(std::move(prepared), world_.clock.now_ms(), changes_, actions_);
  } else {
    residency_->OnNotPrepared(/*no_rows=*/false, status, changes_, actions_);
  }
  CarryResidency();
  CarryOut();
}

void SimStage::Carry(const ResidencyLogic::ChangeWeights& change) {
  streamed_before_ = streamed_;
  for (size_t part = 0; part < streamed_.size(); ++part) streamed_[part] = change.after->parts[part].streamed;
  border_ = change.border;
  bool leaves = false, streams = false;
  for (size_t part = 0; part < streamed_.size(); ++part) leaves = leaves || (streamed_[part] && in_memory_[part]);
  for (const int part : PartsOn(plan_, device_)) streams = streams || streamed_[static_cast<size_t>(part)];
  if (!leaves && (ring_ == 0 || device().memory.ring > 0 || streams)) residency_->OnNothingEvicted(changes_);
}

void SimStage::Carry(const ResidencyLogic::MakeRoom& make) {
  bool streams = false;
  for (size_t part = 0; part < streamed_.size(); ++part) {
    if (streamed_[part]) in_memory_[part] = false;
  }
  for (const int part : PartsOn(plan_, device_)) streams = streams || streamed_[static_cast<size_t>(part)];
  if (device().memory.ring == 0 && !streams) {
    if (in_ring_ > 0) world_.Violation(device().name, ": the ring goes with ", in_ring_, " bytes in it");
    MakeRing(0);
  }
  After(world_.Between(0.2, 10), [this, make, streams] {
    present_pages_ = std::max(present_pages_, make.pages);
    if (ring_ == 0 && streams) MakeRing(make.ring);
    CheckBudget();
    residency_->OnRoomMade(world_.clock.now_ms(), changes_, actions_);
    CarryResidency();
    CarryOut();
  });
}

// Beside what the plan counts for pages, ring and weights nothing changes. The margin is never
// taken.
void SimStage::CheckBudget() {
  const PlanMemory& memory = device().memory;
  Bytes weights = 0;
  for (const int part : PartsOn(plan_, device_)) {
    const PlanPart& what = plan_.parts[static_cast<size_t>(part)];
    const Bytes in_memory = what.on_demand() ? MemoryOf(what) - FreedOf(part) : what.bytes;
    weights += what.pinned_bytes + (in_memory_[static_cast<size_t>(part)] ? in_memory : 0);
  }
  const Bytes total = memory.runtime + memory.activations + memory.embedding + memory.state + memory.hosted + memory.fetched + ring_ +
                      weights + present_pages_ * plan_.page_bytes;
  if (total > device().budget - device().least_margin)
    world_.Violation(device().name, ": over budget: ", total, " of ", device().budget, " less ", device().least_margin, ", ring ", ring_,
                     ", weights ", weights, ", ", present_pages_, " pages");
}

// ---- Computing

void SimStage::Carry(const ProgramRunner::StartCompute& start) {
  std::vector<std::byte> input = logic_->inbox().PopInput({start.what.stage, start.what.microbatch});
  const double rows = static_cast<double>(logic_->inbox().batch(start.what.microbatch).rows.size());
  After(world_.Between(0.02, 0.1) * (1 + rows / 8), [this, start, input = std::move(input)] {
    if (dead_) return;
    if (const absl::Status status = Compute(start, input); !status.ok()) return world_.Violation(device().name, ": ", status.message());
    logic_->OnComputed(sampled_, world_.clock.now_ms(), actions_);
    CarryOut();
  });
}

absl::Status SimStage::Compute(const ProgramRunner::StartCompute& start, const std::vector<std::byte>& input) {
  const auto& [stage, microbatch, part, rows, logit_rows] = start.what;
  const MicroBatch& batch = logic_->inbox().batch(microbatch);
  if (part == kEmbeddingPart) {
    LIME_RETURN_IF_ERROR(backend_.Begin(batch));
    return backend_.Compute({BlockKind::kEmbedding, 0});
  }
  if (stage > 0 && part == plan_.stages[static_cast<size_t>(stage)].lo) {
    if (input.size() != batch.rows.size() * sizeof(uint64_t))
      return absl::InternalError(absl::StrCat("a visit of ", batch.rows.size(), " rows begins with ", input.size(), " bytes"));
    LIME_RETURN_IF_ERROR(backend_.Begin(batch));
    std::vector<uint64_t> hidden(batch.rows.size());
    if (!input.empty()) std::memcpy(hidden.data(), input.data(), input.size());
    backend_.SetHidden(std::move(hidden));
  }
  LIME_RETURN_IF_ERROR(ComputePart(part, start.step, batch));
  if (part + 1 == plan_.NumParts()) Sample(batch);
  return absl::OkStatus();
}

absl::Status SimStage::ComputePart(int32_t part, int64_t step, const MicroBatch& batch) {
  const PlanPart& what = plan_.parts[static_cast<size_t>(part)];
  const auto [first, end] = PartsOf(plan_, what.block);
  if (part == first) LIME_RETURN_IF_ERROR(backend_.BeginBlock(what.block));
  if (HasState(what.block.kind) && part == first) {
    if (world_.Plants(PlantedBug::kForgottenState, 30)) backend_.ForgetStates();
    if (world_.Plants(PlantedBug::kRepeatedRow, 30)) LIME_RETURN_IF_ERROR(backend_.BeginBlock(what.block));
  }
  if (what.hosted()) {
    LIME_RETURN_IF_ERROR(asked_units_->UseAnswer(part));
  } else if (WaitsForKv(plan_, part)) {
    if (lent_ != nullptr) LIME_RETURN_IF_ERROR(lent_->UseAnswer());
  } else if (what.is_kv() && StreamsIn(part, step)) {
    LIME_RETURN_IF_ERROR(AttendToDisk(part, batch));
  }
  if (!what.is_kv() && !what.hosted()) backend_.AddWeights(WeightsAt(part, step));
  return part + 1 < end ? absl::OkStatus() : backend_.EndBlock();
}

void SimStage::Carry(const ProgramRunner::StartAskUnits& start) {
  const auto& [stage, microbatch, part] = start.what;
  if (plan_.parts[static_cast<size_t>(part)].sparse()) return AskNeurons(part, microbatch);
  std::vector<int32_t> chosen;
  if (!logic_->inbox().batch(microbatch).rows.empty()) {
    for (const int32_t expert : backend_.ChosenUnits(plan_.parts[static_cast<size_t>(part)].block)) {
      if (const int32_t unit = UnitOf(part, expert); unit >= 0) chosen.push_back(unit);
    }
  }
  units_left_ = std::ssize(chosen), may_guess_ = true;
  logic_->OnUnitsChosen(part, microbatch, chosen, world_.clock.now_ms(), actions_);
}

void SimStage::Carry(const StageLogic::StartUnits& start) {
  const int32_t part = start.what.part;
  if (plan_.parts[static_cast<size_t>(part)].sparse()) return ComputeSparse(start);
  if (std::exchange(may_guess_, false)) GuessUnits(part);
  for (const UnitInPlace& unit : start.units) {
    Place& place = unit_places_[{part, unit.place}];
    place.computing = true;
    world_.ahead.used += std::exchange(place.ahead, false) ? 1 : 0;
  }
  After(world_.Between(0.02, 0.1) * static_cast<double>(start.units.size()), [this, part, units = start.units] {
    if (dead_) return;
    for (const UnitInPlace& unit : units) {
      backend_.AddWeights(WeightsOfUnit(part, unit));
      unit_places_[{part, unit.place}].computing = false;
    }
    units_left_ -= std::ssize(units);
    if (units_left_ == 0 && part + 1 == PartsOf(plan_, plan_.parts[static_cast<size_t>(part)].block).second) {
      if (const absl::Status status = backend_.EndBlock(); !status.ok()) return world_.Violation(device().name, ": ", status.message());
    }
    logic_->OnComputed({}, world_.clock.now_ms(), actions_);
    CarryOut();
  });
}

void SimStage::Sample(const MicroBatch& batch) {
  sampled_.clear();
  for (size_t r = 0; r < batch.rows.size(); ++r) {
    const BatchRow& row = batch.rows[r];
    if (row.wants_logits)
      sampled_.push_back({.sequence = row.sequence,
                          .position = row.position + 1,
                          .token = HashModel::Token(backend_.hidden()[r], spec_.config.vocab_size)});
  }
}

void SimStage::Carry(const ProgramRunner::StartSend& start) {
  const Send& send = start.what;
  ActivationMessage message{
      .header = {.epoch = plan_.epoch, .step = start.step, .stage = send.stage, .microbatch = send.microbatch, .payload = send.payload}};
  if (send.payload == Payload::kToken) {
    if (send.to != device_) message.payload = lime::Encode(std::span<const SampledToken>(sampled_));
  } else {
    message.payload = Encode(backend_.hidden());
  }
  message.header.bytes = std::ssize(message.payload);
  if (send.to != device_) peers_.send(send.to, std::move(message));
  if (send.payload == Payload::kToken && !sampled_.empty()) peers_.sampled(start.step, sampled_);
}

void SimStage::Carry(const ProgramRunner::StartAskKv& start) {
  const AskKv& ask = start.what;
  const StageInbox& inbox = logic_->inbox();
  absl::StatusOr<bool> asked = false;
  if (lent_ != nullptr)
    asked = lent_->Ask({.part = ask.part, .microbatch = ask.microbatch, .last = ask.microbatch + 1 == inbox.num_batches()},
                       inbox.batch(ask.microbatch));
  if (!asked.ok()) return world_.Violation(device().name, ": ", asked.status().message());
  if (!*asked) logic_->OnKvArrived(ask.part, ask.microbatch, world_.clock.now_ms(), actions_);
}

// ----

int64_t SimStage::LayerIndex(int32_t layer) const {
  return std::ranges::lower_bound(layers_, layer) - layers_.begin();
}

std::string SimStage::LeftOver(const std::map<int32_t, Kept>& kept) {
  if (!health().ok()) return absl::StrCat("it has stopped, and nobody knows: ", health().message());
  if (logic_->inbox().step_under_way() || logic_->inbox().NextOrder() != nullptr) return absl::StrCat("it is at ", Waiting());
  for (const auto& [at, place] : unit_places_) {
    if (place.reading || place.computing) return absl::StrCat("place ", at.second, " of part ", at.first, " is in use");
  }
  const KvPages& pages = book_.pages();
  int64_t idle = 0;  // pages in memory
  for (const auto& [s, slot] : kept) {
    const int64_t positions = slot.positions;
    if (book_.kept(s) != positions) return absl::StrCat("slot ", s, " keeps ", book_.kept(s), " positions, not ", positions);
    idle += (positions / kPageTokens - book_.away().away(s) * kKvPiecePages) * std::ssize(layers_);
  }
  if (pages.free_pages() + idle != pages.num_pages() || !pages.Fits())
    return absl::StrCat(pages.num_pages() - pages.free_pages(), " of ", pages.num_pages(), " pages are taken, ", idle, " by idle slots");
  for (int32_t s = 0; s < plan_.sequences; ++s) {
    const bool shown = std::ranges::any_of(backend_.shown(s), [](const auto& layer) { return !layer.empty(); });
    const bool in_use = shown || book_.kept(s) > 0 || book_.away().away(s) > 0;
    if (in_use && !kept.contains(s)) return absl::StrCat("slot ", s, " is in use");
    for (int32_t i = 0; i < (HasState(plan_) ? plan_.state_snapshots : 0); ++i) {
      const int64_t there = book_.states().snapshot(s, i), ought = kept.contains(s) ? kept.at(s).snapshots[static_cast<size_t>(i)] : 0;
      if (there != ought) return absl::StrCat("snapshot ", i, " of slot ", s, " has ", there, " positions, not ", ought);
    }
  }
  if (hosted_ == nullptr) return "";
  const KvOfOthers others = hosted_->HandOver();
  for (const HostedHandover& of : others.all) {
    for (int32_t s = 0; s < plan_.sequences; ++s) {
      if (of.places.stored(s) > 0) return absl::StrCat("another's slot ", s, " has KV");
    }
  }
  return "";
}

std::string SimStage::Waiting() const {
  if (!logic_) return "not begun";
  const Instruction* const waiting = logic_->runner().waiting();
  return absl::StrCat("step ", logic_->runner().steps_ended(), ", ",
                      logic_->runner().computing() ? "computes"
                      : waiting != nullptr         ? InstructionName(*waiting)
                                                   : "between steps",
                      logic_->inbox().NextOrder() != nullptr ? ", orders wait" : "", ", ", loads_.size(), " loads");
}

}  // namespace lime
