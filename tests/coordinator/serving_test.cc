#include "coordinator/serving/serving.h"

#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/json_schema/vocabularies.h"
#include "tests/coordinator/fake_devices.h"
#include "tests/coordinator/recorded_answer.h"
#include "tests/coordinator/small_tokenizers.h"
#include "tests/waiting_threads.h"

namespace lime {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

std::vector<int32_t> PromptOf(int32_t request, int length = 5) {
  std::vector<int32_t> ids(length);
  for (int i = 0; i < length; ++i) ids[i] = (request * 31 + i * 7) % FakeDevices::kVocab;
  return ids;
}

ServingRequest Ask(std::vector<int32_t> prompt, int64_t tokens, std::optional<uint64_t> choice = std::nullopt) {
  ServingRequest request{.prompt = std::move(prompt), .max_new_tokens = tokens, .end_tokens = {}, .stop_strings = {}, .sampling = {}};
  request.sampling.choice = choice;
  return request;
}

class ServingTest : public ::testing::Test {
 protected:
  void Start(Serving::Options options = {}, int32_t slots = 2) {
    devices_ = std::make_unique<FakeDevices>(OneStage(slots));
    serving_ = std::make_unique<Serving>(*devices_, std::move(options));
  }
  std::pair<RequestId, std::shared_ptr<RecordedAnswer>> Send(ServingRequest request) {
    auto answer = std::make_shared<RecordedAnswer>();
    const absl::StatusOr<RequestId> id = serving_->Submit(std::move(request), answer);
    EXPECT_TRUE(id.ok()) << id.status();
    return {id.value_or(-1), answer};
  }
  absl::Status Refusal(ServingRequest request) { return serving_->Submit(std::move(request), std::make_shared<RecordedAnswer>()).status(); }
  void AwaitLoad(int64_t waiting, int64_t running) {
    for (int i = 0; i < 1000; ++i) {
      const Serving::Load load = serving_->load();
      if (load.waiting == waiting && load.running == running) return;
      absl::SleepFor(absl::Milliseconds(5));
    }
    FAIL() << serving_->load().waiting << " wait and " << serving_->load().running << " run";
  }
  ClusterRun::Survival Survival() {
    return {.recovery = {.patience = absl::Seconds(60), .look = absl::Milliseconds(10)}, .plan = nullptr, .install = {}, .say = nullptr};
  }
  Serving::Options Server() {
    Serving::Options options{.outlives_failures = true};
    options.survival = Survival();
    options.survival->recovery.patience = absl::Milliseconds(20);
    options.survival->recovery.give_up = absl::Milliseconds(60);
    options.survival->recovery.rest = absl::Milliseconds(10);
    return options;
  }

