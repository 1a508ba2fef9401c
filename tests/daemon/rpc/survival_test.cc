// Faults that a run survives, and plans that it changes to, over real sockets on loopback with
// stages that compute nothing.

#include <functional>
#include <set>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "common/sampling/logits_hash.h"
#include "coordinator/serving/serving.h"
#include "daemon/rpc/rpc_transport.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/plan/kv_spill.h"
#include "tests/coordinator/recorded_answer.h"
#include "tests/daemon/rpc/keep_callback_threads.h"
#include "tests/daemon/rpc/rpc_fixture.h"

namespace lime {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class SurvivalTest : public RpcTest {
 protected:
  static constexpr int kTokens = 120;

  void SetUp() override {
    StartDevices();
    client_ = Connect();
    ASSERT_TRUE(client_->Install(MakeStages({0, 1, 2, 1}, 2, 1), {}).ok());
  }

  // Pauses of 20 s at most where KV is taken over, else of 40, and of 60 s from then on where
  // devices refuse the plan.
  static ClusterRun::Change ChangeTo(const Plan& plan, const std::string& why,
                                     std::optional<absl::Duration> taking_over = absl::Seconds(20)) {
    return {.plan = plan, .why = why, .taking_over = taking_over, .computing_again = absl::Seconds(40), .going_back = absl::Seconds(60)};
  }
  // When some tokens have come.
  static std::function<std::optional<ClusterRun::Change>(const OrderWriter::Remaining& remaining)> Once(const ClusterRun::Change& change) {
    return [change, changed = false](const OrderWriter::Remaining& remaining) mutable -> std::optional<ClusterRun::Change> {
      if (remaining.steps > kTokens - 20 || std::exchange(changed, true)) return std::nullopt;
      return change;
    };
  }

