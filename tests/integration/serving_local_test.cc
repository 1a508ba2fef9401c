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
#include "planner/base/json_text.h"
#include "testbed/make_model/make_model.h"
#include "tests/coordinator/recorded_answer.h"
#include "tests/integration/variants.h"
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

// Says which ids a format allows: bytes, some longer texts, and one id that ends an answer. The
// tokenizer's texts are others, which no device knows.
json_schema::VocabularyPtr FewTexts() {
  std::vector<json_schema::TokenText> tokens;
  tokens.reserve(270);
  for (int byte = 0; byte < 256; ++byte) tokens.push_back({std::string(1, static_cast<char>(byte))});
  for (const char* text : {"{\"", "\": ", "\", \"", "[1", "]}", "abc", "ab\"", " 12", "\": \""}) tokens.push_back({text});
  tokens.push_back({"</s>", json_schema::TokenUse::kEnd});
  return std::make_shared<json_schema::Vocabulary>(tokens);
}

class ServingLocalTest : public ::testing::Test {
 protected:
  void SetUp() override { UseModel({}, "llama"); }

  void UseModel(const MakeModelOptions& options, const std::string& name) {
    model_ = dir_ / name;
    ASSERT_TRUE(MakeModel(options, model_).ok());
    auto spec = Checkpoint::Open(model_)->BuildModelSpec();
    ASSERT_TRUE(spec.ok()) << spec.status();
    spec_ = *std::move(spec);
    auto tokenizer = Tokenizer::Load(model_);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
  }

  void Start(double resident, Bytes prompt_cache = 0, int32_t snapshots = 0) {
    serving_.reset(), device_.reset();
    const auto plan = PlanForThisProcess(spec_, {.budget = 8 * kGiB,
                                                 .context = 200,
                                                 .sequences = 3,
                                                 .snapshots = {.count = snapshots},
                                                 .prompt_tokens = 60,
                                                 .chunk = 16,
                                                 .resident_share = resident,
                                                 .part_bytes = 16 * kKiB,
                                                 .num_threads = 2});
    ASSERT_TRUE(plan.ok()) << plan.status();
    device_ = std::make_unique<LocalDevice>(LocalDevice::Options{.weights = model_, .make_stage = MakeEngineStages({.num_threads = 2})});
    ASSERT_TRUE(device_->Install(plan->plan, {}).ok());
    Serving::Options options;
    options.tokenizer = tokenizer_.get();
    options.prompt_cache = prompt_cache;
    options.vocabulary = vocabulary_;
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
  std::string model_;  // its folder
  ModelSpec spec_;
  std::unique_ptr<Tokenizer> tokenizer_;
  const json_schema::VocabularyPtr vocabulary_ = FewTexts();
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

// Turns of chats, choices, and prompts that only begin alike.
TEST_F(ServingLocalTest, KvOfOtherRequestsChangesNoBit) {
  Start(1);
  std::vector<ServingRequest> requests;
  std::vector<Answer> alone;
  for (int r = 0; r < kRequests; ++r) {
    ServingRequest request = Ask(r);
    request.max_new_tokens = 20, request.cache_prompt = true, request.cache_group = r % 5 == 0 ? 1 : 0;
    if (r > 0) {
      const size_t before = static_cast<size_t>(RandomIds(static_cast<uint32_t>(r), 1)[0] % r);
      std::vector<int32_t> ids = requests[before].prompt;
      if (r % 3 == 1) ids.insert(ids.end(), alone[before].tokens.begin(), alone[before].tokens.end());
      if (r % 4 != 2) ids.insert(ids.end(), request.prompt.begin(), request.prompt.end());
      ids.resize(std::min<size_t>(ids.size(), 170));
      request.prompt = std::move(ids);
    } else {
      request.prompt = RandomIds(0, 50);
    }
    alone.push_back(Of(*Send(request)));
    requests.push_back(std::move(request));
  }
  for (const double resident : {1.0, 0.4}) {
    ASSERT_NO_FATAL_FAILURE(Start(resident, kGiB));
    int64_t cached = 0;
    for (const bool together : {false, true}) {
      std::vector<std::shared_ptr<RecordedAnswer>> kept;
      for (int r = 0; r < kRequests; ++r) {
        kept.push_back(Send(requests[static_cast<size_t>(r)]));
        if (!together) kept.back()->Wait();
      }
      for (int r = 0; r < kRequests; ++r) {
        EXPECT_EQ(Of(*kept[r]), alone[r]) << "request " << r << ", " << resident << " resident";
        cached += kept[r]->Wait().cached_tokens;
      }
    }
    EXPECT_GT(cached, 200) << resident << " resident";
  }
}

// Layers with linear attention begin with snapshots of their states.
TEST_F(ServingLocalTest, TheNextTurnOfAModelWithStatesHasTheSameBits) {
  ASSERT_NO_FATAL_FAILURE(UseModel(OptionsOf({.name = "qwen3_5_bf16", .family = "qwen3_5", .quantization = std::nullopt}), "qwen3_5"));
  const auto joined = [](std::vector<int32_t> ids, const std::vector<int32_t>& more) {
    ids.insert(ids.end(), more.begin(), more.end());
    return ids;
  };
  ServingRequest first = Ask(4);
  first.prompt = RandomIds(1, 60), first.max_new_tokens = 37, first.cache_prompt = true;
  ServingRequest next = first, rewritten = first;
  Start(1);
  const Answer answer = Of(*Send(first));
  next.prompt = joined(joined(first.prompt, answer.tokens), RandomIds(2, 9));
  // As by a template that writes the last 5 ids of the prompt in another way.
  rewritten.prompt = joined({first.prompt.begin(), first.prompt.end() - 5}, RandomIds(3, 30));
  const Answer of_next = Of(*Send(next)), of_rewritten = Of(*Send(rewritten));
  for (const double resident : {1.0, 0.4}) {
    SCOPED_TRACE(absl::StrCat(resident, " resident"));
    ASSERT_NO_FATAL_FAILURE(Start(resident, kGiB, /*snapshots=*/3));
    EXPECT_EQ(Of(*Send(first)), answer);
    const auto turn = Send(next), fork = Send(rewritten);
    EXPECT_EQ(Of(*turn), of_next);
    EXPECT_EQ(Of(*fork), of_rewritten);
    EXPECT_EQ(turn->Wait().cached_tokens, 96) << "96 of 97 positions that were known";
    EXPECT_EQ(fork->Wait().cached_tokens, 48);
    ASSERT_NO_FATAL_FAILURE(Start(resident, kGiB, /*snapshots=*/0));
    EXPECT_EQ(Of(*Send(first)), answer);
    const auto again = Send(next);
    EXPECT_EQ(Of(*again), of_next);
    EXPECT_EQ(again->Wait().cached_tokens, 0) << "without snapshots";
  }
}

ServingRequest AskForObject(int seed, const json_schema::Vocabulary& vocabulary) {
  ServingRequest request{.prompt = RandomIds(static_cast<uint32_t>(seed), 9),
                         .max_new_tokens = 60,
                         .end_tokens = vocabulary.end_ids(),
                         .stop_strings = {},
                         .sampling = {}};
  request.sampling.params = {.frequency_penalty = 0.5, .logit_bias = {{'"', -1}}, .temperature = 1, .seed = static_cast<uint64_t>(seed)};
  request.sampling.choice = 0;
  request.sampling.hash_logits = true;
  request.sampling.logprobs = 5;
  request.sampling.format =
      R"({"schemas": [{"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "array", "items": {"type": "number"}}},
          "required": ["a", "b"]}], "answer": {"value": 0}})";
  return request;
}

