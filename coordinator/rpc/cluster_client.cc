#include "coordinator/rpc/cluster_client.h"

#include <grpcpp/channel.h>
#include <xxhash.h>

#include <algorithm>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/answer_masks/vocabulary_bytes.h"
#include "coordinator/rpc/ask_health.h"
#include "coordinator/rpc/device_client.h"
#include "coordinator/rpc/orders_call.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_blocks.h"
#include "proto/channel.h"
#include "proto/grpc_status.h"

namespace lime {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);
constexpr absl::Duration kUnload = absl::Seconds(10);
constexpr absl::Duration kHurry = absl::Seconds(1);  // if some devices may be lost
// For devices to notice that a coordinator has gone that used their plan before.
constexpr absl::Duration kTakeover = absl::Milliseconds(2500);
// A coordinator that has used a plan for so long is not one that still waits for devices to load.
constexpr double kSettledSeconds = 5;
// For an answer of a device that loads a plan.
constexpr absl::Duration kLoading = absl::Seconds(3);

struct Connection {
  ClusterClient::Device device;
  ProbeTarget target;
  std::unique_ptr<v1::Control::Stub> stub;
  std::string Who() const { return absl::StrCat("device \"", device.name, "\" at ", device.address); }
};

void SetDeadline(grpc::ClientContext& context, absl::Duration patience) {
  context.set_deadline(absl::ToChronoTime(absl::Now() + patience));
}

