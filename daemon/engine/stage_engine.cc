#include "daemon/engine/stage_engine.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "daemon/engine/process_memory.h"
#include "daemon/engine/stage_weights.h"
#include "daemon/engine/steady_clock.h"
#include "daemon/engine/worker_thread.h"
#include "daemon/logic/flow.h"
#include "daemon/logic/kv_pages.h"
#include "daemon/weights/checkpoint.h"
#include "daemon/weights/row_reader.h"
#include "kernels/backend.h"
#include "kernels/module.h"
#include "planner/base/check.h"
#include "planner/compile.h"
#include "planner/plan/plan_blocks.h"
#include "planner/plan/plan_residency.h"
#include "planner/program_runner.h"

namespace lime {
namespace {

constexpr int64_t kMaxQueuedOrders = 4096;
constexpr int kLoadsUnderWay = 2;  // the disk has the next load before the last one ends

template <typename... What>
absl::Status Wrong(const What&... what) {
  return absl::InvalidArgumentError(absl::StrCat(what...));
}

// The layers whose attention, and so whose KV, is on the device; ascending.
std::vector<int32_t> LayersOf(const Plan& plan, int32_t device) {
  std::vector<int32_t> layers;
  for (const Stage& stage : plan.stages) {
    for (int p = stage.lo; stage.device == device && p < stage.hi; ++p) {
      const BlockId id = plan.parts[p].block;
      if (id.kind == BlockKind::kAttention && (layers.empty() || layers.back() != id.layer)) layers.push_back(id.layer);
    }
  }
  return layers;
}

// Rows of the largest micro-batch that a plan flows.
int64_t MaxRows(const Plan& plan) {
  return std::max<int64_t>(plan.batch, plan.prefill_chunk);
}

// What the engine does not carry out; all of it is for later parts of the project.
absl::Status CheckSupported(const Plan& plan) {
  if (!plan.loans.empty()) return absl::UnimplementedError("the plan lends KV pages, which devices do not do yet; plan without loans");
  const auto [begin, end] = PartsOf(plan, {BlockKind::kHead, 0});
  for (int part = begin; part < end; ++part) {
    if (plan.stages[StageOf(plan, part)].device != plan.stages.back().device || StageOf(plan, part) != StageOf(plan, begin)) {
      return absl::UnimplementedError("the plan splits the head over devices, which they do not do yet; plan with the head on one");
    }
  }
  return GrowsKv(plan) ? WithResidency(plan, ResidencyOf(plan)).status() : absl::OkStatus();
}

// The Programs of one device for steps of 1, 2 .. micro-batches, or of as many as there are where each reads its own; ascending. With
// `before` those of the step in which its residency becomes that of `plan`.
absl::StatusOr<std::vector<Program>> CompileAll(const Plan& plan, int32_t device, const Plan* before = nullptr) {
  const int32_t most = plan.reads == ReadsPerStep::kOnce ? std::max(plan.microbatches, plan.chunks_per_sweep) : plan.microbatches;
  std::vector<Program> programs;
  for (int32_t m = plan.reads == ReadsPerStep::kOnce ? 1 : most; m <= most; ++m) {
    const StepShape shape{.kind = StepShape::Kind::kDecode, .microbatches = m};
    LIME_ASSIGN_OR_RETURN(std::vector<Program> all, before == nullptr ? Compile(plan, shape) : CompileChange(*before, plan, shape));
    programs.push_back(std::move(all[static_cast<size_t>(device)]));
  }
  return programs;
}

std::vector<const Program*> Pointers(const std::vector<Program>& programs) {
  std::vector<const Program*> pointers;
  for (const Program& program : programs) pointers.push_back(&program);
  return pointers;
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
        grows_kv_(GrowsKv(plan)),
        layers_(LayersOf(plan_, device)),
        pages_({.num_pages = plan_.devices[device].kv_pages,
                .num_layers = static_cast<int64_t>(layers_.size()),
                .max_sequences = plan_.sequences}),
        latest_(static_cast<size_t>(plan_.sequences)),
        residency_(std::make_shared<Plan>(plan_)) {}

  ~Impl() {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
      health_.Update(absl::CancelledError("the plan was unloaded"));
      work_.SignalAll();
    }
    if (thread_.joinable()) thread_.join();
    worker_.reset();
    if (weights_ != nullptr) weights_->Cancel(), weights_->Close();
  }

  absl::StatusOr<std::string> Open() {
    LIME_ASSIGN_OR_RETURN(programs_, CompileAll(plan_, device_));
    LIME_RETURN_IF_ERROR(OpenAll());
    if (grows_kv_) worker_.emplace();
    absl::MutexLock lock(&mutex_);
    runner_.emplace(Pointers(programs_), INT64_MAX, kLoadsUnderWay);
    std::vector<ProgramRunner::Action> actions;
    runner_->Start(actions);
    Carry(actions);
    thread_ = std::thread([this] { ComputeThread(); });
    return backend_->numerics_id();
  }

  absl::Status OnOrder(const Order& order) {
    absl::MutexLock lock(&mutex_);
    LIME_RETURN_IF_ERROR(health_);
    LIME_RETURN_IF_ERROR(CheckOrder(order));
    ++next_order_;
    orders_.push_back(order);
    Pump();
    return health_;
  }

