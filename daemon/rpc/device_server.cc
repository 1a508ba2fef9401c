#include "daemon/rpc/device_server.h"

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/steady_clock.h"
#include "daemon/engine/process_memory.h"
#include "daemon/logic/rates/link_estimator.h"
#include "daemon/machine/files.h"
#include "daemon/rpc/activation_service.h"
#include "daemon/rpc/bulk_service.h"
#include "daemon/rpc/event_stream.h"
#include "daemon/rpc/hello_responder.h"
#include "daemon/rpc/link_probe.h"
#include "daemon/rpc/orders_stream.h"
#include "daemon/stores/pushed_store.h"
#include "proto/address.h"
#include "proto/grpc_status.h"

namespace lime {
namespace {

constexpr absl::Duration kTick = absl::Microseconds(LinkEstimator::kAskAgainUs);
constexpr absl::Duration kShutdown = absl::Milliseconds(500);  // for running calls to end

template <typename Event>
Event EventOf(const auto& news) {
  Event event;
  ToProto(news, event);
  return event;
}

// A call that reports the progress of long work. New progress replaces progress that was not sent
// yet.
//
// Threads: any. The work may last longer than the call.
template <typename Event>
class ProgressCall final : public EventStream<grpc::ServerWriteReactor<Event>, Event> {
 public:
  static std::shared_ptr<ProgressCall> Begin() { return ProgressCall::Own(new ProgressCall); }

  void Say(const Event& event) {
    absl::MutexLock lock(&this->mutex_);
    if (this->ending_) return;
    this->DropQueued();
    this->Queue(event);
  }

  // Call once. On success it sends `last`, in place of progress that was not sent yet.
  void End(const absl::Status& status, std::optional<Event> last = std::nullopt) {
    absl::MutexLock lock(&this->mutex_);
    this->DropQueued();
    if (status.ok() && last) this->Queue(*std::move(last));
    this->EndWith(status);
  }

  // Calls `cancel` once if the caller goes before the end, or now if it has gone already.
  void OnGone(std::function<void()> cancel) {
    absl::MutexLock lock(&this->mutex_);
    if (this->cancelled_) return cancel();
    cancel_ = std::move(cancel);
  }

 private:
  ProgressCall() = default;

  void OnCancel() override {
    absl::MutexLock lock(&this->mutex_);
    this->cancelled_ = true;
    if (cancel_) cancel_();
  }

