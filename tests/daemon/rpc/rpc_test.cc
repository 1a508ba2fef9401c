// Devices and coordinator over real sockets on loopback, with stages that compute nothing.

#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <future>
#include <map>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "common/sampling/logits_hash.h"
#include "coordinator/rpc/device_client.h"
#include "coordinator/serving/cluster_run.h"
#include "daemon/rpc/activation_link.h"
#include "daemon/rpc/activation_wire.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/rpc/control_stub.h"
#include "tests/daemon/rpc/keep_callback_threads.h"
#include "tests/daemon/rpc/rpc_fixture.h"
#include "tests/temp_dir.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

TEST_F(RpcTest, TokensAreThoseOfOneDeviceWhateverTheStages) {
  StartDevices();
  for (const std::vector<int32_t>& order : {std::vector<int32_t>{0}, {0, 1}, {0, 1, 2}, {1, 0, 2, 1, 0}, {0, 1, 0, 1}}) {
    SCOPED_TRACE(absl::StrCat(order.size(), " stages"));
    const std::unique_ptr<ClusterClient> client = Connect();
    ASSERT_TRUE(client->Install(MakeStages(order, 3, 2), {}).ok());
    const std::vector<std::vector<int32_t>> prompts = {Ids(1, 5), Ids(40, 17), Ids(7, 900), Ids(20, 3)};
    const Outcome outcome = RunAll(*client, prompts, 30, /*hash=*/true);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status;
    for (size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_EQ(outcome.tokens[i], FakeTokens(prompts[i], 30, static_cast<int>(order.size())));
      EXPECT_NE(outcome.hashes[i], 0u);
    }
    EXPECT_TRUE(client->Unload().ok());
    EXPECT_EQ(EpochOf(0), -1);
  }
}

TEST_F(RpcTest, InstallingReportsItsProgressAndTheInstalledPlan) {
  StartDevices();
  const std::unique_ptr<ClusterClient> client = Connect();
  Bytes most = 0;
  ASSERT_TRUE(client->Install(MakeStages({0, 1}, 1, 1), {.progress = [&](Bytes done, Bytes) { most = std::max(most, done); }}).ok());
  EXPECT_GE(most, 1);
  EXPECT_EQ(client->installed()[0].numerics_id, "fake-1");
  EXPECT_GT(client->installed()[1].resident, 0);
  EXPECT_EQ(EpochOf(0), client->plan().epoch);
  EXPECT_EQ(EpochOf(2), -1) << "it has no stage";
}

TEST_F(RpcTest, ARefusalNamesTheDeviceAndItsReasonAndUnloadsTheOthers) {
  Start(FakeDevice("a"));
  DeviceServer::Options full = FakeDevice("b");
  full.plans.make_stage = [](const StageSetup&) -> absl::StatusOr<std::unique_ptr<StageEngine>> {
    return absl::ResourceExhaustedError("would need 9 GiB, but it may use 8 GiB");
  };
  Start(full);
  const std::unique_ptr<ClusterClient> client = Connect();
  const absl::Status status = client->Install(MakeStages({0, 1}, 1, 1), {});
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("device \"b\""));
  EXPECT_THAT(std::string(status.message()), HasSubstr("may use 8 GiB"));
  EXPECT_TRUE(BecomesFree(0));
}

TEST_F(RpcTest, ADeviceThatDoesNotAnswerIsNamed) {
  StartDevices({"a"});
  devices_.push_back({.name = "gone", .address = "127.0.0.1:1"});
  const auto client = ClusterClient::Connect({.devices = devices_, .connect = absl::Seconds(1)});
  EXPECT_TRUE(absl::IsUnavailable(client.status()));
  EXPECT_THAT(std::string(client.status().message()), HasSubstr("\"gone\" at 127.0.0.1:1"));
}

TEST_F(RpcTest, APlanInUseIsNotReplacedByAnotherCoordinator) {
  StartDevices({"a", "b"});
  const std::unique_ptr<ClusterClient> first = Connect(), second = Connect();
  ASSERT_TRUE(first->Install(MakeStages({0, 1}, 1, 1), {}).ok());
  ASSERT_TRUE(first->Open([](int32_t, const FromDevice&) {}).ok());
  const absl::Status status = second->Install(MakeStages({0, 1}, 1, 1), {});
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("runs small for"));
  EXPECT_EQ(EpochOf(0), first->plan().epoch);
}

