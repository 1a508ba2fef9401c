// Serving over a model that computes in this process: what a request answers is the same alone, in
// company, and while others come and go.

#include <optional>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/local/local_device.h"
#include "coordinator/local/local_plan.h"
#include "coordinator/serving/serving.h"
#include "daemon/engine/stage_engine.h"
#include "daemon/weights/checkpoint.h"
#include "gtest/gtest.h"
#include "testbed/make_model/make_model.h"
#include "tests/coordinator/recorded_answer.h"
#include "tests/temp_dir.h"
#include "tests/waiting_threads.h"

namespace lime {
namespace {

constexpr int kRequests = 16;

std::vector<int32_t> RandomIds(uint32_t seed, int length) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids(length);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % 200);
  return ids;
}

class ServingLocalTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(MakeModel({}, dir_.path()).ok());
    auto spec = Checkpoint::Open(dir_.path())->BuildModelSpec();
    ASSERT_TRUE(spec.ok()) << spec.status();
    spec_ = *std::move(spec);
    auto tokenizer = Tokenizer::Load(dir_.path());
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
  }

  void Start(double resident) {
    serving_.reset(), device_.reset();
    const auto plan = PlanForThisProcess(spec_, {.budget = 8 * kGiB,
                                                 .context = 200,
                                                 .sequences = 3,
                                                 .prompt_tokens = 60,
                                                 .chunk = 16,
                                                 .resident_share = resident,
                                                 .part_bytes = 16 * kKiB,
                                                 .num_threads = 2});
    ASSERT_TRUE(plan.ok()) << plan.status();
    device_ =
        std::make_unique<LocalDevice>(LocalDevice::Options{.weights = dir_.path(), .make_stage = MakeEngineStages({.num_threads = 2})});
    ASSERT_TRUE(device_->Install(plan->plan, {}).ok());
    Serving::Options options;
    options.tokenizer = tokenizer_.get();
    threads_.emplace();
    serving_ = std::make_unique<Serving>(*device_, std::move(options));
  }

  // Each with its own way of choosing tokens.
  ServingRequest Ask(int r) const {
    ServingRequest request{.prompt = RandomIds(static_cast<uint32_t>(r), 1 + r * 7 % 60),
                           .max_new_tokens = 3 + r * 11 % 40,
                           .end_tokens = {},
                           .stop_strings = {},
                           .sampling = {}};
    request.sampling.params = {.repetition_penalty = r % 3 == 0 ? 1.2 : 1.0,
                               .temperature = r % 4 * 0.4,
                               .top_k = r % 5 == 0 ? 20 : 0,
                               .top_p = r % 2 == 0 ? 0.9 : 1.0,
                               .seed = static_cast<uint64_t>(r)};
    request.sampling.choice = static_cast<uint64_t>(r % 3);
    request.sampling.hash_logits = true;
    return request;
  }

  struct Answer {
    std::vector<int32_t> tokens;
    std::string text;
    uint64_t hash = 0;
    FinishReason reason = FinishReason::kNone;
    friend bool operator==(const Answer&, const Answer&) = default;
  };
  static Answer Of(const RecordedAnswer& kept) {
    const RequestEnd end = kept.Wait();
    EXPECT_TRUE(end.status.ok()) << end.status;
    return {kept.tokens(), kept.text(), kept.hash(), end.reason};
  }
  std::shared_ptr<RecordedAnswer> Send(ServingRequest request) {
    auto kept = std::make_shared<RecordedAnswer>();
    EXPECT_TRUE(serving_->Submit(std::move(request), kept).ok());
    return kept;
  }

  TempDir dir_;
  ModelSpec spec_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<LocalDevice> device_;
  std::optional<StartedThreads> threads_;  // of serving_
  std::unique_ptr<Serving> serving_;       // goes first
};

TEST_F(ServingLocalTest, ARequestAnswersTheSameAloneInCompanyAndWhileOthersAreCancelled) {
  Start(1);
  std::vector<ServingRequest> requests;
  std::vector<Answer> alone;
  for (int r = 0; r < kRequests; ++r) {
    requests.push_back(Ask(r));
    Answer plain = Of(*Send(requests[r]));
    if (r % 4 == 1) requests[r].end_tokens = {plain.tokens[plain.tokens.size() / 2]};
    if (r % 4 == 2 && plain.text.size() > 8) requests[r].stop_strings = {plain.text.substr(5, 3)};
    alone.push_back(Of(*Send(requests[r])));
    EXPECT_LE(alone.back().tokens.size(), plain.tokens.size());
  }
  for (const double resident : {1.0, 0.4}) {
    ASSERT_NO_FATAL_FAILURE(Start(resident));
    std::mt19937 random(7);
    std::vector<std::shared_ptr<RecordedAnswer>> kept;
    for (int r = 0; r < kRequests; ++r) {
      const auto other = std::make_shared<RecordedAnswer>();
      const absl::StatusOr<RequestId> leaves = serving_->Submit(Ask(r + 100), other);
      ASSERT_TRUE(leaves.ok()) << leaves.status();
      kept.push_back(Send(requests[r]));
      if (r % 2 == 0) absl::SleepFor(absl::Milliseconds(random() % 8));
      serving_->Cancel(*leaves);
    }
    for (int r = 0; r < kRequests; ++r) EXPECT_EQ(Of(*kept[r]), alone[r]) << "request " << r << ", " << resident << " resident";
    EXPECT_TRUE(serving_->Drain(absl::InfiniteFuture()).ok());
  }
}

TEST_F(ServingLocalTest, ThePlanStaysWhileNobodyAsksAndIsTheCallersBehindADrain) {
  Start(1);
  const Answer first = Of(*Send(Ask(5)));
  ASSERT_TRUE(threads_->AwaitIdle()) << "or it may still change the plan";
  EXPECT_EQ(Of(*Send(Ask(5))), first);
  ASSERT_TRUE(serving_->Drain(absl::InfiniteFuture()).ok());
  const absl::StatusOr<DeviceStatistics> statistics = device_->Statistics(0);
  ASSERT_TRUE(statistics.ok()) << statistics.status();
  EXPECT_GE(statistics->steps, 2 * std::ssize(first.tokens));
  EXPECT_TRUE(device_->Unload().ok());
}

TEST_F(ServingLocalTest, APromptIsScoredBesideRequestsThatGenerate) {
  Start(1);
  const auto beside = Send(Ask(9));
  ServingRequest request{.prompt = RandomIds(1, 40), .max_new_tokens = 0, .end_tokens = {}, .stop_strings = {}, .sampling = {}};
  request.sampling.score_top = 3;
  const auto scored = Send(request);
  EXPECT_TRUE(scored->Wait().status.ok());
  const std::vector<int32_t> scored_tokens = scored->tokens();
  ASSERT_EQ(scored_tokens.size(), request.prompt.size()) << "every id after the first, and the one behind the prompt";
  EXPECT_TRUE(std::equal(request.prompt.begin() + 1, request.prompt.end(), scored_tokens.begin()));
  EXPECT_EQ(scored->text(), "") << "no text of ids that were given";
  EXPECT_TRUE(beside->Wait().status.ok());
}

}  // namespace
}  // namespace lime
