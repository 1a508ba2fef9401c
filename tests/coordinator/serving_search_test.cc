// Requests are heard while a plan is searched for or installed.
#include <atomic>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/serving/serving.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/plan/plan_residency.h"
#include "tests/coordinator/fake_devices.h"
#include "tests/coordinator/recorded_answer.h"

namespace lime {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A search that lasts until it is let go or cancelled.
class HeldSearch {
 public:
  // Whether it was let go.
  bool Run(const std::atomic<bool>* cancelled) {
    absl::MutexLock lock(&mutex_);
    begun_ = true;
    while (!let_go_ && !cancelled->load()) (void)mutex_.AwaitWithTimeout(absl::Condition(&let_go_), absl::Milliseconds(1));
    return let_go_;
  }
  void AwaitBegun() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&begun_));
  }
  void LetGo() {
    absl::MutexLock lock(&mutex_);
    let_go_ = true;
  }

 private:
  absl::Mutex mutex_;
  bool begun_ ABSL_GUARDED_BY(mutex_) = false, let_go_ ABSL_GUARDED_BY(mutex_) = false;
};

using Asked = std::pair<RequestId, std::shared_ptr<RecordedAnswer>>;

class ServingSearchTest : public ::testing::Test {
 protected:
  Serving::Options Options() {
    Serving::Options options;
    options.survival = ClusterRun::Survival{
        .recovery = {.patience = absl::Milliseconds(10), .look = absl::Milliseconds(1)}, .plan = nullptr, .install = {}, .say = nullptr};
    return options;
  }
  void Start(Serving::Options options, int32_t slots) {
    devices_ = std::make_unique<FakeDevices>(OneStage(slots));
    serving_ = std::make_unique<Serving>(*devices_, std::move(options));
  }
  static ServingRequest Ask(int32_t first, int64_t tokens) {
    return {.prompt = {first, 1, 2}, .max_new_tokens = tokens, .end_tokens = {}, .stop_strings = {}, .sampling = {}};
  }
  Asked Send(int32_t first, int64_t tokens) {
    auto answer = std::make_shared<RecordedAnswer>();
    const absl::StatusOr<RequestId> id = serving_->Submit(Ask(first, tokens), answer);
    EXPECT_TRUE(id.ok()) << id.status();
    return {id.value_or(-1), answer};
  }
  // A request has a token when the device fails; `free` answer afterwards.
  Asked Lose(std::set<std::string> free) {
    devices_->Hold();
    Asked runs = Send(0, 9);
    devices_->Step();
    runs.second->AwaitTokens(1);
    devices_->SetFree(std::move(free));
    devices_->Fail(absl::UnavailableError("lost"));
    return runs;
  }
  // Likewise of two requests.
  std::pair<Asked, std::shared_ptr<RecordedAnswer>> LoseTwo(std::set<std::string> free) {
    devices_->Hold();
    const auto one = std::make_shared<RecordedAnswer>(), other = std::make_shared<RecordedAnswer>();
    const absl::StatusOr<RequestId> first = serving_->SubmitTogether({{Ask(0, 9), one}, {Ask(1, 9), other}});
    EXPECT_TRUE(first.ok()) << first.status();
    devices_->Step();
    one->AwaitTokens(1), other->AwaitTokens(1);
    devices_->SetFree(std::move(free));
    devices_->Fail(absl::UnavailableError("lost"));
    return {{first.value_or(-1), one}, other};
  }

  // A plan to change to, once, which takes KV over. Its installation lasts until it is let go.
  Serving::Options WithChange() {
    Serving::Options options = Options();
    options.survival->say = [this](const std::string& sentence) { said_ += sentence + "\n"; };
    options.survival->change = [this,
                                changed = false](const OrderWriter::Remaining& remaining) mutable -> std::optional<ClusterRun::Change> {
      if (!remaining.decodes || remaining.steps > 25 || std::exchange(changed, true)) return std::nullopt;
      devices_->HoldInstalls();
      return ClusterRun::Change{.plan = OneStage(2, 512), .why = "why", .taking_over = absl::Seconds(20)};
    };
    return options;
  }

