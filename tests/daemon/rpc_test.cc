// Devices and coordinator over real sockets on loopback, with stages that compute nothing.

#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>

#include <future>

#include "absl/time/clock.h"
#include "coordinator/cli/logits_hash.h"
#include "coordinator/rpc/cluster_run.h"
#include "daemon/rpc/activation_wire.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lime/v1/control.grpc.pb.h"
#include "tests/daemon/fake_cluster.h"
#include "tests/daemon/keep_callback_threads.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

std::vector<int32_t> Ids(int count, int32_t first) {
  std::vector<int32_t> ids;
  for (int i = 0; i < count; ++i) ids.push_back((first + 7 * i) % kFakeVocab);
  return ids;
}

class RpcTest : public ::testing::Test {
 protected:
  void StartDevices(const std::vector<std::string>& names = {"a", "b", "c"}) {
    for (const std::string& name : names) Start(FakeDevice(name));
  }
  void Start(const DeviceServer::Options& options) {
    absl::StatusOr<std::unique_ptr<DeviceServer>> server = DeviceServer::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    devices_.push_back({.name = options.name, .address = Address(**server)});
    servers_.push_back(*std::move(server));
  }
  static std::string Address(const DeviceServer& server) { return absl::StrCat("127.0.0.1:", server.port()); }

  std::unique_ptr<ClusterClient> Connect() {
    absl::StatusOr<std::unique_ptr<ClusterClient>> client = ClusterClient::Connect({.devices = devices_});
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }
  std::unique_ptr<v1::Control::Stub> Control(int device) {
    return v1::Control::NewStub(OpenChannel(devices_[static_cast<size_t>(device)].address, "", {}, ChannelUse::kControl));
  }
  int64_t EpochOf(int device) {
    grpc::ClientContext context;
    v1::HealthReply reply;
    EXPECT_TRUE(Control(device)->Health(&context, {}, &reply).ok());
    return reply.epoch();
  }
  bool BecomesFree(int device) {
    const absl::Time until = absl::Now() + absl::Seconds(10);
    while (EpochOf(device) != -1 && absl::Now() < until) absl::SleepFor(absl::Milliseconds(20));
    return EpochOf(device) == -1;
  }

  std::vector<ClusterClient::Device> devices_;
  std::vector<std::unique_ptr<DeviceServer>> servers_;
};

struct Outcome {
  absl::Status status;
  std::vector<std::vector<int32_t>> tokens;  // by request
  std::vector<uint64_t> hashes;
};

Outcome RunAll(ClusterClient& client, const std::vector<std::vector<int32_t>>& prompts, int64_t max_new_tokens, bool hash = false) {
  ClusterRun run(client);
  for (const auto& prompt : prompts) {
    EXPECT_TRUE(run.Add({.prompt = prompt, .max_new_tokens = max_new_tokens}, {.hash_logits = hash}).ok());
  }
  Outcome outcome{.tokens = std::vector<std::vector<int32_t>>(prompts.size()), .hashes = std::vector<uint64_t>(prompts.size())};
  outcome.status = run.Run(
      [&](const ClusterRun::Token& token) {
        outcome.tokens[static_cast<size_t>(token.request)].push_back(token.token);
        outcome.hashes[static_cast<size_t>(token.request)] = token.logits_hash;
        return true;
      },
      nullptr);
  return outcome;
}

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

TEST_F(RpcTest, InstallingTellsProgressAndWhatWasInstalled) {
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
  full.plans.make_stage = [](const StageSetup&) -> absl::StatusOr<std::unique_ptr<DeviceStage>> {
    return absl::ResourceExhaustedError("would take 9 GiB and may take 8 GiB");
  };
  Start(full);
  const std::unique_ptr<ClusterClient> client = Connect();
  const absl::Status status = client->Install(MakeStages({0, 1}, 1, 1), {});
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("device \"b\""));
  EXPECT_THAT(std::string(status.message()), HasSubstr("may take 8 GiB"));
  EXPECT_TRUE(BecomesFree(0));
}

