#include "daemon/engine/stage_engine.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "common/steady_clock.h"
#include "daemon/engine/compute_wait.h"
#include "daemon/engine/hosted_kv.h"
#include "daemon/engine/process_memory.h"
#include "daemon/engine/sliced_visit.h"
#include "daemon/engine/stage_compute.h"
#include "daemon/engine/stage_kv.h"
#include "daemon/engine/stage_memory.h"
#include "daemon/engine/stage_residency.h"
#include "daemon/engine/stage_trace.h"
#include "daemon/engine/stage_weights.h"
#include "daemon/logic/disk_meter.h"
#include "daemon/logic/stage_logic.h"
#include "daemon/logic/stage_programs.h"
#include "daemon/weights/checkpoint.h"
#include "daemon/weights/row_reader.h"
#include "kernels/backend.h"
#include "kernels/registry/registry.h"
#include "planner/base/check.h"
#include "planner/plan/kv_eviction.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_blocks.h"
#include "planner/plan/plan_residency.h"
#include "planner/program_runner.h"

namespace lime {
namespace {

static_assert(StageLogic::kLoadsUnderWay <= StageTrace::kMaxLoadsUnderWay);

class InstalledStage final : public StageEngine {
 public:
  InstalledStage(Checkpoint checkpoint, ModelSpec spec, const Plan& plan, int32_t device, Options options)
      : checkpoint_(std::move(checkpoint)),
        spec_(std::move(spec)),
        plan_(plan),
        device_(device),
        options_(std::move(options)),
        pages_come_(GrowsKv(plan) || SpillsKv(plan)),
        layers_(LayersOn(plan_, device)),
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
    if (kv_ != nullptr) kv_->Cancel();
    if (weights_ != nullptr) weights_->Cancel(), weights_->Close();
    kv_.reset();  // whose reads and writes end under the lock
  }

  absl::StatusOr<LeftByPlan> Leave() override {
    {
      absl::MutexLock lock(&mutex_);
      LIME_RETURN_IF_ERROR(Health());
      if (logic_->inbox().step_under_way()) return absl::FailedPreconditionError("a step is under way");
    }
    Stop();
    const std::unique_ptr<StageWeights> weights = std::move(weights_);
    weights->Cancel(), weights->Close();
    LeftByPlan left{.weights = std::make_shared<WeightsLeft>(checkpoint_.dir())};
    LIME_ASSIGN_OR_RETURN(left.kv, kv_->Leave(backend_->numerics_id(), backend_->TakeKv(), hosted_->Leave()));
    weights->Leave(*left.weights);
    return left;
  }

  absl::Status Open() {
    LIME_ASSIGN_OR_RETURN(std::vector<Program> programs, CompileAll(plan_, device_));
    LIME_RETURN_IF_ERROR(OpenAll());
    residency_ = MakeResidency(std::move(programs));
    compute_ = std::make_unique<StageCompute>(
        plan_, spec_,
        StageCompute::Options{.device = device_,
                              .backend = backend_.get(),
                              .weights = weights_.get(),
                              .rows = rows_.get(),
                              .sampler = options_.sampler,
                              .rows_of = [this](int part, int i, int64_t step) { return RowsOf(part, i, step); },
                              .attend = [this](int part, int64_t step, const MicroBatch& batch) { return Attend(part, step, batch); },
                              .visit = visit_.get(),
                              .whole_batch = [this](int32_t microbatch) { return WholeBatch(microbatch); }});
    Begin();
    load_ = weights_->loaded(), load_.backend = backend_->description();
    numerics_id_ = backend_->numerics_id();
    return residency_->Watch();
  }

  const LoadSummary& load() const override { return load_; }
  const std::string& numerics_id() const override { return numerics_id_; }

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

  absl::Status OnKv(int32_t from, const std::vector<std::byte>& message) override {
    LIME_ASSIGN_OR_RETURN(const KvMessage what, ParseKvMessage(message));
    absl::MutexLock lock(&mutex_);
    LIME_RETURN_IF_ERROR(Health());
    const bool of_host =
        std::holds_alternative<KvKept>(what) || std::holds_alternative<KvRecords>(what) || std::holds_alternative<KvFetched>(what);
    if (!of_host) {
      LIME_RETURN_IF_ERROR(hosted_->OnMessage(from, what));
      if (hosted_->asked()) wait_.Give();
      return absl::OkStatus();
    }
    if (from != plan_.devices[device_].kv_host) return Invalid("device ", from, " is not the host of this device's KV");
    LIME_ASSIGN_OR_RETURN(const auto answered, kv_->OnHost(what));
    if (answered) logic_->OnKvArrived(answered->first, answered->second, SteadyMs(), actions_), CarryOut();
    return Health();
  }

