#include "daemon/engine/stage_engine.h"

#include <algorithm>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/steady_clock.h"
#include "daemon/engine/hosted_kv.h"
#include "daemon/engine/process_memory.h"
#include "daemon/engine/sliced_visit.h"
#include "daemon/engine/stage_compute.h"
#include "daemon/engine/stage_kv.h"
#include "daemon/engine/stage_programs.h"
#include "daemon/engine/stage_residency.h"
#include "daemon/engine/stage_trace.h"
#include "daemon/engine/stage_weights.h"
#include "daemon/logic/arrival_forecast.h"
#include "daemon/logic/disk_meter.h"
#include "daemon/logic/stage_inbox.h"
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

constexpr int kLoadsUnderWay = 2;  // the disk has the next load before the last one ends
static_assert(kLoadsUnderWay <= StageTrace::kMaxLoadsUnderWay);

// What to do about a plan that takes more than the device may.
std::string HowToFit(const PlanDevice& device, Bytes runtime) {
  const Bytes planned = device.memory.runtime + device.memory.margin;
  if (runtime <= planned) return "; raise its memory, or plan with a longer list of devices or a shorter context";
  return absl::StrCat("; the process itself holds ", FormatBytes(runtime), " by now where the plan leaves it ", FormatBytes(planned),
                      ": plan again, or start it anew");
}

}  // namespace

class StageEngine::Impl {
 public:
  Impl(Checkpoint checkpoint, ModelSpec spec, const Plan& plan, int32_t device, Options options)
      : checkpoint_(std::move(checkpoint)),
        spec_(std::move(spec)),
        plan_(plan),
        device_(device),
        options_(std::move(options)),
        pages_come_(GrowsKv(plan) || SpillsKv(plan)),
        layers_(LayersOn(plan_, device)),
        forecast_(QuestionPlace() + 1) {}

  ~Impl() {
    Stop();
    if (kv_ != nullptr) kv_->Cancel();
    if (weights_ != nullptr) weights_->Cancel(), weights_->Close();
    kv_.reset();  // whose reads and writes end under the lock
  }

  absl::StatusOr<LeftByPlan> Leave() {
    {
      absl::MutexLock lock(&mutex_);
      LIME_RETURN_IF_ERROR(health_);
      if (inbox_->step_under_way()) return absl::FailedPreconditionError("a step is under way");
    }
    Stop();
    const std::unique_ptr<StageWeights> weights = std::move(weights_);
    weights->Cancel(), weights->Close();
    LeftByPlan left{.weights = std::make_shared<WeightsLeft>(checkpoint_.dir())};
    LIME_ASSIGN_OR_RETURN(left.kv, kv_->Leave(backend_->numerics_id(), backend_->TakeKv(), hosted_->Leave()));
    weights->Leave(*left.weights);
    return left;
  }

  absl::StatusOr<std::string> Open() {
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
    LIME_RETURN_IF_ERROR(residency_->Watch());
    return backend_->numerics_id();
  }

  LoadSummary load() const {
    LoadSummary load = weights_->loaded();
    load.backend = backend_->description();
    return load;
  }

  absl::Status OnOrder(const Order& order) {
    absl::MutexLock lock(&mutex_);
    LIME_RETURN_IF_ERROR(health_);
    LIME_RETURN_IF_ERROR(inbox_->AddOrder(order));
    Pump();
    return health_;
  }

  absl::Status OnActivation(ActivationMessage activation) {
    absl::MutexLock lock(&mutex_);
    LIME_RETURN_IF_ERROR(health_);
    LIME_ASSIGN_OR_RETURN(const std::optional<Visit> visit, inbox_->OnActivation(std::move(activation)));
    if (visit) PostArrived(*visit);
    GiveTokens();
    return health_;
  }

  absl::Status OnKv(int32_t from, const std::vector<std::byte>& message) {
    LIME_ASSIGN_OR_RETURN(const KvMessage what, ParseKvMessage(message));
    absl::MutexLock lock(&mutex_);
    LIME_RETURN_IF_ERROR(health_);
    const bool of_host =
        std::holds_alternative<KvKept>(what) || std::holds_alternative<KvRecords>(what) || std::holds_alternative<KvFetched>(what);
    if (!of_host) {
      LIME_RETURN_IF_ERROR(hosted_->OnMessage(from, what));
      if (hosted_->asked()) GiveWork();
      return absl::OkStatus();
    }
    if (from != plan_.devices[device_].kv_host) return Invalid("device ", from, " is not the host of this device's KV");
    LIME_ASSIGN_OR_RETURN(const auto answered, kv_->OnHost(what));
    if (answered) Post(ProgramRunner::KvArrived{.part = answered->first, .microbatch = answered->second});
    return health_;
  }