TEST_F(RpcTest, ADeviceThatDoesNotAnswerIsNamed) {
  StartDevices({"a"});
  devices_.push_back({.name = "gone", .address = "127.0.0.1:1"});
  const auto client = ClusterClient::Connect({.devices = devices_, .connect = absl::Seconds(1)});
  EXPECT_TRUE(absl::IsUnavailable(client.status()));
  EXPECT_THAT(std::string(client.status().message()), HasSubstr("\"gone\" at 127.0.0.1:1"));
}

TEST_F(RpcTest, APlanInUseIsNotTakenAwayByAnotherCoordinator) {
  StartDevices({"a", "b"});
  const std::unique_ptr<ClusterClient> first = Connect(), second = Connect();
  ASSERT_TRUE(first->Install(MakeStages({0, 1}, 1, 1), {}).ok());
  ASSERT_TRUE(first->Open([](int32_t, const FromDevice&) {}).ok());
  const absl::Status status = second->Install(MakeStages({0, 1}, 1, 1), {});
  EXPECT_TRUE(absl::IsAborted(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("in use by another coordinator"));
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

TEST_F(RpcTest, ADeviceThatIsLostEndsTheRunWithItsNameWithinTwoSeconds) {
  StartDevices();
  const std::unique_ptr<ClusterClient> client = Connect();
  ASSERT_TRUE(client->Install(MakeStages({0, 1, 2}, 1, 1), {}).ok());
  ClusterRun run(*client);
  ASSERT_TRUE(run.Add({.prompt = {1}, .max_new_tokens = 255}, {}).ok());
  absl::Time lost;
  const absl::Status status = run.Run(
      [&, tokens = 0](const ClusterRun::Token&) mutable {
        if (++tokens == 3) lost = absl::Now(), servers_[1].reset();
        return true;
      },
      nullptr);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("device \""));
  EXPECT_LT(absl::Now() - lost, absl::Seconds(2.5));
}

// ---- Faults that are survived

class SurvivalTest : public RpcTest {
 protected:
  static constexpr int kTokens = 120;

  void SetUp() override {
    StartDevices();
    client_ = Connect();
    ASSERT_TRUE(client_->Install(MakeStages({0, 1, 2, 1}, 2, 1), {}).ok());
  }

  // What two requests answer where `fault` comes with the fifth token.
  Outcome RunWith(std::function<void()> fault, ClusterRun::Survival survival) {
    survival.say = [this](const std::string& sentence) { said_ += sentence + "\n"; };
    ClusterRun run(*client_, std::move(survival));
    for (const auto& prompt : prompts_) EXPECT_TRUE(run.Add({.prompt = prompt, .max_new_tokens = kTokens}, {.hash_logits = true}).ok());
    Outcome outcome{.tokens = std::vector<std::vector<int32_t>>(2), .hashes = std::vector<uint64_t>(2)};
    outcome.status = run.Run(
        [&, count = 0](const ClusterRun::Token& token) mutable {
          outcome.tokens[static_cast<size_t>(token.request)].push_back(token.token);
          outcome.hashes[static_cast<size_t>(token.request)] = token.logits_hash;
          if (++count == 5) fault();
          return true;
        },
        nullptr);
    recoveries_ = run.recoveries(), changes_ = run.changes();
    return outcome;
  }
  // The tokens of a plan of four stages, and the logits that they were taken from.
  void ExpectNothingLost(const Outcome& outcome) {
    ASSERT_TRUE(outcome.status.ok()) << outcome.status << said_;
    EXPECT_GE(recoveries_ + changes_, 1);
    for (size_t r = 0; r < 2; ++r) {
      EXPECT_EQ(outcome.tokens[r], FakeTokens(prompts_[r], kTokens, 4));
      cli::LogitsHash hash;
      for (const int32_t token : outcome.tokens[r]) {
        std::vector<float> logits(kFakeVocab, 0);
        logits[static_cast<size_t>(token)] = 1;
        hash.Add(logits);
      }
      EXPECT_EQ(outcome.hashes[r], hash.value());
    }
  }
  void StartAgain(int device) {
    DeviceServer::Options options = FakeDevice(devices_[static_cast<size_t>(device)].name);
    options.listen = devices_[static_cast<size_t>(device)].address;
    servers_[static_cast<size_t>(device)].reset();
    absl::StatusOr<std::unique_ptr<DeviceServer>> server = DeviceServer::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    servers_[static_cast<size_t>(device)] = *std::move(server);
  }

  const std::vector<std::vector<int32_t>> prompts_ = {Ids(9, 5), Ids(30, 17)};
  std::unique_ptr<ClusterClient> client_;
  std::string said_;
  int64_t recoveries_ = 0, changes_ = 0;
};

TEST_F(SurvivalTest, ADeviceThatIsStartedAgainCostsNoToken) {
  for (int device = 0; device < 3; ++device) {
    SCOPED_TRACE(devices_[static_cast<size_t>(device)].name);
    const int64_t epoch = client_->plan().epoch;
    ExpectNothingLost(RunWith([&] { StartAgain(device); }, {}));
    EXPECT_GT(client_->plan().epoch, epoch);
    ASSERT_TRUE(client_->Unload().ok());
    ASSERT_TRUE(client_->Install(MakeStages({0, 1, 2, 1}, 2, 1), {}).ok());
  }
}

TEST_F(SurvivalTest, ADeviceThatStaysAwayIsPlannedWithout) {
  ClusterRun::Survival survival{.recovery = {.patience = absl::Milliseconds(300)}};
  Recovery::Devices asked;
  survival.plan = [&](const Recovery::Devices& devices) {
    asked = devices;
    return MakeStages({0, 2, 0, 2}, 2, 1);
  };
  ExpectNothingLost(RunWith([&] { servers_[1].reset(); }, survival));
  EXPECT_EQ(asked, (Recovery::Devices{"a", "c"}));
  EXPECT_EQ(DevicesUsed(client_->plan()), (Recovery::Devices{"a", "c"}));
}

TEST_F(SurvivalTest, ALossWhileThePlanIsInstalledAgainIsSurvivedToo) {
  int planned = 0;
  ClusterRun::Survival survival{.recovery = {.patience = absl::Milliseconds(300)}};
  survival.plan = [&](const Recovery::Devices& devices) {
    if (++planned == 1) servers_[2].reset();  // it answered, and does no more
    if (!devices.contains("c")) StartAgain(2);
    return MakeStages({0, 2, 0, 2}, 2, 1);
  };
  ExpectNothingLost(RunWith([&] { servers_[1].reset(); }, survival));
  EXPECT_GE(planned, 2);
}

TEST_F(SurvivalTest, WithoutAPlanItEndsWithTheNameOfWhoIsMissing) {
  const Outcome outcome = RunWith([&] { servers_[1].reset(); },
                                  {.recovery = {.patience = absl::Milliseconds(200), .give_up = absl::Milliseconds(600)},
                                   .plan = [](const Recovery::Devices&) { return absl::ResourceExhaustedError("2 GiB are missing"); }});
  EXPECT_TRUE(absl::IsUnavailable(outcome.status));
  EXPECT_THAT(std::string(outcome.status.message()), HasSubstr("device \"b\" is missing"));
  EXPECT_THAT(std::string(outcome.status.message()), HasSubstr("2 GiB are missing"));
  EXPECT_TRUE(BecomesFree(0));
}

TEST_F(SurvivalTest, ABetterPlanIsChangedToWhileTokensComeAndCostsNone) {
  ClusterRun::Survival survival;
  std::vector<int64_t> steps_left;
  std::optional<Plan> in_use;
  survival.change = [&](const OrderWriter::Left& left) -> std::optional<ClusterRun::Change> {
    steps_left.push_back(left.steps);
    if (left.steps > kTokens - 20 || in_use) return std::nullopt;
    return ClusterRun::Change{.plan = MakeStages({0, 2, 0, 2}, 2, 1), .why = "link a -> b is slow", .pause = absl::Seconds(20)};
  };
  survival.in_use = [&](const Plan& plan) { in_use = plan; };
  ExpectNothingLost(RunWith([] {}, survival));
  EXPECT_EQ(changes_, 1);
  EXPECT_EQ(recoveries_, 0);
  EXPECT_EQ(steps_left.front(), kTokens);
  EXPECT_TRUE(std::ranges::is_sorted(steps_left, std::greater()));
  ASSERT_TRUE(in_use);
  EXPECT_EQ(DevicesUsed(*in_use), (Recovery::Devices{"a", "c"}));
  EXPECT_EQ(client_->plan(), *in_use);
  EXPECT_THAT(said_, HasSubstr("link a -> b is slow; changes to another plan, which takes 20s at most\n"));
  EXPECT_THAT(said_, HasSubstr("goes on after "));
  EXPECT_TRUE(BecomesFree(1)) << "it has no stage any more";
}

TEST_F(SurvivalTest, AfterAChangeALossIsRecoveredFromWithTheNewPlan) {
  ClusterRun::Survival survival;
  bool changed = false;
  survival.change = [&](const OrderWriter::Left& left) -> std::optional<ClusterRun::Change> {
    if (left.steps == kTokens || std::exchange(changed, true)) {
      if (left.steps < kTokens / 2 && servers_[1] != nullptr) servers_[1].reset(), StartAgain(2);  // b is not missed, c is
      return std::nullopt;
    }
    return ClusterRun::Change{.plan = MakeStages({0, 2, 0, 2}, 2, 1), .why = "why", .pause = absl::Seconds(20)};
  };
  ExpectNothingLost(RunWith([] {}, survival));
  EXPECT_EQ(changes_, 1);
  EXPECT_GE(recoveries_, 1);
  EXPECT_EQ(DevicesUsed(client_->plan()), (Recovery::Devices{"a", "c"}));
}

TEST_F(SurvivalTest, WhereTheBetterPlanCannotBeInstalledTheOneBeforeGoesOn) {
  ClusterRun::Survival survival;
  bool asked = false;
  survival.change = [&](const OrderWriter::Left& left) -> std::optional<ClusterRun::Change> {
    if (left.steps == kTokens || std::exchange(asked, true)) return std::nullopt;
    Plan plan = MakeStages({0, 2, 0, 2}, 2, 1);
    for (PlanDevice& device : plan.devices) device.name += "?";
    return ClusterRun::Change{.plan = plan, .why = "why", .pause = absl::Seconds(20)};
  };
  ExpectNothingLost(RunWith([] {}, survival));
  EXPECT_EQ(changes_, 0);
  EXPECT_EQ(recoveries_, 1);
  EXPECT_EQ(DevicesUsed(client_->plan()), (Recovery::Devices{"a", "b", "c"}));
}

TEST_F(RpcTest, AStageThatFailsTellsTheCoordinatorWhy) {
  DeviceServer::Options options = FakeDevice("a");
  StageEngine::Peers peers;
  options.plans.make_stage = [&](StageSetup setup) -> absl::StatusOr<std::unique_ptr<DeviceStage>> {
    peers = setup.peers;
    return std::make_unique<FakeStage>(std::move(setup));
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
    const absl::Time until = absl::Now() + absl::Seconds(10);
    do {
      absl::SleepFor(absl::Milliseconds(50));
      seen = client->Statistics(device);
      ASSERT_TRUE(seen.ok()) << seen.status();
    } while (seen->links.empty() && absl::Now() < until);
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
class Babbler final : public grpc::CallbackGenericService {
 public:
  explicit Babbler(std::string answer) : answer_(std::move(answer)) {}
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
       {std::pair(std::string(8, '\0'), "answers what was not sent"), std::pair(std::string(7, '\0'), "times of arrival"),
        std::pair(std::string(8, '\xff'), "no time of a clock"), std::pair(std::string(1 << 20, '\0'), "cannot be read"),
        std::pair(std::string(), "times of arrival")}) {
    Babbler babbler(answer);
    grpc::ServerBuilder builder;
    int port = 0;
    SetServerOptions(builder);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port).RegisterCallbackGenericService(&babbler);
    const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
    std::promise<absl::Status> lost;
    {
      ActivationLink link({.peer = "b",
                           .address = absl::StrCat("127.0.0.1:", port),
                           .lost = [&](const absl::Status& status) { lost.set_value(status); },
                           .probes = false});
      std::future<absl::Status> told = lost.get_future();
      ASSERT_EQ(told.wait_for(std::chrono::seconds(10)), std::future_status::ready) << why;
      EXPECT_THAT(std::string(told.get().message()), HasSubstr(why));
    }
    server->Shutdown();
  }
}

// ---- Hostile peers

class HostileTest : public RpcTest {
 protected:
  void SetUp() override {
    StartDevices({"a", "b"});
    client_ = Connect();
    ASSERT_TRUE(client_->Install(MakeStages({0, 1}, 1, 1), {}).ok());
  }
  // What device "b" answers to one message of activations.
  grpc::Status SendTo(const std::string& epoch, const std::string& from, const std::string& bytes) {
    grpc::GenericStub stub(OpenChannel(devices_[1].address, "", {}, ChannelUse::kActivations));
    grpc::ClientContext context;
    context.AddMetadata(kEpochKey, epoch);
    context.AddMetadata(kFromKey, from);
    grpc::CompletionQueue queue;
    const auto call = stub.PrepareCall(&context, kActivationMethod, &queue);
    const auto wait = [&] {
      void* tag = nullptr;
      bool ok = false;
      return queue.Next(&tag, &ok) && ok;
    };
    call->StartCall(nullptr);
    if (!wait()) return grpc::Status(grpc::StatusCode::UNKNOWN, "no call");
    grpc::Slice slice(bytes);
    call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    (void)wait();
    grpc::Status status;
    call->Finish(&status, nullptr);
    (void)wait();
    return status;
  }
  std::string Message(ActivationHeader header, size_t payload) {
    const auto bytes = Encode(header);
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()) + std::string(payload, 'x');
  }
  std::string Epoch() const { return std::to_string(client_->plan().epoch); }
  // Whoever was refused, the plan still runs.
  void ExpectUnharmed() {
    const Outcome outcome = RunAll(*client_, {Ids(3, 1)}, 5);
    EXPECT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_EQ(outcome.tokens[0], FakeTokens(Ids(3, 1), 5, 2));
  }

  std::unique_ptr<ClusterClient> client_;
};