  std::unique_ptr<FakeDevices> devices_;
  std::unique_ptr<Serving> serving_;  // goes first
};

TEST_F(ServingTest, WithAPaceAStepTakesAtLeastSoLong) {
  Start({.pace = absl::Milliseconds(20)});
  const RequestEnd end = Send(Ask(PromptOf(1), 5)).second->Wait();
  EXPECT_GE(end.last_token - end.first_token, std::chrono::milliseconds(80));
}

TEST_F(ServingTest, APaceDelaysNeitherCancelNorTheEnd) {
  Start({.pace = absl::Hours(1)});
  auto [id, answer] = Send(Ask(PromptOf(1), 50));
  answer->AwaitTokens(1);
  serving_->Cancel(id);
  EXPECT_EQ(answer->Wait().status.code(), absl::StatusCode::kCancelled);
  auto [next, stopped] = Send(Ask(PromptOf(2), 50));
  (void)serving_->Drain(absl::InfinitePast());
  EXPECT_FALSE(stopped->Wait().status.ok());
}

TEST_F(ServingTest, RequestsThatComeAtAnyTimeAnswerAsTheyDoAlone) {
  Start({}, 3);
  std::vector<std::shared_ptr<RecordedAnswer>> answers;
  for (int r = 0; r < 60; ++r) {
    auto [id, answer] = Send(Ask(PromptOf(r, 1 + r % 40), 1 + r % 17));
    EXPECT_EQ(id, r);
    answers.push_back(answer);
    if (r % 7 == 0) answer->Wait();  // it is idle, or nearly so
  }
  for (int r = 0; r < 60; ++r) {
    const RequestEnd end = answers[r]->Wait();
    EXPECT_TRUE(end.status.ok()) << end.status;
    EXPECT_EQ(end.reason, FinishReason::kLength);
    EXPECT_LE(end.submitted, end.started);
    EXPECT_LE(end.started, end.first_token);
    EXPECT_LE(end.first_token, end.last_token);
    EXPECT_EQ(answers[r]->tokens(), FakeDevices::Answer(PromptOf(r, 1 + r % 40), 1 + r % 17, r)) << r;
  }
  EXPECT_TRUE(serving_->Drain(absl::InfiniteFuture()).ok());
}

TEST_F(ServingTest, AChoiceDrawsTheSameWhateverRanBefore) {
  Start();
  for (int r = 0; r < 9; ++r) {
    const auto answer = Send(Ask(PromptOf(1), 12, 3)).second;
    answer->Wait();
    EXPECT_EQ(answer->tokens(), FakeDevices::Answer(PromptOf(1), 12, 3));
  }
}

TEST_F(ServingTest, EndTokensEndARequest) {
  Start();
  const std::vector<int32_t> tokens = FakeDevices::Answer(PromptOf(2), 20, 0);
  ServingRequest request = Ask(PromptOf(2), 20);
  request.end_tokens = {tokens[6]};
  const auto answer = Send(request).second;
  EXPECT_EQ(answer->Wait().reason, FinishReason::kEndToken);
  const auto end = std::ranges::find(tokens, tokens[6]) + 1;
  EXPECT_THAT(answer->tokens(), ElementsAreArray(tokens.begin(), end));
}

TEST_F(ServingTest, TextIsTheTokensAndEndsBeforeAStopString) {
  const std::unique_ptr<Tokenizer> tokenizer = ByteLevelTokenizer();
  Serving::Options options;
  options.tokenizer = tokenizer.get();
  Start(std::move(options));
  const std::vector<int32_t> tokens = FakeDevices::Answer(PromptOf(2), 40, 0);
  const std::string text = tokenizer->Decode(tokens);
  ServingRequest request = Ask(PromptOf(2), 40, 0);
  const auto whole = Send(request).second;
  EXPECT_EQ(whole->Wait().reason, FinishReason::kLength);
  EXPECT_EQ(whole->text(), text);
  size_t at = 10;
  while (static_cast<unsigned char>(text[at]) >= 0x80 || static_cast<unsigned char>(text[at + 1]) >= 0x80) ++at;
  request.stop_strings = {"no such text", text.substr(at, 2)};
  const auto stopped = Send(request).second;
  const RequestEnd end = stopped->Wait();
  EXPECT_EQ(end.reason, FinishReason::kStopped);
  EXPECT_TRUE(end.status.ok());
  EXPECT_EQ(stopped->text(), text.substr(0, text.find(text.substr(at, 2))));
  EXPECT_LT(stopped->tokens().size(), 40u);
}

TEST_F(ServingTest, WhatIsNoRequestIsRefusedAtOnce) {
  Start();
  EXPECT_TRUE(absl::IsInvalidArgument(Refusal(Ask({}, 3))));
  EXPECT_TRUE(absl::IsInvalidArgument(Refusal(Ask({1}, 0))));
  EXPECT_TRUE(absl::IsInvalidArgument(Refusal(Ask({-1}, 3))));
  EXPECT_THAT(std::string(Refusal(Ask({1, 8000}, 3)).message()), HasSubstr("id 8000 of the prompt, number 1"));
  EXPECT_TRUE(absl::IsResourceExhausted(Refusal(Ask({1}, 256))));
  EXPECT_EQ(serving_->limits().context, 256);
  ServingRequest request = Ask({1}, 3);
  request.sampling.params.top_p = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(Refusal(request)));
  request = Ask({1}, 3);
  request.stop_strings = {"x"};
  EXPECT_THAT(std::string(Refusal(request).message()), HasSubstr("tokenizer"));
  request = Ask({1}, 3);
  request.sampling.params.logit_bias = {{static_cast<int32_t>(devices_->plan().vocab_size) - 1, 1}};
  EXPECT_EQ(Send(request).first, 0);
  request.sampling.params.logit_bias[0].id += 1;
  EXPECT_THAT(std::string(Refusal(request).message()), HasSubstr("of logit_bias is outside the model's ids"));
  request = Ask({1}, 3);
  request.sampling.logprobs = 21;
  EXPECT_THAT(std::string(Refusal(request).message()), HasSubstr("21 ids were asked for, need 0 to 20"));
  request = Ask({1}, 3);
  request.sampling.format = R"({"answer": {"object": true}})";
  EXPECT_THAT(std::string(Refusal(request).message()), HasSubstr("no vocabulary"));
  EXPECT_EQ(Send(Ask({1}, 255)).first, 1) << "a refusal takes no number";
}

