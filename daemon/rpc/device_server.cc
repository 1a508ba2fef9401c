#include "daemon/rpc/device_server.h"

#include <grpcpp/server.h>

#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/engine/process_memory.h"
#include "daemon/rpc/activation_service.h"
#include "proto/grpc_status.h"

namespace lime {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);
constexpr absl::Duration kShutdown = absl::Milliseconds(500);  // for calls to end by themselves

// Tells how an installation goes on. The newest progress replaces one that was not sent yet.
class InstallReactor final : public grpc::ServerWriteReactor<v1::InstallEvent>, public std::enable_shared_from_this<InstallReactor> {
 public:
  static grpc::ServerWriteReactor<v1::InstallEvent>* Begin(PlanKeeper& keeper, const v1::InstallRequest& request) {
    const std::shared_ptr<InstallReactor> reactor(new InstallReactor);
    reactor->self_ = reactor;
    reactor->Start(keeper, request);
    return reactor.get();
  }

 private:
  void Start(PlanKeeper& keeper, const v1::InstallRequest& request) {
    absl::StatusOr<InstallCall> call = FromProto(request);
    if (!call.ok()) return Finish(ToGrpc(call.status()));
    // Whoever loads may outlast the call.
    auto self = shared_from_this();
    absl::StatusOr<std::shared_ptr<StageSession>> session = keeper.Install(
        *std::move(call), {.progress =
                               [self](const LoadProgress& state) {
                                 self->Say(LoadedBytes{state.done, state.total});
                               },
                           .done = [self](const absl::StatusOr<InstalledPlan>& installed) { self->OnInstalled(installed); }});
    if (!session.ok()) return Finish(ToGrpc(session.status()));
    absl::MutexLock lock(&mutex_);
    session_ = *std::move(session);
    if (cancelled_) session_->Cancel();
  }

  void Say(const InstallNews& news) {
    absl::MutexLock lock(&mutex_);
    if (finished_ || installed_) return;
    SetNext(news);
    Write();
  }

  void OnInstalled(const absl::StatusOr<InstalledPlan>& installed) {
    absl::MutexLock lock(&mutex_);
    installed_ = true;
    end_ = installed.status();
    has_next_ = false;
    if (installed.ok()) SetNext(InstalledPlan{installed->numerics_id, ProcessResidentBytes()});
    Write();
  }

  void SetNext(const InstallNews& news) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    next_.Clear();
    ToProto(news, next_);
    has_next_ = true;
  }

  void Write() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || finished_) return;
    if (has_next_) {
      writing_ = true;
      has_next_ = false;
      message_.Swap(&next_);
      return StartWrite(&message_);
    }
    if (!installed_) return;
    finished_ = true;
    Finish(ToGrpc(end_));
  }

  void OnWriteDone(bool) override {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    Write();
  }

  void OnCancel() override {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    if (session_ != nullptr && !installed_) session_->Cancel();
  }

  void OnDone() override { const std::shared_ptr<InstallReactor> self = std::move(self_); }

  std::shared_ptr<InstallReactor> self_;  // until OnDone
  absl::Mutex mutex_;
  std::shared_ptr<StageSession> session_ ABSL_GUARDED_BY(mutex_);
  v1::InstallEvent next_ ABSL_GUARDED_BY(mutex_);
  v1::InstallEvent message_;  // being written
  bool has_next_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool installed_ ABSL_GUARDED_BY(mutex_) = false;  // or refused
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status end_ ABSL_GUARDED_BY(mutex_);
};

template <typename Reply>
grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, const Reply& what, auto* message) {
  ToProto(what, *message);
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

}  // namespace

class DeviceServer::Impl final : public v1::Control::CallbackService {
 public:
  explicit Impl(const Options& options)
      : options_(options),
        keeper_(KeeperOptions(options)),
        activations_(keeper_, options.plans.log),
        bulk_(keeper_, options.bulk, options.plans.log) {}

  ~Impl() override {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    if (ticker_.joinable()) ticker_.join();
    bulk_.Stop();
    if (server_ != nullptr) {
      server_->Shutdown(absl::ToChronoTime(absl::Now() + kShutdown));
      server_->Wait();
    }
  }