  absl::Status OnActivation(ActivationMessage activation) {
    absl::MutexLock lock(&mutex_);
    LIME_RETURN_IF_ERROR(health_);
    LIME_RETURN_IF_ERROR(CheckActivation(activation.header, static_cast<int64_t>(activation.payload.size())));
    if (activation.header.payload == Payload::kToken) {
      LIME_ASSIGN_OR_RETURN(const std::vector<SampledToken> tokens,
                            ParseSampledTokens(activation.payload, static_cast<size_t>(plan_.sequences)));
      LIME_RETURN_IF_ERROR(CheckTokens(activation.header.step, tokens));
      TakeTokens(activation.header.step, tokens);
      return health_;
    }
    const int64_t step = activation.header.step;
    const Visit visit = {activation.header.stage + 1, activation.header.microbatch};
    if (waiting_bytes_ + activation.header.bytes > WaitingBytes())
      return absl::ResourceExhaustedError(
          absl::StrCat(waiting_bytes_, " bytes of hidden states wait already, and the plan counts ", WaitingBytes()));
    if (!arrived_.emplace(std::pair(step, visit), std::move(activation.payload)).second)
      return Wrong("stage ", visit.first, " has this micro-batch of step ", step, " already");
    waiting_bytes_ += activation.header.bytes;
    if (IsUnderWay(step)) Post(ProgramRunner::Arrived{.stage = visit.first, .microbatch = visit.second});
    return health_;
  }

  Stats stats() const {
    absl::MutexLock lock(&mutex_);
    Stats stats = stats_;
    if (weights_ != nullptr) stats.bytes_read = weights_->bytes_read();
    return stats;
  }

 private:
  using Visit = std::pair<int32_t, int32_t>;  // of a micro-batch to a stage: stage, micro-batch

  // ---- Setting up