TEST_F(RpcTest, ACoordinatorThatIsGoneLeavesTheDevicesToTheNext) {
  StartDevices({"a", "b"});
  std::unique_ptr<ClusterClient> first = Connect();
  ASSERT_TRUE(first->Install(MakeStages({0, 1}, 1, 1), {}).ok());
  ASSERT_TRUE(first->Open([](int32_t, const FromDevice&) {}).ok());
  const int64_t epoch = first->plan().epoch;
  first.reset();
  EXPECT_TRUE(BecomesFree(0));
  EXPECT_TRUE(BecomesFree(1));
  const std::unique_ptr<ClusterClient> second = Connect();
  ASSERT_TRUE(second->Install(MakeStages({1, 0}, 1, 1), {}).ok());
  EXPECT_GT(second->plan().epoch, epoch);
  EXPECT_EQ(RunAll(*second, {Ids(3, 1)}, 5).tokens[0], FakeTokens(Ids(3, 1), 5, 2));
}

// The end of its stream tells, not its silence: with this patience the run would not end.
TEST_F(RpcTest, ADeviceThatIsLostEndsTheRunWithItsNameAtOnce) {
  StartDevices();
  const absl::StatusOr<std::unique_ptr<ClusterClient>> connected =
      ClusterClient::Connect({.devices = devices_, .silence = absl::InfiniteDuration()});
  ASSERT_TRUE(connected.ok()) << connected.status();
  ClusterClient* const client = connected->get();
  ASSERT_TRUE(client->Install(MakeStages({0, 1, 2}, 1, 1), {}).ok());
  ClusterRun run(*client);
  ASSERT_TRUE(run.Add({.prompt = {1}, .max_new_tokens = 255}, {}).ok());
  const absl::Status status = run.Run(
      [&, tokens = 0](const ClusterRun::Token&) mutable {
        if (++tokens == 3) servers_[1].reset();
        return true;
      },
      nullptr);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("device \""));
}

TEST_F(RpcTest, ADeviceThatIsSilentForLongerThanThatIsLost) {
  DeviceServer::Options mute = FakeDevice("a");
  mute.orders.beat = absl::InfiniteDuration();
  Start(mute);
  const auto client = ClusterClient::Connect({.devices = devices_, .silence = absl::Milliseconds(300)});
  ASSERT_TRUE(client.ok()) << client.status();
  ASSERT_TRUE((*client)->Install(MakeStages({0}, 1, 1), {}).ok());
  std::promise<absl::Status> lost;
  const auto on_news = [&](int32_t, const FromDevice& news) {
    if (const auto* failed = std::get_if<FailedNews>(&news)) lost.set_value(failed->status);
  };
  ASSERT_TRUE((*client)->Open(on_news).ok());
  EXPECT_EQ(lost.get_future().get(), absl::UnavailableError("device \"a\": it has sent nothing for 300ms"));
}

TEST_F(RpcTest, AStageThatFailsReportsTheReasonToTheCoordinator) {
  DeviceServer::Options options = FakeDevice("a");
  StagePeers peers;
  options.plans.make_stage = [&](StageSetup setup) -> absl::StatusOr<std::unique_ptr<StageEngine>> {
    peers = setup.peers;
    return MakeFakeStage(std::move(setup));
  };
  Start(options);
  const std::unique_ptr<ClusterClient> client = Connect();
  ASSERT_TRUE(client->Install(MakeStages({0}, 1, 1), {}).ok());
  std::promise<absl::Status> failed;
  ASSERT_TRUE(client
                  ->Open([&](int32_t, const FromDevice& what) {
                    if (const auto* news = std::get_if<FailedNews>(&what)) failed.set_value(news->status);
                  })
                  .ok());
  peers.failed(absl::DataLossError("block 3 of the checkpoint has a bad checksum"));
  const absl::Status status = failed.get_future().get();
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("device \"a\": block 3"));
  EXPECT_TRUE(BecomesFree(0));
}

