// After a failure that no device has lost its memory to, requests continue with their KV, if memory
// has room for it beside the next plan.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "coordinator/serving/serving.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/fake_devices.h"
#include "tests/coordinator/recorded_answer.h"

namespace lime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// The link to a device breaks while two requests decode.
class ServingKeptKvTest : public ::testing::Test {
 protected:
  // `has_room`: the answer to the question whether devices have room for the KV of two plans.
  void FailAndContinue(bool has_room) {
    Serving::Options options;
    options.survival =
        ClusterRun::Survival{.recovery = {.patience = absl::Seconds(60), .look = absl::Milliseconds(1)}, .plan = nullptr, .install = {}};
    options.survival->say = [this](const std::string& sentence) { said_ += sentence + "\n"; };
    options.survival->takes_over = [this, has_room](const Plan& before, const Plan& after, int64_t pages) {
      questions_.push_back({before.epoch, after.epoch, pages});
      return has_room;
    };
    FakeDevices devices(OneStage(/*sequences=*/2));
    devices.KeepKv();
    devices.Hold();
    Serving serving(devices, std::move(options));
    const auto one = std::make_shared<RecordedAnswer>(), other = std::make_shared<RecordedAnswer>();
    ASSERT_TRUE(serving.SubmitTogether({{Ask(5), one}, {Ask(21), other}}).ok());
    while (one->tokens().size() < 4 || other->tokens().size() < 4) devices.Step();
    devices.Fail(absl::UnavailableError("the link is broken"));
    devices.AwaitInstalls(1);
    for (const auto& [answer, length] : {std::pair(one, 5), std::pair(other, 21)}) {
      const int64_t known = length + std::ssize(answer->tokens());
      computed_ += known - 1, pages_ += KvPagesFor(known);
    }
    devices.Release();
    for (const auto& [answer, length] : {std::pair(one, 5), std::pair(other, 21)}) {
      EXPECT_TRUE(answer->Wait().status.ok()) << answer->Wait().status;
      EXPECT_EQ(answer->tokens(), FakeDevices::Answer(Ask(length).prompt, kTokens, length));
    }
    (void)serving.Drain(absl::InfiniteFuture());
    EXPECT_EQ(devices.installs(), 1);
    taken_over_ = devices.taken_over();
  }

  static constexpr int64_t kTokens = 30;
  static ServingRequest Ask(int32_t length) {
    ServingRequest request{.prompt = {}, .max_new_tokens = kTokens, .end_tokens = {}, .stop_strings = {}, .sampling = {}};
    for (int32_t i = 0; i < length; ++i) request.prompt.push_back((length + 7 * i) % FakeDevices::kVocab);
    request.sampling.choice = static_cast<uint64_t>(length);
    return request;
  }

  struct Question {
    int64_t before = 0, after = 0;  // epochs
    int64_t pages = 0;
    bool operator==(const Question&) const = default;
  };
  std::vector<Question> questions_;
  std::string said_;
  int64_t computed_ = 0, pages_ = 0;  // of both requests at the failure
  int64_t taken_over_ = 0;
};

TEST_F(ServingKeptKvTest, RequestsContinueWithIt) {
  FailAndContinue(/*has_room=*/true);
  EXPECT_THAT(questions_, ElementsAre(Question{.before = 1, .after = 1, .pages = pages_})) << "of both requests, once for a failure";
  EXPECT_EQ(taken_over_, 2);
  EXPECT_THAT(said_, HasSubstr(absl::StrCat("the devices have kept the KV of ", computed_, " tokens, which are not computed again")));
}

// Trying it would cost the weights in memory, which give way to KV that does not fit.
TEST_F(ServingKeptKvTest, WithoutRoomBesideTheNextPlanItIsComputedAgain) {
  FailAndContinue(/*has_room=*/false);
  EXPECT_EQ(questions_.size(), 1u);
  EXPECT_EQ(taken_over_, 0);
  EXPECT_THAT(said_, Not(HasSubstr("KV")));
}

}  // namespace
}  // namespace lime
