#include "daemon/stage/stage_session.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/steady_clock.h"
#include "planner/base/check.h"
#include "planner/plan/kv_spill.h"

namespace lime {

StageSession::StageSession(Options options)
    : options_(std::move(options)), kv_handover_(options_.handover.kv), received_(static_cast<size_t>(options_.call.plan.NumDevices())) {}

absl::StatusOr<InstalledPlan> StageSession::Open() {
  if (call_.trace_spans > 0) trace_ = std::make_unique<TraceRing>(static_cast<size_t>(call_.trace_spans));
  if (trace_ != nullptr && call_.trace_when_asked) trace_->RecordUntil(0);
  StageSetup setup{.weights = call_.weights,
                   .plan = call_.plan,
                   .device = call_.device,
                   .peers = MakePeers(),
                   .takeover = MakeTakeover(),
                   .digest = call_.digest,
                   .sampler = HasHead() ? &sampler_ : nullptr,
                   .load = {.progress = std::exchange(options_.progress, {}), .cancelled = &cancelled_},
                   .report = options_.report ? options_.report : [this](const std::string& sentence) { Log(sentence); },
                   .trace = trace_.get()};
  LIME_ASSIGN_OR_RETURN(std::unique_ptr<StageEngine> stage, options_.make_stage(std::move(setup)));
  InstalledPlan installed{.numerics_id = stage->numerics_id()};
  absl::MutexLock lock(&stage_mutex_);
  stage_ = std::move(stage);
  return installed;
}

void StageSession::Cancel() {
  cancelled_.store(true);
  if (const std::shared_ptr<KvHandover> handover = kv_handover_.lock(); handover != nullptr) handover->Cancel();
}

// The links stay until the stage is gone: its computation may still send.
void StageSession::Close() {
  Cancel();
  (void)SetSink({});
  ReleaseStage(/*leaves=*/false).reset();
  links_.clear();
  options_.handover = {};
}

std::unique_ptr<StageEngine> StageSession::ReleaseStage(bool leaves) {
  absl::MutexLock lock(&stage_mutex_);
  handed_over_ = leaves;
  return std::move(stage_);
}

// Other devices may still run the plan. An error for what they send would make them give it up.
absl::Status StageSession::NoStage() const {
  return handed_over_ ? absl::OkStatus() : absl::FailedPreconditionError("the plan is not installed any more");
}

StageSession::Handover StageSession::HandOver() {
  Cancel();
  (void)SetSink({});
  Handover handover;
  if (const std::unique_ptr<StageEngine> stage = ReleaseStage(/*leaves=*/true); stage != nullptr) {
    absl::StatusOr<PlanHandover> plan = stage->HandOver();
    if (plan.ok()) {
      handover.plan = *std::move(plan);
      // Others that have a part of the head hash nothing.
      if (Samples()) handover.hashes = sampler_.HashStates();
    } else {
      Log(absl::StrCat("hands over no KV to the next plan: ", plan.status().message()));
    }
  }
  links_.clear();
  return handover;
}

// ---- KV of the plan before

std::shared_ptr<KvTakeover> StageSession::MakeTakeover() {
  if (!call_.kv) return nullptr;
  auto takeover = std::make_shared<KvTakeover>();
  takeover->sequences = call_.kv->sequences;
  takeover->here = options_.handover.kv;
  takeover->weights = std::move(options_.handover.weights);
  takeover->read = [this](int32_t layer, const std::string& numerics_id, std::span<const KvExtent> wanted,
                          const KvTakeover::PageSink& sink) { return ReadKv(layer, numerics_id, wanted, sink); };
  takeover->let_go = [this] { return LetGo(); };
  return takeover;
}

// Lent pieces come before those that follow them. A holder is asked even if nothing is wanted of
// it: so it knows that its reader is done.
absl::Status StageSession::ReadKv(int32_t layer, const std::string& numerics_id, std::span<const KvExtent> wanted,
                                  const KvTakeover::PageSink& sink) {
  const std::string& here = call_.plan.devices[call_.device].name;
  bool found = false;
  for (const bool hosts : {true, false}) {
    for (const KvHolder& holder : call_.kv->holders) {
      if (holder.hosts != hosts || !std::ranges::binary_search(holder.layers, layer)) continue;
      found = found || !hosts;
      const std::vector<KvExtent> extents = HeldBy(holder, wanted);
      if (holder.name == here) {
        LIME_RETURN_IF_ERROR(ReadKvFromHere(layer, holder, numerics_id, extents, sink));
        continue;
      }
      if (options_.transport == nullptr)
        return absl::NotFoundError(
            absl::StrCat("KV of layer ", layer, " is on ", holder.name, ", but this device has no connection to it"));
      LIME_RETURN_IF_ERROR(options_.transport->ReadKv(holder,
                                                      {.epoch = call_.kv->epoch,
                                                       .layer = layer,
                                                       .hosts = hosts,
                                                       .extents = extents,
                                                       .numerics_id = numerics_id,
                                                       .page_bytes = call_.plan.page_bytes},
                                                      cancelled_, sink));
    }
  }
  return found ? absl::OkStatus() : absl::NotFoundError(absl::StrCat("the plan names no device with KV of layer ", layer));
}

absl::Status StageSession::ReadKvFromHere(int32_t layer, const KvHolder& holder, const std::string& numerics_id,
                                          std::span<const KvExtent> extents, const KvTakeover::PageSink& sink) const {
  if (options_.handover.kv == nullptr) return absl::NotFoundError("the previous plan handed over no KV on this device");
  if (options_.handover.kv->numerics_id() != numerics_id || options_.handover.kv->page_bytes() != call_.plan.page_bytes)
    return absl::FailedPreconditionError("the KV of the previous plan was computed by other kernels, or for another model");
  for (const KvExtent& extent : extents) {
    const auto sink_own = [&](int64_t first, std::span<const std::byte> pages) {
      return cancelled_.load() ? absl::CancelledError("loading was cancelled") : sink(extent.sequence, first, pages);
    };
    LIME_RETURN_IF_ERROR(options_.handover.kv->ReadAll(layer, holder.hosts, extent, sink_own));
  }
  return absl::OkStatus();
}

// Weights will use the memory of KV that others have read.
absl::Status StageSession::LetGo() {
  if (options_.transport != nullptr) options_.transport->EndKvReads();
  const std::shared_ptr<KvHandover> handover = std::exchange(options_.handover.kv, nullptr);
  if (handover == nullptr) return absl::OkStatus();
  LIME_RETURN_IF_ERROR(handover->AwaitReaders(call_.kv->kv_readers, kKvHandoverPatience, cancelled_));
  if (options_.handover_is_read) options_.handover_is_read();
  return absl::OkStatus();
}

// Opens links to the devices to which a stage of this one hands over, to its hosts, and to the
// devices whose host it is. All of them are installed when the first order comes.
void StageSession::OpenLinks() {
  const Plan& plan = call_.plan;
  std::set<int32_t> next;
  for (size_t j = 0; j < plan.stages.size(); ++j) {
    if (plan.stages[j].device == call_.device) next.insert(plan.stages[(j + 1) % plan.stages.size()].device);
  }
  for (int32_t d = 0; d < plan.NumDevices(); ++d) {
    if (ShareHosting(plan, d, call_.device)) next.insert(d);
  }
  next.erase(call_.device);
  absl::MutexLock lock(&stage_mutex_);
  if (!links_.empty()) return;
  for (const int32_t device : next) {
    LIME_CHECK(options_.transport != nullptr) << "device " << device << " is to be reached";
    links_[device] = options_.transport->OpenLink({.peer = plan.devices[device].name,
                                                   .address = call_.addresses[device],
                                                   .epoch = plan.epoch,
                                                   .from = call_.device,
                                                   .to = device,
                                                   .lost = [this](const absl::Status& status) { Fail(status); },
                                                   .trace = trace_.get()});
  }
}

StagePeers StageSession::MakePeers() {
  return {.send =
              [this](int32_t device, ActivationMessage activation) {
                const auto found = links_.find(device);
                LIME_CHECK(found != links_.end()) << "an activation for device " << device;
                found->second->Send(std::move(activation));
              },
          .sampled = [this](int64_t step, std::span<const SampledToken> tokens) { ReportSampled(step, tokens); },
          .step_ended =
              [this](int64_t step) {
                steps_.store(step + 1, std::memory_order_relaxed);
                ReportEnded(step);
              },
          .failed = [this](const absl::Status& status) { Fail(status); }};
}

absl::Status StageSession::SetSink(Sink sink) {
  if (sink) OpenLinks();
  absl::MutexLock lock(&events_mutex_);
  sink_ = std::move(sink);
  return failure_;
}

absl::Status StageSession::OnOrder(const OrderMessage& message) {
  if (const auto* admit = std::get_if<AdmitOrder>(&message.order.what); admit != nullptr && HasHead())
    sampler_.Expect(admit->request, message.sampling);
  LogOrder(message.order);
  absl::ReaderMutexLock lock(&stage_mutex_);
  if (stage_ == nullptr) return absl::FailedPreconditionError("the plan is not installed any more");
  return stage_->OnOrder(message.order);
}

// Logs every request and every change of what streams, but no steps.
void StageSession::LogOrder(const Order& order) const {
  if (const auto* admit = std::get_if<AdmitOrder>(&order.what)) {
    Log(absl::StrCat("request ", admit->request, " will join in slot ", admit->sequence, ": ", admit->prompt.size(), " of ",
                     admit->positions, " tokens are known, and KV of ", admit->computed, " is there"));
  } else if (const auto* retire = std::get_if<RetireOrder>(&order.what)) {
    Log(absl::StrCat("slot ", retire->sequence, retire->kept > 0 ? " will keep its KV" : " will be free"));
  } else if (const auto* residency = std::get_if<ResidencyOrder>(&order.what)) {
    Log(absl::StrCat("will have ", residency->to.layer_pages, " KV pages of each layer, and stream ", residency->to.streamed.size(), " of ",
                     call_.plan.parts.size(), " parts of the model"));
  }
}

absl::Status StageSession::OnActivation(int32_t from, ActivationMessage activation) {
  const double begin_ms = trace_ != nullptr ? SteadyMs() : 0;
  const Plan& plan = call_.plan;
  if (activation.header.epoch != plan.epoch) {
    return absl::FailedPreconditionError(
        absl::StrCat("an activation is of epoch ", activation.header.epoch, ", but epoch ", plan.epoch, " is installed"));
  }
  if (activation.header.probe) return absl::OkStatus();  // its arrival is all it says
  if (activation.header.hosting) return OnHosting(from, activation.payload);
  if (activation.header.stage >= static_cast<int32_t>(plan.stages.size()) || plan.stages[activation.header.stage].device != from)
    return Invalid("an activation is of stage ", activation.header.stage, ", but the sender does not compute that stage");
  Received& received = received_[static_cast<size_t>(from)];
  received.messages.fetch_add(1, std::memory_order_relaxed);
  received.bytes.fetch_add(static_cast<int64_t>(activation.payload.size() + kActivationHeaderBytes), std::memory_order_relaxed);
  absl::ReaderMutexLock lock(&stage_mutex_);
  if (stage_ == nullptr) return NoStage();
  const ActivationHeader header = activation.header;
  LIME_RETURN_IF_ERROR(stage_->OnActivation(std::move(activation)));
  if (trace_ != nullptr) NoteReceived(from, header, begin_ms);
  return absl::OkStatus();
}

absl::Status StageSession::OnHosting(int32_t from, const std::vector<std::byte>& message) {
  const Plan& plan = call_.plan;
  if (from < 0 || from >= plan.NumDevices() || !ShareHosting(plan, from, call_.device))
    return absl::InvalidArgumentError("a message to a host came from a device that neither is a host of this one nor has it as a host");
  absl::ReaderMutexLock lock(&stage_mutex_);
  if (stage_ == nullptr) return NoStage();
  // No answer could be sent.
  if (!links_.contains(from)) return absl::FailedPreconditionError("no coordinator uses the plan yet");
  return stage_->OnHosting(from, message);
}

void StageSession::NoteReceived(int32_t from, const ActivationHeader& header, double begin_ms) {
  trace_->Add({.kind = TimelineSpan::Kind::kReceive,
               .begin_ms = begin_ms,
               .end_ms = SteadyMs(),
               .step = static_cast<int32_t>(header.step),
               .stage = header.stage,
               .microbatch = header.microbatch,
               .peer = from});
}

TraceChunk StageSession::DrainTrace(const TraceCall& call) {
  TraceChunk chunk{.epoch = epoch()};
  if (trace_ == nullptr) return chunk;
  if (call_.trace_when_asked) trace_->RecordUntil(SteadyMs() + kTraceAskedMs);
  absl::MutexLock lock(&draining_);
  chunk.lost = trace_->lost();
  trace_->Drain(static_cast<size_t>(call.most), chunk.spans);
  return chunk;
}

void StageSession::Report(const FromDevice& what) {
  if (sink_) sink_(what);
}

void StageSession::ReportSampled(int64_t step, std::span<const SampledToken> tokens) {
  if (tokens.empty()) return;
  absl::MutexLock lock(&events_mutex_);
  auto& news = std::get<SampledNews>(sampled_);
  news.step = step, news.ends_step = false;
  news.tokens.assign(tokens.begin(), tokens.end());
  news.logits_hashes.clear(), news.hash_states.clear(), news.scores.clear();
  for (const SampledToken& token : tokens) {
    PlanSampler::TokenReport report = sampler_.OnSampled(token);
    news.logits_hashes.push_back(report.logits_hash);
    news.hash_states.push_back(std::move(report.hash_state));
    news.scores.push_back(std::move(report.score));
  }
  if (call_.plan.microbatches == 1 && call_.plan.chunks_per_sweep <= 1) {
    awaits_end_ = true;
  } else {
    Report(sampled_);
  }
}

// Only the last stage's device reports: with it a step ends everywhere. If no other tokens are to
// come, one message has tokens and end.
void StageSession::ReportEnded(int64_t step) {
  absl::MutexLock lock(&events_mutex_);
  if (std::exchange(awaits_end_, false)) {
    std::get<SampledNews>(sampled_).ends_step = true;
    Report(sampled_);
  } else if (Samples()) {
    Report(StepEndedNews{step});
  }
}

void StageSession::Fail(const absl::Status& status) {
  Log(absl::StrCat("gives the plan up: ", status.message()));
  absl::MutexLock lock(&events_mutex_);
  if (!failure_.ok()) return;
  failure_ = status;
  if (sink_) sink_(FailedNews{status});
}

absl::Status StageSession::failure() const {
  absl::MutexLock lock(&events_mutex_);
  return failure_;
}

void StageSession::Log(const std::string& sentence) const {
  if (options_.log)
    options_.log(absl::StrCat("epoch ", call_.plan.epoch, ", step ", steps_.load(std::memory_order_relaxed), ": ", sentence));
}

void StageSession::Tick() {
  absl::ReaderMutexLock lock(&stage_mutex_);
  if (stage_ == nullptr) return;
  for (const auto& [device, link] : links_) link->Tick();
}

double StageSession::StepShare() const {
  absl::ReaderMutexLock lock(&stage_mutex_);
  return stage_ == nullptr ? 0 : stage_->StepShare();
}

LoadSummary StageSession::load() const {
  absl::ReaderMutexLock lock(&stage_mutex_);
  return stage_ == nullptr ? LoadSummary{} : stage_->load();
}

DeviceStatistics StageSession::Statistics() const {
  absl::ReaderMutexLock lock(&stage_mutex_);
  DeviceStatistics statistics = stage_ == nullptr ? DeviceStatistics{} : stage_->stats();
  statistics.epoch = epoch();
  for (int32_t device = 0; device < call_.plan.NumDevices(); ++device) {
    const Received& received = received_[static_cast<size_t>(device)];
    const auto link = stage_ != nullptr ? links_.find(device) : links_.end();
    if (link == links_.end() && received.messages.load() == 0) continue;
    PeerTraffic traffic{.peer = call_.plan.devices[device].name, .received = received.bytes.load()};
    statistics.received_messages += received.messages.load(), statistics.received_bytes += traffic.received;
    if (link != links_.end()) {
      const Link::Counts sent = link->second->sent();
      traffic.sent = sent.bytes;
      statistics.sent_messages += sent.messages, statistics.sent_bytes += sent.bytes;
      if (const auto rate = link->second->rate())
        statistics.links.push_back({.peer = traffic.peer, .bytes_per_second = rate->bytes_per_second, .age_ms = rate->age_ms});
    }
    statistics.traffic.push_back(std::move(traffic));
  }
  return statistics;
}

}  // namespace lime