  absl::Status OpenAll() {
    const PlanDevice& device = plan_.devices[device_];
    const BackendOptions backend{.num_threads = options_.num_threads > 0 ? options_.num_threads : UsableCores(),
                                 .max_rows = MaxRows(plan_),
                                 .max_logit_rows = IsHead() ? plan_.batch : 0,
                                 .max_sequences = plan_.sequences,
                                 .context = plan_.context,
                                 .num_kv_pages = grows_kv_ ? FullLayerPages(plan_) * NumLayers() : device.kv_pages,
                                 .present_kv_pages = grows_kv_ ? device.kv_pages : -1,
                                 .numerics = options_.numerics};
    LIME_ASSIGN_OR_RETURN(const Bytes activations, PlanActivationBytes(spec_, backend));
    LIME_ASSIGN_OR_RETURN(const Bytes weights, StageWeights::MemoryFor(checkpoint_, spec_, plan_, device_));
    const Bytes runtime = ProcessResidentBytes(), kv = device.kv_pages * plan_.page_bytes,
                rows = EmbedsByRows() ? RowReader::BytesFor(spec_, MaxRows(plan_)) : 0, waiting = WaitingBytes();
    if (const Bytes total = runtime + activations + rows + waiting + kv + weights; total > device.budget) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "device \"", device.name, "\" would take ", FormatBytes(total), " (runtime ", FormatBytes(runtime), ", activations ",
          FormatBytes(activations + rows + waiting), ", KV ", FormatBytes(kv), ", weights and ring ", FormatBytes(weights),
          ") and may take ", FormatBytes(device.budget), "; raise its memory, or plan with a longer list of devices or a shorter context"));
    }
    LIME_ASSIGN_OR_RETURN(backend_, OpenBackend(spec_, backend));
    if (options_.wrap_backend) backend_ = options_.wrap_backend(std::move(backend_), spec_);
    if (!device.numerics_id.empty() && device.numerics_id != backend_->numerics_id()) {
      return Wrong("the plan was made for kernels of order ", device.numerics_id, " on device \"", device.name, "\", which has ",
                   backend_->numerics_id(), "; profile the device again, or choose --numerics portable");
    }
    LIME_ASSIGN_OR_RETURN(weights_, StageWeights::Load(checkpoint_, spec_, plan_, device_, *backend_,
                                                       {.load = options_.load, .wrap_device = options_.wrap_device}));
    if (!EmbedsByRows()) return absl::OkStatus();
    LIME_ASSIGN_OR_RETURN(rows_, RowReader::Open(checkpoint_, spec_,
                                                 {.max_rows = MaxRows(plan_),
                                                  .cancelled = options_.load.cancelled,
                                                  .report = options_.report,
                                                  .wrap_device = options_.wrap_device}));
    return absl::OkStatus();
  }

  int64_t NumLayers() const { return static_cast<int64_t>(layers_.size()); }
  bool IsHead() const { return plan_.stages.back().device == device_; }
  bool IsFirst() const { return plan_.stages.front().device == device_; }
  bool EmbedsByRows() const { return IsFirst() && plan_.embedding == EmbeddingPlacement::kByRows; }
  // Hidden states of all steps that a peer may be ahead.
  Bytes WaitingBytes() const { return HasPeers() ? Flow::Of(plan_).WaitingRows() * RowBytes() : 0; }
  bool HasPeers() const {
    return std::ranges::any_of(plan_.stages, [&](const Stage& stage) { return stage.device != device_; });
  }
  Bytes RowBytes() const { return spec_.config.hidden_size * ElementBytes(spec_.working_dtype); }

  // ---- What comes from outside

  absl::Status CheckOrder(const Order& order) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (order.number != next_order_) return Wrong("order ", order.number, " has come, and ", next_order_, " is the next one");
    if (static_cast<int64_t>(orders_.size()) >= kMaxQueuedOrders) return Wrong(kMaxQueuedOrders, " orders wait already");
    if (const auto* admit = std::get_if<AdmitOrder>(&order.what)) {
      LIME_RETURN_IF_ERROR(CheckSlot(admit->sequence));
      if (admit->positions < 1 || admit->positions > plan_.context) {
        return Wrong("a sequence of ", admit->positions, " positions, and the plan has room for 1 to ", plan_.context);
      }
      return CheckIds(admit->prompt);
    }
    if (const auto* retire = std::get_if<RetireOrder>(&order.what)) return CheckSlot(retire->sequence);
    if (const auto* residency = std::get_if<ResidencyOrder>(&order.what)) {
      if (!grows_kv_) return Wrong("the plan has all KV pages from the start, and nothing of it changes");
      return WithResidency(plan_, residency->to).status();
    }
    return CheckStep(std::get<StepOrder>(order.what));
  }

  absl::Status CheckSlot(int32_t sequence) const {
    if (sequence >= 0 && sequence < plan_.sequences) return absl::OkStatus();
    return Wrong("sequence slot ", sequence, ", and the plan has ", plan_.sequences);
  }

  absl::Status CheckIds(std::span<const int32_t> ids) const {
    for (const int32_t id : ids) {
      if (id < 0 || id >= spec_.config.vocab_size) return Wrong("token id ", id, " is outside the vocabulary of ", spec_.config.vocab_size);
    }
    return absl::OkStatus();
  }

  absl::Status CheckStep(const StepOrder& step) const {
    if (step.microbatches.empty() || static_cast<int32_t>(step.microbatches.size()) > programs_.back().microbatches) {
      return Wrong("a step of ", step.microbatches.size(), " micro-batches, and the plan has 1 to ", programs_.back().microbatches);
    }
    for (const MicroBatch& batch : step.microbatches) LIME_RETURN_IF_ERROR(CheckBatch(batch));
    return absl::OkStatus();
  }

  absl::Status CheckBatch(const MicroBatch& batch) const {
    if (static_cast<int64_t>(batch.rows.size()) > MaxRows(plan_)) {
      return Wrong("a micro-batch of ", batch.rows.size(), " rows, at most ", MaxRows(plan_), " were planned");
    }
    int64_t logit_rows = 0;
    for (const BatchRow& row : batch.rows) {
      LIME_RETURN_IF_ERROR(CheckSlot(row.sequence));
      if (row.position < 0 || row.position >= plan_.context) return Wrong("position ", row.position, " of ", plan_.context);
      if (row.token != kSampledToken) LIME_RETURN_IF_ERROR(CheckIds({&row.token, 1}));
      if (row.parent != -1) return absl::UnimplementedError("trees of speculated tokens are not computed yet");
      logit_rows += row.wants_logits ? 1 : 0;
    }
    if (logit_rows > plan_.batch) return Wrong("logits of ", logit_rows, " rows in one micro-batch, at most ", plan_.batch);
    return absl::OkStatus();
  }

  absl::Status CheckActivation(const ActivationHeader& header, int64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (header.epoch != plan_.epoch) return Wrong("epoch ", header.epoch, ", and epoch ", plan_.epoch, " is installed");
    if (header.bytes != bytes) return Wrong("a payload of ", bytes, " bytes, and its header says ", header.bytes);
    if (header.step > steps_begun_ + MaxEarlySteps()) return Wrong("step ", header.step, " is far beyond step ", steps_begun_);
    if (header.microbatch >= programs_.back().microbatches) return Wrong("no micro-batch ", header.microbatch);
    if (header.payload == Payload::kToken) {
      if (!IsFirst() || header.stage + 1 != static_cast<int32_t>(plan_.stages.size()))
        return Wrong("tokens of stage ", header.stage, " are not awaited here");
      return absl::OkStatus();
    }
    const bool awaited = header.stage + 1 < static_cast<int32_t>(plan_.stages.size()) && plan_.stages[header.stage + 1].device == device_;
    if (!awaited || header.payload != Payload::kHidden) return Wrong("what stage ", header.stage, " sends is not awaited here");
    if (header.step < runner_->steps_ended()) return Wrong("step ", header.step, " has ended");
    if (IsUnderWay(header.step)) LIME_RETURN_IF_ERROR(CheckVisit({header.stage + 1, header.microbatch}, bytes));
    if (bytes > MaxRows(plan_) * RowBytes() || bytes % RowBytes() != 0) {
      return Wrong("hidden states of ", bytes, " bytes, in rows of ", RowBytes(), ", at most ", MaxRows(plan_));
    }
    return absl::OkStatus();
  }

  // Orders may be ahead of those known here by as many steps again.
  int64_t MaxEarlySteps() const { return 2 * std::max(Flow::kDecodeAhead, Flow::Of(plan_).PromptsAhead()); }

  // What comes for the step under way: once, and of the size that its rows have.
  absl::Status CheckVisit(const Visit& visit, int64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto& [stage, microbatch] = visit;
    if (microbatch >= static_cast<int32_t>(batches_.size())) return Wrong("this step has no micro-batch ", microbatch);
    if (taken_.contains(visit)) return Wrong("stage ", stage, " has used micro-batch ", microbatch, " of this step already");
    const int64_t rows = static_cast<int64_t>(batches_[static_cast<size_t>(microbatch)].rows.size());
    if (bytes != rows * RowBytes()) return Wrong("hidden states of ", bytes, " bytes for ", rows, " rows of ", RowBytes());
    return absl::OkStatus();
  }

  // A sequence's tokens come in the order of their positions, each once.
  absl::Status CheckTokens(int64_t step, std::span<const SampledToken> tokens) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (step >= steps_begun_) return Wrong("tokens of step ", step, ", which has not begun");
    std::map<int32_t, int32_t> told;  // position, by sequence
    for (const SampledToken& token : tokens) {
      LIME_RETURN_IF_ERROR(CheckSlot(token.sequence));
      LIME_RETURN_IF_ERROR(CheckIds({&token.token, 1}));
      const Latest& latest = latest_[static_cast<size_t>(token.sequence)];
      if (step < latest.from_step) continue;
      const int32_t before = told.try_emplace(token.sequence, latest.position).first->second;
      if (token.position <= before || token.position > plan_.context)
        return Wrong("sequence ", token.sequence, " is told its token at position ", token.position, ", and was told that at ", before);
      told[token.sequence] = token.position;
    }
    return absl::OkStatus();
  }

  // ---- Orders, one after another; those that change sequences between two steps

  // A step that ends while orders are carried out does not begin the next one by itself.
  void Pump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (std::exchange(pumping_, true)) return;
    while (health_.ok() && !orders_.empty() && !step_under_way_ && HasPagesFor(orders_.front())) {
      Order order = std::move(orders_.front());
      orders_.pop_front();
      std::visit([this](auto& what) ABSL_NO_THREAD_SAFETY_ANALYSIS { Execute(what); }, order.what);
    }
    pumping_ = false;
  }

  void Execute(const AdmitOrder& admit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!grows_kv_) {
      const absl::Status reserved = pages_.Reserve(admit.sequence, admit.positions);
      if (!reserved.ok()) return Fail(reserved);
      ShowPages(admit.sequence);
    }
    latest_[static_cast<size_t>(admit.sequence)] = {.from_step = steps_begun_};
    if (IsHead() && options_.sampler != nullptr) options_.sampler->Admit(admit);
  }

  void Execute(const RetireOrder& retire) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    pages_.Release(retire.sequence);
    TryChange();
    if (IsHead() && options_.sampler != nullptr) options_.sampler->Retire(retire.sequence);
  }

  void Execute(StepOrder& order) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto program = std::ranges::find_if(
        programs_, [&](const Program& p) { return p.microbatches >= static_cast<int32_t>(order.microbatches.size()); });
    batches_ = std::move(order.microbatches);
    batches_.resize(static_cast<size_t>(program->microbatches));  // more of them than ordered are empty
    step_under_way_ = true;
    tokens_awaited_ = 0;
    ++steps_begun_;
    Post(ProgramRunner::BeginStep{static_cast<int32_t>(program - programs_.begin())});
    GiveArrived();
    if (IsFirst()) GiveTokens();
  }

  bool IsUnderWay(int64_t step) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return step_under_way_ && step + 1 == steps_begun_; }

  // What came before its step began. The runner hears of the step under way only, so that what is early is not taken for what is awaited.
  void GiveArrived() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const int64_t step = steps_begun_ - 1;
    for (auto it = arrived_.begin(); it != arrived_.end() && it->first.first == step && health_.ok();) {
      const Visit visit = it->first.second;
      const bool awaited = visit.second < static_cast<int32_t>(batches_.size());
      if (!awaited) waiting_bytes_ -= static_cast<Bytes>(it->second.size());
      it = awaited ? std::next(it) : arrived_.erase(it);
      if (awaited) Post(ProgramRunner::Arrived{.stage = visit.first, .microbatch = visit.second});
    }
  }

  // ---- KV pages and residency, where the plan lets KV grow
  //
  // ResidencyOrder ──► its pages are free ──► worker: pages go, Programs ──► Change ──► Border ──► worker: parts go, pages come ──► settled

  void ShowPages(int32_t sequence) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (size_t i = 0; i < layers_.size(); ++i) backend_->SetPages(sequence, layers_[i], pages_.Pages(sequence, static_cast<int64_t>(i)));
  }

  // Gives the rows of a step their pages. False while it has to wait for some.
  bool HasPagesFor(const Order& order) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto* step = std::get_if<StepOrder>(&order.what);
    if (!grows_kv_ || step == nullptr) return true;
    if (change_.under_way && !change_.begun && steps_begun_ >= change_.ordered_at + kResidencySteps) return false;  // BeginChange goes on
    for (const MicroBatch& batch : step->microbatches) {
      for (const BatchRow& row : batch.rows) {
        const absl::StatusOr<bool> extended = pages_.Extend(row.sequence, row.position + 1);
        if (!extended.ok() && !PagesCome()) Fail(extended.status());
        if (!extended.ok()) return false;
        if (*extended) ShowPages(row.sequence);
      }
    }
    return true;
  }

  // Of the change under way, whatever the next step does.
  bool PagesCome() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const bool grows = change_.under_way && residency_->devices[device_].kv_pages > pages_.num_pages();
    return grows && (!change_.begun || change_.at_work || runner_->border() <= steps_begun_);
  }

  void Execute(const ResidencyOrder& order) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    target_ = order.to;
    TryChange();
  }

  void TryChange() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!target_ || change_.under_way) return;
    const int64_t before = residency_->devices[device_].kv_pages, after = target_->layer_pages * NumLayers();
    pages_.SetNumPages(std::min(before, after));
    if (!pages_.Fits()) return;  // until those who hold them have ended
    change_ = {.under_way = true, .ordered_at = steps_begun_};
    worker_->Post([this, to = *std::exchange(target_, std::nullopt), from = residency_] { Prepare(*from, to); });
  }

  // Thread: the worker.
  void Prepare(const Plan& from, const Residency& to) {
    std::vector<Program> entering, settled;
    absl::StatusOr<Plan> after = WithResidency(from, to);
    const absl::Status status = [&] {
      LIME_RETURN_IF_ERROR(after.status());
      LIME_ASSIGN_OR_RETURN(entering, CompileAll(*after, device_, &from));
      LIME_ASSIGN_OR_RETURN(settled, CompileAll(*after, device_));
      const int64_t pages = after->devices[device_].kv_pages;
      return pages < from.devices[device_].kv_pages ? backend_->ResizeKv(pages) : absl::OkStatus();
    }();
    absl::MutexLock lock(&mutex_);
    if (!status.ok()) return Fail(status);
    entering_ = std::move(entering), settled_ = std::move(settled);
    residency_ = std::make_shared<Plan>(*std::move(after));
    BeginChange();
  }

  void BeginChange() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!health_.ok()) return;
    std::vector<ProgramRunner::Action> actions;
    const absl::Status status =
        runner_->OnEvent(ProgramRunner::Change{.entering = Pointers(entering_), .settled = Pointers(settled_)}, SteadyMs(), actions);
    if (!status.ok()) return Fail(status);
    change_.begun = true;
    weights_->Change(*residency_, runner_->border());
    if (!weights_->Leaves()) MakeRoom();
    Carry(actions);
    Pump();  // what waited may know now that it waits in vain
  }

  void Carry(const ProgramRunner::Border&) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!change_.at_work && !change_.has_room) MakeRoom();
  }

  // Parts leave memory first, pages come then.
  void MakeRoom() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    change_.at_work = true;
    auto leaving = std::make_shared<std::vector<HugeBuffer>>(weights_->TakeLeaving());
    worker_->Post([this, leaving, pages = residency_->devices[device_].kv_pages, before = pages_.num_pages()] {
      leaving->clear();
      const absl::Status status = pages > before ? backend_->ResizeKv(pages) : absl::OkStatus();
      absl::MutexLock lock(&mutex_);
      if (!status.ok()) return Fail(status);
      pages_.SetNumPages(pages);
      change_.at_work = false, change_.has_room = true;
      if (!runner_->settled()) Post(ProgramRunner::RoomMade{});
      EndChange();
      Pump();
    });
  }

  void EndChange() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!change_.has_room || !runner_->settled()) return;
    programs_ = std::move(settled_);
    change_ = {};
    ++stats_.residency_changes;
    TryChange();
  }

  // Memory for what is to stay is made present off the token's way.
  void Keep(const ProgramRunner::StartLoad& start) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    worker_->Post([this, start] {
      absl::StatusOr<HugeBuffer> room = weights_->Room(start.what.part);
      absl::MutexLock lock(&mutex_);
      if (!room.ok()) return Fail(room.status());
      if (health_.ok())
        weights_->StartKeeping(start.what.part, *std::move(room),
                               [this, load = start.load](const absl::Status& status) { OnLoaded(load, status); });
    });
  }

  // ---- Sampled tokens, on the first device

  struct Latest {
    int64_t from_step = 0;  // its first step: what was sampled before belongs to the sequence that had the slot
    int32_t position = -1;
    int32_t token = 0;
  };

  void TakeTokens(int64_t step, std::span<const SampledToken> tokens) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const SampledToken& token : tokens) {
      Latest& latest = latest_[static_cast<size_t>(token.sequence)];
      if (step >= latest.from_step) latest.position = token.position, latest.token = token.token;
    }
    if (step_under_way_) GiveTokens();
  }

  // Micro-batches whose tokens are all known have arrived at the first stage, in order.
  void GiveTokens() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    while (step_under_way_ && health_.ok() && tokens_awaited_ < static_cast<int32_t>(batches_.size()) &&
           FillTokens(batches_[static_cast<size_t>(tokens_awaited_)])) {
      Post(ProgramRunner::Arrived{.stage = 0, .microbatch = tokens_awaited_++});
    }
  }

  bool FillTokens(MicroBatch& batch) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (BatchRow& row : batch.rows) {
      if (row.token != kSampledToken) continue;
      const Latest& latest = latest_[static_cast<size_t>(row.sequence)];
      if (latest.position != row.position) return false;
      row.token = latest.token;
    }
    return true;
  }

  // ---- Events and what follows from them

  void Post(const ProgramRunner::Event& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!health_.ok()) return;
    std::vector<ProgramRunner::Action> actions;
    const absl::Status status = runner_->OnEvent(event, SteadyMs(), actions);
    if (!status.ok()) return Fail(status);
    Carry(actions);
  }

  void Carry(const std::vector<ProgramRunner::Action>& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    bool ended = false;
    for (const ProgramRunner::Action& action : actions) {
      if (!health_.ok()) return;
      ended = ended || std::holds_alternative<ProgramRunner::StepEnded>(action);
      std::visit([this](const auto& typed) ABSL_NO_THREAD_SAFETY_ANALYSIS { Carry(typed); }, action);
    }
    if (ended) Pump();
  }

  void Carry(const ProgramRunner::StartCompute& start) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    computing_ = start;
    work_.SignalAll();
  }

  void Carry(const ProgramRunner::StartLoad& start) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (options_.trace != nullptr) loading_[static_cast<size_t>(start.load % kLoadsUnderWay)] = LoadSpan(start);
    if (start.what.keep) return Keep(start);
    weights_->StartLoad(start.what.part, [this, load = start.load](const absl::Status& status) { OnLoaded(load, status); });
  }

  void OnLoaded(int64_t load, const absl::Status& status) {
    const double end_ms = options_.trace != nullptr ? SteadyMs() : 0;
    absl::MutexLock lock(&mutex_);
    if (!status.ok()) return Fail(status);
    if (options_.trace != nullptr) NoteLoaded(loading_[static_cast<size_t>(load % kLoadsUnderWay)], end_ms);
    loaded_.insert(load);
    while (loaded_.erase(next_loaded_) > 0) Post(ProgramRunner::Loaded{next_loaded_++});
  }

  void Carry(const ProgramRunner::Release&) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { weights_->ReleaseOldest(); }

  // Directly after the last Compute of the visit: the hidden states are still the backend's.
  void Carry(const ProgramRunner::StartSend& start) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const Send& send = start.what;
    ActivationMessage activation{
        .header = {.epoch = plan_.epoch, .step = start.step, .stage = send.stage, .microbatch = send.microbatch, .payload = send.payload}};
    if (send.payload == Payload::kToken) {
      if (options_.peers.sampled) options_.peers.sampled(start.step, sampled_);
      if (send.to == device_) return TakeTokens(start.step, std::exchange(sampled_, {}));
      activation.payload = Encode(std::exchange(sampled_, {}));
    } else if (!batches_[static_cast<size_t>(send.microbatch)].rows.empty()) {
      const std::span<const std::byte> hidden = backend_->Hidden();
      activation.payload.assign(hidden.begin(), hidden.end());
    }
    activation.header.bytes = static_cast<int64_t>(activation.payload.size());
    options_.peers.send(send.to, std::move(activation));
  }

  void Carry(const ProgramRunner::StartSendKv&) { LIME_CHECK(false) << "plans with loans are refused"; }

  void Carry(const ProgramRunner::Waited& waited) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const double ms = waited.end_ms - waited.begin_ms;
    (std::holds_alternative<AwaitWeights>(waited.what) ? stats_.wait_weights_ms : stats_.wait_input_ms) += ms;
    if (options_.trace != nullptr) options_.trace->Add(WaitSpan(waited));
  }

  void Carry(const ProgramRunner::StepEnded& ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    step_under_way_ = false;
    taken_.clear();
    ++stats_.steps;
    EndChange();
    if (options_.peers.step_ended) options_.peers.step_ended(ended.step);
  }

  void Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!health_.ok()) return;
    health_ = status;
    if (options_.peers.failed) options_.peers.failed(status);
  }

  // ---- Spans, where they are asked for

  // Of a load that has begun. The step that it is for, where residency stays as it is; else the one under way.
  TimelineSpan LoadSpan(const ProgramRunner::StartLoad& start) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const int64_t loads = static_cast<int64_t>(programs_.front().loads.size());
    const int64_t step = grows_kv_ ? runner_->steps_ended() : start.load / loads;
    return {.kind = TimelineSpan::Kind::kLoad, .begin_ms = SteadyMs(), .step = static_cast<int32_t>(step), .part = start.what.part};
  }

  // The disk was asked before the load before it had ended, and reads one after another.
  void NoteLoaded(TimelineSpan span, double end_ms) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    span.begin_ms = std::min(std::max(span.begin_ms, last_loaded_ms_), end_ms);
    span.end_ms = end_ms;
    last_loaded_ms_ = std::max(last_loaded_ms_, end_ms);
    options_.trace->Add(span);
  }

  TimelineSpan WaitSpan(const ProgramRunner::Waited& waited) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    TimelineSpan span = {.begin_ms = waited.begin_ms, .end_ms = waited.end_ms, .step = static_cast<int32_t>(waited.step)};
    if (const auto* await = std::get_if<AwaitWeights>(&waited.what)) {
      span.kind = TimelineSpan::Kind::kWaitWeights;
      if (!grows_kv_) span.part = programs_.front().loads[static_cast<size_t>(await->load)].part;
    } else if (const auto* recv = std::get_if<Recv>(&waited.what)) {
      span.kind = TimelineSpan::Kind::kWaitInput;
      span.stage = recv->stage, span.microbatch = recv->microbatch, span.peer = recv->from;
    }
    return span;
  }

  // A block that is whole is computed with its first part: the others have nothing to do.
  void NoteComputed(const ProgramRunner::StartCompute& start, double begin_ms, double end_ms) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const int part = start.what.part;
    if (part != kEmbeddingPart && weights_->IsWhole(part) && part != PartsOf(plan_, plan_.parts[part].block).first) return;
    options_.trace->Add({.kind = TimelineSpan::Kind::kCompute,
                         .begin_ms = begin_ms,
                         .end_ms = end_ms,
                         .step = static_cast<int32_t>(start.step),
                         .stage = start.what.stage,
                         .microbatch = start.what.microbatch,
                         .part = part});
  }

  // ---- The compute thread

  void ComputeThread() {
    absl::MutexLock lock(&mutex_);
    while (true) {
      while (!stopping_ && !computing_) work_.Wait(&mutex_);
      if (stopping_) return;
      const ProgramRunner::StartCompute start = *std::exchange(computing_, std::nullopt);
      const double begin = SteadyMs();
      std::vector<std::byte> input = TakeInput(start);
      mutex_.Unlock();
      const absl::Status status = Run(start, input);
      mutex_.Lock();
      const double end = SteadyMs();
      stats_.compute_ms += end - begin;
      if (options_.trace != nullptr) NoteComputed(start, begin, end);
      if (!status.ok()) {
        Fail(status);
      } else {
        Post(ProgramRunner::Computed{});
      }
    }
  }

  // The hidden states that a visit begins with; empty where it goes on, or begins with the embedding.
  std::vector<std::byte> TakeInput(const ProgramRunner::StartCompute& start) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto found = arrived_.find({start.step, {start.what.stage, start.what.microbatch}});
    if (found == arrived_.end()) return {};
    std::vector<std::byte> input = std::move(found->second);
    taken_.insert(found->first.second);
    waiting_bytes_ -= static_cast<Bytes>(input.size());
    arrived_.erase(found);
    return input;
  }

  // Nothing of what it reads changes while it runs: batches_ belongs to the step under way.
  absl::Status Run(const ProgramRunner::StartCompute& start, std::span<const std::byte> input) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const MicroBatch& batch = batches_[static_cast<size_t>(start.what.microbatch)];
    const Stage& stage = plan_.stages[start.what.stage];
    const int part = start.what.part;
    if (batch.rows.empty()) return input.empty() ? absl::OkStatus() : Wrong("hidden states have come for a micro-batch without rows");
    if (part == kEmbeddingPart) return Embed(batch);
    if (start.what.stage > 0 && part == stage.lo) LIME_RETURN_IF_ERROR(TakeHidden(start, batch, input));
    LIME_RETURN_IF_ERROR(ComputePart(part, start.step));
    const bool last = part + 1 == plan_.NumParts();
    return last ? SampleAll(batch) : absl::OkStatus();
  }

  absl::Status Embed(const MicroBatch& batch) {
    LIME_RETURN_IF_ERROR(Begin(batch));
    if (!EmbedsByRows()) return backend_->Embed();
    tokens_.clear();
    for (const BatchRow& row : batch.rows) tokens_.push_back(row.token);
    LIME_RETURN_IF_ERROR(rows_->Read(tokens_));
    return backend_->EmbedRows(rows_->rows());
  }

  // Devices behind the first know what was sampled as hidden states only, and those without the head ask for no logits.
  absl::Status Begin(const MicroBatch& batch) {
    begun_ = batch;
    for (BatchRow& row : begun_.rows) row.token = std::max(row.token, 0), row.wants_logits = row.wants_logits && IsHead();
    return backend_->Begin(begun_);
  }

  absl::Status TakeHidden(const ProgramRunner::StartCompute& start, const MicroBatch& batch, std::span<const std::byte> input) {
    LIME_RETURN_IF_ERROR(Begin(batch));
    const std::span<std::byte> hidden = backend_->Hidden();
    if (input.size() != hidden.size()) {
      return Wrong("step ", start.step, ", stage ", start.what.stage, ": ", input.size(), " bytes of hidden states have come for ",
                   batch.rows.size(), " rows of ", RowBytes());
    }
    std::memcpy(hidden.data(), input.data(), input.size());
    return absl::OkStatus();
  }

  absl::Status ComputePart(int part, int64_t step) {
    const BlockId id = plan_.parts[part].block;
    if (weights_->IsWhole(part)) {
      if (part != PartsOf(plan_, id).first) return absl::OkStatus();  // all of it was computed with its first part
      return id.kind == BlockKind::kAttention ? backend_->Attention(id.layer)
             : id.kind == BlockKind::kMlp     ? backend_->Mlp(id.layer)
                                              : backend_->Head();
    }
    for (int i = 0; i < weights_->NumRows(part); ++i) LIME_RETURN_IF_ERROR(backend_->ComputeRows(id, RowsOf(part, i, step)));
    return absl::OkStatus();
  }

  // Where a part lies changes under the lock, for others than the one at hand.
  RowsInMemory RowsOf(int part, int i, int64_t step) {
    absl::MutexLock lock(&mutex_);
    return weights_->Rows(part, i, step);
  }

  absl::Status SampleAll(const MicroBatch& batch) {
    const std::span<const float> logits = backend_->Logits();
    const size_t vocab = static_cast<size_t>(spec_.config.vocab_size);
    sampled_.clear();
    size_t at = 0;
    for (const BatchRow& row : batch.rows) {
      if (!row.wants_logits) continue;
      if (options_.sampler == nullptr) return Wrong("the plan puts the head here, and nobody samples");
      LIME_ASSIGN_OR_RETURN(const int32_t token, options_.sampler->Sample(row, logits.subspan(at++ * vocab, vocab)));
      sampled_.push_back({.sequence = row.sequence, .position = row.position + 1, .token = token});
    }
    return absl::OkStatus();
  }

  const Checkpoint checkpoint_;
  const ModelSpec spec_;
  const Plan plan_;
  const int32_t device_;
  const Options options_;
  const bool grows_kv_;                // KvPages are reserved as sequences go on, and residency changes
  const std::vector<int32_t> layers_;  // whose KV is here
  std::vector<Program> programs_;      // by micro-batches, ascending
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<RowReader> rows_;
  std::unique_ptr<StageWeights> weights_;

  mutable absl::Mutex mutex_;
  absl::CondVar work_;
  std::optional<ProgramRunner> runner_ ABSL_GUARDED_BY(mutex_);
  KvPages pages_ ABSL_GUARDED_BY(mutex_);
  std::deque<Order> orders_ ABSL_GUARDED_BY(mutex_);  // not carried out yet
  int64_t next_order_ ABSL_GUARDED_BY(mutex_) = 0;
  bool pumping_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t steps_begun_ ABSL_GUARDED_BY(mutex_) = 0;
  bool step_under_way_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<MicroBatch> batches_ ABSL_GUARDED_BY(mutex_);  // of the step under way
  int32_t tokens_awaited_ ABSL_GUARDED_BY(mutex_) = 0;       // the first of them whose tokens are not all known
  std::vector<Latest> latest_ ABSL_GUARDED_BY(mutex_);       // by slot
  std::map<std::pair<int64_t, Visit>, std::vector<std::byte>> arrived_ ABSL_GUARDED_BY(mutex_);  // by step; of none that has ended
  std::set<Visit> taken_ ABSL_GUARDED_BY(mutex_);                                                // of the step under way
  Bytes waiting_bytes_ ABSL_GUARDED_BY(mutex_) = 0;                                              // of arrived_
  std::optional<ProgramRunner::StartCompute> computing_ ABSL_GUARDED_BY(mutex_);                 // for the compute thread to take
  int64_t next_loaded_ ABSL_GUARDED_BY(mutex_) = 0;
  std::set<int64_t> loaded_ ABSL_GUARDED_BY(mutex_);  // that ended before an older one
  struct ResidencyChange {
    bool under_way = false;
    int64_t ordered_at = 0;  // steps begun by then
    bool begun = false;      // the runner has taken it
    bool at_work = false;    // room is being made
    bool has_room = false;   // and was made
  };
  ResidencyChange change_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const Plan> residency_ ABSL_GUARDED_BY(mutex_);    // the plan as it is, or as the change under way makes it
  std::optional<Residency> target_ ABSL_GUARDED_BY(mutex_);          // ordered and not begun
  std::vector<Program> entering_, settled_ ABSL_GUARDED_BY(mutex_);  // of the change under way
  Stats stats_ ABSL_GUARDED_BY(mutex_);
  std::array<TimelineSpan, kLoadsUnderWay> loading_ ABSL_GUARDED_BY(mutex_);  // begun, by number of the load
  double last_loaded_ms_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status health_ ABSL_GUARDED_BY(mutex_);  // not ok: stopped for good
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  // Of the compute thread, which between two computations holds the lock.
  std::vector<SampledToken> sampled_;
  std::vector<int32_t> tokens_;
  MicroBatch begun_;
  std::thread thread_;
  std::optional<WorkerThread> worker_;  // frees, grows, compiles
};