TEST_F(ServingLocalTest, AnswersByASchemaAreJsonAndTheSameAloneAndInCompany) {
  Start(1);
  std::vector<Answer> alone;
  for (int r = 0; r < 8; ++r) {
    const auto kept = Send(AskForObject(r, *vocabulary_));
    alone.push_back(Of(*kept));
    ASSERT_EQ(alone.back().reason, FinishReason::kEndToken);
    std::string text;
    for (const int32_t id : alone.back().tokens) text += id == vocabulary_->end_ids()[0] ? "" : vocabulary_->Bytes(id);
    EXPECT_TRUE(ParseJson(text, "the answer").ok()) << text;
    const auto scores = kept->scores();
    ASSERT_EQ(scores.size(), alone.back().tokens.size());
    for (const std::optional<cpu::RowScore>& score : scores) {
      ASSERT_TRUE(score && score->logprob && score->log_sum);
      EXPECT_EQ(score->top.size(), 5u);
      EXPECT_LE(*score->logprob, double{score->top[0].second} - *score->log_sum + 1e-9);
    }
  }
  std::vector<std::shared_ptr<RecordedAnswer>> kept;
  for (int r = 0; r < 8; ++r) kept.push_back(Send(AskForObject(r, *vocabulary_))), (void)Send(Ask(r));
  for (int r = 0; r < 8; ++r) EXPECT_EQ(Of(*kept[r]), alone[r]) << r;
  EXPECT_TRUE(serving_->Drain(absl::InfiniteFuture()).ok());
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

TEST_F(ServingLocalTest, AScoredPromptWithAHashHasOneOfItsOwn) {
  Start(1);
  ServingRequest request{.prompt = RandomIds(1, 40), .max_new_tokens = 0, .end_tokens = {}, .stop_strings = {}, .sampling = {}};
  request.sampling.score_top = 3;
  request.sampling.hash_logits = true;
  const auto first = Send(request), second = Send(request);
  ASSERT_TRUE(first->Wait().status.ok());
  ASSERT_TRUE(second->Wait().status.ok());
  EXPECT_EQ(first->hash(), second->hash());
  request.sampling.hash_logits = false;  // the hash continues over all of these
  const auto third = Send(request);
  ASSERT_TRUE(third->Wait().status.ok());
  const auto fourth = Send(request);
  ASSERT_TRUE(fourth->Wait().status.ok());
  EXPECT_EQ(third->hash(), first->hash());
  EXPECT_NE(fourth->hash(), first->hash());
}

}  // namespace
}  // namespace lime