TEST_F(HostileTest, ActivationsOfAnotherEpochAreRefused) {
  EXPECT_EQ(SendTo("7777", "0", "").error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  const grpc::Status status = SendTo(Epoch(), "0", Message({.epoch = 7777, .bytes = 8}, 8));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("epoch 7777"));
  ExpectUnharmed();
}

TEST_F(HostileTest, MalformedActivationsAreRefused) {
  const int64_t epoch = client_->plan().epoch;
  for (const std::string& bytes :
       {std::string(), std::string("LIME"), std::string(4096, '\xff'), Message({.epoch = epoch, .bytes = 9}, 8),
        Message({.epoch = epoch, .bytes = 0}, 8), Message({.epoch = epoch, .stage = 1, .bytes = 8}, 8),
        Message({.epoch = epoch, .stage = 60000, .bytes = 8}, 8), Message({.epoch = epoch, .bytes = 8, .probe = true}, 8),
        Message({.epoch = epoch, .bytes = kProbeBytes, .probe = true}, kProbeBytes),
        Message({.epoch = epoch, .bytes = kProbeBytes - 48, .probe = true}, kProbeBytes - 49)}) {
    EXPECT_EQ(SendTo(Epoch(), "0", bytes).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
  for (const char* from : {"-1", "2000", "", "a", "99999999999999999999"})
    EXPECT_EQ(SendTo(Epoch(), from, "").error_code(), grpc::StatusCode::INVALID_ARGUMENT) << from;
  ExpectUnharmed();
}

TEST_F(HostileTest, OrdersOfAnotherEpochOrNoneAreRefused) {
  const auto stub = Control(0);
  for (const int64_t epoch : {int64_t{0}, client_->plan().epoch + 1}) {
    grpc::ClientContext context;
    const auto stream = stub->Orders(&context);
    v1::OrderRequest request;
    request.mutable_open()->set_epoch(epoch);
    stream->Write(request);
    v1::OrderEvent event;
    EXPECT_FALSE(stream->Read(&event));
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  }
  grpc::ClientContext context;
  const auto stream = stub->Orders(&context);
  v1::OrderRequest request;
  request.mutable_order()->mutable_retire();
  stream->Write(request);
  v1::OrderEvent event;
  EXPECT_FALSE(stream->Read(&event));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  ExpectUnharmed();
}

TEST_F(HostileTest, AnOrderThatCannotBeEndsItsCoordinatorsPlan) {
  const auto stub = Control(0);
  grpc::ClientContext context;
  const auto stream = stub->Orders(&context);
  v1::OrderRequest request;
  request.mutable_open()->set_epoch(client_->plan().epoch);
  stream->Write(request);
  v1::OrderEvent event;
  ASSERT_TRUE(stream->Read(&event));
  request.mutable_order()->mutable_step()->add_microbatches()->add_rows()->set_position(-5);
  stream->Write(request);
  while (stream->Read(&event)) {
  }
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("position"));
  EXPECT_TRUE(BecomesFree(0));
}

TEST_F(HostileTest, PlansThatAreNoneAreRefusedAndTheOneInstalledStays) {
  const auto stub = Control(0);
  v1::InstallRequest good;
  ToProto(InstallCall{.plan = client_->plan(), .device = 0, .addresses = {"", "", ""}}, good);
  const auto refused = [&](const v1::InstallRequest& request) {
    grpc::ClientContext context;
    const auto reader = stub->Install(&context, request);
    v1::InstallEvent event;
    while (reader->Read(&event)) {
    }
    return reader->Finish().error_code();
  };
  EXPECT_EQ(refused(good), grpc::StatusCode::ABORTED) << "its epoch was here already";
  v1::InstallRequest bad = good;
  bad.set_plan("{}");
  EXPECT_EQ(refused(bad), grpc::StatusCode::INVALID_ARGUMENT);
  bad = good, bad.set_device(3);
  EXPECT_EQ(refused(bad), grpc::StatusCode::INVALID_ARGUMENT);
  bad = good, bad.add_addresses("one too many");
  EXPECT_EQ(refused(bad), grpc::StatusCode::INVALID_ARGUMENT);
  bad = good, bad.set_weights(std::string(5000, 'x'));
  EXPECT_EQ(refused(bad), grpc::StatusCode::INVALID_ARGUMENT);
  ExpectUnharmed();
}

TEST_F(HostileTest, UnloadingAnotherEpochIsRefused) {
  grpc::ClientContext context;
  v1::UnloadRequest request;
  request.set_epoch(7777);
  v1::UnloadReply reply;
  EXPECT_EQ(Control(0)->Unload(&context, request, &reply).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  ExpectUnharmed();
}

TEST_F(HostileTest, UnknownMethodsAreRefused) {
  grpc::GenericStub stub(OpenChannel(devices_[0].address, "", {}, ChannelUse::kControl));
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  grpc::Slice slice("x");
  grpc::ByteBuffer request(&slice, 1), reply;
  auto call = stub.PrepareUnaryCall(&context, "/lime.v1.Control/Format", request, &queue);
  call->StartCall();
  grpc::Status status;
  call->Finish(&reply, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  ASSERT_TRUE(queue.Next(&tag, &ok));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(RpcTest, ACoordinatorThatSaysNothingIsGivenUp) {
  DeviceServer::Options options = FakeDevice("a");
  options.orders.silence = absl::Milliseconds(300);
  Start(options);
  const std::unique_ptr<ClusterClient> client = Connect();
  ASSERT_TRUE(client->Install(MakeStages({0}, 1, 1), {}).ok());
  grpc::ClientContext context;
  const auto stub = Control(0);
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

TEST_F(RpcTest, LoadingIsGivenUpWhenItsCoordinatorGoes) {
  DeviceServer::Options options = FakeDevice("a");
  options.plans.make_stage = [](const StageSetup& setup) -> absl::StatusOr<std::unique_ptr<DeviceStage>> {
    while (!setup.load.cancelled->load()) absl::SleepFor(absl::Milliseconds(5));
    return absl::CancelledError("the load was given up");
  };
  Start(options);
  options.plans.make_stage = {};
  const auto stub = Control(0);
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
  const std::unique_ptr<v1::Control::Stub> control = Control(0);
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
