#include "daemon/engine/stage_engine.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "common/steady_clock.h"
#include "daemon/engine/compute_wait.h"
#include "daemon/engine/stage_compute.h"
#include "daemon/engine/stage_neurons.h"
#include "daemon/engine/stage_parts.h"
#include "daemon/engine/stage_residency.h"
#include "daemon/engine/stage_trace.h"
#include "daemon/logic/rates/disk_meter.h"
#include "daemon/logic/stage_logic.h"
#include "daemon/logic/stage_programs.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_blocks.h"
#include "planner/program/program_runner.h"

namespace lime {
namespace {

static_assert(StageLogic::kLoadsUnderWay <= StageTrace::kMaxLoadsUnderWay);

std::string LoadSentence(const LoadSummary& load) {
  return absl::StrCat("loaded ", FormatBytes(load.bytes), " of weights in ", absl::StrFormat("%.1f s", load.seconds), ", ", load.loader);
}

// `memory`: what the process may use; 0: not given.
absl::Status CheckMemory(const PlanDevice& device, Bytes memory) {
  if (memory == 0 || device.budget <= memory) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("the plan gives device \"", device.name, "\" ", FormatBytes(device.budget),
                                                   ", but limed was started with --memory ", FormatBytes(memory),
                                                   "; plan with the smaller budget, or start limed with more memory"));
}

class InstalledStage final : public StageEngine {
 public:
  InstalledStage(Checkpoint checkpoint, ModelSpec spec, Options options)
      : checkpoint_(std::move(checkpoint)),
        spec_(std::move(spec)),
        options_(std::move(options)),
        parts_(checkpoint_, spec_, options_),
        wait_({.mutex = &mutex_,
               .places = QuestionPlace(plan_) + 1,
               .has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return HasWork(); },
               .awaited = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return NowAwaited(); },
               .for_disk = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return AwaitedPart().has_value(); },
               .part = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return PartName(plan_, *AwaitedPart()); },
               .bytes_read = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return BytesRead(); },
               .report = options_.report}) {}

  ~InstalledStage() override {
    Stop();
    if (parts_.kv != nullptr) parts_.kv->Cancel();
    if (parts_.weights != nullptr) parts_.weights->Cancel(), parts_.weights->Close();
    parts_.kv.reset();  // its reads and writes end under the lock
  }

  absl::StatusOr<PlanHandover> HandOver() override {
    {
      absl::MutexLock lock(&mutex_);
      LIME_RETURN_IF_ERROR(Health());
    }
    Stop();
    const std::unique_ptr<StageWeights> weights = std::move(parts_.weights);
    weights->Cancel(), weights->Close();
    PlanHandover handover{.weights = std::make_shared<WeightsHandover>(checkpoint_.dir())};
    LIME_ASSIGN_OR_RETURN(handover.kv, parts_.kv->HandOver(numerics_id(), parts_.backend->ShareKv(), parts_.others->HandOver()));
    weights->HandOver(*handover.weights);
    return handover;
  }

  absl::Status Open() {
    LIME_ASSIGN_OR_RETURN(std::vector<Program> programs, CompileAll(plan_, device_));
    LIME_RETURN_IF_ERROR(parts_.Open({.mutex = &mutex_,
                                      .wrote = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { Pump(); },
                                      .send_to_peer = [this](int32_t to, std::vector<std::byte> message,
                                                             bool may_wait) { SendToPeer(to, std::move(message), may_wait); },
                                      .neurons_read = [this](std::span<const int32_t> neurons,
                                                             const absl::Status& status) { neurons_->OnNeuronsRead(neurons, status); }}));
    compute_ = std::make_unique<StageCompute>(
        parts_, StageCompute::Owner{.rows_of = [this](int part, int i, int64_t step) { return RowsOf(part, i, step); },
                                    .attend = [this](int part, int64_t step, const MicroBatch& batch) { return Attend(part, step, batch); },
                                    .use_results = [this](int part) { return parts_.asked_units->UseAnswer(part); },
                                    .whole_batch = [this](int32_t microbatch) { return WholeBatch(microbatch); },
                                    .resident_rows_of = [this](int part, int i, int64_t step) { return ResidentRowsOf(part, i, step); },
                                    .guessed = [this](int part, std::span<const int32_t> units) { OnGuessed(part, units); }});
    neurons_ = std::make_unique<StageNeurons>(
        parts_, *compute_,
        StageNeurons::Owner{.mutex = &mutex_,
                            .actions = &actions_,
                            .disk = &disk_,
                            .carry_out = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { CarryOut(); },
                            .refuse = [this](const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { Refuse(status); }});
    residency_ = std::make_unique<StageResidency>(
        parts_, std::move(programs),
        StageResidency::Owner{.mutex = &mutex_,
                              .actions = &actions_,
                              .carry_out = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { CarryOut(); },
                              .fail = [this](const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { Fail(status); },
                              .loaded = [this](int64_t load, const absl::Status& status) { OnLoaded(load, status); }});
    Begin();
    load_ = parts_.weights->loaded(), load_.backend = parts_.backend->description();
    if (options_.log && load_.bytes > 0) options_.log(LoadSentence(load_));
    return residency_->Watch();
  }

  LoadSummary load() const override { return load_; }
  std::string numerics_id() const override { return parts_.numerics_id(); }

  absl::Status OnOrder(const Order& order) override {
    absl::MutexLock lock(&mutex_);
    LIME_RETURN_IF_ERROR(Health());
    LIME_RETURN_IF_ERROR(logic_->OnOrder(order));
    CarryOut();
    return Health();
  }

  absl::Status OnActivation(ActivationMessage activation) override {
    absl::MutexLock lock(&mutex_);
    LIME_RETURN_IF_ERROR(Health());
    LIME_RETURN_IF_ERROR(logic_->OnActivation(std::move(activation), SteadyMs(), actions_));
    CarryOut();
    return Health();
  }

  absl::Status OnHosting(int32_t from, const std::vector<std::byte>& message) override {
    if (IsUnitsMessage(message)) return OnUnits(from, message);
    LIME_ASSIGN_OR_RETURN(const KvMessage what, ParseKvMessage(message));
    absl::MutexLock lock(&mutex_);
    LIME_RETURN_IF_ERROR(Health());
    if (!IsAnswer(what)) {
      LIME_RETURN_IF_ERROR(others().OnMessage(from, what));
      if (others().asked()) wait_.Wake();
      return absl::OkStatus();
    }
    if (!HoldsKvOf(plan_, from, device_)) return Invalid("device ", from, " is not the host of this device's KV");
    if (parts_.kv->lent() == nullptr) return absl::InvalidArgumentError("this device has no KV on a host");
    LIME_ASSIGN_OR_RETURN(const auto answered, parts_.kv->lent()->OnAnswer(what));
    if (answered) logic_->OnKvArrived(answered->first, answered->second, SteadyMs(), actions_), CarryOut();
    return Health();
  }

  double StepShare() const override {
    const int32_t all = computes_.load(std::memory_order_relaxed);
    return all == 0 ? 0 : std::min(1.0, static_cast<double>(computed_.load(std::memory_order_relaxed)) / all);
  }

  DeviceStatistics stats() const override {
    DeviceStatistics stats;
    const StageKv* kv = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      stats = stats_;
      stats.disk_ms = disk_.ms(), stats.disk_bytes = disk_.bytes();
      if (parts_.weights != nullptr) {
        kv = parts_.kv.get();
        stats.kv_read = kv->bytes_read(), stats.kv_written = kv->bytes_written(), stats.kv_fetched = kv->bytes_fetched();
        stats.bytes_read = BytesRead();
        stats.kv_pages = kv->book().pages().num_pages(), stats.kv_pages_free = kv->book().pages().free_pages();
        stats.residency_changes = residency_->logic().num_changes(), stats.shed = residency_->logic().shed();
        stats.pressure_events = residency_->pressure_events();
        stats.unit_hits = logic_->all_units().hits, stats.unit_misses = logic_->all_units().misses;
        const StageLogic::AheadUses ahead = logic_->units_ahead();
        stats.units_suggested = ahead.suggested, stats.units_read_ahead = ahead.read, stats.read_ahead_used = ahead.used;
        stats.read_ahead_wasted = ahead.wasted;
        const SparseVisits::Counts neurons = logic_->neurons();
        stats.neuron_visits = neurons.visits, stats.neuron_rows = neurons.rows;
        stats.neurons_computed = neurons.active, stats.neurons_loaded = neurons.loaded;
        stats.neurons_copied = neurons.copied;
        stats.neuron_bytes = parts_.weights->neuron_bytes_read(), stats.neuron_reads = parts_.weights->neuron_reads();
        stats.neuron_io_ms = neurons_->io_ms();
        stats.decode_unit_hits = logic_->decode_units().hits, stats.decode_unit_misses = logic_->decode_units().misses;
      }
    }
    if (kv != nullptr) stats.kv_room = kv->disk_room();  // may wait for the disk: without the lock
    return stats;
  }

 private:
  // ---- Setting up, and its end

  void Stop() {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
      if (logic_) logic_->Stop(absl::CancelledError("the plan was unloaded"));
      wait_.Wake();
    }
    if (thread_.joinable()) thread_.join();
    if (residency_ != nullptr) residency_->Stop();
  }

  void Begin() {
    absl::MutexLock lock(&mutex_);
    parts_.kv->book().SetReach(residency_->logic().Reach());
    const std::vector<Program>& programs = residency_->logic().programs();
    if (options_.trace != nullptr) trace_.emplace(*options_.trace);
    logic_.emplace(plan_, device_,
                   StageInbox::Shape{
                       .vocab_size = spec_.config.vocab_size, .row_bytes = parts_.RowBytes(), .microbatches = programs.back().microbatches},
                   programs, parts_.kv->book());
    residency_->Start(*logic_, compute_.get());
    neurons_->Start(*logic_);
    logic_->Start(actions_);
    CarryOut();
    const ScopedCoreBinding binding(options_.cores);
    thread_ = std::thread([this] { ComputeThread(); });
  }

  // Bytes read from the disk for what streams.
  Bytes BytesRead() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return parts_.weights->bytes_read() + parts_.kv->bytes_read(); }

  HostedKv& others() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return *parts_.others; }
  HostedUnits& hosted() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return *parts_.hosted_units; }
  StageWeights& weights() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return *parts_.weights; }

  absl::Status OnUnits(int32_t from, const std::vector<std::byte>& message) {
    LIME_ASSIGN_OR_RETURN(const UnitsMessage what, ParseUnitsMessage(message));
    absl::MutexLock lock(&mutex_);
    LIME_RETURN_IF_ERROR(Health());
    if (const auto* query = std::get_if<UnitsQuery>(&what)) {
      LIME_ASSIGN_OR_RETURN(const HostedUnits::Visit visit, hosted().OnQuery(from, *query));
      LIME_RETURN_IF_ERROR(logic_->OnUnitsAsked(visit.part, visit.units, visit.rows, visit.decodes, SteadyMs(), actions_));
    } else if (const auto* guess = std::get_if<UnitsGuess>(&what)) {
      LIME_RETURN_IF_ERROR(hosted().CheckGuess(from, *guess));
      logic_->OnUnitsGuessed(guess->part, guess->units, actions_);
    } else {
      LIME_ASSIGN_OR_RETURN(const auto answered, parts_.asked_units->OnAnswer(from, std::get<UnitsAnswer>(what)));
      if (answered) logic_->OnHostAnswered(answered->first, answered->second, SteadyMs(), actions_);
    }
    CarryOut();
    return Health();
  }

  // ---- What follows from an event

  const absl::Status& Health() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return logic_->health(); }

  // Carries out the actions of the logic in order, then the waiting orders one by one.
  void CarryOut() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    CarryActions();
    while (logic_->HasOrder()) {
      logic_->NextOrder(residency_->logic().memory(), SteadyMs(), actions_);
      CarryActions();
    }
  }

  void CarryActions() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    parts_.kv->Follow();
    for (size_t i = 0; i < actions_.size(); ++i) {  // more may be appended meanwhile
      if (refused_ && !std::holds_alternative<StageLogic::Failed>(actions_[i])) continue;
      const StageLogic::Action action = actions_[i];
      std::visit([this](const auto& typed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { Carry(typed); }, action);
    }
    actions_.clear();
  }

  void Pump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    logic_->MayTryOrders();
    CarryOut();
  }

  // Only the first failure counts: later events find nothing to work with.
  void Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!Health().ok()) return;
    logic_->Fail(status, actions_);
    CarryOut();
  }

  // An action cannot be carried out: skips all later ones except the report of the failure.
  void Refuse(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    refused_ = true;
    logic_->Fail(status, actions_);
  }

  void Carry(const StageLogic::Failed& failed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (options_.peers.failed) options_.peers.failed(failed.why);
  }

  void Carry(const StageLogic::Admitted& admitted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (HasHead(plan_, device_) && options_.sampler != nullptr) options_.sampler->Admit(*admitted.order);
  }

  void Carry(const StageLogic::Retired& retired) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    residency_->TryChange();
    if (HasHead(plan_, device_) && options_.sampler != nullptr) options_.sampler->Retire(retired.sequence);
  }

  void Carry(const StageLogic::RolledBack& back) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (HasHead(plan_, device_) && options_.sampler != nullptr) options_.sampler->RollBack(back.sequence, back.positions);
  }

  void Carry(const StageLogic::ChangeResidency& change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { residency_->Order(change.order->to); }

  void Carry(const StageLogic::StepBegun& begun) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    computed_.store(0, std::memory_order_relaxed), computes_.store(begun.computes, std::memory_order_relaxed);
  }

  void Carry(const ProgramRunner::StartCompute& start) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    computing_ = start;
    wait_.Wake();
  }

  void Carry(const ProgramRunner::StartLoad& start) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const double now_ms = SteadyMs();
    disk_.LoadBegun(now_ms);
    if (trace_) trace_->LoadBegun(start, StepOf(start), now_ms);
    if (start.what.becomes_resident) return residency_->StartResidentLoad(start);
    weights().StartLoad(start.what.part, [this, load = start.load](const absl::Status& status) { OnLoaded(load, status); });
  }

  void OnLoaded(int64_t load, const absl::Status& status) {
    const double end_ms = SteadyMs();  // before waiting for the lock
    absl::MutexLock lock(&mutex_);
    if (!status.ok()) return Fail(status);
    if (!Health().ok()) return;  // the memory it was for may be gone
    disk_.LoadEnded(end_ms, parts_.BytesStreamed());
    if (trace_) trace_->LoadEnded(load, end_ms);
    logic_->OnLoaded(load, SteadyMs(), actions_);
    CarryOut();
  }

  void Carry(const ProgramRunner::Release&) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { weights().ReleaseOldest(); }
  void Carry(const ProgramRunner::Border&) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { residency_->OnBorder(); }

  // Follows directly after the visit's last Compute, so the backend still has the result.
  void Carry(const ProgramRunner::StartSend& start) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const Send& send = start.what;
    ActivationMessage activation{
        .header = {.epoch = plan_.epoch, .step = start.step, .stage = send.stage, .microbatch = send.microbatch, .payload = send.payload}};
    const std::vector<SampledToken>& sampled = compute_->sampled();
    const bool has_hidden =
        send.payload != Payload::kToken && send.payload != Payload::kHeadPartial && !logic_->inbox().batch(send.microbatch).rows.empty();
    const std::span<const std::byte> hidden = has_hidden ? compute_->Hidden() : std::span<const std::byte>();
    if (send.to != device_) activation.payload = logic_->inbox().PopSpare(std::ssize(hidden));
    if (send.payload == Payload::kToken) {
      if (send.to != device_) activation.payload = Encode(sampled, std::move(activation.payload));
    } else if (send.payload == Payload::kHeadPartial) {
      activation.payload = compute_->ReleaseHeadPartial(std::move(activation.payload));
    } else {
      activation.payload.assign(hidden.begin(), hidden.end());
    }
    activation.header.bytes = static_cast<int64_t>(activation.payload.size());
    if (send.to != device_) options_.peers.send(send.to, std::move(activation));
    if (send.payload == Payload::kToken && options_.peers.sampled) options_.peers.sampled(start.step, sampled);
  }

  // Follows directly after the last rows of V, so the backend still has the queries.
  void Carry(const ProgramRunner::StartAskKv& start) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto& ask = start.what;
    const StageInbox& inbox = logic_->inbox();
    absl::StatusOr<bool> asked = false;
    if (LentKv* const lent = parts_.kv->lent(); lent != nullptr)
      asked = lent->Ask({.part = ask.part, .microbatch = ask.microbatch, .last = ask.microbatch + 1 == inbox.num_batches()},
                        inbox.batch(ask.microbatch));
    if (!asked.ok()) return Refuse(asked.status());
    // Nothing was asked, so there is no answer to wait for.
    if (!*asked) logic_->OnKvArrived(ask.part, ask.microbatch, SteadyMs(), actions_);
  }

  // Follows directly after the block's router or proofs, so the backend still has its choice.
  void Carry(const ProgramRunner::StartAskUnits& start) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto& [stage, microbatch, part] = start.what;
    const MicroBatch& batch = logic_->inbox().batch(microbatch);
    if (plan_.parts[part].sparse()) return neurons_->Ask(part, microbatch, batch);
    const std::span<const int32_t> chosen = compute_->ChosenUnits(part, batch);
    if (options_.routes != nullptr)
      options_.routes->Add(start.step, microbatch, plan_.parts[part].block.layer, static_cast<int32_t>(batch.rows.size()), chosen);
    logic_->OnUnitsChosen(part, microbatch, chosen, SteadyMs(), actions_);
  }

  void Carry(const StageLogic::StartNeuronReads& start) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { neurons_->Carry(start); }
  void Carry(const StageLogic::StartPieceRead& start) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { neurons_->Carry(start); }

  void Carry(const ProgramRunner::StartAskHost& start) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const AskHost& ask = start.what;
    const absl::StatusOr<bool> asked = parts_.asked_units->Ask(ask.part, ask.microbatch, logic_->inbox().batch(ask.microbatch));
    if (!asked.ok()) return Refuse(asked.status());
    if (!*asked) logic_->OnHostAnswered(ask.part, ask.microbatch, SteadyMs(), actions_);
  }

  void Carry(const StageLogic::HostedReady& ready) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    hosted().OnReady(ready.part, ready.unit);
    wait_.Wake();
  }

  void Carry(const StageLogic::StartUnitRead& start) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    disk_.LoadBegun(SteadyMs());
    weights().StartUnitRead(start.part, start.unit, start.place, start.number,
                            [this, number = start.number, bytes = plan_.parts[start.part].unit_bytes](const absl::Status& status) {
                              OnUnitRead(number, bytes, status);
                            });
  }

  void Carry(const StageLogic::CancelUnitRead& cancel) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { weights().CancelUnitRead(cancel.number); }
  void Carry(const StageLogic::FreePlace& free) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    weights().FreePlaces(free.part, free.place, free.count);
  }

  void OnUnitRead(int64_t number, Bytes bytes, const absl::Status& status) {
    const double end_ms = SteadyMs();  // before waiting for the lock
    absl::MutexLock lock(&mutex_);
    if (!Health().ok()) return;  // the memory it was for may be gone
    disk_.LoadEnded(end_ms, parts_.BytesStreamed());
    if (status.ok()) stats_.unit_bytes += bytes;
    logic_->OnUnitRead(number, status, SteadyMs(), actions_);
    CarryOut();
  }

  void Carry(const StageLogic::StartUnits& start) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    units_ = start.units;
    computing_ =
        ProgramRunner::StartCompute{start.step, Compute{start.what.stage, start.what.microbatch, start.what.part, start.what.rows, 0}};
    wait_.Wake();
  }
  // Never: StageLogic answers with StartUnits.
  void Carry(const ProgramRunner::StartComputeUnits&) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {}

  void SendToPeer(int32_t to, std::vector<std::byte> message, bool may_wait) {
    ActivationMessage activation{.header = {.epoch = plan_.epoch, .bytes = std::ssize(message), .hosting = true}};
    activation.payload = std::move(message), activation.may_wait = may_wait;
    options_.peers.send(to, std::move(activation));
  }

  void Carry(const ProgramRunner::Waited& waited) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const double ms = waited.end_ms - waited.begin_ms;
    const bool for_disk = std::holds_alternative<AwaitWeights>(waited.what) || std::holds_alternative<ComputeUnits>(waited.what);
    (for_disk ? stats_.wait_weights_ms : stats_.wait_input_ms) += ms;
    if (std::holds_alternative<AwaitKv>(waited.what)) stats_.wait_kv_ms += ms;
    if (const auto place = WaitPlace(plan_, waited.what)) wait_.Waited(*place, ms);
    if (trace_) trace_->Waited(waited);
  }

  void Carry(const ProgramRunner::StepEnded& ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    parts_.kv->EndStep();
    ++stats_.steps;
    residency_->OnStepEnded();
    if (options_.peers.step_ended) options_.peers.step_ended(ended.step);
  }

  // Units may be computed in several turns, which a plan does not know.
  void NoteTime(const Compute& what, const MicroBatch& batch, std::span<const UnitInPlace> units, double ms)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    stats_.compute_ms += ms;
    if (!units.empty() || !IsPlannedDecode(plan_, what, batch) || plan_.parts[what.part].on_demand()) return;
    stats_.decode_ms += ms;
    stats_.planned_decode_ms += plan_.parts[what.part].decode_ms;
  }

  // ---- Spans of a trace, if there is one

  // The step that a load is for. Where residency changes it is not known: then the current step.
  int64_t StepOf(const ProgramRunner::StartLoad& start) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return residency_->logic().changes() ? logic_->runner().steps_ended()
                                         : start.load / static_cast<int64_t>(residency_->logic().programs().front().loads.size());
  }

  // A whole block is computed with its first part; its other parts have no span.
  void NoteComputed(const ProgramRunner::StartCompute& start, double begin_ms, double end_ms) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const int part = start.what.part;
    if (part != kEmbeddingPart && weights().IsWhole(part) && part != PartsOf(plan_, plan_.parts[part].block).first) return;
    trace_->Computed(start, begin_ms, end_ms);
  }

  // ---- The compute thread

  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || computing_ || ((others().asked() || hosted().ready()) && Health().ok());
  }

  // The part that the disk is awaited for, if any.
  std::optional<int> AwaitedPart() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return logic_->runner().awaited_part(); }
  std::optional<ComputeWait::Awaited> NowAwaited() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const Instruction* const waiting = logic_->runner().waiting();
    if (const auto place = waiting != nullptr ? WaitPlace(plan_, *waiting) : std::nullopt)
      return ComputeWait::Awaited{*place, logic_->runner().waiting_since_ms()};
    return answered_at_ms_ > 0 ? std::optional(ComputeWait::Awaited{QuestionPlace(plan_), answered_at_ms_}) : std::nullopt;
  }

  void ComputeThread() {
    absl::MutexLock lock(&mutex_);
    while (true) {
      wait_.Await();
      if (stopping_) return;
      if (others().asked() && Health().ok()) {  // short, and another device waits for it
        AttendForOther();
        continue;
      }
      if (hosted().ready() && Health().ok()) {
        ComputeForOther();
        continue;
      }
      const ProgramRunner::StartCompute start = *std::exchange(computing_, std::nullopt);
      const std::span<const UnitInPlace> units = std::exchange(units_, {});  // valid until OnComputed
      const double begin = SteadyMs();
      std::vector<std::byte> input = logic_->inbox().PopInput({start.what.stage, start.what.microbatch});
      // Valid while Run computes: the step cannot end before.
      const MicroBatch& batch = logic_->inbox().batch(start.what.microbatch);
      mutex_.Unlock();
      const absl::Status status =
          units.empty() ? compute_->Run(start, batch, input) : compute_->RunUnits(start.what.part, start.step, units, batch);
      computed_.fetch_add(1, std::memory_order_relaxed);
      mutex_.Lock();
      logic_->inbox().AddSpare(std::move(input));
      const double end = SteadyMs();
      NoteTime(start.what, batch, units, end - begin);
      if (trace_) NoteComputed(start, begin, end);
      if (status.ok()) logic_->OnComputed(compute_->sampled(), SteadyMs(), actions_), CarryOut();
      if (!status.ok()) Fail(status);
    }
  }

  void AttendForOther() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const int32_t from = others().BeginAnswer();
    const double begin = SteadyMs();
    if (answered_at_ms_ > 0) wait_.Waited(QuestionPlace(plan_), begin - answered_at_ms_);
    mutex_.Unlock();
    const absl::Status status = parts_.others->Answer();
    mutex_.Lock();
    if (!status.ok()) return Fail(status);
    answered_at_ms_ = SteadyMs();
    if (trace_) trace_->AttendedFor(from, logic_->runner().steps_ended(), begin, answered_at_ms_);
    others().EndAnswer();
  }

  void ComputeForOther() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const int32_t from = hosted().BeginCompute();
    const double begin = SteadyMs();
    if (answered_at_ms_ > 0) wait_.Waited(QuestionPlace(plan_), begin - answered_at_ms_);
    mutex_.Unlock();
    const absl::Status status = parts_.hosted_units->Compute();
    mutex_.Lock();
    if (!status.ok()) return Fail(status);
    answered_at_ms_ = SteadyMs();
    stats_.compute_ms += answered_at_ms_ - begin;
    if (trace_) trace_->ComputedFor(from, logic_->runner().steps_ended(), begin, answered_at_ms_);
    const HostedUnits::Computed computed = hosted().EndCompute();
    logic_->OnHostedComputed(computed.part, computed.units, SteadyMs(), actions_);
    CarryOut();
  }

  // A part's place may change under the lock, but not that of the part at hand.
  RowsInMemory RowsOf(int part, int i, int64_t step) {
    absl::MutexLock lock(&mutex_);
    return weights().Rows(part, i, step);
  }

  std::optional<RowsInMemory> ResidentRowsOf(int part, int i, int64_t step) {
    absl::MutexLock lock(&mutex_);
    return weights().IsRead(part, step) ? std::optional(weights().Rows(part, i, step)) : std::nullopt;
  }

  void OnGuessed(int part, std::span<const int32_t> units) {
    absl::MutexLock lock(&mutex_);
    if (plan_.parts[part].hosted()) return parts_.asked_units->Guess(part, units);
    logic_->OnUnitsGuessed(part, units, actions_);
    CarryOut();
  }

  MicroBatch WholeBatch(int32_t microbatch) {
    absl::MutexLock lock(&mutex_);
    return logic_->inbox().WholeBatch(microbatch);
  }

  // Attends to the positions of a KV part that are on the disk, or uses the host's answer. The
  // other positions are in memory: the rows of O attend to them.
  absl::Status Attend(int part, int64_t step, const MicroBatch& batch) {
    if (WaitsForKv(plan_, part)) return parts_.kv->lent() == nullptr ? absl::OkStatus() : parts_.kv->lent()->UseAnswer();
    {
      absl::MutexLock lock(&mutex_);
      const KvLoad* const load = weights().Kv(part, step);
      if (load == nullptr) return absl::OkStatus();
      parts_.kv->Locate(*load, batch);
    }
    return parts_.kv->Attend();
  }

  const Checkpoint checkpoint_;
  const ModelSpec spec_;
  const Options options_;
  const Plan& plan_ = options_.plan;
  const int32_t device_ = options_.device;
  LoadSummary load_;  // set by Open
  StageParts parts_;

  mutable absl::Mutex mutex_;
  std::atomic<int32_t> computes_ = 0, computed_ = 0;  // of the current step; read without the lock
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<StageLogic> logic_ ABSL_GUARDED_BY(mutex_);
  StageLogic::Actions actions_ ABSL_GUARDED_BY(mutex_);  // of the current event
  // One of the actions could not be carried out.
  bool refused_ ABSL_GUARDED_BY(mutex_) = false;
  // What the compute thread computes next.
  std::optional<ProgramRunner::StartCompute> computing_ ABSL_GUARDED_BY(mutex_);
  std::span<const UnitInPlace> units_ ABSL_GUARDED_BY(mutex_);  // of a part on demand, else empty
  DiskMeter disk_ ABSL_GUARDED_BY(mutex_);
  ComputeWait wait_ ABSL_GUARDED_BY(mutex_);
  // When another device's last query was answered.
  double answered_at_ms_ ABSL_GUARDED_BY(mutex_) = 0;
  DeviceStatistics stats_ ABSL_GUARDED_BY(mutex_);
  std::optional<StageTrace> trace_ ABSL_GUARDED_BY(mutex_);

  // Used by the compute thread, and between two computations under the lock.
  std::unique_ptr<StageCompute> compute_;
  std::unique_ptr<StageNeurons> neurons_;  // used under the lock, as they assert
  std::unique_ptr<StageResidency> residency_;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<StageEngine>> StageEngine::Install(Options options) {
  const Plan& plan = options.plan;
  const int32_t device = options.device;
  if (device < 0 || device >= plan.NumDevices())
    return Invalid("device ", device, " is outside a plan for ", plan.NumDevices(), " devices");
  LIME_RETURN_IF_ERROR(CheckMemory(plan.devices[device], options.memory));
  LIME_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::OpenPart(options.weights));
  LIME_ASSIGN_OR_RETURN(ModelSpec spec, checkpoint.BuildModelSpec());
  LIME_RETURN_IF_ERROR(checkpoint.CheckHolds(BlocksOn(plan, device)));
  if (options.digest) LIME_RETURN_IF_ERROR(CheckWeights(checkpoint, spec, *options.digest, options.samples));
  LIME_RETURN_IF_ERROR(plan.Validate(spec));
  LIME_RETURN_IF_ERROR(CheckCarriedOut(plan, spec));
  auto stage = std::make_unique<InstalledStage>(std::move(checkpoint), std::move(spec), std::move(options));
  LIME_RETURN_IF_ERROR(stage->Open());
  return stage;
}

StageFactory MakeEngineStages(const EngineSettings& settings) {
  return [settings, samples = std::make_shared<SampleMemory>()](StageSetup setup) {
    return StageEngine::Install({std::move(setup), settings, samples.get()});
  };
}

}  // namespace lime