TEST_F(ServingTest, AFormatIsCheckedBeforeItsRequestWaits) {
  Serving::Options options;
  options.vocabulary = json_schema::SmallVocabulary();
  const json_schema::VocabularyPtr vocabulary = options.vocabulary;
  Start(std::move(options));
  EXPECT_EQ(devices_->vocabulary(), vocabulary) << "the devices have it too";
  ServingRequest request = Ask({1}, 3);
  request.sampling.format = R"({"schemas": [{"type": "strin"}], "answer": {"value": 0}})";
  EXPECT_THAT(std::string(Refusal(request).message()), StartsWith("#/type: "));
  request.sampling.format = R"({"answer": {"value": 0}})";
  EXPECT_THAT(std::string(Refusal(request).message()), HasSubstr("the number of a schema is wrong"));
  request.sampling.format = R"({"answer": {"object": true}})";
  EXPECT_TRUE(Send(request).second->Wait().status.ok());
}

TEST_F(ServingTest, AFullQueueSaysHowManyWait) {
  Start({.queue = {.most_waiting = 3}});
  devices_->Hold();
  std::vector<std::shared_ptr<RecordedAnswer>> answers(5);
  for (int r = 0; r < 2; ++r) answers[r] = Send(Ask(PromptOf(r), 4)).second;
  AwaitLoad(0, 2);
  for (int r = 2; r < 5; ++r) answers[r] = Send(Ask(PromptOf(r), 4)).second;
  const absl::Status full = Refusal(Ask(PromptOf(5), 4));
  EXPECT_TRUE(absl::IsResourceExhausted(full));
  EXPECT_THAT(std::string(full.message()), HasSubstr("3 requests wait and 2 run"));
  devices_->Release();
  for (const auto& answer : answers) EXPECT_TRUE(answer->Wait().status.ok());
  EXPECT_TRUE(Send(Ask(PromptOf(5), 4)).second->Wait().status.ok());
}

TEST_F(ServingTest, RequestsThatComeTogetherBeginTogetherOrNotAtAll) {
  Start({.queue = {.most_waiting = 1}}, 2);
  devices_->Hold();
  std::vector<Submission> submissions;
  std::vector<std::shared_ptr<RecordedAnswer>> answers;
  for (int r = 0; r < 4; ++r) {
    answers.push_back(std::make_shared<RecordedAnswer>());
    submissions.push_back({Ask(PromptOf(r), 4), answers.back()});
  }
  EXPECT_TRUE(absl::IsResourceExhausted(serving_->SubmitTogether(submissions).status()));
  submissions[2].request.max_new_tokens = 0;
  submissions.pop_back();
  EXPECT_TRUE(absl::IsInvalidArgument(serving_->SubmitTogether(submissions).status())) << "because of one";
  submissions.pop_back();
  EXPECT_EQ(*serving_->SubmitTogether(submissions), 0);
  devices_->Step();
  for (int r = 0; r < 2; ++r) answers[r]->AwaitTokens(1);
  EXPECT_EQ(answers[0]->tokens().size() + answers[1]->tokens().size(), 2u) << "of one step";
  devices_->Release();
  for (int r = 0; r < 2; ++r) EXPECT_TRUE(answers[r]->Wait().status.ok());
  EXPECT_EQ(answers[3]->ends(), 0);
}

TEST_F(ServingTest, WhoWaitsGetsASlotInTheOrderOfArrival) {
  Start({}, 1);
  devices_->Hold();
  std::vector<std::shared_ptr<RecordedAnswer>> answers(8);
  for (int r = 0; r < 8; ++r) answers[r] = Send(Ask(PromptOf(r), 2)).second;
  devices_->Release();
  for (int r = 0; r + 1 < 8; ++r) EXPECT_LE(answers[r]->Wait().started, answers[r + 1]->Wait().started);
}