  double StepShare() const override {
    const int32_t all = computes_.load(std::memory_order_relaxed);
    return all == 0 ? 0 : std::min(1.0, static_cast<double>(computed_.load(std::memory_order_relaxed)) / all);
  }

  Stats stats() const override {
    Stats stats;
    const StageKv* kv = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      stats = stats_;
      stats.disk_ms = disk_.ms(), stats.disk_bytes = disk_.bytes();
      if (weights_ != nullptr) {
        kv = kv_.get();
        stats.kv_read = kv->bytes_read(), stats.kv_written = kv->bytes_written(), stats.kv_fetched = kv->bytes_fetched();
        stats.bytes_read = BytesRead();
        stats.residency_changes = residency_->logic().num_changes(), stats.given = residency_->logic().given();
      }
    }
    if (kv != nullptr) stats.kv_room = kv->disk_room();  // may wait for the disk: not under the lock
    return stats;
  }

 private:
  // ---- Setting up, and its end

  void Stop() {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
      if (logic_) logic_->Stop(absl::CancelledError("the plan was unloaded"));
      wait_.Give();
    }
    if (thread_.joinable()) thread_.join();
    if (residency_ != nullptr) residency_->Stop();
  }

  void Begin() {
    absl::MutexLock lock(&mutex_);
    kv_->book().SetReach(residency_->logic().Reach());
    const std::vector<Program>& programs = residency_->logic().programs();
    if (options_.trace != nullptr) trace_.emplace(*options_.trace);
    logic_.emplace(
        plan_, device_,
        StageInbox::Shape{.vocab_size = spec_.config.vocab_size, .row_bytes = RowBytes(), .microbatches = programs.back().microbatches},
        programs, kv_->book());
    residency_->Start(*logic_, compute_.get());
    logic_->Start(actions_);
    CarryOut();
    const KeptTo kept(options_.cores);
    thread_ = std::thread([this] { ComputeThread(); });
  }

  std::unique_ptr<StageResidency> MakeResidency(std::vector<Program> programs) {
    return std::make_unique<StageResidency>(
        plan_, std::move(programs),
        StageResidency::Options{
            .device = device_,
            .by_order = pages_come_,
            .layers = layers_,
            .mutex = &mutex_,
            .backend = backend_.get(),
            .kv = kv_.get(),
            .weights = weights_.get(),
            .watching = options_.watch_pressure ? std::optional(options_.pressure.value_or(PressureMonitor::Options{})) : std::nullopt,
            .hold = options_.pressure_hold,
            .tied = spec_.config.tie_embeddings,
            .rows_bytes = RowReader::BytesFor(spec_, MaxRows(plan_)),
            .open_rows = [this] { return OpenRows(); },
            .report = options_.report,
            .actions = &actions_,
            .carry_out = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { CarryOut(); },
            .fail = [this](const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { Fail(status); },
            .loaded = [this](int64_t load, const absl::Status& status) { OnLoaded(load, status); }});
  }

  absl::StatusOr<std::unique_ptr<RowReader>> OpenRows() const {
    return RowReader::Open(
        checkpoint_, spec_,
        {.max_rows = MaxRows(plan_), .cancelled = options_.load.cancelled, .report = options_.report, .wrap_device = options_.wrap_device});
  }

  absl::Status OpenAll() {
    const PlanDevice& device = plan_.devices[device_];
    const BackendOptions backend{.num_threads = options_.num_threads > 0 ? options_.num_threads : UsableCores(),
                                 .max_rows = MaxRows(plan_),
                                 .max_logit_rows = HasHead(plan_, device_) ? MostLogitRows(plan_) : 0,
                                 .max_sequences = plan_.sequences,
                                 .context = plan_.context,
                                 .num_kv_pages = pages_come_ ? FullLayerPages(plan_) * std::ssize(layers_) : device.kv_pages,
                                 .present_kv_pages = pages_come_ ? device.kv_pages : -1,
                                 .attends_pieces = device.max_layer_pages > 0,
                                 .attends_for_others = device.memory.hosted > 0,
                                 .grow_kv = options_.grow_kv,
                                 .numerics = options_.numerics};
    LIME_ASSIGN_OR_RETURN(const Bytes activations, PlanActivationBytes(options_.backend, spec_, backend));
    LIME_ASSIGN_OR_RETURN(const Bytes weights, StageWeights::MemoryFor(checkpoint_, spec_, plan_, device_));
    KeepWeights();
    ReturnFreedMemory();  // what is resident and free is not taken
    const Bytes others = device.memory.hosted + device.memory.fetched,
                left = options_.takeover == nullptr ? 0 : options_.takeover->left_bytes();
    const Bytes rows = EmbedsByRows() ? RowReader::BytesFor(spec_, MaxRows(plan_)) : 0;
    const StageMemory memory{.runtime = std::max<Bytes>(0, ProcessResidentBytes() - left - KeptBytes()),
                             .activations = activations + rows + MessageBytes(plan_, device_, spec_),
                             .kv = device.kv_pages * plan_.page_bytes,
                             .others = others,
                             .weights = weights};
    LIME_RETURN_IF_ERROR(CheckFits(device, memory));
    const Bytes both = memory.total() - weights + left + (options_.takeover == nullptr ? 0 : TakeoverBytes(plan_));
    if (KeptBytes() > 0 && both + KeptBytes() > device.budget)
      options_.takeover->weights.reset();  // rather than KV: they are read from the disk
    if (left > 0) LIME_RETURN_IF_ERROR(CheckBothFit(device, both));
    {
      const KeptTo kept(options_.cores);
      LIME_ASSIGN_OR_RETURN(backend_, OpenBackend(options_.backend, spec_, backend));
    }
    if (options_.wrap_backend) backend_ = options_.wrap_backend(std::move(backend_), spec_);
    if (!device.numerics_id.empty() && device.numerics_id != backend_->numerics_id()) {
      return Invalid("the plan was made for kernels of order ", device.numerics_id, " on device \"", device.name, "\", which has ",
                     backend_->numerics_id(), "; profile the device again, or choose --numerics portable");
    }
    LIME_ASSIGN_OR_RETURN(kv_, StageKv::Create(plan_, {.device = device_,
                                                       .layers = layers_,
                                                       .backend = backend_.get(),
                                                       .mutex = &mutex_,
                                                       .folder = options_.kv_folder.empty() ? checkpoint_.dir() : options_.kv_folder,
                                                       .wrote = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { Pump(); },
                                                       .max_rows = MaxRows(plan_),
                                                       .window = spec_.config.sliding_window,
                                                       .tell_host =
                                                           [this](std::vector<std::byte> message, bool may_wait) {
                                                             SendKv(plan_.devices[device_].kv_host, std::move(message), may_wait);
                                                           },
                                                       .wrap_device = options_.wrap_device}));
    LIME_ASSIGN_OR_RETURN(hosted_, HostedKv::Create(plan_, spec_,
                                                    {.device = device_,
                                                     .max_rows = MaxRows(plan_),
                                                     .backend = backend_.get(),
                                                     .send = [this](int32_t to, std::vector<std::byte> message, bool may_wait) {
                                                       SendKv(to, std::move(message), may_wait);
                                                     }}));
    LIME_RETURN_IF_ERROR(TakeOver());
    LIME_ASSIGN_OR_RETURN(weights_, StageWeights::Load(checkpoint_, spec_, plan_, device_, *backend_,
                                                       {.load = options_.load,
                                                        .loader = options_.loader,
                                                        .passes = options_.planned_steps > 0 ? options_.planned_steps : plan_.context,
                                                        .kv = kv_.get(),
                                                        .left = options_.takeover == nullptr ? nullptr : options_.takeover->weights.get(),
                                                        .wrap_device = options_.wrap_device}));
    if (EvictsKv(plan_)) {
      LIME_ASSIGN_OR_RETURN(visit_, SlicedVisit::Create(plan_, RowBytes(), *backend_));
    }
    if (!EmbedsByRows()) return absl::OkStatus();
    LIME_ASSIGN_OR_RETURN(rows_, OpenRows());
    return absl::OkStatus();
  }

  // While nothing else of the plan is in memory: what is left of the one before goes ahead of the weights.
  absl::Status TakeOver() {
    if (options_.takeover == nullptr) return absl::OkStatus();
    LIME_RETURN_IF_ERROR(kv_->TakeOver(*options_.takeover));
    LIME_RETURN_IF_ERROR(hosted_->TakeOver(*options_.takeover));
    options_.takeover->here.reset();
    return options_.takeover->let_go ? options_.takeover->let_go() : absl::OkStatus();
  }
  // Weights of the plan before that stay; what does not is gone before anything is allocated.
  void KeepWeights() {
    if (KeptBytes() == 0) return;
    if (options_.takeover->weights->dir() != checkpoint_.dir()) return options_.takeover->weights.reset();
    StageWeights::KeepFor(spec_, plan_, device_, *options_.takeover->weights);
  }
  Bytes KeptBytes() const { return options_.takeover == nullptr ? 0 : options_.takeover->kept_bytes(); }

  // From the disk, for what streams.
  Bytes BytesRead() const { return weights_->bytes_read() + kv_->bytes_read(); }
  bool EmbedsByRows() const { return plan_.stages.front().device == device_ && plan_.embedding == EmbeddingPlacement::kByRows; }
  Bytes RowBytes() const { return spec_.config.hidden_size * ElementBytes(spec_.working_dtype); }

  // ---- What follows from an event

  const absl::Status& Health() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return logic_->health(); }

  // What the logic has appended, in order; then orders, one after another.
  void CarryOut() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    CarryActions();
    while (logic_->HasOrder()) {
      logic_->NextOrder(residency_->logic().memory(), SteadyMs(), actions_);
      CarryActions();
    }
  }

  void CarryActions() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    kv_->Follow();
    for (size_t i = 0; i < actions_.size(); ++i) {  // of which there may come to be more
      if (refused_ && !std::holds_alternative<StageLogic::Failed>(actions_[i])) continue;
      const StageLogic::Action action = actions_[i];
      std::visit([this](const auto& typed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { Carry(typed); }, action);
    }
    actions_.clear();
  }

  void Pump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    logic_->MayTakeOrders();
    CarryOut();
  }

  // Once: what ends late finds nothing to carry out with.
  void Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!Health().ok()) return;
    logic_->Fail(status, actions_);
    CarryOut();
  }

  // What cannot be carried out: nothing behind it is, but for the word of it.
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

  void Carry(const StageLogic::ChangeResidency& change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { residency_->Order(change.order->to); }

  void Carry(const StageLogic::StepBegun& begun) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    computed_.store(0, std::memory_order_relaxed), computes_.store(begun.computes, std::memory_order_relaxed);
  }

  void Carry(const ProgramRunner::StartCompute& start) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    computing_ = start;
    wait_.Give();
  }

  void Carry(const ProgramRunner::StartLoad& start) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const double now_ms = SteadyMs();
    disk_.LoadBegun(now_ms);
    if (trace_) trace_->LoadBegun(start, StepOf(start), now_ms);
    if (start.what.keep) return residency_->Keep(start);
    weights_->StartLoad(start.what.part, [this, load = start.load](const absl::Status& status) { OnLoaded(load, status); });
  }

  void OnLoaded(int64_t load, const absl::Status& status) {
    const double end_ms = SteadyMs();  // before the lock is waited for
    absl::MutexLock lock(&mutex_);
    if (!status.ok()) return Fail(status);
    if (!Health().ok()) return;  // what it was for may be gone
    disk_.LoadEnded(end_ms, BytesRead());
    if (trace_) trace_->LoadEnded(load, end_ms);
    logic_->OnLoaded(load, SteadyMs(), actions_);
    CarryOut();
  }

  void Carry(const ProgramRunner::Release&) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { weights_->ReleaseOldest(); }
  void Carry(const ProgramRunner::Border&) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { residency_->OnBorder(); }

  // Directly after the last Compute of the visit: what it made is still the backend's.
  void Carry(const ProgramRunner::StartSend& start) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const Send& send = start.what;
    ActivationMessage activation{
        .header = {.epoch = plan_.epoch, .step = start.step, .stage = send.stage, .microbatch = send.microbatch, .payload = send.payload}};
    const std::vector<SampledToken>& sampled = compute_->sampled();
    if (send.payload == Payload::kToken) {
      if (send.to != device_) activation.payload = Encode(sampled);
    } else if (send.payload == Payload::kHeadPartial) {
      activation.payload = compute_->TakeHeadPartial();
    } else if (!logic_->inbox().batch(send.microbatch).rows.empty()) {
      const std::span<const std::byte> hidden = compute_->Hidden();
      activation.payload.assign(hidden.begin(), hidden.end());
    }
    activation.header.bytes = static_cast<int64_t>(activation.payload.size());
    if (send.to != device_) options_.peers.send(send.to, std::move(activation));
    if (send.payload == Payload::kToken && options_.peers.sampled) options_.peers.sampled(start.step, sampled);
  }

  // Directly after the last rows of V: the queries are the backend's still.
  void Carry(const ProgramRunner::StartAskKv& start) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const AskKv& ask = start.what;
    const StageInbox& inbox = logic_->inbox();
    const absl::StatusOr<bool> asked = kv_->Ask(
        {.part = ask.part, .microbatch = ask.microbatch, .last = ask.microbatch + 1 == inbox.num_batches()}, inbox.batch(ask.microbatch));
    if (!asked.ok()) return Refuse(asked.status());
    if (!*asked) logic_->OnKvArrived(ask.part, ask.microbatch, SteadyMs(), actions_);  // what was asked of nobody is answered
  }

  void SendKv(int32_t to, std::vector<std::byte> message, bool may_wait) {
    ActivationMessage activation{.header = {.epoch = plan_.epoch, .bytes = std::ssize(message), .kv = true}};
    activation.payload = std::move(message), activation.may_wait = may_wait;
    options_.peers.send(to, std::move(activation));
  }

  void Carry(const ProgramRunner::Waited& waited) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const double ms = waited.end_ms - waited.begin_ms;
    (std::holds_alternative<AwaitWeights>(waited.what) ? stats_.wait_weights_ms : stats_.wait_input_ms) += ms;
    if (const auto place = WaitPlace(plan_, waited.what)) wait_.Waited(*place, ms);
    if (trace_) trace_->Waited(waited);
  }

  void Carry(const ProgramRunner::StepEnded& ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    kv_->EndStep();
    ++stats_.steps;
    residency_->OnStepEnded();
    if (options_.peers.step_ended) options_.peers.step_ended(ended.step);
  }

  void NoteTime(const Compute& what, const MicroBatch& batch, double ms) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    stats_.compute_ms += ms;
    if (!IsPlannedDecode(plan_, what, batch)) return;
    stats_.decode_ms += ms;
    stats_.planned_decode_ms += plan_.parts[what.part].decode_ms;
  }

  // ---- Spans, where they are asked for

  // The step that a load is for, where residency stays as it is; else the one under way.
  int64_t StepOf(const ProgramRunner::StartLoad& start) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return residency_->logic().changes() ? logic_->runner().steps_ended()
                                         : start.load / static_cast<int64_t>(residency_->logic().programs().front().loads.size());
  }

  // A block that is whole is computed with its first part: the others have nothing to do.
  void NoteComputed(const ProgramRunner::StartCompute& start, double begin_ms, double end_ms) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const int part = start.what.part;
    if (part != kEmbeddingPart && weights_->IsWhole(part) && part != PartsOf(plan_, plan_.parts[part].block).first) return;
    trace_->Computed(start, begin_ms, end_ms);
  }

  // ---- The compute thread

  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || computing_ || (hosted_->asked() && Health().ok()); }

  // Where it is the disk that is waited for.
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
      if (hosted_->asked() && Health().ok()) {  // short, and another device stands still for it
        AttendForOther();
        continue;
      }
      const ProgramRunner::StartCompute start = *std::exchange(computing_, std::nullopt);
      const double begin = SteadyMs();
      const std::vector<std::byte> input = logic_->inbox().TakeInput({start.what.stage, start.what.microbatch});
      const MicroBatch& batch = logic_->inbox().batch(start.what.microbatch);  // its step goes on until this is computed
      mutex_.Unlock();
      const absl::Status status = compute_->Run(start, batch, input);
      computed_.fetch_add(1, std::memory_order_relaxed);
      mutex_.Lock();
      const double end = SteadyMs();
      NoteTime(start.what, batch, end - begin);
      if (trace_) NoteComputed(start, begin, end);
      if (status.ok()) logic_->OnComputed(compute_->sampled(), SteadyMs(), actions_), CarryOut();
      if (!status.ok()) Fail(status);
    }
  }

  void AttendForOther() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const int32_t from = hosted_->Take();
    const double begin = SteadyMs();
    if (answered_at_ms_ > 0) wait_.Waited(QuestionPlace(plan_), begin - answered_at_ms_);
    mutex_.Unlock();
    const absl::Status status = hosted_->Answer();
    mutex_.Lock();
    if (!status.ok()) return Fail(status);
    answered_at_ms_ = SteadyMs();
    if (trace_) trace_->AttendedFor(from, logic_->runner().steps_ended(), begin, answered_at_ms_);
    hosted_->EndAnswer();
  }

  // Where a part lies changes under the lock, for others than the one at hand.
  RowsInMemory RowsOf(int part, int i, int64_t step) {
    absl::MutexLock lock(&mutex_);
    return weights_->Rows(part, i, step);
  }

  MicroBatch WholeBatch(int32_t microbatch) {
    absl::MutexLock lock(&mutex_);
    return logic_->inbox().WholeBatch(microbatch);
  }

  // What of a KV part is on the disk, or what the host has answered; the others are the rest that the rows of O see to.
  absl::Status Attend(int part, int64_t step, const MicroBatch& batch) {
    if (AsksForKv(plan_, part)) return kv_->TakeAnswer();
    {
      absl::MutexLock lock(&mutex_);
      const KvLoad* const load = weights_->Kv(part, step);
      if (load == nullptr) return absl::OkStatus();
      kv_->Locate(*load, batch);
    }
    return kv_->Attend();
  }

  const Checkpoint checkpoint_;
  const ModelSpec spec_;
  const Plan plan_;
  const int32_t device_;
  const Options options_;
  LoadSummary load_;                   // by Open
  std::string numerics_id_;            // likewise
  const bool pages_come_;              // as sequences go on, and residency may change; else all of one's at once
  const std::vector<int32_t> layers_;  // whose KV is here
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<SlicedVisit> visit_;  // null: nothing is evicted
  std::unique_ptr<RowReader> rows_;
  std::unique_ptr<StageKv> kv_;       // its methods under the lock
  std::unique_ptr<HostedKv> hosted_;  // likewise
  std::unique_ptr<StageWeights> weights_;

  mutable absl::Mutex mutex_;
  std::atomic<int32_t> computes_ = 0, computed_ = 0;  // of the step under way; for who watches
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<StageLogic> logic_ ABSL_GUARDED_BY(mutex_);
  StageLogic::Actions actions_ ABSL_GUARDED_BY(mutex_);                           // of the event at hand
  bool refused_ ABSL_GUARDED_BY(mutex_) = false;                                  // one of them
  std::optional<ProgramRunner::StartCompute> computing_ ABSL_GUARDED_BY(mutex_);  // for the compute thread to take
  DiskMeter disk_ ABSL_GUARDED_BY(mutex_);
  ComputeWait wait_;                                   // its methods under the lock
  double answered_at_ms_ ABSL_GUARDED_BY(mutex_) = 0;  // the last question of another device
  Stats stats_ ABSL_GUARDED_BY(mutex_);
  std::optional<StageTrace> trace_ ABSL_GUARDED_BY(mutex_);

  std::unique_ptr<StageCompute> compute_;      // of the compute thread, which between two computations holds the lock
  std::unique_ptr<StageResidency> residency_;  // its methods under the lock
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<StageEngine>> StageEngine::Install(const std::string& model_dir, const Plan& plan, int32_t device,
                                                                  Options options) {
  LIME_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::OpenPart(model_dir));
  LIME_ASSIGN_OR_RETURN(ModelSpec spec, checkpoint.BuildModelSpec());
  if (device < 0 || device >= plan.NumDevices()) return Invalid("device ", device, " of a plan for ", plan.NumDevices());
  LIME_RETURN_IF_ERROR(checkpoint.CheckHolds(BlocksOn(plan, device)));
  if (options.digest) LIME_RETURN_IF_ERROR(CheckWeights(checkpoint, spec, *options.digest, options.samples));
  LIME_RETURN_IF_ERROR(plan.Validate(spec));
  LIME_RETURN_IF_ERROR(CheckCarriedOut(plan, spec));
  auto stage = std::make_unique<InstalledStage>(std::move(checkpoint), std::move(spec), plan, device, std::move(options));
  LIME_RETURN_IF_ERROR(stage->Open());
  return stage;
}

}  // namespace lime