  HeldSearch search_;
  std::string said_;  // read when serving_ has been drained
  std::unique_ptr<FakeDevices> devices_;
  std::unique_ptr<Serving> serving_;  // goes first
};

Serving::Options WithSearch(Serving::Options options, HeldSearch& search) {
  options.survival->plan = [&search](const Recovery::Devices&, const std::atomic<bool>* cancelled) -> absl::StatusOr<Plan> {
    if (!search.Run(cancelled)) return absl::CancelledError("interrupted");
    return OneStage(1);
  };
  return options;
}

TEST_F(ServingSearchTest, WhileAPlanIsSearchedForRequestsComeAndAreCancelled) {
  Start(WithSearch(Options(), search_), 1);
  const auto [id, runs] = Lose({"b"});
  const auto waits = Send(1, 9).second;
  search_.AwaitBegun();
  const auto comes = Send(2, 9).second;
  serving_->Cancel(id);
  EXPECT_TRUE(absl::IsCancelled(runs->Wait().status));
  EXPECT_EQ(devices_->installs(), 0) << "it still searches";
  devices_->Release();
  search_.LetGo();
  EXPECT_TRUE(waits->Wait().status.ok());
  EXPECT_TRUE(comes->Wait().status.ok());
  EXPECT_EQ(waits->tokens(), FakeDevices::Answer({1, 1, 2}, 9, 1));
  EXPECT_EQ(comes->tokens(), FakeDevices::Answer({2, 1, 2}, 9, 2));
}

TEST_F(ServingSearchTest, ADrainEndsASearchAtItsDeadline) {
  Start(WithSearch(Options(), search_), 1);
  const auto runs = Lose({"b"}).second;
  search_.AwaitBegun();
  EXPECT_TRUE(absl::IsDeadlineExceeded(serving_->Drain(absl::InfinitePast())));
  EXPECT_TRUE(absl::IsCancelled(runs->Wait().status));
}

TEST_F(ServingSearchTest, ADrainEndsASearchThatNoRequestWaitsFor) {
  Start(WithSearch(Options(), search_), 1);
  const auto [id, runs] = Lose({"b"});
  const auto waits = Send(1, 9).second;
  search_.AwaitBegun();
  absl::Status drained = absl::UnknownError("");
  std::thread drain([&] { drained = serving_->Drain(absl::InfiniteFuture()); });
  EXPECT_TRUE(absl::IsUnavailable(waits->Wait().status)) << "while it searches";
  EXPECT_EQ(runs->ends(), 0);
  serving_->Cancel(id);
  EXPECT_TRUE(absl::IsCancelled(runs->Wait().status));
  drain.join();
  EXPECT_TRUE(drained.ok()) << drained;
}

TEST_F(ServingSearchTest, WhileLevelsOfAPlanAreSearchedForRequestsAreCancelledAndADrainIsHeard) {
  Serving::Options options = Options();
  options.levels = [this](const Plan& plan, const std::atomic<bool>* cancelled) {
    if (cancelled != nullptr) search_.Run(cancelled);  // null: the plan is installed
    return std::vector<Residency>{ResidencyOf(plan)};
  };
  Start(std::move(options), 2);
  const auto [cancelled, stays] = LoseTwo({"a"});
  search_.AwaitBegun();
  serving_->Cancel(cancelled.first);
  EXPECT_TRUE(absl::IsCancelled(cancelled.second->Wait().status));
  EXPECT_EQ(stays->ends(), 0);
  EXPECT_TRUE(absl::IsDeadlineExceeded(serving_->Drain(absl::InfinitePast())));
  EXPECT_TRUE(absl::IsCancelled(stays->Wait().status));
  EXPECT_EQ(devices_->installs(), 0);
}