  // What two requests answer where `fault` comes with the fifth token.
  Outcome RunWith(std::function<void()> fault, ClusterRun::Survival survival,
                  const std::function<void(const std::string& sentence)>& hear = {}) {
    survival.say = [this, hear](const std::string& sentence) {
      said_ += sentence + "\n";
      if (hear) hear(sentence);
    };
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
      LogitsHash hash;
      for (const int32_t token : outcome.tokens[r]) {
        std::vector<float> logits(kFakeVocab, 0);
        logits[static_cast<size_t>(token)] = 1;
        hash.Add(logits);
      }
      EXPECT_EQ(outcome.hashes[r], hash.value());
    }
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

// In the middle of the second of three windows: no id comes twice, and the hash continues from the
// first window's.
TEST_F(SurvivalTest, AScoredTextHasOneHashOverItsWindowsWhicheverDeviceIsLost) {
  LogitsHash whole;
  std::vector<std::vector<int32_t>> windows;
  for (int w = 0; w < 3; ++w) {
    windows.push_back(Ids(150, 7 * w));
    for (size_t at = 0; at < windows.back().size(); ++at) {
      std::vector<float> logits(kFakeVocab, 0);
      const std::vector<int32_t> before(windows.back().begin(), windows.back().begin() + static_cast<std::ptrdiff_t>(at) + 1);
      logits[static_cast<size_t>(FakeTokens(before, 1, 4).front())] = 1;
      whole.Add(logits);
    }
  }
  const int head = client_->plan().stages.back().device;
  for (const int lost : {head, (head + 1) % 3}) {
    SCOPED_TRACE(devices_[static_cast<size_t>(lost)].name);
    Serving serving(*client_, {.survival = ClusterRun::Survival{.say = [this](const std::string& sentence) { said_ += sentence + "\n"; }}});
    std::string state;
    uint64_t hash = 0;
    for (size_t w = 0; w < windows.size(); ++w) {
      const auto answer = std::make_shared<RecordedAnswer>();
      ServingRequest request{.prompt = windows[w], .max_new_tokens = 0, .end_tokens = {}, .stop_strings = {}, .sampling = {}};
      request.sampling = {.hash_logits = true, .hash_state = state, .score_top = 1};
      ASSERT_TRUE(serving.Submit(std::move(request), answer).ok());
      if (w == 1) {
        answer->AwaitTokens(10);
        StartAgain(lost);
      }
      const RequestEnd end = answer->Wait();
      ASSERT_TRUE(end.status.ok()) << end.status << said_;
      std::vector<int32_t> ids = answer->tokens();
      ASSERT_EQ(ids.size(), windows[w].size()) << "every id after the first, and the one behind the window, once";
      EXPECT_TRUE(std::equal(windows[w].begin() + 1, windows[w].end(), ids.begin()));
      hash = answer->hash(), state = end.hash_state;
      ASSERT_NE(state, "");
    }
    EXPECT_EQ(hash, whole.value());
    EXPECT_TRUE(serving.Drain(absl::InfiniteFuture()).ok());
    EXPECT_NE(std::exchange(said_, ""), "");
    ASSERT_TRUE(client_->Unload().ok());
    ASSERT_TRUE(client_->Install(MakeStages({0, 1, 2, 1}, 2, 1), {}).ok());
  }
}

// The devices stop in the middle of steps, at different ones. The logits of generated tokens are
// hashed, so they are computed again; those of the prompts are not.
TEST_F(SurvivalTest, AfterALostLinkRequestsContinueWithTheKvThatTheDevicesHaveKept) {
  absl::Mutex mutex;
  std::function<void(const absl::Status&)> lose;
  DeviceServer::Options options = FakeDevice("b");
  options.listen = devices_[1].address;
  options.plans.make_stage = [&, make = options.plans.make_stage](StageSetup setup) {
    absl::MutexLock lock(&mutex);
    lose = setup.peers.failed;
    return make(std::move(setup));
  };
  ASSERT_TRUE(client_->Unload().ok());
  servers_[1].reset();
  absl::StatusOr<std::unique_ptr<DeviceServer>> server = DeviceServer::Start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  servers_[1] = *std::move(server);
  client_ = Connect();
  ASSERT_TRUE(client_->Install(MakeStages({0, 1, 2, 1}, 2, 1), {}).ok());
  const auto lose_link = [&] {
    absl::MutexLock lock(&mutex);
    lose(absl::UnavailableError("the link to device \"c\" is lost"));
  };
  ExpectNothingLost(RunWith(lose_link, {}));
  EXPECT_EQ(recoveries_, 1);
  EXPECT_THAT(said_, HasSubstr("the devices have kept the KV of "));
  EXPECT_THAT(said_, Not(HasSubstr("cannot be taken over")));
  client_.reset();
  servers_.clear();
}

TEST_F(SurvivalTest, RequestsThatComeAndLeaveAtAnyTimeSurviveLossesToo) {
  Serving serving(*client_, {.survival = ClusterRun::Survival{.say = [this](const std::string& sentence) { said_ += sentence + "\n"; }}});
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::shared_ptr<RecordedAnswer>> answers;
  std::set<size_t> left;
  for (int r = 0; r < 12; ++r) {
    prompts.push_back(Ids(3 + 5 * r, r));
    answers.push_back(std::make_shared<RecordedAnswer>());
    ServingRequest request{.prompt = prompts.back(), .max_new_tokens = 40, .end_tokens = {}, .stop_strings = {}, .sampling = {}};
    const absl::StatusOr<RequestId> id = serving.Submit(std::move(request), answers.back());
    ASSERT_TRUE(id.ok()) << id.status();
    if (r % 5 == 4) serving.Cancel(*id), left.insert(answers.size() - 1);
    if (r == 3 || r == 7) StartAgain(r % 3);
    if (r == 5) answers.front()->Wait();
  }
  for (size_t r = 0; r < answers.size(); ++r) {
    const RequestEnd end = answers[r]->Wait();
    const std::vector<int32_t> tokens = answers[r]->tokens(), whole = FakeTokens(prompts[r], 40, 4);
    if (left.contains(r)) {
      EXPECT_TRUE(absl::IsCancelled(end.status)) << end.status;
      EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), whole.begin()));
    } else {
      EXPECT_TRUE(end.status.ok()) << end.status << said_;
      EXPECT_EQ(tokens, whole) << r;
    }
  }
  EXPECT_TRUE(serving.Drain(absl::InfiniteFuture()).ok());
  EXPECT_GE(serving.recoveries(), 1);
}