TEST_F(ServingTest, WhoHasWaitedForTooLongEnds) {
  Start({.queue = {.most_wait = absl::Milliseconds(50)}}, 1);
  devices_->Hold();
  const auto runs = Send(Ask(PromptOf(0), 4)).second;
  AwaitLoad(0, 1);
  const auto waits = Send(Ask(PromptOf(1), 4)).second;
  const RequestEnd end = waits->Wait();
  EXPECT_TRUE(absl::IsDeadlineExceeded(end.status)) << end.status;
  EXPECT_EQ(end.reason, FinishReason::kInterrupted);
  EXPECT_EQ(end.started, ServingClock::time_point());
  devices_->Release();
  EXPECT_TRUE(runs->Wait().status.ok()) << "who runs may take as long as it takes";
}

// ---- KV that requests share

ServingRequest AskCached(std::vector<int32_t> prompt, int64_t tokens, int64_t group = 0) {
  ServingRequest request = Ask(std::move(prompt), tokens, 7);
  request.cache_prompt = true, request.cache_group = group;
  return request;
}

TEST_F(ServingTest, TheNextTurnSaysHowManyOfItsIdsWereCached) {
  Start({.prompt_cache = kGiB});
  std::vector<int32_t> ids = PromptOf(1, 40);
  EXPECT_EQ(Send(AskCached(ids, 20)).second->Wait().cached_tokens, 0);
  const std::vector<int32_t> answer = FakeDevices::Answer(ids, 20, 7), more = PromptOf(5, 9);
  ids.insert(ids.end(), answer.begin(), answer.end());
  ids.insert(ids.end(), more.begin(), more.end());
  EXPECT_EQ(Send(AskCached(ids, 5, /*group=*/1)).second->Wait().cached_tokens, 0) << "another key";
  const auto next = Send(AskCached(ids, 5)).second;
  EXPECT_EQ(next->Wait().cached_tokens, 48);
  EXPECT_EQ(next->tokens(), FakeDevices::Answer(ids, 5, 7)) << "the answer is the same";
  ServingRequest without = AskCached(ids, 5);
  without.cache_prompt = false;
  EXPECT_EQ(Send(without).second->Wait().cached_tokens, 0);
}

TEST_F(ServingTest, LongSequencesThatRotateOtherwiseShareNoKvWithShortOnes) {
  Start({.prompt_cache = kGiB, .short_positions = 100}, 4);
  const std::vector<int32_t> ids = PromptOf(1, 60);
  EXPECT_EQ(Send(AskCached(ids, 40)).second->Wait().cached_tokens, 0);
  EXPECT_EQ(Send(AskCached(ids, 41)).second->Wait().cached_tokens, 0) << "101 positions are long";
  EXPECT_EQ(Send(AskCached(ids, 60)).second->Wait().cached_tokens, 48) << "of the long one";
  EXPECT_EQ(Send(AskCached(ids, 20)).second->Wait().cached_tokens, 48) << "of the short one";
}

TEST_F(ServingTest, ChoicesThatComeTogetherComputeTheirPromptOnce) {
  Start({.prompt_cache = kGiB}, 4);
  std::vector<Submission> choices;
  std::vector<std::shared_ptr<RecordedAnswer>> answers;
  for (uint64_t choice = 0; choice < 4; ++choice) {
    ServingRequest request = AskCached(PromptOf(1, 100), 10);
    request.sampling.choice = choice;
    answers.push_back(std::make_shared<RecordedAnswer>());
    choices.push_back({std::move(request), answers.back()});
  }
  ASSERT_TRUE(serving_->SubmitTogether(std::move(choices)).ok());
  for (uint64_t choice = 0; choice < 4; ++choice) {
    EXPECT_EQ(answers[choice]->Wait().cached_tokens, choice == 0 ? 0 : 96) << choice;
    EXPECT_EQ(answers[choice]->tokens(), FakeDevices::Answer(PromptOf(1, 100), 10, choice));
  }
}

TEST_F(ServingTest, AfterAFailureNothingIsCached) {
  Serving::Options options = Server();
  options.prompt_cache = kGiB;
  Start(std::move(options));
  Send(AskCached(PromptOf(1, 40), 3)).second->Wait();
  devices_->Fail(absl::UnavailableError("lost"));
  devices_->AwaitInstalls(1);
  const auto again = Send(AskCached(PromptOf(1, 40), 3)).second;
  EXPECT_EQ(again->Wait().cached_tokens, 0);
  EXPECT_EQ(again->tokens(), FakeDevices::Answer(PromptOf(1, 40), 3, 7));
}