TEST_F(ServingSearchTest, WhileAPlanIsInstalledAgainRequestsAreCancelledAndADrainIsHeard) {
  Start(Options(), 2);
  devices_->HoldInstalls();
  const auto [cancelled, stays] = LoseTwo({"a"});
  devices_->AwaitInstalls(1);
  serving_->Cancel(cancelled.first);
  EXPECT_TRUE(absl::IsCancelled(cancelled.second->Wait().status));
  EXPECT_EQ(stays->ends(), 0);
  EXPECT_TRUE(absl::IsDeadlineExceeded(serving_->Drain(absl::InfinitePast())));
  EXPECT_TRUE(absl::IsCancelled(stays->Wait().status));
}

TEST_F(ServingSearchTest, ARequestWhoseKvABetterPlanTakesOverIsCancelledWhileThatIsInstalled) {
  Start(WithChange(), 2);
  const auto [id, cancelled] = Send(0, 30);
  const auto goes_on = Send(1, 40).second;
  devices_->AwaitInstalls(1);
  serving_->Cancel(id);
  EXPECT_TRUE(absl::IsCancelled(cancelled->Wait().status));
  devices_->ReleaseInstalls();
  EXPECT_TRUE(goes_on->Wait().status.ok()) << goes_on->Wait().status;
  EXPECT_EQ(goes_on->tokens(), FakeDevices::Answer({1, 1, 2}, 40, 1));
  EXPECT_EQ(serving_->changes(), 1);
}

TEST_F(ServingSearchTest, APauseWithoutRequestsIsNotReported) {
  Start(WithChange(), 2);
  const auto [id, cancelled] = Send(0, 30);
  devices_->AwaitInstalls(1);
  serving_->Cancel(id);
  EXPECT_TRUE(absl::IsCancelled(cancelled->Wait().status));
  devices_->ReleaseInstalls();
  EXPECT_TRUE(Send(1, 9).second->Wait().status.ok());
  EXPECT_TRUE(serving_->Drain(absl::InfiniteFuture()).ok());
  EXPECT_THAT(said_, HasSubstr("changes to another plan"));
  EXPECT_THAT(said_, Not(HasSubstr("continues after")));
}

// The device fails behind the step that ends the last request, while that step is waited for. The
// change was still pending after the recovery, and a plan was installed that no request would use.
TEST(ClusterRunTest, APlanToChangeToIsForgottenWhereTheStepsBeforeItFail) {
  FakeDevices devices(OneStage(1));
  devices.Hold();
  ClusterRun::Survival survival{.recovery = {.look = absl::Milliseconds(1)}, .plan = nullptr, .install = {}, .say = nullptr};
  std::vector<int32_t> tokens;
  survival.change = [&, proposed = false](const OrderWriter::Remaining&) mutable -> std::optional<ClusterRun::Change> {
    if (tokens.size() != 1 || std::exchange(proposed, true)) return std::nullopt;
    devices.Step();  // the last one, which is ordered ahead of its token
    devices.Fail(absl::UnavailableError("lost"));
    return ClusterRun::Change{.plan = OneStage(2, 512), .why = "why", .taking_over = absl::Seconds(20)};
  };
  ClusterRun run(devices, std::move(survival));
  ASSERT_TRUE(run.Add({.prompt = {0, 1, 2}, .max_new_tokens = 2, .end_tokens = {}}, {}).ok());
  std::thread first_step([&] { devices.Step(); });
  const absl::Status status = run.Run(
      [&](const ClusterRun::Token& token) {
        tokens.push_back(token.token);
        return true;
      },
      nullptr);
  first_step.join();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(tokens, FakeDevices::Answer({0, 1, 2}, 2, 0));
  EXPECT_EQ(run.recoveries(), 1);
  EXPECT_EQ(run.changes(), 0);
  EXPECT_EQ(devices.installs(), 1) << "of the plan before";
}

}  // namespace
}  // namespace lime