TEST_F(SurvivalTest, ADeviceThatStaysAwayIsPlannedWithout) {
  ClusterRun::Survival survival{.recovery = {.patience = absl::Milliseconds(300)}};
  Recovery::Devices asked;
  survival.plan = [&](const Recovery::Devices& devices, const std::atomic<bool>*) {
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
  survival.plan = [&](const Recovery::Devices& devices, const std::atomic<bool>*) {
    if (++planned == 1) servers_[2].reset();  // it answered, and does no more
    if (!devices.contains("c")) StartAgain(2);
    return MakeStages({0, 2, 0, 2}, 2, 1);
  };
  ExpectNothingLost(RunWith([&] { servers_[1].reset(); }, survival));
  EXPECT_GE(planned, 2);
}

TEST_F(SurvivalTest, WithoutAPlanItEndsWithTheNameOfWhoIsMissing) {
  const Outcome outcome = RunWith(
      [&] { servers_[1].reset(); },
      {.recovery = {.patience = absl::Milliseconds(200), .give_up = absl::Milliseconds(600)},
       .plan = [](const Recovery::Devices&, const std::atomic<bool>*) { return absl::ResourceExhaustedError("2 GiB are missing"); }});
  EXPECT_TRUE(absl::IsUnavailable(outcome.status));
  EXPECT_THAT(std::string(outcome.status.message()), HasSubstr("device \"b\" is missing"));
  EXPECT_THAT(std::string(outcome.status.message()), HasSubstr("2 GiB are missing"));
  EXPECT_TRUE(BecomesFree(0));
}

TEST_F(SurvivalTest, ABetterPlanIsChangedToWhileTokensComeAndCostsNone) {
  ClusterRun::Survival survival;
  std::vector<int64_t> steps_left;
  std::optional<Plan> in_use;
  survival.change = [&](const OrderWriter::Remaining& remaining) -> std::optional<ClusterRun::Change> {
    steps_left.push_back(remaining.steps);
    if (remaining.steps > kTokens - 20 || in_use) return std::nullopt;
    return ChangeTo(MakeStages({0, 2, 0, 2}, 2, 1), "link a -> b is slow");
  };
  survival.in_use = [&](const Plan& plan) { in_use = plan; };
  ExpectNothingLost(RunWith([] {}, survival));
  EXPECT_EQ(changes_, 1);
  EXPECT_EQ(recoveries_, 0);
  EXPECT_EQ(steps_left.front(), kTokens) << "a request waits for a slot";
  EXPECT_TRUE(std::ranges::is_sorted(steps_left, std::greater()));
  ASSERT_TRUE(in_use);
  EXPECT_EQ(DevicesUsed(*in_use), (Recovery::Devices{"a", "c"}));
  EXPECT_EQ(client_->plan(), *in_use);
  EXPECT_THAT(said_, HasSubstr("link a -> b is slow; changes to another plan, which takes at most 20s\n"));
  EXPECT_THAT(said_, HasSubstr("continues after "));
  EXPECT_THAT(said_, Not(HasSubstr("computed again"))) << "KV follows its layers";
  EXPECT_TRUE(BecomesFree(1)) << "it has no stage any more";
}

TEST_F(SurvivalTest, KvFollowsItsLayersFromPlanToPlan) {
  const std::vector<Plan> plans = {MakeStages({0, 2, 0, 2}, 2, 1), MakeStages({2, 1, 0, 1}, 3, 2), MakeStages({1, 0, 2, 1}, 2, 2),
                                   MakeStages({0, 1, 0, 1}, 2, 1)};
  ClusterRun::Survival survival;
  size_t next = 0;
  survival.change = [&](const OrderWriter::Remaining& remaining) -> std::optional<ClusterRun::Change> {
    if (next == plans.size() || remaining.steps > kTokens - 20 * static_cast<int64_t>(next + 1)) return std::nullopt;
    return ChangeTo(plans[next++], "why");
  };
  ExpectNothingLost(RunWith([] {}, survival));
  EXPECT_EQ(changes_, std::ssize(plans));
  EXPECT_EQ(recoveries_, 0);
  EXPECT_THAT(said_, Not(HasSubstr("computed again")));
}

TEST_F(SurvivalTest, KvThatOneDeviceDoesNotLeaveIsComputedAgain) {
  DeviceServer::Options options = FakeDevice("b", /*hands_over_kv=*/false);
  options.listen = devices_[1].address;
  ASSERT_TRUE(client_->Unload().ok());
  servers_[1].reset();
  absl::StatusOr<std::unique_ptr<DeviceServer>> server = DeviceServer::Start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  servers_[1] = *std::move(server);
  client_ = Connect();
  ASSERT_TRUE(client_->Install(MakeStages({0, 1, 2, 1}, 2, 1), {}).ok());
  ClusterRun::Survival survival;
  survival.change = Once(ChangeTo(MakeStages({0, 2, 0, 2}, 2, 1), "why"));
  ExpectNothingLost(RunWith([] {}, survival));
  EXPECT_EQ(changes_, 1);
  EXPECT_EQ(recoveries_, 0);
  EXPECT_THAT(said_, HasSubstr("the KV so far cannot be taken over (not every device handed over its KV), so it is computed again, "
                               "which takes at most 40s\n"));
  EXPECT_THAT(said_, Not(HasSubstr("longer than stated")));
}

TEST_F(SurvivalTest, WhereItIsKnownBeforeKvIsComputedAgainAtOnce) {
  ClusterRun::Survival survival;
  survival.change = Once(ChangeTo(MakeStages({0, 2, 0, 2}, 2, 1), "why", std::nullopt));
  ExpectNothingLost(RunWith([] {}, survival));
  EXPECT_EQ(changes_, 1);
  EXPECT_EQ(recoveries_, 0);
  EXPECT_THAT(said_, HasSubstr("why; changes to another plan and computes the KV so far again, which takes at most 40s\ncontinues after "));
  EXPECT_THAT(said_, Not(HasSubstr("longer than stated")));
}

TEST_F(SurvivalTest, APauseThatIsLongerThanWasStatedIsReported) {
  ClusterRun::Survival survival;
  survival.change = Once(ChangeTo(MakeStages({0, 2, 0, 2}, 2, 1), "why", absl::ZeroDuration()));
  ExpectNothingLost(RunWith([] {}, survival));
  EXPECT_THAT(said_, HasSubstr(", which is longer than stated\n"));
}

TEST_F(SurvivalTest, OfADeviceThatIsLostWhileItsKvIsReadNothingIsMissed) {
  ClusterRun::Survival survival{.recovery = {.patience = absl::Milliseconds(300)}};
  survival.plan = [](const Recovery::Devices&, const std::atomic<bool>*) { return MakeStages({0, 2, 0, 2}, 2, 1); };
  survival.change = Once(ChangeTo(MakeStages({0, 2, 0, 2}, 2, 1), "why"));
  const auto lose_b = [this](const std::string& sentence) {
    if (sentence.find("changes to another plan") != std::string::npos) servers_[1].reset();
  };
  ExpectNothingLost(RunWith([] {}, survival, lose_b));
  EXPECT_EQ(DevicesUsed(client_->plan()), (Recovery::Devices{"a", "c"}));
}

TEST_F(SurvivalTest, KvIsSentForCallsThatMatchTheHandover) {
  const auto read = [&](const KvReadCall& call) {
    RpcTransport transport({});
    return transport.ReadKv({.name = "a", .address = devices_[0].address}, call, /*cancelled=*/false,
                            [](int32_t, int64_t, auto) { return absl::OkStatus(); });
  };
  const Plan plan = client_->plan();
  const KvReadCall call{.epoch = plan.epoch,
                        .layer = LayersOn(plan, 0).front(),
                        .extents = {{.sequence = 0, .first = 0, .end = 1}},
                        .numerics_id = "fake-1",
                        .page_bytes = plan.page_bytes};
  EXPECT_TRUE(absl::IsFailedPrecondition(read(call))) << "the plan is still here";
  ASSERT_TRUE(client_->Open([](int32_t, const FromDevice&) {}).ok());
  const absl::StatusOr<ClusterClient::Handover> handover = client_->HandOver();
  ASSERT_TRUE(handover.ok()) << handover.status();
  EXPECT_TRUE(handover->all);
  EXPECT_TRUE(absl::IsNotFound(read(call))) << "no sequence was computed";
  KvReadCall other = call;
  other.epoch += 1;
  EXPECT_TRUE(absl::IsFailedPrecondition(read(other)));
  other = call, other.layer = 1 << 16;
  EXPECT_TRUE(absl::IsNotFound(read(other)));
  other = call, other.numerics_id = "fake-2";
  EXPECT_TRUE(absl::IsFailedPrecondition(read(other)));
  other = call, other.page_bytes += 1;
  EXPECT_TRUE(absl::IsInvalidArgument(read(other)));
  other = call, other.extents = {{.sequence = 1 << 10, .first = 0, .end = 1}};
  EXPECT_TRUE(absl::IsNotFound(read(other)));
  other = call, other.hosts = true;
  EXPECT_TRUE(absl::IsNotFound(read(other))) << "nobody has lent any";
  other = call, other.extents.clear();
  EXPECT_TRUE(read(other).ok()) << "who needs nothing";
  ASSERT_TRUE(client_->Install(plan, {}).ok()) << "which nobody takes over";
  EXPECT_TRUE(absl::IsFailedPrecondition(read(call)));
}

TEST_F(SurvivalTest, AfterAChangeALossIsRecoveredFromWithTheNewPlan) {
  ClusterRun::Survival survival;
  bool changed = false;
  survival.change = [&](const OrderWriter::Remaining& remaining) -> std::optional<ClusterRun::Change> {
    if (remaining.steps == kTokens || std::exchange(changed, true)) {
      if (remaining.steps < kTokens / 2 && servers_[1] != nullptr) servers_[1].reset(), StartAgain(2);  // b is not missed, c is
      return std::nullopt;
    }
    return ChangeTo(MakeStages({0, 2, 0, 2}, 2, 1), "why");
  };
  ExpectNothingLost(RunWith([] {}, survival));
  EXPECT_EQ(changes_, 1);
  EXPECT_GE(recoveries_, 1);
  EXPECT_EQ(DevicesUsed(client_->plan()), (Recovery::Devices{"a", "c"}));
}

TEST_F(SurvivalTest, WhereTheBetterPlanCannotBeInstalledTheOneBeforeGoesOn) {
  ClusterRun::Survival survival;
  bool asked = false;
  survival.change = [&](const OrderWriter::Remaining& remaining) -> std::optional<ClusterRun::Change> {
    if (remaining.steps == kTokens || std::exchange(asked, true)) return std::nullopt;
    Plan plan = MakeStages({0, 2, 0, 2}, 2, 1);
    for (PlanDevice& device : plan.devices) device.name += "?";
    return ChangeTo(plan, "why");
  };
  ExpectNothingLost(RunWith([] {}, survival));
  EXPECT_EQ(changes_, 0);
  EXPECT_EQ(recoveries_, 1);
  EXPECT_EQ(DevicesUsed(client_->plan()), (Recovery::Devices{"a", "b", "c"}));
  EXPECT_THAT(said_, HasSubstr("continues with the previous plan and computes the KV so far again, which takes at most 1m\n"));
  EXPECT_THAT(said_, HasSubstr("continues after "));
  EXPECT_THAT(said_, Not(HasSubstr("longer than stated")));
}

}  // namespace
}  // namespace lime