TEST_F(ServingTest, WithoutThePromptCacheNothingIsShared) {
  Start();
  for (int i = 0; i < 2; ++i) EXPECT_EQ(Send(AskCached(PromptOf(1, 40), 3)).second->Wait().cached_tokens, 0);
}

// ---- Cancel

TEST_F(ServingTest, ARequestThatDecodesIsCancelledAtTheNextBorderAndItsSlotIsFree) {
  Start({}, 1);
  devices_->Hold();
  const auto [id, answer] = Send(Ask(PromptOf(0), 100));
  const auto next = Send(Ask(PromptOf(1), 3)).second;
  for (int step = 0; step < 4; ++step) devices_->Step();
  answer->AwaitTokens(4);
  serving_->Cancel(id);
  const RequestEnd end = answer->Wait();
  EXPECT_TRUE(absl::IsCancelled(end.status));
  EXPECT_EQ(end.reason, FinishReason::kInterrupted);
  devices_->AwaitRetired(1);
  EXPECT_EQ(answer->tokens(), FakeDevices::Answer(PromptOf(0), 4, 0)) << "no step more";
  devices_->Release();
  EXPECT_TRUE(next->Wait().status.ok());
  EXPECT_EQ(next->tokens(), FakeDevices::Answer(PromptOf(1), 3, 1));
}

TEST_F(ServingTest, ARequestIsCancelledInItsPromptAndWhileItWaits) {
  Start({}, 1);
  devices_->Hold();
  const auto [in_prompt, prompt] = Send(Ask(PromptOf(0, 100), 100));
  const auto [waits, waiting] = Send(Ask(PromptOf(1), 100));
  const auto last = Send(Ask(PromptOf(2), 3)).second;
  devices_->Step();
  AwaitLoad(2, 1);
  serving_->Cancel(waits);
  EXPECT_TRUE(absl::IsCancelled(waiting->Wait().status));
  serving_->Cancel(in_prompt);
  EXPECT_TRUE(absl::IsCancelled(prompt->Wait().status));
  serving_->Cancel(in_prompt);
  serving_->Cancel(12345);
  devices_->Release();
  EXPECT_TRUE(last->Wait().status.ok());
  EXPECT_EQ(last->tokens(), FakeDevices::Answer(PromptOf(2), 3, 2));
  EXPECT_THAT(prompt->tokens(), IsEmpty());
  EXPECT_THAT(waiting->tokens(), IsEmpty());
  EXPECT_EQ(prompt->ends(), 1);
}

TEST_F(ServingTest, PromptsReportTheirComputedShare) {
  Start({}, 1);
  const auto answer = Send(Ask(PromptOf(0, 100), 2)).second;
  answer->Wait();
  EXPECT_TRUE(std::ranges::is_sorted(answer->shares()));
  EXPECT_FALSE(answer->shares().empty());
  EXPECT_LE(answer->shares().back(), 1);
}

TEST_F(ServingTest, ASinkMaySubmitAndCancel) {
  Start({}, 1);
  const auto second = std::make_shared<RecordedAnswer>(), first = std::make_shared<RecordedAnswer>();
  first->at_end = [&] {
    EXPECT_TRUE(serving_->Submit(Ask(PromptOf(1), 3), second).ok());
    serving_->Cancel(0);
  };
  ASSERT_TRUE(serving_->Submit(Ask(PromptOf(0), 3), first).ok());
  EXPECT_TRUE(second->Wait().status.ok());
}

// ---- Devices that fail

TEST_F(ServingTest, AFailureThatIsNotSurvivedEndsEveryRequestAndIsWhyLaterOnesAreRefused) {
  Start({}, 1);
  devices_->Hold();
  const auto runs = Send(Ask(PromptOf(0), 9)).second, waits = Send(Ask(PromptOf(1), 9)).second;
  devices_->Step();
  runs->AwaitTokens(1);
  devices_->Fail(absl::DataLossError("the disk is broken"));
  for (const auto& answer : {runs, waits}) {
    const RequestEnd end = answer->Wait();
    EXPECT_TRUE(absl::IsDataLoss(end.status)) << end.status;
    EXPECT_EQ(end.reason, FinishReason::kInterrupted);
  }
  EXPECT_TRUE(absl::IsDataLoss(serving_->Drain(absl::InfiniteFuture())));
  EXPECT_THAT(std::string(Refusal(Ask(PromptOf(2), 9)).message()), HasSubstr("the disk is broken"));
}