  double StepShare() const {
    const int32_t all = computes_.load(std::memory_order_relaxed);
    return all == 0 ? 0 : std::min(1.0, static_cast<double>(computed_.load(std::memory_order_relaxed)) / all);
  }

  Stats stats() const {
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
        stats.residency_changes = residency_->num_changes(), stats.given = residency_->given();
      }
    }
    if (kv != nullptr) stats.kv_room = kv->disk_room();  // may wait for the disk: not under the lock
    return stats;
  }

 private:
  using Visit = StageInbox::Visit;

  // ---- Setting up, and its end

  void Stop() {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
      health_.Update(absl::CancelledError("the plan was unloaded"));
      GiveWork();
    }
    if (thread_.joinable()) thread_.join();
    if (residency_ != nullptr) residency_->Stop();
  }

  void Begin() {
    absl::MutexLock lock(&mutex_);
    kv_->SetReach(residency_->Reach());
    const std::vector<Program>& programs = residency_->programs();
    inbox_.emplace(
        plan_, device_,
        StageInbox::Shape{.vocab_size = spec_.config.vocab_size, .row_bytes = RowBytes(), .microbatches = programs.back().microbatches});
    if (options_.trace != nullptr) trace_.emplace(*options_.trace);
    runner_.emplace(Pointers(programs), INT64_MAX, kLoadsUnderWay);
    residency_->Start(&*runner_, compute_.get());
    std::vector<ProgramRunner::Action> actions;
    runner_->Start(actions);
    Carry(actions);
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
            .healthy = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return health_.ok(); },
            .steps_begun = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return inbox_->steps_begun(); },
            .idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !inbox_->step_under_way() && inbox_->NextOrder() == nullptr; },
            .carry = [this](const std::vector<ProgramRunner::Action>& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { Carry(actions); },
            .post = [this](const ProgramRunner::Event& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { Post(event); },
            .pump = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { Pump(); },
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
                                 .num_kv_pages = pages_come_ ? FullLayerPages(plan_) * NumLayers() : device.kv_pages,
                                 .present_kv_pages = pages_come_ ? device.kv_pages : -1,
                                 .attends_pieces = device.max_layer_pages > 0,
                                 .attends_for_others = device.memory.hosted > 0,
                                 .grow_kv = options_.grow_kv,
                                 .numerics = options_.numerics};
    LIME_ASSIGN_OR_RETURN(const Bytes activations, PlanActivationBytes(options_.backend, spec_, backend));
    LIME_ASSIGN_OR_RETURN(const Bytes weights, StageWeights::MemoryFor(checkpoint_, spec_, plan_, device_));
    KeepWeights();
    ReturnFreedMemory();  // what is resident and free is not taken
    const Bytes others = device.memory.hosted + device.memory.fetched, left = LeftBytes();
    const Bytes runtime = std::max<Bytes>(0, ProcessResidentBytes() - left - KeptBytes()), kv = device.kv_pages * plan_.page_bytes,
                rows = EmbedsByRows() ? RowReader::BytesFor(spec_, MaxRows(plan_)) : 0,
                waiting = StageInbox::WaitingBytes(plan_, device_, RowBytes()) + AskingBytes() + LeavingBytes() +
                          SlicedVisit::BytesFor(plan_, RowBytes());
    if (const Bytes total = runtime + activations + rows + waiting + kv + others + weights; total > device.budget) {
      return absl::ResourceExhaustedError(absl::StrCat("device \"", device.name, "\" would take ", FormatBytes(total), " (runtime ",
                                                       FormatBytes(runtime), ", activations ", FormatBytes(activations + rows + waiting),
                                                       ", KV ", FormatBytes(kv + others), ", weights and ring ", FormatBytes(weights),
                                                       ") and may take ", FormatBytes(device.budget), HowToFit(device, runtime)));
    }
    const Bytes both =
        runtime + left + activations + rows + waiting + kv + others + (options_.takeover == nullptr ? 0 : TakeoverBytes(plan_));
    if (both + KeptBytes() > device.budget) DropWeights();  // rather than KV: they are read from the disk
    if (left > 0 && both > device.budget) {
      return absl::ResourceExhaustedError(absl::StrCat("device \"", device.name, "\" has no room for the KV of two plans at once: ",
                                                       FormatBytes(both), " of ", FormatBytes(device.budget)));
    }
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
    if (options_.takeover == nullptr || options_.takeover->weights == nullptr) return;
    if (options_.takeover->weights->dir() != checkpoint_.dir()) return DropWeights();
    StageWeights::KeepFor(spec_, plan_, device_, *options_.takeover->weights);
  }
  void DropWeights() {
    if (options_.takeover != nullptr) options_.takeover->weights.reset();
  }
  Bytes KeptBytes() const {
    return options_.takeover == nullptr || options_.takeover->weights == nullptr ? 0 : options_.takeover->weights->bytes();
  }
  Bytes LeftBytes() const {
    return options_.takeover == nullptr || options_.takeover->here == nullptr ? 0 : options_.takeover->here->memory_bytes();
  }

  // From the disk, for what streams.
  Bytes BytesRead() const { return weights_->bytes_read() + kv_->bytes_read(); }
  int64_t NumLayers() const { return static_cast<int64_t>(layers_.size()); }
  bool IsFirst() const { return plan_.stages.front().device == device_; }
  bool EmbedsByRows() const { return IsFirst() && plan_.embedding == EmbeddingPlacement::kByRows; }
  // Queries and records of one micro-batch: kept, and on their way. A host may have those of each device whose host it is, and pieces
  // that go back to it.
  Bytes AskingBytes() const {
    const Bytes row = spec_.config.num_heads * (2 * spec_.config.head_dim + 2) * static_cast<Bytes>(sizeof(float));
    const Bytes asking = 2 * MaxRows(plan_) * row;
    Bytes bytes = HasKvOnHost(plan_.devices[device_]) ? asking : 0;
    for (const PlanDevice& device : plan_.devices) {
      if (!HasKvOnHost(device) || device.kv_host != device_) continue;
      bytes += asking + (device.kv_fetch_pieces > 0 ? kKvFetchesUnderWay * KvPieceBytes(plan_) : 0);
    }
    return bytes;
  }
  // A piece on its way to the disk, or to a host: read for it, and its messages.
  Bytes LeavingBytes() const {
    const PlanDevice& device = plan_.devices[device_];
    return device.max_layer_pages == 0 ? 0 : (HasKvOnHost(device) ? 2 : 1) * KvPieceBytes(plan_);
  }
  Bytes RowBytes() const { return spec_.config.hidden_size * ElementBytes(spec_.working_dtype); }

  // ---- Orders, one after another; those that change sequences between two steps

  // A step that ends while orders are carried out does not begin the next one by itself.
  void Pump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (std::exchange(pumping_, true)) return;
    while (health_.ok() && inbox_->NextOrder() != nullptr && !inbox_->step_under_way() && HasPagesFor(*inbox_->NextOrder())) {
      Order& order = inbox_->TakeOrder();
      std::visit([this](auto& what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { Execute(what); }, order.what);
    }
    pumping_ = false;
  }

  void Execute(const AdmitOrder& admit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (admit.computed != kv_->taken_over(admit.sequence))
      return Fail(Invalid("slot ", admit.sequence, " is to go on with KV of ", admit.computed, " positions, and has taken over ",
                          kv_->taken_over(admit.sequence)));
    if (!pages_come_) {
      const absl::Status reserved = kv_->Reserve(admit.sequence, admit.positions);
      if (!reserved.ok()) return Fail(reserved);
    }
    inbox_->Admit(admit);
    if (HasHead(plan_, device_) && options_.sampler != nullptr) options_.sampler->Admit(admit);
  }

  void Execute(const RetireOrder& retire) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    kv_->Release(retire.sequence);
    residency_->TryChange();
    if (HasHead(plan_, device_) && options_.sampler != nullptr) options_.sampler->Retire(retire.sequence);
  }

  void Execute(StepOrder& order) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const absl::Status evicted = kv_->Evict(order);
    if (!evicted.ok()) return Fail(evicted);
    const std::vector<Program>& programs = residency_->programs();
    const auto program =
        std::ranges::find_if(programs, [&](const Program& p) { return p.microbatches >= static_cast<int32_t>(order.microbatches.size()); });
    order.microbatches.resize(static_cast<size_t>(program->microbatches));  // more of them than ordered are empty
    const auto computes =
        std::ranges::count_if(program->step, [](const Instruction& what) { return std::holds_alternative<Compute>(what); });
    computed_.store(0, std::memory_order_relaxed), computes_.store(static_cast<int32_t>(computes), std::memory_order_relaxed);
    const std::vector<Visit> came = inbox_->BeginStep(std::move(order.microbatches));
    Post(ProgramRunner::BeginStep{static_cast<int32_t>(program - programs.begin())});
    for (const Visit& visit : came) PostArrived(visit);
    GiveTokens();
  }

  // The runner hears of the step under way only, so that what is early is not taken for what is awaited.
  void PostArrived(const Visit& visit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Post(ProgramRunner::Arrived{.stage = visit.first, .microbatch = visit.second});
  }

  // On the first device micro-batches whose tokens are all known have arrived at the first stage, in order.
  void GiveTokens() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!IsFirst()) return;
    while (health_.ok()) {
      const std::optional<int32_t> microbatch = inbox_->NextWithTokens();
      if (!microbatch) return;
      PostArrived({0, *microbatch});
    }
  }

  // ---- KV pages, where the plan lets KV grow

  // Gives the rows of a step their pages. False while it has to wait for some.
  bool HasPagesFor(const Order& order) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto* step = std::get_if<StepOrder>(&order.what);
    if (!pages_come_ || step == nullptr) return true;
    if (residency_->MustBegin()) return false;  // and goes on then
    const absl::StatusOr<bool> extended = kv_->Extend(*step);
    if (!extended.ok() && !residency_->PagesCome()) Fail(extended.status());
    return extended.ok() && *extended;
  }

  void Execute(const ResidencyOrder& order) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { residency_->Order(order.to); }

  // ---- Events and what follows from them

  void Post(const ProgramRunner::Event& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!health_.ok()) return;
    std::vector<ProgramRunner::Action> actions;
    if (!spare_actions_.empty()) actions.swap(spare_actions_.back()), spare_actions_.pop_back();
    const absl::Status status = runner_->OnEvent(event, SteadyMs(), actions);
    if (!status.ok()) return Fail(status);
    Carry(actions);
    actions.clear();
    spare_actions_.push_back(std::move(actions));
  }

  void Carry(const std::vector<ProgramRunner::Action>& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    bool ended = false;
    for (const ProgramRunner::Action& action : actions) {
      if (!health_.ok()) return;
      ended = ended || std::holds_alternative<ProgramRunner::StepEnded>(action);
      std::visit([this](const auto& typed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { Carry(typed); }, action);
    }
    // What was asked of nobody is answered; not sooner, so that actions stay in order.
    if (const auto arrived = std::exchange(answered_at_once_, std::nullopt)) Post(*arrived);
    if (ended) Pump();
  }

  void Carry(const ProgramRunner::StartCompute& start) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    computing_ = start;
    GiveWork();
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
    if (!health_.ok()) return;  // what it was for may be gone
    disk_.LoadEnded(end_ms, BytesRead());
    if (trace_) trace_->LoadEnded(load, end_ms);
    if (load != next_loaded_) {
      loaded_.insert(load);
      return;
    }
    Post(ProgramRunner::Loaded{next_loaded_++});
    while (loaded_.erase(next_loaded_) > 0) Post(ProgramRunner::Loaded{next_loaded_++});
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
    } else if (!inbox_->batch(send.microbatch).rows.empty()) {
      const std::span<const std::byte> hidden = compute_->Hidden();
      activation.payload.assign(hidden.begin(), hidden.end());
    }
    activation.header.bytes = static_cast<int64_t>(activation.payload.size());
    // The next token waits for the first device; the coordinator hears of this one while that computes.
    if (send.to != device_) {
      options_.peers.send(send.to, std::move(activation));
    } else {
      inbox_->TakeTokens(start.step, sampled);
      GiveTokens();
    }
    if (send.payload == Payload::kToken && options_.peers.sampled) options_.peers.sampled(start.step, sampled);
  }

  // Directly after the last rows of V: the queries are the backend's still.
  void Carry(const ProgramRunner::StartAskKv& start) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const AskKv& ask = start.what;
    const absl::StatusOr<bool> asked =
        kv_->Ask({.part = ask.part, .microbatch = ask.microbatch, .last = ask.microbatch + 1 == inbox_->num_batches()},
                 inbox_->batch(ask.microbatch));
    if (!asked.ok()) return Fail(asked.status());
    if (!*asked) answered_at_once_ = ProgramRunner::KvArrived{.part = ask.part, .microbatch = ask.microbatch};
  }

  void SendKv(int32_t to, std::vector<std::byte> message, bool may_wait) {
    ActivationMessage activation{.header = {.epoch = plan_.epoch, .bytes = std::ssize(message), .kv = true}};
    activation.payload = std::move(message), activation.may_wait = may_wait;
    options_.peers.send(to, std::move(activation));
  }

  void Carry(const ProgramRunner::Waited& waited) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const double ms = waited.end_ms - waited.begin_ms;
    (std::holds_alternative<AwaitWeights>(waited.what) ? stats_.wait_weights_ms : stats_.wait_input_ms) += ms;
    if (const auto place = PlaceOf(waited.what)) forecast_.Waited(*place, ms);
    if (trace_) trace_->Waited(waited);
  }

  void Carry(const ProgramRunner::StepEnded& ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (int32_t m = 0; m < inbox_->num_batches(); ++m) kv_->Computed(inbox_->batch(m));
    kv_->EndStep();
    inbox_->EndStep();
    ++stats_.steps;
    residency_->OnStepEnded();
    if (options_.peers.step_ended) options_.peers.step_ended(ended.step);
  }

  void Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!health_.ok()) return;
    health_ = status;
    if (options_.peers.failed) options_.peers.failed(status);
  }

  // Of decoding also what the plan says of it: a row of every sequence that it has for the micro-batch. Not where it says what the end of
  // the context takes, and sequences get there step by step.
  void NoteTime(const Compute& what, const MicroBatch& batch, double ms) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    stats_.compute_ms += ms;
    const int64_t rows = static_cast<int64_t>(batch.rows.size());
    const bool decodes = !EvictsKv(plan_) && std::ranges::adjacent_find(batch.rows, {}, &BatchRow::sequence) == batch.rows.end();
    if (what.part == kEmbeddingPart || !decodes ||
        rows != std::min<int64_t>(plan_.batch, plan_.sequences - int64_t{what.microbatch} * plan_.batch))
      return;
    stats_.decode_ms += ms;
    stats_.planned_decode_ms += plan_.parts[what.part].decode_ms;
  }

  // ---- Spans, where they are asked for

  // The step that a load is for, where residency stays as it is; else the one under way.
  int64_t StepOf(const ProgramRunner::StartLoad& start) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return residency_->changes() ? runner_->steps_ended() : start.load / static_cast<int64_t>(residency_->programs().front().loads.size());
  }

  // A block that is whole is computed with its first part: the others have nothing to do.
  void NoteComputed(const ProgramRunner::StartCompute& start, double begin_ms, double end_ms) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const int part = start.what.part;
    if (part != kEmbeddingPart && weights_->IsWhole(part) && part != PartsOf(plan_, plan_.parts[part].block).first) return;
    trace_->Computed(start, begin_ms, end_ms);
  }

  // ---- The compute thread

  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || computing_ || (hosted_->asked() && health_.ok()); }

  void GiveWork() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    given_work_.store(true, std::memory_order_release);
    work_.SignalAll();
  }

  // Waits that are alike from step to step: for a micro-batch in each visit, for answers of the host whatever the layer, and for questions
  // of those whose host this is.
  std::optional<int64_t> PlaceOf(const Instruction& what) const {
    if (const auto* recv = std::get_if<Recv>(&what)) return int64_t{recv->stage} * MostMicrobatches(plan_) + recv->microbatch;
    return std::holds_alternative<AwaitKv>(what) ? std::optional(QuestionPlace() - 1) : std::nullopt;
  }
  int64_t QuestionPlace() const { return std::ssize(plan_.stages) * MostMicrobatches(plan_) + 1; }

  struct Awaited {
    int64_t place = 0;
    double since_ms = 0;
  };
  std::optional<Awaited> NowAwaited() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const Instruction* const waiting = runner_->waiting();
    if (const auto place = waiting != nullptr ? PlaceOf(*waiting) : std::nullopt) return Awaited{*place, runner_->waiting_since_ms()};
    return answered_at_ms_ > 0 ? std::optional(Awaited{QuestionPlace(), answered_at_ms_}) : std::nullopt;
  }

  // Sleeps, but for the moments in which what is awaited is likely to come.
  void AwaitWork() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::optional<StallWatch> disk;
    while (!HasWork()) {
      const std::optional<Awaited> awaited = NowAwaited();
      const auto window = awaited ? forecast_.Expect(awaited->place) : std::nullopt;
      const double waited_ms = awaited ? SteadyMs() - awaited->since_ms : 0;
      if (!window || waited_ms >= window->to_ms) {
        Sleep(disk);
      } else if (waited_ms < window->from_ms) {
        work_.WaitWithTimeout(&mutex_, absl::Milliseconds(window->from_ms - waited_ms));
      } else {
        StayAwake(SteadyMs() + window->to_ms - waited_ms);
      }
    }
    if (disk && !stopping_) disk->End();
  }

  // Where it is the disk that is waited for, looks whether that delivers anything.
  void Sleep(std::optional<StallWatch>& disk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const Instruction* const waiting = runner_->waiting();
    if (waiting == nullptr || !std::holds_alternative<AwaitWeights>(*waiting)) return work_.Wait(&mutex_);
    if (!disk) disk.emplace(options_.report, awaited_part_, BytesRead());
    work_.WaitWithTimeout(&mutex_, StallWatch::kPoll);
    disk->Poll(BytesRead());
  }

  // Until there is work, leaving the core to whoever wants it: the thread that brings the work may.
  void StayAwake(double until_ms) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    given_work_.store(false, std::memory_order_relaxed);
    mutex_.Unlock();
    while (!given_work_.load(std::memory_order_acquire) && SteadyMs() < until_ms) std::this_thread::yield();
    mutex_.Lock();
  }

  void ComputeThread() {
    absl::MutexLock lock(&mutex_);
    while (true) {
      AwaitWork();
      if (stopping_) return;
      if (hosted_->asked() && health_.ok()) {  // short, and another device stands still for it
        AttendForOther();
        continue;
      }
      const ProgramRunner::StartCompute start = *std::exchange(computing_, std::nullopt);
      const double begin = SteadyMs();
      const std::vector<std::byte> input = inbox_->TakeInput({start.what.stage, start.what.microbatch});
      const MicroBatch& batch = inbox_->batch(start.what.microbatch);  // of the step under way, which goes on until this is computed
      mutex_.Unlock();
      const absl::Status status = compute_->Run(start, batch, input);
      computed_.fetch_add(1, std::memory_order_relaxed);
      mutex_.Lock();
      const double end = SteadyMs();
      NoteTime(start.what, batch, end - begin);
      if (trace_) NoteComputed(start, begin, end);
      if (!status.ok()) {
        Fail(status);
      } else {
        Post(ProgramRunner::Computed{});
      }
    }
  }

  void AttendForOther() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const int32_t from = hosted_->Take();
    const double begin = SteadyMs();
    if (answered_at_ms_ > 0) forecast_.Waited(QuestionPlace(), begin - answered_at_ms_);
    mutex_.Unlock();
    const absl::Status status = hosted_->Answer();
    mutex_.Lock();
    if (!status.ok()) return Fail(status);
    answered_at_ms_ = SteadyMs();
    if (trace_) trace_->AttendedFor(from, runner_->steps_ended(), begin, answered_at_ms_);
    hosted_->EndAnswer();
  }

  // Where a part lies changes under the lock, for others than the one at hand.
  RowsInMemory RowsOf(int part, int i, int64_t step) {
    absl::MutexLock lock(&mutex_);
    return weights_->Rows(part, i, step);
  }

  MicroBatch WholeBatch(int32_t microbatch) {
    absl::MutexLock lock(&mutex_);
    return inbox_->WholeBatch(microbatch);
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
  const bool pages_come_;              // as sequences go on, and residency may change; else all of one's at once
  const std::vector<int32_t> layers_;  // whose KV is here
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<SlicedVisit> visit_;  // null: nothing is evicted
  std::unique_ptr<RowReader> rows_;
  std::unique_ptr<StageKv> kv_;       // its methods under the lock
  std::unique_ptr<HostedKv> hosted_;  // likewise
  std::unique_ptr<StageWeights> weights_;

  mutable absl::Mutex mutex_;
  absl::CondVar work_;
  std::atomic<int32_t> computes_ = 0, computed_ = 0;  // of the step under way; for who watches
  std::atomic<bool> given_work_ = false;              // since the compute thread began to stay awake
  bool pumping_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<ProgramRunner> runner_ ABSL_GUARDED_BY(mutex_);
  std::optional<StageInbox> inbox_ ABSL_GUARDED_BY(mutex_);
  std::optional<ProgramRunner::StartCompute> computing_ ABSL_GUARDED_BY(mutex_);  // for the compute thread to take
  std::optional<ProgramRunner::KvArrived> answered_at_once_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::vector<ProgramRunner::Action>> spare_actions_ ABSL_GUARDED_BY(mutex_);  // empty, with memory for those of an event
  int64_t next_loaded_ ABSL_GUARDED_BY(mutex_) = 0;
  DiskMeter disk_ ABSL_GUARDED_BY(mutex_);
  std::set<int64_t> loaded_ ABSL_GUARDED_BY(mutex_);  // that ended before an older one
  ArrivalForecast forecast_ ABSL_GUARDED_BY(mutex_);
  double answered_at_ms_ ABSL_GUARDED_BY(mutex_) = 0;  // the last question of another device
  Stats stats_ ABSL_GUARDED_BY(mutex_);
  // The part that is waited for, for people.  REQUIRES: one is
  const std::function<std::string()> awaited_part_ = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return PartName(plan_, residency_->programs().front().loads[std::get<AwaitWeights>(*runner_->waiting()).load].part);
  };
  std::optional<StageTrace> trace_ ABSL_GUARDED_BY(mutex_);
  absl::Status health_ ABSL_GUARDED_BY(mutex_);  // not ok: stopped for good

  std::unique_ptr<StageCompute> compute_;      // of the compute thread, which between two computations holds the lock
  std::unique_ptr<StageResidency> residency_;  // its methods under the lock
  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<StageEngine>> StageEngine::Install(const std::string& model_dir, const Plan& plan, int32_t device,
                                                                  Options options) {
  LIME_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::OpenPart(model_dir));
  LIME_ASSIGN_OR_RETURN(ModelSpec spec, checkpoint.BuildModelSpec());
  if (device < 0 || device >= plan.NumDevices()) return Invalid("device ", device, " of a plan for ", plan.NumDevices());
  LIME_RETURN_IF_ERROR(checkpoint.CheckHolds(BlocksOn(plan, device)));
  if (options.digest) LIME_RETURN_IF_ERROR(CheckWeights(checkpoint, spec, *options.digest, options.samples));
  LIME_RETURN_IF_ERROR(plan.Validate(spec));
  LIME_RETURN_IF_ERROR(CheckCarriedOut(plan, spec));
  auto impl = std::make_unique<Impl>(std::move(checkpoint), std::move(spec), plan, device, std::move(options));
  LIME_ASSIGN_OR_RETURN(std::string numerics_id, impl->Open());
  LoadSummary load = impl->load();
  return std::unique_ptr<StageEngine>(new StageEngine(std::move(impl), std::move(numerics_id), std::move(load)));
}

StageEngine::StageEngine(std::unique_ptr<Impl> impl, std::string numerics_id, LoadSummary load)
    : impl_(std::move(impl)), numerics_id_(std::move(numerics_id)), load_(std::move(load)) {}
StageEngine::~StageEngine() = default;

absl::Status StageEngine::OnOrder(const Order& order) {
  return impl_->OnOrder(order);
}

absl::Status StageEngine::OnActivation(ActivationMessage activation) {
  return impl_->OnActivation(std::move(activation));
}

absl::Status StageEngine::OnKv(int32_t from, const std::vector<std::byte>& message) {
  return impl_->OnKv(from, message);
}

double StageEngine::StepShare() const {
  return impl_->StepShare();
}

StageEngine::Stats StageEngine::stats() const {
  return impl_->stats();
}

absl::StatusOr<LeftByPlan> StageEngine::Leave() {
  return impl_->Leave();
}

}  // namespace lime