  std::function<void()> cancel_ ABSL_GUARDED_BY(this->mutex_);
};

// ---- Why gRPC cannot listen: repeats its steps one by one, and reports which one fails and what
// to do

constexpr absl::Duration kListenResolve = absl::Seconds(5);

// Tries to listen. Returns errno, or 0 if it works now.
int TryToListen(const SocketAddress& at) {
  const FileDescriptor socket(::socket(at.get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return errno;
  const int yes = 1;
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (bind(socket.get(), at.get(), at.length) != 0 || listen(socket.get(), 1) != 0) return errno;
  return 0;
}

std::string Sentence(int error, const HostPort& address, const SocketAddress& at) {
  switch (error) {
    case EADDRINUSE:
      return absl::StrCat("another program listens on port ", address.port,
                          " already, perhaps another limed; `ss -ltnp 'sport = :", address.port,
                          "'` shows which: end it, or choose another port");
    case EADDRNOTAVAIL:
      return absl::StrCat("this machine does not have the address ", at.Host(), ", its addresses are ", absl::StrJoin(OwnAddresses(), ", "),
                          "; start limed on the machine that has it (for `lime up`, give the device ssh = \"USER@HOST\"), or correct the "
                          "address");
    case EACCES:
    case EPERM:
      return absl::StrCat("this user may not use port ", address.port, "; choose a port of 1024 or more");
    case EAFNOSUPPORT:
      return absl::StrCat("this machine has no ", at.get()->sa_family == AF_INET6 ? "IPv6" : "IPv4", "; choose another address");
    case 0:
      return "it was in use a moment ago; try again";
    default:
      return absl::StrCat(std::strerror(error), "; choose another address");
  }
}

// The error for an `address` (HOST:PORT) on which gRPC could not listen. Never OK. Waits up to 5 s
// for the resolver.
absl::Status WhyNotListening(const std::string& address) {
  const std::string begin = absl::StrCat("cannot listen on ", address, ": ");
  const absl::StatusOr<HostPort> parsed = ParseAddress(address);
  if (!parsed.ok()) return Invalid(begin, parsed.status().message());
  const absl::StatusOr<std::vector<SocketAddress>> resolved = Resolve(*parsed, kListenResolve);
  if (!resolved.ok()) {
    return Invalid(begin, "the name ", parsed->host, " does not resolve (", resolved.status().message(),
                   "); give an address of this machine, or 0.0.0.0 for all of them");
  }
  int error = 0;
  SocketAddress at = resolved->front();
  for (const SocketAddress& each : *resolved) {
    if (error != 0) break;
    at = each, error = TryToListen(each);
  }
  return absl::UnavailableError(absl::StrCat(begin, Sentence(error, *parsed, at)));
}

// ----

class ListeningServer final : public DeviceServer, public v1::Control::CallbackService {
 public:
  explicit ListeningServer(const Options& options)
      : options_(options),
        plans_(PlanOptions(options)),
        activations_(plans_, options.plans.log),
        bulk_(BulkService::Make(plans_, options.bulk, options.plans.log)) {}

  ~ListeningServer() override {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    if (ticker_.joinable()) ticker_.join();
    bulk_->Stop();
    if (server_ != nullptr) {
      server_->Shutdown(absl::ToChronoTime(absl::Now() + kShutdown));
      server_->Wait();
    }
    if (inspection_.joinable()) inspection_.join();
  }

  absl::Status Listen() {
    grpc::ServerBuilder builder;
    SetServerOptions(builder);
    builder.AddListeningPort(options_.listen, ServerCredentialsOf(options_.plans.keys), &port_);
    builder.RegisterService(this);
    builder.RegisterService(bulk_.get());
    builder.RegisterCallbackGenericService(&activations_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port_ == 0) return WhyNotListening(options_.listen);
    ticker_ = std::thread([this] { TickAlways(); });
    absl::StatusOr<std::unique_ptr<HelloResponder>> hello = HelloResponder::Start(
        options_.listen, port_,
        [this] {
          return Hello{.protocol = options_.health.protocol,
                       .keys = !options_.plans.keys.empty(),
                       .clock = std::time(nullptr),
                       .release = options_.health.release};
        },
        [this](const std::string& peer) {
          if (options_.debug) options_.debug(absl::StrCat(peer, " asks for release and clock: it may have found no common keys"));
        });
    if (hello.ok())
      hello_ = *std::move(hello);
    else if (options_.plans.log)
      options_.plans.log(absl::StrCat("cannot answer questions about its clock before keys are shown: ", hello.status().message()));
    return absl::OkStatus();
  }

  int port() const override { return port_; }

  Snapshot Now() const override {
    Snapshot now{.statistics = plans_.Statistics(), .memory = plans_.Memory()};
    now.statistics.resident = ProcessResidentBytes(), now.statistics.peak_resident = ProcessPeakResidentBytes();
    return now;
  }

 private:
  static PlanInstallation::Options PlanOptions(const Options& options) {
    PlanInstallation::Options plans = options.plans;
    plans.find_pushed = [store = options.bulk.store](uint64_t model) { return FindPushed(store, model); };
    return plans;
  }

  // Begins a unary call. `begin` returns the error that ends it now, or OK if the call ends later.
  static grpc::ServerUnaryReactor* Begin(grpc::CallbackServerContext* context, const auto& request, auto begin) {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    const auto call = FromProto(request);
    const absl::Status refused = call.ok() ? begin(*call, reactor) : call.status();
    if (!refused.ok()) reactor->Finish(ToGrpc(refused));
    return reactor;
  }

  grpc::ServerUnaryReactor* Health(grpc::CallbackServerContext* context, const v1::HealthRequest* request,
                                   v1::HealthReply* reply) override {
    plans_.Await(request->awaited());
    DeviceHealth health = options_.health;
    health.clock = std::time(nullptr);
    plans_.Describe(health);
    if (health.epoch < 0) {
      // A new plan is made for the memory that remains, so report as little in use as possible.
      ReturnFreedMemory();
      health.runtime = std::max<Bytes>(0, ProcessResidentBytes() - plans_.LeftBytes());
    }
    return Answer<DeviceHealth>(context->DefaultReactor(), health, reply);
  }

  // Does not use the loading thread, so a device can be examined while a plan is in use.
  grpc::ServerUnaryReactor* Inspect(grpc::CallbackServerContext* context, const v1::InspectRequest* request,
                                    v1::InspectReply* reply) override {
    return Begin(context, *request, [this, reply](const InspectCall& call, grpc::ServerUnaryReactor* reactor) -> absl::Status {
      if (!options_.inspect) return absl::UnimplementedError("this device does not inspect its machine");
      if (inspecting_.exchange(true)) return absl::UnavailableError("another `lime doctor` inspects this device; try again later");
      if (inspection_.joinable()) inspection_.join();
      inspection_ = std::thread([this, reactor, reply, call] {
        ToProto(options_.inspect(call), *reply);
        inspecting_ = false;
        reactor->Finish(grpc::Status::OK);
      });
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* Statistics(grpc::CallbackServerContext* context, const v1::StatisticsRequest*,
                                       v1::StatisticsReply* reply) override {
    return Answer<DeviceStatistics>(context->DefaultReactor(), Now().statistics, reply);
  }

  grpc::ServerUnaryReactor* Trace(grpc::CallbackServerContext* context, const v1::TraceRequest* request, v1::TraceReply* reply) override {
    const double received_ms = SteadyMs();
    const absl::StatusOr<TraceCall> call = FromProto(*request);
    if (!call.ok()) return Answer<TraceChunk>(context->DefaultReactor(), call.status(), reply);
    TraceChunk chunk = plans_.DrainTrace(*call);
    chunk.received_ms = received_ms, chunk.answered_ms = SteadyMs();
    return Answer<TraceChunk>(context->DefaultReactor(), chunk, reply);
  }

  grpc::ServerWriteReactor<v1::InstallEvent>* Install(grpc::CallbackServerContext* context, const v1::InstallRequest* request) override {
    const auto call = ProgressCall<v1::InstallEvent>::Begin();
    absl::StatusOr<InstallCall> what = FromProto(*request);
    if (!what.ok()) return call->End(what.status()), call.get();
    const absl::StatusOr<std::shared_ptr<StageSession>> session =
        plans_.Install(*std::move(what), {.address = PeerAddress(context->peer()),
                                          .progress =
                                              [call](const LoadProgress& state) {
                                                call->Say(EventOf<v1::InstallEvent>(InstallNews(LoadedBytes{state.done, state.total})));
                                              },
                                          .done =
                                              [call](const absl::StatusOr<InstalledPlan>& installed) {
                                                if (!installed.ok()) return call->End(installed.status());
                                                call->End(absl::OkStatus(), EventOf<v1::InstallEvent>(InstallNews(InstalledPlan{
                                                                                installed->numerics_id, ProcessResidentBytes()})));
                                              }});
    if (!session.ok()) return call->End(session.status()), call.get();
    call->OnGone([this, session = *session] { plans_.Abandon(session); });
    return call.get();
  }

  grpc::ServerWriteReactor<v1::ProfileEvent>* Profile(grpc::CallbackServerContext*, const v1::ProfileRequest* request) override {
    const auto call = ProgressCall<v1::ProfileEvent>::Begin();
    const absl::StatusOr<ProfileCall> what = FromProto(*request);
    if (!what.ok()) return call->End(what.status()), call.get();
    if (!options_.profile) return call->End(absl::UnimplementedError("this device does not measure itself")), call.get();
    const auto cancelled = std::make_shared<std::atomic<bool>>(false);
    call->OnGone([cancelled] { *cancelled = true; });
    const absl::Status refused = plans_.RunAlone([this, call, cancelled, what = *what] {
      const absl::StatusOr<MeasuredDevice> measured = options_.profile(
          what, [&](const ProfileProgress& progress) { call->Say(EventOf<v1::ProfileEvent>(ProfileNews(progress))); }, *cancelled);
      if (!measured.ok()) return call->End(measured.status());
      call->End(absl::OkStatus(), EventOf<v1::ProfileEvent>(ProfileNews(*measured)));
    });
    if (!refused.ok()) call->End(refused);
    return call.get();
  }

  grpc::ServerUnaryReactor* ProbeLink(grpc::CallbackServerContext* context, const v1::ProbeLinkRequest* request,
                                      v1::ProbeLinkReply* reply) override {
    return Begin(context, *request, [this, reply](const LinkProbe& probe, grpc::ServerUnaryReactor* reactor) {
      return plans_.RunAlone([this, reactor, reply, probe] { Answer(reactor, MeasureLink(probe, options_.plans.keys), reply); });
    });
  }

  grpc::ServerBidiReactor<v1::ProbeData, v1::ProbeAnswer>* Probe(grpc::CallbackServerContext*) override {
    const int64_t epoch = plans_.epoch();
    return AnswerProbe(epoch < 0 ? absl::OkStatus()
                                 : absl::FailedPreconditionError(absl::StrCat(
                                       "epoch ", epoch, " is installed, but links are measured without a plan; run `lime unload`")));
  }

  grpc::ServerUnaryReactor* Unload(grpc::CallbackServerContext* context, const v1::UnloadRequest* request,
                                   v1::UnloadReply* reply) override {
    return Begin(context, *request, [this, reply](const UnloadCall& call, grpc::ServerUnaryReactor* reactor) {
      return plans_.Unload(call, [=](const UnloadedPlan& unloaded) { Answer<UnloadedPlan>(reactor, unloaded, reply); });
    });
  }

  grpc::ServerUnaryReactor* Release(grpc::CallbackServerContext* context, const v1::ReleaseRequest* request,
                                    v1::ReleaseReply* reply) override {
    return Begin(context, *request, [this, context, reply](const ReleaseCall& call, grpc::ServerUnaryReactor* reactor) {
      return plans_.Release(call, PeerAddress(context->peer()),
                            [=](const ReleasedPlan& released) { Answer<ReleasedPlan>(reactor, released, reply); });
    });
  }

  grpc::ServerBidiReactor<v1::OrderRequest, v1::OrderEvent>* Orders(grpc::CallbackServerContext* context) override {
    const std::shared_ptr<OrdersStream> stream = OrdersStream::Begin(plans_, vocabularies_, *context, options_.orders);
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
      plans_.Tick();
      bulk_->Tick(now);
    }
  }

  const Options options_;
  VocabularyKeeper vocabularies_;
  PlanInstallation plans_;
  ActivationService activations_;
  const std::unique_ptr<BulkService> bulk_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::thread ticker_;
  // Null if another program has the UDP port.
  std::unique_ptr<HelloResponder> hello_;
  std::atomic<bool> inspecting_ = false;
  std::thread inspection_;  // runs the call that set inspecting_
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::weak_ptr<OrdersStream>> streams_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceServer>> DeviceServer::Start(const Options& options) {
  auto server = std::make_unique<ListeningServer>(options);
  LIME_RETURN_IF_ERROR(server->Listen());
  return server;
}

}  // namespace lime