TEST_F(ServingTest, WhileARecoveryWaitsForADeviceRequestsComeAndAreCancelled) {
  Serving::Options options;
  options.survival = Survival();
  Start(std::move(options), 1);
  devices_->Hold();
  const auto [id, cancelled] = Send(Ask(PromptOf(0), 9));
  const auto goes_on = Send(Ask(PromptOf(1), 9)).second;
  devices_->Step();
  cancelled->AwaitTokens(1);
  devices_->SetFree({});
  devices_->Fail(absl::UnavailableError("lost"));
  devices_->AwaitAsked(1);
  const auto comes = Send(Ask(PromptOf(2), 9)).second;
  serving_->Cancel(id);
  EXPECT_TRUE(absl::IsCancelled(cancelled->Wait().status));
  EXPECT_EQ(devices_->installs(), 0) << "it still waits";
  devices_->SetFree({"a"});
  devices_->Release();
  for (const auto& answer : {goes_on, comes}) EXPECT_TRUE(answer->Wait().status.ok());
  EXPECT_EQ(goes_on->tokens(), FakeDevices::Answer(PromptOf(1), 9, 1));
  EXPECT_EQ(comes->tokens(), FakeDevices::Answer(PromptOf(2), 9, 2));
  EXPECT_EQ(devices_->installs(), 1);
}

TEST_F(ServingTest, ALossInTheMiddleOfAnAnswerCostsNoToken) {
  Serving::Options options;
  options.survival = Survival();
  Start(std::move(options), 2);
  devices_->Hold();
  const auto one = Send(Ask(PromptOf(0, 20), 30)).second, other = Send(Ask(PromptOf(1), 30)).second;
  for (int step = 0; step < 9; ++step) devices_->Step();
  devices_->Fail(absl::UnavailableError("lost"));
  devices_->AwaitInstalls(1);
  devices_->Release();
  one->Wait(), other->Wait();
  EXPECT_EQ(one->tokens(), FakeDevices::Answer(PromptOf(0, 20), 30, 0));
  EXPECT_EQ(other->tokens(), FakeDevices::Answer(PromptOf(1), 30, 1));
}

TEST_F(ServingTest, WhereTheOthersHaveNoRoomForARequestTheLostDeviceIsWaitedFor) {
  Serving::Options options;
  options.survival = Survival();
  options.survival->recovery.patience = absl::Milliseconds(10);
  absl::Notification planned;
  options.survival->plan = [&](const Recovery::Devices&, const std::atomic<bool>*) {
    if (!planned.HasBeenNotified()) planned.Notify();
    return OneStage(1, 32);
  };
  Start(std::move(options), 1);
  devices_->Hold();
  const auto answer = Send(Ask(PromptOf(0), 60)).second;
  devices_->Step();
  answer->AwaitTokens(1);
  devices_->SetFree({"b"});
  devices_->Fail(absl::UnavailableError("lost"));
  planned.WaitForNotification();
  devices_->AwaitAsked(devices_->asked() + 10);
  EXPECT_EQ(answer->ends(), 0);
  EXPECT_EQ(devices_->installs(), 0);
  devices_->Release();
  devices_->SetFree({"a", "b"});
  EXPECT_TRUE(answer->Wait().status.ok()) << answer->Wait().status;
  EXPECT_EQ(answer->tokens(), FakeDevices::Answer(PromptOf(0), 60, 0));
}

// ---- A server, which goes on where a failure was not survived

TEST_F(ServingTest, AServerThatHasGivenUpAnswersAgainWhenTheDevicesAreBack) {
  Start(Server(), 1);
  devices_->Hold();
  const auto runs = Send(Ask(PromptOf(0), 9)).second, waits = Send(Ask(PromptOf(1), 9)).second;
  devices_->Step();
  runs->AwaitTokens(1);
  devices_->SetFree({});
  devices_->Fail(absl::UnavailableError("lost"));
  for (const auto& answer : {runs, waits}) EXPECT_THAT(std::string(answer->Wait().status.message()), HasSubstr("is missing (lost)"));
  const auto in_vain = Send(Ask(PromptOf(2), 9)).second;
  EXPECT_TRUE(absl::IsUnavailable(in_vain->Wait().status)) << "it waits for as long as those before";
  for (const auto& answer : {runs, waits, in_vain}) EXPECT_EQ(DeviceOf(answer->Wait().status), "a");
  devices_->SetFree({"a"});
  devices_->Release();
  const auto answered = Send(Ask(PromptOf(3), 9)).second;
  EXPECT_TRUE(answered->Wait().status.ok()) << answered->Wait().status;
  EXPECT_EQ(answered->tokens(), FakeDevices::Answer(PromptOf(3), 9, 3));
  EXPECT_TRUE(serving_->Drain(absl::InfiniteFuture()).ok());
}