// Does the same on all devices, each on a thread of its own. Returns the first error, in order.
template <typename Do>
absl::Status ForAll(const std::vector<int32_t>& devices, Do what) {
  std::vector<absl::Status> statuses(devices.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < devices.size(); ++i) threads.emplace_back([&, i] { statuses[i] = what(devices[i]); });
  for (std::thread& thread : threads) thread.join();
  // A call that was cancelled because another one failed is not the cause.
  for (const absl::Status& status : statuses) {
    if (!status.ok() && !absl::IsCancelled(status)) return status;
  }
  for (const absl::Status& status : statuses) LIME_RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

class GrpcCluster final : public ClusterClient {
 public:
  explicit GrpcCluster(Options options) : options_(std::move(options)), coordinator_(NewCoordinator()) {
    for (const Device& device : options_.devices) {
      connections_.push_back(
          {device, {.name = device.name, .address = device.address, .keys = options_.keys, .start = device.start}, NewStub(device)});
    }
  }
  ~GrpcCluster() override {
    CloseCalls(/*ended=*/false);
    if (handed_over_) LetGo(*handed_over_);
  }

  absl::Status LearnHealth() {
    health_.resize(connections_.size());
    return ForAll(Everyone(), [&](int32_t i) {
      LIME_ASSIGN_OR_RETURN(health_[i], AskHealth(*connections_[i].stub, connections_[i].target, {.patience = options_.connect}));
      return absl::OkStatus();
    });
  }

  const std::vector<DeviceHealth>& health() const override { return health_; }
  const Plan& plan() const override { return plan_; }
  const std::vector<InstalledPlan>& installed() const override { return installed_; }

  absl::Status Install(Plan plan, const InstallOptions& options) override {
    absl::Status status = InstallNew(std::move(plan), options);
    if (!status.ok()) (void)Match(plan_);  // matches the devices of plan() again
    return status;
  }

  std::set<std::string> Free() override {
    std::vector<char> free(connections_.size(), 0);
    (void)ForAll(Everyone(), [&](int32_t i) {
      Connection& connection = connections_[i];
      const absl::StatusOr<DeviceHealth> answer = AskHealth(*connection.stub, connection.target, {.patience = kHurry, .explain = false});
      // An old connection may notice late that a lost device is back. A new one does not.
      if (!answer.ok()) connection.stub = NewStub(connection.device);
      free[i] = answer.ok() &&
                (answer->epoch < 0 ||
                 (epochs_.contains(answer->epoch) &&
                  UnloadOn(connection, {.epoch = answer->epoch, .hand_over_kv = answer->epoch == plan_.epoch, .interrupted = true}, kHurry)
                      .ok()));
      return absl::OkStatus();
    });
    std::set<std::string> names;
    for (size_t i = 0; i < free.size(); ++i) {
      if (free[i]) names.insert(connections_[i].device.name);
    }
    if (answered_) answered_ = names;
    return names;
  }

  absl::Status Open(News news) override {
    news_ = std::move(news);
    answered_.reset();
    for (const int32_t device : users_) {
      const OrdersCall::Options options{.device = plan_.devices[device].name,
                                        .open = {.epoch = plan_.epoch, .vocabulary = vocabulary_digest_},
                                        .silence = options_.silence,
                                        .news = [this, device](const FromDevice& what) { OnNews(device, what); }};
      calls_.push_back(std::make_unique<OrdersCall>(*by_plan_[device]->stub, options));
    }
    ticker_ = std::thread([this] { TickAlways(); });
    absl::MutexLock lock(&mutex_);
    opening_ = true;
    mutex_.Await(absl::Condition(
        +[](GrpcCluster* self)
             ABSL_EXCLUSIVE_LOCKS_REQUIRED(self->mutex_) { return !self->failure_.ok() || self->opened_ == self->users_.size(); },
        this));
    opening_ = false;
    if (failure_.ok()) SendVocabulary();
    return failure_;
  }

  void UseVocabulary(const json_schema::VocabularyPtr& vocabulary) override {
    vocabulary_ = vocabulary == nullptr ? "" : json_schema::VocabularyBytes(*vocabulary);
    vocabulary_digest_ = vocabulary_.empty() ? 0 : XXH3_64bits(vocabulary_.data(), vocabulary_.size());
  }

  void Send(const OrderMessage& order) override {
    v1::OrderRequest request;
    ToProto(FromCoordinator(order), request);
    for (const auto& call : calls_) call->Send(request);
  }

  absl::StatusOr<DeviceStatistics> Statistics(int32_t device) const override {
    grpc::ClientContext context;
    SetDeadline(context, options_.connect);  // it answered before, so it is lost if it is gone
    v1::StatisticsReply reply;
    LIME_RETURN_IF_ERROR(FromGrpc(by_plan_[device]->stub->Statistics(&context, v1::StatisticsRequest(), &reply), by_plan_[device]->Who()));
    return FromProto(reply);
  }

  absl::Status Unload() override { return UnloadAll(plan_.epoch, kUnload); }
  void Abandon() override {
    CloseCalls(/*ended=*/false);
    handed_over_ = plan_, answered_.emplace();
  }

  absl::StatusOr<Handover> HandOver() override { return HandOver(kUnload); }

  bool HaveKeptKv() override {
    const absl::StatusOr<Handover> handover = HandOver(kHurry);
    return handover.ok() && handover->all;
  }

 private:
  // An installation under way on all devices. A failure on one device ends it on all.
  struct Loading {
    absl::Mutex mutex;
    std::set<grpc::ClientContext*> calls ABSL_GUARDED_BY(mutex);
    std::set<int32_t> devices ABSL_GUARDED_BY(mutex);  // that load or have loaded
    bool ended ABSL_GUARDED_BY(mutex) = false;         // a device refused it
    bool finished ABSL_GUARDED_BY(mutex) = false;
    absl::Status lost;  // written by the watching thread only

    void Begin(int32_t device, grpc::ClientContext& call) {
      absl::MutexLock lock(&mutex);
      calls.insert(&call), devices.insert(device);
      if (ended) call.TryCancel();
    }
    void Done(grpc::ClientContext& call) {
      absl::MutexLock lock(&mutex);
      calls.erase(&call);
    }
    void End() {
      absl::MutexLock lock(&mutex);
      ended = true;
      for (grpc::ClientContext* call : calls) call->TryCancel();
    }
    void Finish() {
      absl::MutexLock lock(&mutex);
      finished = true;
    }
  };

  // Ends the streams last: when a stream ends, its device unloads everything of the plan.
  absl::StatusOr<Handover> HandOver(absl::Duration patience) {
    handed_over_ = plan_;
    std::vector<UnloadedPlan> unloaded(by_plan_.size());
    const absl::Status status = ForAll(users_, [&](int32_t device) {
      absl::StatusOr<UnloadedPlan> answer = UnloadOn(*by_plan_[device], {.epoch = plan_.epoch, .hand_over_kv = true}, patience);
      if (!answer.ok()) return WithDevice(answer.status(), by_plan_[device]->device.name);
      unloaded[device] = *std::move(answer);
      return absl::OkStatus();
    });
    CloseCalls(/*ended=*/true);
    LIME_RETURN_IF_ERROR(status);
    Handover handover{.all = true};
    lent_.clear();
    for (const int32_t device : users_) {
      lent_[by_plan_[device]->device.name] = unloaded[device].lent;
      handover.all = handover.all && unloaded[device].handed_over;
      handover.hashes.insert(unloaded[device].hashes.begin(), unloaded[device].hashes.end());
    }
    return handover;
  }

  absl::Status InstallNew(Plan plan, const InstallOptions& options) {
    LIME_RETURN_IF_ERROR(Match(plan));
    LIME_ASSIGN_OR_RETURN(const int64_t epoch, NewEpoch(options.cancelled));
    plan.epoch = std::max({plan.epoch, epoch, epochs_.empty() ? 0 : *epochs_.rbegin() + 1});
    epochs_.insert(plan.epoch);
    const std::optional<Plan> handed_over = std::exchange(handed_over_, std::nullopt);
    absl::StatusOr<std::vector<InstalledPlan>> installed =
        Load(plan, options, handed_over && !options.kv.empty() ? &*handed_over : nullptr);
    if (handed_over) LetGo(*handed_over);
    LIME_RETURN_IF_ERROR(installed.status());
    installed_ = *std::move(installed);
    plan_ = std::move(plan);
    return absl::OkStatus();
  }

  // The least epoch that is new to all devices of the plan. FailedPrecondition if another
  // coordinator uses one of them. Waits a moment first, because that coordinator may just have
  // gone.
  absl::StatusOr<int64_t> NewEpoch(const std::atomic<bool>* cancelled) const {
    for (const absl::Time begin = absl::Now();; absl::SleepFor(kTick)) {
      std::vector<DeviceHealth> health(by_plan_.size());
      LIME_RETURN_IF_ERROR(ForAll(users_, [&](int32_t device) {
        const absl::StatusOr<DeviceHealth> answer =
            AskHealth(*by_plan_[device]->stub, by_plan_[device]->target, {.patience = options_.connect});
        if (answer.ok()) health[device] = *answer;
        return WithDevice(answer.status(), by_plan_[device]->device.name);
      }));
      const int32_t used = UsedByAnother(health);
      if (used < 0) return std::ranges::max_element(health, {}, &DeviceHealth::last_epoch)->last_epoch + 1;
      const absl::Duration patience = health[used].used_by->seconds > kSettledSeconds ? kHurry : kTakeover;
      if (absl::Now() - begin < patience && (cancelled == nullptr || !cancelled->load())) continue;
      return WithDevice(InUse(by_plan_[used]->Who(), health[used]), by_plan_[used]->device.name);
    }
  }

  // A device of the plan; -1: none.
  int32_t UsedByAnother(const std::vector<DeviceHealth>& health) const {
    const auto found = std::ranges::find_if(
        users_, [&](int32_t device) { return health[device].used_by && health[device].used_by->coordinator.id != coordinator_.id; });
    return found == users_.end() ? -1 : *found;
  }

  // Finds the plan's devices in the cluster, by name.
  absl::Status Match(const Plan& plan) {
    by_plan_.clear(), users_.clear();
    for (int32_t i = 0; i < plan.NumDevices(); ++i) {
      const auto found = std::ranges::find_if(connections_, [&](const Connection& c) { return c.device.name == plan.devices[i].name; });
      by_plan_.push_back(found == connections_.end() ? nullptr : &*found);
      if (!HasPart(plan, i)) continue;
      if (by_plan_.back() == nullptr)
        return absl::NotFoundError(absl::StrCat("the plan uses device \"", plan.devices[i].name, "\", which is not in the cluster's file"));
      users_.push_back(i);
    }
    return absl::OkStatus();
  }

  // `before`: the plan whose KV HandOver kept.
  absl::StatusOr<std::vector<InstalledPlan>> Load(const Plan& plan, const InstallOptions& options, const Plan* before) {
    std::vector<InstalledPlan> installed(plan.devices.size());
    {
      absl::MutexLock lock(&mutex_);
      loaded_.assign(plan.devices.size(), {});
    }
    std::vector<std::string> addresses(plan.devices.size());
    for (const int32_t device : users_) addresses[device] = by_plan_[device]->device.address;
    Loading loading;
    std::thread watch([&] { Watch(loading, plan.epoch, options); });
    const absl::Status status = ForAll(users_, [&](int32_t device) {
      absl::StatusOr<InstalledPlan> answer =
          InstallOn(device,
                    {.plan = plan,
                     .device = device,
                     .addresses = addresses,
                     .weights = by_plan_[device]->device.weights,
                     .model = by_plan_[device]->device.model,
                     .trace_spans = options.trace_spans,
                     .trace_when_asked = options.trace_when_asked,
                     .kv = before == nullptr ? std::nullopt : TakeoverFor(plan, device, *before, options.kv),
                     .digest = DigestFor(plan, device),
                     .coordinator = coordinator_},
                    options, loading);
      absl::Status said = WithDevice(answer.status(), by_plan_[device]->device.name);
      answer.ok() ? static_cast<void>(installed[device] = *std::move(answer)) : loading.End();
      return said;
    });
    loading.Finish();
    watch.join();
    if (status.ok()) return installed;
    (void)UnloadAll(plan.epoch, kHurry);
    return loading.lost.ok() ? status : loading.lost;
  }

  absl::Status UnloadAll(int64_t epoch, absl::Duration patience) {
    CloseCalls(/*ended=*/true);
    return ForAll(users_, [&](int32_t device) { return UnloadOn(*by_plan_[device], {.epoch = epoch}, patience).status(); });
  }

  // Unloads what the plan has left on its devices. A lost device is not waited for.
  void LetGo(const Plan& handed_over) {
    std::vector<int32_t> devices;
    for (size_t i = 0; i < connections_.size(); ++i) {
      const std::string& name = connections_[i].device.name;
      if (DevicesUsed(handed_over).contains(name) && (!answered_ || answered_->contains(name))) devices.push_back(static_cast<int32_t>(i));
    }
    (void)ForAll(devices, [&](int32_t i) { return UnloadOn(connections_[i], {.epoch = handed_over.epoch}, kHurry).status(); });
  }

  // `ended`: the run is complete, and reachable devices are told so.
  void CloseCalls(bool ended) {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    if (ticker_.joinable()) ticker_.join();
    if (ended) {
      for (const auto& call : calls_) call->End();
      const absl::Time until = absl::Now() + kHurry;
      for (const auto& call : calls_) call->AwaitEnd(until);
    }
    calls_.clear();
    absl::MutexLock lock(&mutex_);
    stopping_ = false;
    opened_ = 0;
    wants_vocabulary_.clear();
    failure_ = absl::OkStatus();
  }

  std::unique_ptr<v1::Control::Stub> NewStub(const Device& device) const {
    return v1::Control::NewStub(OpenChannel(device.address, device.name, options_.keys, ChannelUse::kControl));
  }

  std::vector<int32_t> Everyone() const {
    std::vector<int32_t> all(connections_.size());
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int32_t>(i);
    return all;
  }

  static absl::StatusOr<UnloadedPlan> UnloadOn(const Connection& connection, const UnloadCall& call, absl::Duration patience) {
    grpc::ClientContext context;
    SetDeadline(context, patience);  // a lost device has nothing to unload
    v1::UnloadRequest request;
    ToProto(call, request);
    v1::UnloadReply reply;
    const grpc::Status status = connection.stub->Unload(&context, request, &reply);
    // The device has unloaded the plan already, when the stream ended.
    if (status.error_code() == grpc::StatusCode::FAILED_PRECONDITION) return UnloadedPlan{};
    LIME_RETURN_IF_ERROR(FromGrpc(status, connection.Who()));
    return FromProto(reply);
  }

  // To the device that samples, if it does not have it. In parts, because a device that receives a
  // long message hears nothing meanwhile.
  void SendVocabulary() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (size_t i = 0; i < calls_.size(); ++i) {
      if (!wants_vocabulary_.contains(users_[i])) continue;
      for (size_t at = 0; at < vocabulary_.size(); at += kMaxVocabularyPart) {
        v1::OrderRequest request;
        ToProto(VocabularyPart{.total = std::ssize(vocabulary_), .data = vocabulary_.substr(at, kMaxVocabularyPart)}, request);
        calls_[i]->Send(request);
      }
    }
    wants_vocabulary_.clear();
  }

  // The digest of the blocks that the device uses.
  std::optional<WeightsDigest> DigestFor(const Plan& plan, int32_t device) const {
    std::optional<WeightsDigest> digest = options_.digest;
    if (!digest) return digest;
    const std::vector<BlockId> used = BlocksOn(plan, device);
    std::erase_if(digest->blocks, [&](const BlockDigest& of) { return std::ranges::find(used, of.block) == used.end(); });
    return digest;
  }

  std::optional<KvTakeoverPlan> TakeoverFor(const Plan& plan, int32_t device, const Plan& before,
                                            const std::vector<KvSequence>& sequences) const {
    std::map<std::string, std::string> addresses;
    for (const Connection& connection : connections_) addresses[connection.device.name] = connection.device.address;
    return MakeKvTakeoverPlan(plan, device, before, sequences, lent_, addresses);
  }

  absl::StatusOr<InstalledPlan> InstallOn(int32_t device, const InstallCall& call, const InstallOptions& options, Loading& loading) {
    v1::InstallRequest request;
    ToProto(call, request);
    grpc::ClientContext context;
    const auto reader = by_plan_[device]->stub->Install(&context, request);
    loading.Begin(device, context);
    std::optional<InstalledPlan> installed;
    for (v1::InstallEvent event; reader->Read(&event);) {
      const absl::StatusOr<InstallNews> news = FromProto(event);
      if (!news.ok()) context.TryCancel();
      if (news.ok() && std::holds_alternative<InstalledPlan>(*news)) installed = std::get<InstalledPlan>(*news);
      if (news.ok() && std::holds_alternative<LoadedBytes>(*news)) OnProgress(device, std::get<LoadedBytes>(*news), options);
    }
    const grpc::Status status = reader->Finish();
    loading.Done(context);
    LIME_RETURN_IF_ERROR(FromGrpc(status, by_plan_[device]->Who()));
    if (!installed) return absl::InternalError(absl::StrCat(by_plan_[device]->Who(), " ended the installation without an answer"));
    return *installed;
  }

  // Loading may take minutes without news. A device that does not answer other questions either
  // counts as lost. The question also tells loaded devices to keep the plan.
  void Watch(Loading& loading, int64_t epoch, const InstallOptions& options) {
    for (absl::Time ask = absl::Now() + kHurry;;) {
      std::set<int32_t> devices;
      {
        absl::MutexLock lock(&loading.mutex);
        if (loading.mutex.AwaitWithTimeout(absl::Condition(&loading.finished), kTick)) return;
        if (!loading.ended && absl::Now() >= ask) devices = loading.devices;
      }
      if (options.cancelled != nullptr && options.cancelled->load()) loading.End();
      if (devices.empty()) continue;
      for (const int32_t device : devices) {
        const absl::StatusOr<DeviceHealth> answer =
            AskHealth(*by_plan_[device]->stub, by_plan_[device]->target, {.patience = kLoading, .awaited = epoch, .explain = false});
        if (!answer.ok() && loading.lost.ok()) loading.lost = WithDevice(answer.status(), by_plan_[device]->device.name);
      }
      if (!loading.lost.ok()) loading.End();
      ask = absl::Now() + kHurry;
    }
  }

  void OnProgress(int32_t device, const LoadedBytes& bytes, const InstallOptions& options) {
    absl::MutexLock lock(&mutex_);
    loaded_[device] = bytes;
    LoadedBytes all;
    for (const LoadedBytes& each : loaded_) all.done += each.done, all.total += each.total;
    if (options.progress) options.progress(all.done, all.total);
  }

  void OnNews(int32_t device, const FromDevice& what) {
    {
      absl::MutexLock lock(&mutex_);
      if (const auto* opened = std::get_if<Opened>(&what)) {
        ++opened_;
        if (opened->wants_vocabulary) wants_vocabulary_.insert(device);
        return;
      }
      if (const auto* failed = std::get_if<FailedNews>(&what); failed != nullptr && failure_.ok())
        failure_ = WithDevice(failed->status, by_plan_[device]->device.name);
    }
    news_(device, what);
  }

  void TickAlways() {
    while (true) {
      {
        absl::MutexLock lock(&mutex_);
        if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), kTick)) return;
      }
      const absl::Time now = absl::Now();
      for (const auto& call : calls_) call->Tick(now);
    }
  }

  const Options options_;
  const Coordinator coordinator_;
  std::string vocabulary_;  // VocabularyBytes
  uint64_t vocabulary_digest_ = 0;
  std::vector<DeviceHealth> health_;
  std::vector<InstalledPlan> installed_;
  Plan plan_;
  std::optional<Plan> handed_over_;  // devices may still hold its KV
  // Devices that have answered since the last Abandon; nullopt: all do, or it is not known.
  std::optional<std::set<std::string>> answered_;
  std::set<int64_t> epochs_;  // of all plans installed so far
  std::vector<Connection> connections_;
  // Null: the cluster does not have this device, and the plan does not use it.
  std::vector<const Connection*> by_plan_;
  std::vector<int32_t> users_;  // devices of the plan that have a stage
  KvLentBy lent_;               // by the devices of the plan before
  std::vector<std::unique_ptr<OrdersCall>> calls_;
  News news_;
  std::thread ticker_;

  absl::Mutex mutex_;
  std::vector<LoadedBytes> loaded_ ABSL_GUARDED_BY(mutex_);
  size_t opened_ ABSL_GUARDED_BY(mutex_) = 0;
  std::set<int32_t> wants_vocabulary_ ABSL_GUARDED_BY(mutex_);  // devices of the plan
  bool opening_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);  // the first failure
};

}  // namespace

absl::StatusOr<std::unique_ptr<ClusterClient>> ClusterClient::Connect(Options options) {
  auto client = std::make_unique<GrpcCluster>(std::move(options));
  LIME_RETURN_IF_ERROR(client->LearnHealth());
  return client;
}

absl::Status InUse(const std::string& who, const DeviceHealth& health) {
  return absl::FailedPreconditionError(absl::StrCat(who, " runs ", health.model, " for ", health.used_by ? health.used_by->Who() : "nobody",
                                                    "; wait for its end, or end it with `lime unload --force`"));
}

}  // namespace lime