// ---- What devices tell of themselves

TEST_F(RpcTest, RoomForKvIsReportedWithoutAPlanToo) {
  const TempDir dir;
  DeviceServer::Options options = FakeDevice("a");
  options.plans.kv_folder = dir.path();
  Start(options);
  Start(FakeDevice("b"));
  const auto room = [&](size_t device) {
    const absl::StatusOr<DeviceStatistics> answer =
        DeviceClient(devices_[device].name, devices_[device].address, {}).Statistics(absl::Seconds(10));
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() ? answer->kv_room : std::nullopt;
  };
  ASSERT_TRUE(room(0));
  EXPECT_GT(*room(0), 0);
  EXPECT_FALSE(room(1)) << "nobody has said where its KV would go";
}

TEST_F(RpcTest, StatisticsNameTheDevicesWithWhichActivationsAreExchanged) {
  StartDevices();
  const std::unique_ptr<ClusterClient> client = Connect();
  ASSERT_TRUE(client->Install(MakeStages({0, 1, 2}, 3, 2), {}).ok());
  ASSERT_TRUE(RunAll(*client, {Ids(1, 5), Ids(40, 17)}, 10).status.ok());
  std::map<std::pair<std::string, std::string>, PeerTraffic> traffic;  // from, to: as each end counts it
  for (int32_t device = 0; device < 3; ++device) {
    const absl::StatusOr<DeviceStatistics> seen = client->Statistics(device);
    ASSERT_TRUE(seen.ok()) << seen.status();
    EXPECT_GT(seen->resident, 0);
    Bytes sent = 0, received = 0;
    for (const PeerTraffic& peer : seen->traffic) {
      sent += peer.sent, received += peer.received;
      traffic[{devices_[static_cast<size_t>(device)].name, peer.peer}].sent = peer.sent;
      traffic[{peer.peer, devices_[static_cast<size_t>(device)].name}].received = peer.received;
    }
    EXPECT_EQ(sent, seen->sent_bytes);
    EXPECT_EQ(received, seen->received_bytes);
  }
  for (const auto& [from, to] : {std::pair("a", "b"), std::pair("b", "c"), std::pair("c", "a")}) {
    const PeerTraffic& link = traffic.at({from, to});
    EXPECT_GT(link.received, 0) << from << " to " << to;
    EXPECT_GE(link.sent, link.received) << from << " to " << to << ": the last tokens may be under way";
  }
  EXPECT_EQ(traffic.at({"b", "a"}).sent, 0);
}

// ---- How fast links are