TEST_F(ServingTest, AServerEndsARequestThatTheOthersHaveNoRoomForAndGoesOnWithThem) {
  Serving::Options options = Server();
  options.survival->plan = [](const Recovery::Devices&, const std::atomic<bool>*) { return OneStage(1, 32); };
  Start(std::move(options), 1);
  devices_->Hold();
  const auto is_long = Send(Ask(PromptOf(0), 60)).second;
  devices_->Step();
  is_long->AwaitTokens(1);
  devices_->SetFree({"b"});
  devices_->Fail(absl::UnavailableError("lost"));
  EXPECT_TRUE(absl::IsUnavailable(is_long->Wait().status)) << is_long->Wait().status;
  devices_->Release();
  devices_->AwaitInstalls(1);
  const auto is_short = Send(Ask(PromptOf(1), 9)).second;
  EXPECT_TRUE(is_short->Wait().status.ok()) << is_short->Wait().status;
  EXPECT_EQ(is_short->tokens(), FakeDevices::Answer(PromptOf(1), 9, 1));
}

TEST_F(ServingTest, AServerEndsIfAPersonRevokesItsPlanOrIfItIsDrained) {
  Start(Server(), 1);
  devices_->Hold();
  auto answer = Send(Ask(PromptOf(0), 9)).second;
  devices_->Step();
  devices_->Fail(absl::UnauthenticatedError("taken away"));
  EXPECT_TRUE(absl::IsUnauthenticated(answer->Wait().status));
  EXPECT_TRUE(absl::IsUnauthenticated(serving_->Drain(absl::InfiniteFuture())));

  Start(Server(), 1);
  devices_->Hold();
  answer = Send(Ask(PromptOf(0), 9)).second;
  devices_->Step();
  devices_->SetFree({});
  devices_->Fail(absl::UnavailableError("lost"));
  EXPECT_TRUE(absl::IsUnavailable(answer->Wait().status));
  devices_->AwaitAsked(devices_->asked() + 2);
  EXPECT_TRUE(serving_->Drain(absl::InfiniteFuture()).ok()) << "while it looks for them";
}