absl::StatusOr<std::unique_ptr<StageEngine>> StageEngine::Install(const std::string& model_dir, const Plan& plan, int32_t device,
                                                                  Options options) {
  LIME_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::OpenPart(model_dir));
  LIME_ASSIGN_OR_RETURN(ModelSpec spec, checkpoint.BuildModelSpec());
  LIME_RETURN_IF_ERROR(plan.Validate(spec));
  if (device < 0 || device >= plan.NumDevices()) return Wrong("device ", device, " of a plan for ", plan.NumDevices());
  LIME_RETURN_IF_ERROR(CheckSupported(plan));
  LIME_RETURN_IF_ERROR(checkpoint.CheckHolds(BlocksOn(plan, device)));
  auto impl = std::make_unique<Impl>(std::move(checkpoint), std::move(spec), plan, device, std::move(options));
  LIME_ASSIGN_OR_RETURN(std::string numerics_id, impl->Open());
  return std::unique_ptr<StageEngine>(new StageEngine(std::move(impl), std::move(numerics_id)));
}

StageEngine::StageEngine(std::unique_ptr<Impl> impl, std::string numerics_id)
    : impl_(std::move(impl)), numerics_id_(std::move(numerics_id)) {}
StageEngine::~StageEngine() = default;

absl::Status StageEngine::OnOrder(const Order& order) {
  return impl_->OnOrder(order);
}

absl::Status StageEngine::OnActivation(ActivationMessage activation) {
  return impl_->OnActivation(std::move(activation));
}

StageEngine::Stats StageEngine::stats() const {
  return impl_->stats();
}

}  // namespace lime