TEST_F(RpcTest, LinksAreMeasuredWhileAPlanIsInUse) {
  for (const std::string name : {"a", "b"}) {
    DeviceServer::Options options = FakeDevice(name);
    options.plans.link_probes = true;
    Start(options);
  }
  const std::unique_ptr<ClusterClient> client = Connect();
  ASSERT_TRUE(client->Install(MakeStages({0, 1}, 1, 1), {}).ok());
  EXPECT_TRUE(client->Statistics(0)->links.empty());
  ASSERT_TRUE(client->Open([](int32_t, const FromDevice&) {}).ok());
  for (int32_t device = 0; device < 2; ++device) {
    absl::StatusOr<DeviceStatistics> seen;
    const absl::Time until = absl::Now() + absl::Seconds(60);
    do {  // a train that met a busy machine is followed by others
      absl::SleepFor(absl::Milliseconds(50));
      seen = client->Statistics(device);
      ASSERT_TRUE(seen.ok()) << seen.status();
    } while ((seen->links.empty() || seen->links[0].bytes_per_second <= 1e6) && absl::Now() < until);
    ASSERT_EQ(seen->links.size(), 1u);
    EXPECT_EQ(seen->links[0].peer, device == 0 ? "b" : "a");
    EXPECT_GT(seen->links[0].bytes_per_second, 1e6);
    EXPECT_LT(seen->links[0].age_ms, 10'000);
    EXPECT_EQ(seen->sent_messages, 0) << "probes are no messages";
    EXPECT_EQ(seen->received_bytes, 0);
  }
}

TEST_F(RpcTest, ProbesOnEveryLinkChangeNoToken) {
  for (const std::string name : {"a", "b", "c"}) {
    DeviceServer::Options options = FakeDevice(name);
    options.plans.link_probes = true;
    Start(options);
  }
  const std::unique_ptr<ClusterClient> client = Connect();
  ASSERT_TRUE(client->Install(MakeStages({0, 1, 2, 1, 0}, 3, 2), {}).ok());
  const std::vector<std::vector<int32_t>> prompts = {Ids(1, 5), Ids(40, 17), Ids(7, 900), Ids(20, 3)};
  const Outcome outcome = RunAll(*client, prompts, 200);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  for (size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(outcome.tokens[i], FakeTokens(prompts[i], 200, 5));
}

// Takes a stream of activations and says one thing.
class BabblingPeer final : public grpc::CallbackGenericService {
 public:
  explicit BabblingPeer(std::string answer) : answer_(std::move(answer)) {}
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override { return new Reactor(answer_); }

 private:
  class Reactor final : public grpc::ServerGenericBidiReactor {
   public:
    explicit Reactor(const std::string& answer) {
      const grpc::Slice slice(answer);
      answer_ = grpc::ByteBuffer(&slice, 1);
      StartSendInitialMetadata();
      StartWrite(&answer_);
      StartRead(&read_);
    }
    void OnReadDone(bool ok) override {
      if (!ok) return Finish(grpc::Status::OK);
      StartRead(&read_);
    }
    void OnDone() override { delete this; }

   private:
    grpc::ByteBuffer answer_, read_;
  };
  const std::string answer_;
};

TEST(ActivationLinkTest, IsLostWhereThePeerAnswersWhatCannotBe) {
  for (const auto& [answer, why] :
       {std::pair(std::string(8, '\0'), "answers a message that was not sent"), std::pair(std::string(7, '\0'), "list of arrival times"),
        std::pair(std::string(8, '\xff'), "not a valid time"), std::pair(std::string(1 << 20, '\0'), "cannot be read"),
        std::pair(std::string(), "list of arrival times")}) {
    BabblingPeer babbler(answer);
    grpc::ServerBuilder builder;
    int port = 0;
    SetServerOptions(builder);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port).RegisterCallbackGenericService(&babbler);
    const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
    std::promise<absl::Status> lost;
    {
      const std::unique_ptr<Link> link = OpenActivationLink({.link = {.peer = "b",
                                                                      .address = absl::StrCat("127.0.0.1:", port),
                                                                      .lost = [&](const absl::Status& status) { lost.set_value(status); }},
                                                             .probes = false});
      std::future<absl::Status> reported = lost.get_future();
      ASSERT_EQ(reported.wait_for(std::chrono::seconds(10)), std::future_status::ready) << why;
      EXPECT_THAT(std::string(reported.get().message()), HasSubstr(why));
    }
    server->Shutdown();
  }
}

TEST_F(RpcTest, ASilentCoordinatorIsDisconnected) {
  DeviceServer::Options options = FakeDevice("a");
  options.orders.silence = absl::Milliseconds(300);
  Start(options);
  const std::unique_ptr<ClusterClient> client = Connect();
  ASSERT_TRUE(client->Install(MakeStages({0}, 1, 1), {}).ok());
  grpc::ClientContext context;
  const auto stub = ControlOf(devices_[0]);
  const auto stream = stub->Orders(&context);
  v1::OrderRequest request;
  request.mutable_open()->set_epoch(client->plan().epoch);
  stream->Write(request);
  v1::OrderEvent event;
  while (stream->Read(&event)) {
  }
  EXPECT_FALSE(stream->Finish().ok());
  EXPECT_TRUE(BecomesFree(0));
}

TEST_F(RpcTest, APlanThatNobodyUsesIsUnloaded) {
  DeviceServer::Options options = FakeDevice("a");
  options.plans.unused = absl::Milliseconds(300);
  Start(options);
  ASSERT_TRUE(Connect()->Install(MakeStages({0}, 1, 1), {}).ok());
  EXPECT_TRUE(BecomesFree(0));
}

// Devices that have little to load wait for one that has much.
TEST_F(RpcTest, APlanThatIsStillToBeUsedStaysWhileOthersLoad) {
  DeviceServer::Options quick = FakeDevice("a"), slow = FakeDevice("b");
  const auto passed = std::make_shared<std::atomic<int64_t>>(0);  // seconds, on the quick device
  quick.plans.now = [passed] { return absl::Now() + absl::Seconds(passed->load()); };
  const auto is_used = [this] {
    const auto health = DeviceClient(devices_[0].name, devices_[0].address, {}).Health(absl::Seconds(10));
    return health.ok() && health->used_by.has_value();
  };
  // Two thirds of the time of an unused plan pass; then its coordinator has to say that it is to be
  // used. Twice that is more than the time.
  slow.plans.make_stage = [&](const StageSetup& setup) -> absl::StatusOr<std::unique_ptr<StageEngine>> {
    for (int times = 0; times < 2;) {
      *passed += 20;
      if (!is_used()) ++times;  // it is while the quick device installs
      const absl::Time until = absl::Now() + absl::Seconds(10);
      while (!is_used()) {
        if (absl::Now() > until) return absl::DeadlineExceededError("the quick device does not hear that it is waited for");
        absl::SleepFor(absl::Milliseconds(5));
      }
    }
    return MakeFakeStage(setup);
  };
  Start(quick), Start(slow);
  const auto client = Connect();
  ASSERT_TRUE(client->Install(MakeStages({0, 1}, 1, 1), {}).ok());
  const Outcome outcome = RunAll(*client, {Ids(3, 1)}, 5);
  EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_EQ(outcome.tokens[0], FakeTokens(Ids(3, 1), 5, 2));
}

TEST_F(RpcTest, LoadingIsCancelledWhenItsCoordinatorGoes) {
  DeviceServer::Options options = FakeDevice("a");
  options.plans.make_stage = [](const StageSetup& setup) -> absl::StatusOr<std::unique_ptr<StageEngine>> {
    while (!setup.load.cancelled->load()) absl::SleepFor(absl::Milliseconds(5));
    return absl::CancelledError("the load was given up");
  };
  Start(options);
  options.plans.make_stage = {};
  const auto stub = ControlOf(devices_[0]);
  {
    grpc::ClientContext context;
    Plan plan = MakeStages({0}, 1, 1);
    v1::InstallRequest request;
    ToProto(InstallCall{.plan = plan, .device = 0, .addresses = {"", "", ""}}, request);
    const auto reader = stub->Install(&context, request);
    while (EpochOf(0) != plan.epoch) absl::SleepFor(absl::Milliseconds(5));
    context.TryCancel();
    (void)reader->Finish();
  }
  EXPECT_TRUE(BecomesFree(0));
}

// Whenever it goes: before the device has begun, while it loads, or when it has loaded and says so.
TEST_F(RpcTest, AnInstallationThatNobodyHeardTheEndOfIsUnloaded) {
  StartDevices({"a"});
  const std::unique_ptr<v1::Control::Stub> control = ControlOf(devices_[0]);
  int gone = 0;
  for (int64_t epoch = 1; epoch <= 200; ++epoch) {
    Plan plan = MakeStages({0}, 1, 1);
    plan.epoch = epoch;
    v1::InstallRequest request;
    ToProto(InstallCall{.plan = plan, .device = 0, .addresses = {devices_[0].address}, .weights = "fake"}, request);
    grpc::ClientContext context;
    const auto reader = control->Install(&context, request);
    absl::SleepFor(absl::Microseconds(5 * epoch));
    context.TryCancel();
    v1::InstallEvent event;
    while (reader->Read(&event)) {
    }
    if (reader->Finish().ok()) {
      grpc::ClientContext unload;
      v1::UnloadRequest what;
      what.set_epoch(epoch);
      v1::UnloadReply reply;
      EXPECT_TRUE(control->Unload(&unload, what, &reply).ok());
    } else {
      ++gone;
    }
    ASSERT_TRUE(BecomesFree(0)) << "epoch " << epoch;
  }
  EXPECT_GT(gone, 0);
}

}  // namespace
}  // namespace lime