TEST_F(ServingTest, DevicesThatAreLostWhileNobodyAsksAreInstalledAgainAndAgain) {
  Serving::Options options;
  options.survival = Survival();
  Start(std::move(options));
  Send(Ask(PromptOf(0), 3)).second->Wait();
  for (int loss = 1; loss <= 9; ++loss) {
    while (devices_->installs() < loss) devices_->Fail(absl::UnavailableError("lost")), absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_GE(serving_->recoveries(), 9) << "more often than Recovery tries while requests wait";
  EXPECT_TRUE(Send(Ask(PromptOf(1), 3)).second->Wait().status.ok());
}

TEST_F(ServingTest, RequestsGoOnWhereAnotherPlanIsBetter) {
  Serving::Options options;
  options.survival = Survival();
  options.survival->change = [changed = false](const OrderWriter::Remaining& remaining) mutable -> std::optional<ClusterRun::Change> {
    if (!remaining.decodes || remaining.steps > 25 || std::exchange(changed, true)) return std::nullopt;
    return ClusterRun::Change{.plan = OneStage(3, 512), .why = "why", .taking_over = absl::Seconds(20)};
  };
  Start(std::move(options), 2);
  std::vector<std::shared_ptr<RecordedAnswer>> answers(4);
  for (int r = 0; r < 4; ++r) answers[r] = Send(Ask(PromptOf(r), 30)).second;
  for (int r = 0; r < 4; ++r) {
    EXPECT_TRUE(answers[r]->Wait().status.ok());
    EXPECT_EQ(answers[r]->tokens(), FakeDevices::Answer(PromptOf(r), 30, r));
  }
  EXPECT_EQ(serving_->changes(), 1);
  EXPECT_EQ(serving_->limits().context, 512) << "of the plan in use";
}

// ---- The end

TEST_F(ServingTest, ADrainWaitsForThoseThatRunAndEndsThoseThatWait) {
  Start({}, 1);
  devices_->Hold();
  const auto runs = Send(Ask(PromptOf(0), 9)).second;
  AwaitLoad(0, 1);
  const auto waits = Send(Ask(PromptOf(1), 9)).second;
  absl::Status drained = absl::UnknownError("");
  std::thread drain([&] { drained = serving_->Drain(absl::InfiniteFuture()); });
  EXPECT_TRUE(absl::IsUnavailable(waits->Wait().status));
  EXPECT_TRUE(absl::IsUnavailable(Refusal(Ask(PromptOf(2), 9))));
  EXPECT_EQ(runs->ends(), 0);
  devices_->Release();
  drain.join();
  EXPECT_TRUE(drained.ok()) << drained;
  EXPECT_TRUE(runs->Wait().status.ok());
  EXPECT_EQ(runs->tokens().size(), 9u);
}

TEST_F(ServingTest, AtItsDeadlineADrainEndsThoseThatRun) {
  Start({}, 1);
  devices_->Hold();
  const auto runs = Send(Ask(PromptOf(0), 9)).second;
  AwaitLoad(0, 1);
  const absl::Time begin = absl::Now();
  const absl::Status drained = serving_->Drain(begin + absl::Milliseconds(100));
  EXPECT_TRUE(absl::IsDeadlineExceeded(drained)) << drained;
  EXPECT_LT(absl::Now() - begin, absl::Seconds(5));
  EXPECT_TRUE(absl::IsCancelled(runs->Wait().status));
  EXPECT_EQ(runs->ends(), 1);
}

TEST_F(ServingTest, AnIdleDrainAndADestructorReturnAtOnce) {
  Start();
  EXPECT_TRUE(serving_->Drain(absl::InfiniteFuture()).ok());
  Start();
  devices_->Hold();
  const auto runs = Send(Ask(PromptOf(0), 9)).second;
  AwaitLoad(0, 1);
  serving_.reset();
  EXPECT_TRUE(absl::IsCancelled(runs->Wait().status));
}

TEST_F(ServingTest, NothingToDoCostsNoTimeOfTheProcessor) {
  const StartedThreads threads;
  Start();
  Send(Ask(PromptOf(0), 3)).second->Wait();
  EXPECT_TRUE(threads.AwaitIdle()) << "one of them looks again and again";
}

// ---- All at once

TEST_F(ServingTest, RandomRequestsAndCancelsFromManyThreadsLoseNothing) {
  Serving::Options options{.queue = {.most_waiting = 5}};
  options.survival = Survival();
  Start(std::move(options), 3);
  std::atomic<int> answered = 0, refused = 0, cancelled = 0;
  std::vector<std::thread> threads;
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937 random(seed);
      for (int i = 0; i < 300; ++i) {
        const auto prompt = PromptOf(static_cast<int32_t>(random() % 100), 1 + static_cast<int>(random() % 40));
        const int64_t count = 1 + static_cast<int64_t>(random() % 20);
        const uint64_t choice = random() % 5;
        const auto answer = std::make_shared<RecordedAnswer>();
        const absl::StatusOr<RequestId> id = serving_->Submit(Ask(prompt, count, choice), answer);
        if (!id.ok()) {
          EXPECT_TRUE(absl::IsResourceExhausted(id.status())) << id.status();
          ++refused;
          continue;
        }
        if (random() % 40 == 0) devices_->Fail(absl::UnavailableError("lost"));
        if (random() % 4 == 0) serving_->Cancel(*id);
        if (random() % 2 == 0) std::this_thread::yield();
        const RequestEnd end = answer->Wait();
        const std::vector<int32_t> whole = FakeDevices::Answer(prompt, count, choice), tokens = answer->tokens();
        if (end.status.ok()) {
          EXPECT_EQ(tokens, whole);
          ++answered;
        } else {
          EXPECT_TRUE(absl::IsCancelled(end.status)) << end.status;
          EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), whole.begin())) << "as far as it came";
          ++cancelled;
        }
        EXPECT_EQ(answer->ends(), 1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(answered + refused + cancelled, 1200);
  EXPECT_GT(answered, 300);
  EXPECT_EQ(serving_->load().running + serving_->load().waiting, 0);
  EXPECT_TRUE(serving_->Drain(absl::InfiniteFuture()).ok());
}

}  // namespace
}  // namespace lime