  absl::Status Listen() {
    grpc::ServerBuilder builder;
    SetServerOptions(builder);
    builder.AddListeningPort(options_.listen, ServerCredentialsOf(options_.plans.keys), &port_);
    builder.RegisterService(this);
    builder.RegisterService(&bulk_);
    builder.RegisterCallbackGenericService(&activations_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port_ == 0)
      return absl::UnavailableError(absl::StrCat("cannot listen on ", options_.listen, "; is another limed running there?"));
    ticker_ = std::thread([this] { TickAlways(); });
    return absl::OkStatus();
  }

  int port() const { return port_; }

 private:
  static PlanKeeper::Options KeeperOptions(const Options& options) {
    PlanKeeper::Options plans = options.plans;
    plans.find_pushed = [store = options.bulk.store](uint64_t model) { return FindPushed(store, model); };
    return plans;
  }

  grpc::ServerUnaryReactor* Health(grpc::CallbackServerContext* context, const v1::HealthRequest*, v1::HealthReply* reply) override {
    const int64_t epoch = keeper_.epoch();
    return Answer(context,
                  DeviceHealth{.name = options_.name,
                               .epoch = epoch,
                               .last_epoch = keeper_.last_epoch(),
                               .memory = options_.memory,
                               .runtime = epoch < 0 ? ProcessResidentBytes() : options_.runtime,
                               .model = keeper_.model()},
                  reply);
  }

  grpc::ServerUnaryReactor* Statistics(grpc::CallbackServerContext* context, const v1::StatisticsRequest*,
                                       v1::StatisticsReply* reply) override {
    DeviceStatistics statistics = keeper_.Statistics();
    statistics.peak_resident = ProcessPeakResidentBytes();
    return Answer(context, statistics, reply);
  }

  grpc::ServerWriteReactor<v1::InstallEvent>* Install(grpc::CallbackServerContext*, const v1::InstallRequest* request) override {
    return InstallReactor::Begin(keeper_, *request);
  }

  grpc::ServerUnaryReactor* Unload(grpc::CallbackServerContext* context, const v1::UnloadRequest* request, v1::UnloadReply*) override {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    const absl::Status status = keeper_.Unload(request->epoch(), [reactor] { reactor->Finish(grpc::Status::OK); });
    if (!status.ok()) reactor->Finish(ToGrpc(status));
    return reactor;
  }

  grpc::ServerBidiReactor<v1::OrderRequest, v1::OrderEvent>* Orders(grpc::CallbackServerContext* context) override {
    const std::shared_ptr<OrdersStream> stream = OrdersStream::Begin(keeper_, *context, options_.orders);
    absl::MutexLock lock(&mutex_);
    streams_.push_back(stream);
    return stream.get();
  }

  void TickAlways() {
    while (true) {
      std::vector<std::shared_ptr<OrdersStream>> alive;
      {
        absl::MutexLock lock(&mutex_);
        if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), kTick)) return;
        std::erase_if(streams_, [](const std::weak_ptr<OrdersStream>& stream) { return stream.expired(); });
        for (const auto& stream : streams_) alive.push_back(stream.lock());
      }
      const absl::Time now = absl::Now();
      for (const auto& stream : alive) {
        if (stream != nullptr) stream->Tick(now);
      }
      keeper_.Tick(now);
      bulk_.Tick(now);
    }
  }

  const Options options_;
  PlanKeeper keeper_;
  ActivationService activations_;
  BulkService bulk_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::thread ticker_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::weak_ptr<OrdersStream>> streams_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<std::unique_ptr<DeviceServer>> DeviceServer::Start(const Options& options) {
  auto impl = std::make_unique<Impl>(options);
  LIME_RETURN_IF_ERROR(impl->Listen());
  return std::unique_ptr<DeviceServer>(new DeviceServer(std::move(impl)));
}

DeviceServer::DeviceServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DeviceServer::~DeviceServer() = default;
int DeviceServer::port() const {
  return impl_->port();
}

}  // namespace lime
