// What the device with the head makes of a request: penalties, masks, log-probabilities. Logits are
// a function of the ids so far, as a model's are.
#include "daemon/stage/plan_sampler.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/base/json_text.h"
#include "tests/common/json_schema/vocabularies.h"

namespace lime {
namespace {

using json_schema::SmallVocabulary;
using json_schema::TokenUse;
using json_schema::VocabularyPtr;
using testing::HasSubstr;

const std::vector<int32_t> kPrompt = {5, 6, 7, 5};

std::vector<float> LogitsAfter(const std::vector<int32_t>& ids, size_t vocab, uint64_t seed) {
  uint64_t hash = 0x9e3779b97f4a7c15 * (seed + 1);
  for (const int32_t id : ids) hash = (hash ^ static_cast<uint64_t>(id)) * 0xff51afd7ed558ccd, hash ^= hash >> 29;
  std::vector<float> logits(vocab);
  for (size_t id = 0; id < vocab; ++id) {
    hash = (hash ^ id) * 0xc4ceb9fe1a85ec53, hash ^= hash >> 31;
    logits[id] = static_cast<float>(hash % 8000) / 1000.0f - 4;
  }
  return logits;
}

// A device on which requests run.
class Head {
 public:
  explicit Head(VocabularyPtr vocabulary = SmallVocabulary()) : vocabulary_(std::move(vocabulary)) { sampler_.UseVocabulary(vocabulary_); }

  // `known`: the prompt and what an earlier plan has generated.
  void Begin(int32_t slot, const RequestSampling& sampling, int64_t max_new_tokens, std::vector<int32_t> known = kPrompt) {
    sampler_.Expect(slot, sampling);
    sampler_.Admit({.sequence = slot,
                    .request = slot,
                    .positions = std::ssize(kPrompt) + max_new_tokens,
                    .prompt = known,
                    .generated = std::ssize(known) - std::ssize(kPrompt)});
    if (ids_.size() <= static_cast<size_t>(slot)) ids_.resize(static_cast<size_t>(slot) + 1);
    ids_[static_cast<size_t>(slot)] = std::move(known);
  }

  absl::StatusOr<int32_t> TryNext(int32_t slot) {
    std::vector<int32_t>& ids = ids_[static_cast<size_t>(slot)];
    const BatchRow row{.sequence = slot, .token = ids.back(), .position = static_cast<int32_t>(ids.size()) - 1, .wants_logits = true};
    LIME_ASSIGN_OR_RETURN(const int32_t token, sampler_.Sample(row, LogitsAfter(ids, 400, static_cast<uint64_t>(slot))));
    report_ = sampler_.OnSampled({.sequence = slot, .position = row.position + 1, .token = token});
    ids.push_back(token);
    return token;
  }
  // Up to an end token, or `most` tokens.
  void Run(int32_t slot, int64_t most) {
    for (int64_t i = 0; i < most && !Ended(slot); ++i) {
      const absl::StatusOr<int32_t> token = TryNext(slot);
      ASSERT_TRUE(token.ok()) << token.status();
    }
  }
  bool Ended(int32_t slot) const {
    const std::vector<int32_t>& ids = ids_[static_cast<size_t>(slot)];
    return ids.size() > kPrompt.size() && ids.back() == vocabulary_->end_ids()[0];
  }

  // As if no id behind this position had come.
  void RollBack(int32_t slot, int64_t positions) {
    sampler_.RollBack(slot, positions);
    ids_[static_cast<size_t>(slot)].resize(static_cast<size_t>(positions) + 1);
  }

  const std::vector<int32_t>& ids(int32_t slot) const { return ids_[static_cast<size_t>(slot)]; }
  std::string Text(int32_t slot) const {
    std::string text;
    for (size_t i = kPrompt.size(); i < ids(slot).size(); ++i) {
      const int32_t id = ids(slot)[i];
      if (static_cast<size_t>(id) < vocabulary_->size() && vocabulary_->Use(id) != TokenUse::kEnd) text += vocabulary_->Bytes(id);
    }
    return text;
  }
  PlanSampler& sampler() { return sampler_; }
  const PlanSampler::TokenReport& report() const { return report_; }
  const json_schema::Vocabulary& vocabulary() const { return *vocabulary_; }

 private:
  const VocabularyPtr vocabulary_;
  PlanSampler sampler_;
  std::vector<std::vector<int32_t>> ids_;  // by slot
  PlanSampler::TokenReport report_;        // of the newest token
};

constexpr char kWeather[] =
    R"({"schemas": [{"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "array", "items": {"type": "integer"}}},
        "required": ["city", "days"]}], "answer": {"value": 0}})";
constexpr char kAnyObject[] = R"({"answer": {"object": true}})";
// The mask begins behind a text that random tokens write soon.
constexpr char kAfterBrace[] = R"({"answer": {"sequence": ["[", {"object": true}, "]"]}, "starts": [{"text": "[", "frame_bytes": 1}]})";

std::vector<RequestSampling> AllKinds() {
  std::vector<RequestSampling> all(6);
  all[0].params = {.presence_penalty = 1.5, .frequency_penalty = -0.5, .logit_bias = {{3, 4}, {9, -100}}};
  all[1].params = {.repetition_penalty = 1.2, .frequency_penalty = 1, .temperature = 1, .top_p = 0.9, .seed = 3};
  all[2] = {.params = {.temperature = 1, .seed = 4}, .logprobs = 3, .format = kWeather};
  all[3] = {.params = {.presence_penalty = 1, .temperature = 0.8, .top_k = 40, .seed = 5}, .hash_logits = true, .format = kAnyObject};
  all[4] = {.params = {.temperature = 1.2, .seed = 6}, .format = kAfterBrace};
  all[5] = {.params = {.logit_bias = {{'{', -100}}}, .format = kWeather};
  return all;
}

TEST(PlanSamplerTest, TokensBehindARollbackAreSampledAgain) {
  Head head;
  const RequestSampling penalised{.params = {.repetition_penalty = 1.3, .temperature = 0.8, .seed = 5}};
  head.Begin(0, penalised, 40);
  head.Run(0, 20);
  const std::vector<int32_t> ids = head.ids(0);
  ASSERT_GT(ids.size(), kPrompt.size() + 5);
  head.RollBack(0, std::ssize(kPrompt) + 2);
  head.Run(0, 20 - 3);
  EXPECT_EQ(head.ids(0), ids);
  head.RollBack(0, 1);
  EXPECT_TRUE(head.TryNext(0).ok()) << "the ids of the prompt stay known";
}

TEST(PlanSamplerTest, AHashIsNotTakenBack) {
  Head head;
  head.Begin(0, {.hash_logits = true}, 40);
  head.Run(0, 3);
  head.RollBack(0, std::ssize(head.ids(0)) - 1);
  ASSERT_TRUE(head.TryNext(0).ok()) << "no token was behind that";
  head.RollBack(0, std::ssize(kPrompt));
  EXPECT_THAT(std::string(head.TryNext(0).status().message()), HasSubstr("its request has a hash, scores or a format"));
}

TEST(PlanSamplerTest, ARequestGoesOnElsewhereAsItWouldHaveGoneOnHere) {
  constexpr int64_t kMost = 60;
  const std::vector<RequestSampling> all = AllKinds();
  for (size_t kind = 0; kind < all.size(); ++kind) {
    SCOPED_TRACE(kind);
    Head first;
    first.Begin(0, all[kind], kMost);
    first.Run(0, kMost);
    const std::vector<int32_t> ids = first.ids(0);
    ASSERT_GT(ids.size(), kPrompt.size());
    for (size_t cut = kPrompt.size(); cut < ids.size(); cut += 1 + cut / 7) {
      Head next;
      next.Begin(0, all[kind], kMost, {ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(cut)});
      next.Run(0, std::ssize(ids) - static_cast<std::ptrdiff_t>(cut));
      ASSERT_EQ(next.ids(0), ids) << "went on after " << cut - kPrompt.size() << " tokens";
    }
  }
}

TEST(PlanSamplerTest, RequestsSideBySideDoNotDisturbEachOther) {
  constexpr int64_t kMost = 40;
  const std::vector<RequestSampling> all = AllKinds();
  Head together;
  for (size_t kind = 0; kind < all.size(); ++kind) together.Begin(static_cast<int32_t>(kind), all[kind], kMost);
  for (int64_t i = 0; i < kMost; ++i) {
    for (int32_t slot = 0; slot < std::ssize(all); ++slot) together.Run(slot, 1);
  }
  for (int32_t slot = 0; slot < std::ssize(all); ++slot) {
    Head alone;
    for (int32_t i = 0; i <= slot; ++i) alone.Begin(i, all[static_cast<size_t>(i)], kMost);
    alone.Run(slot, kMost);
    EXPECT_EQ(alone.ids(slot), together.ids(slot)) << slot;
  }
}

TEST(PlanSamplerTest, AnAnswerIsOfItsFormatAndEndsInTime) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    for (const char* format : {kWeather, kAnyObject}) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << " " << format);
      constexpr int64_t kMost = 70;
      Head head;
      head.Begin(0, {.params = {.temperature = 1, .seed = seed}, .format = format}, kMost);
      head.Run(0, kMost);
      ASSERT_TRUE(head.Ended(0)) << head.Text(0);
      ASSERT_TRUE(ParseJson(head.Text(0), "the answer").ok()) << head.Text(0);
    }
  }
}

// Where "[", an object and "]" begin that end the text.
size_t FindAnswer(const std::string& text) {
  for (size_t at = text.find('['); at != std::string::npos; at = text.find('[', at + 1)) {
    if (text.back() == ']' && ParseJson(text.substr(at + 1, text.size() - at - 2), "the answer").ok()) return at;
  }
  return std::string::npos;
}

TEST(PlanSamplerTest, AMaskThatBeginsLaterLeavesTheTextBeforeItAlone) {
  int answers = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    const RequestSampling plain{.params = {.temperature = 1.2, .seed = seed}};
    RequestSampling masked = plain;
    masked.format = kAfterBrace;
    Head head, free;
    head.Begin(0, masked, 400), free.Begin(0, plain, 400);
    head.Run(0, 400), free.Run(0, 400);
    ASSERT_TRUE(head.Ended(0)) << head.Text(0);
    const size_t start = FindAnswer(head.Text(0));
    answers += start != std::string::npos ? 1 : 0;
    EXPECT_EQ(free.Text(0).substr(0, start), head.Text(0).substr(0, start));
  }
  EXPECT_GE(answers, 10) << "the others ended before one began";
}

TEST(PlanSamplerTest, LogProbabilitiesAndHashAreOfTheLogitsThemselves) {
  RequestSampling sampling{.params = {.presence_penalty = 2, .logit_bias = {{300, 100}}, .temperature = 1},
                           .hash_logits = true,
                           .logprobs = 2,
                           .format = kWeather};
  Head head;
  head.Begin(0, sampling, 50);
  LogitsHash hash;
  for (int i = 0; i < 10; ++i) {
    const std::vector<float> logits = LogitsAfter(head.ids(0), 400, 0);
    const absl::StatusOr<int32_t> token = head.TryNext(0);
    ASSERT_TRUE(token.ok()) << token.status();
    double sum = 0;
    for (const float logit : logits) sum += std::exp(double{logit});
    ASSERT_TRUE(head.report().score && head.report().score->logprob && head.report().score->log_sum);
    EXPECT_NEAR(*head.report().score->log_sum, std::log(sum), 1e-5);
    EXPECT_NEAR(*head.report().score->logprob, logits[static_cast<size_t>(*token)] - std::log(sum), 1e-5);
    ASSERT_EQ(head.report().score->top.size(), 2u);
    EXPECT_EQ(head.report().score->top[0].second, *std::ranges::max_element(logits));
    hash.Add(logits);
    EXPECT_EQ(head.report().logits_hash, hash.value());
  }
}

TEST(PlanSamplerTest, TheStateBehindAScoredPromptContinuesItsHash) {
  Head head;
  RequestSampling sampling{.hash_logits = true, .score_top = 1};
  LogitsHash hash;
  for (int32_t window = 0; window < 3; ++window) {
    SCOPED_TRACE(window);
    head.sampler().Expect(window, sampling);
    head.sampler().Admit({.sequence = window, .request = window, .positions = std::ssize(kPrompt), .prompt = kPrompt});
    for (int32_t at = 0; at < std::ssize(kPrompt); ++at) {
      const std::vector<float> logits = LogitsAfter({kPrompt.begin(), kPrompt.begin() + at + 1}, 400, static_cast<uint64_t>(window));
      hash.Add(logits);
      ASSERT_TRUE(head.sampler().Sample({.sequence = window, .position = at, .wants_logits = true}, logits).ok());
      const PlanSampler::TokenReport report = head.sampler().OnSampled({.sequence = window, .position = at + 1});
      EXPECT_EQ(report.logits_hash, hash.value());
      EXPECT_EQ(report.hash_state, at + 1 < std::ssize(kPrompt) ? "" : hash.State());
      sampling.hash_state = report.hash_state;
    }
    head.sampler().Retire(window);
  }
}

TEST(PlanSamplerTest, AHashContinuesOnlyFromAStateThatItWrites) {
  const std::vector<float> row(333, 1.5F);
  LogitsHash whole;
  for (int rows = 0; rows < 40; ++rows) {
    const std::string state = whole.State();
    EXPECT_LE(state.size(), LogitsHash::kMostStateBytes);
    absl::StatusOr<LogitsHash> copy = LogitsHash::Continue(state);
    ASSERT_TRUE(copy.ok()) << rows << copy.status();
    whole.Add(row), copy->Add(row);
    EXPECT_EQ(copy->value(), whole.value());
  }
  const std::string state = whole.State();
  // Format, accumulators and buffer, then: 4 bytes that wait, 8 of stripes, 8 of the length.
  constexpr size_t kBuffered = 4 + 64 + 256, kStripes = kBuffered + 4, kTotal = kStripes + 8;
  ASSERT_EQ(state.size(), kTotal + 8);
  EXPECT_FALSE(LogitsHash::Continue(state + '\0').ok());
  EXPECT_FALSE(LogitsHash::Continue(state.substr(1)).ok());
  EXPECT_FALSE(LogitsHash::Continue("").ok());
  for (size_t at = 0; at < state.size(); ++at) {
    if (at >= 4 && at < kBuffered) continue;  // any bytes may have been hashed
    for (const int bit : {0, 3, 7}) {
      std::string wrong = state;
      wrong[at] = static_cast<char>(wrong[at] ^ (1 << bit));
      if (at >= kTotal + 1 && (at > kTotal + 1 || bit > 2)) continue;  // more or fewer whole blocks
      EXPECT_FALSE(LogitsHash::Continue(wrong).ok()) << at << " bit " << bit;
    }
  }
}

TEST(PlanSamplerTest, TokensThatAreKnownAreHashedAgainButNotScoredOrPushed) {
  const RequestSampling sampling{.params = {.temperature = 1}, .hash_logits = true, .logprobs = 0, .format = kAnyObject};
  Head first;
  first.Begin(0, sampling, 50);
  first.Run(0, 8);
  Head again;
  again.Begin(0, sampling, 50, first.ids(0));
  LogitsHash hash;
  for (size_t at = kPrompt.size() - 1; at + 1 < first.ids(0).size(); ++at) {
    const std::vector<int32_t> before(first.ids(0).begin(), first.ids(0).begin() + static_cast<std::ptrdiff_t>(at) + 1);
    const std::vector<float> logits = LogitsAfter(before, 400, 0);
    const auto position = static_cast<int32_t>(at);
    EXPECT_EQ(*again.sampler().Sample({.sequence = 0, .position = position, .wants_logits = true}, logits), first.ids(0)[at + 1]);
    const PlanSampler::TokenReport report = again.sampler().OnSampled({.sequence = 0, .position = position + 1});
    hash.Add(logits);
    EXPECT_EQ(report.logits_hash, hash.value());
    EXPECT_FALSE(report.score);
  }
  first.Run(0, 5), again.Run(0, 5);
  EXPECT_EQ(again.ids(0), first.ids(0));
}

TEST(PlanSamplerTest, AFormatWithoutAVocabularyOrThatIsNoneIsAnErrorThatSaysSo) {
  Head no_vocabulary(nullptr);
  no_vocabulary.Begin(0, {.format = kWeather}, 50);
  EXPECT_THAT(std::string(no_vocabulary.TryNext(0).status().message()), HasSubstr("no vocabulary"));
  no_vocabulary.Begin(1, {}, 50);
  EXPECT_TRUE(no_vocabulary.TryNext(1).ok());
  Head head;
  head.Begin(0, {.format = "{}"}, 50);
  EXPECT_THAT(std::string(head.TryNext(0).status().message()), HasSubstr("answer is missing"));
}

TEST(PlanSamplerTest, AllLogitsAreUsedWhereAskedFor) {
  Head head;
  head.Begin(0, {}, 9);
  head.Begin(1, {.logprobs = 0}, 9);
  head.Begin(2, {.format = kAfterBrace}, 9);
  head.Begin(3, {.params = {.frequency_penalty = 1}}, 9);
  EXPECT_EQ(*head.sampler().LogitsUsed(0), 1);
  for (const int32_t slot : {1, 2, 3}) EXPECT_EQ(*head.sampler().LogitsUsed(slot), kAllLogits) << slot;
}

TEST(PlanSamplerTest, ARequestMayLeaveWhileItsMaskIsMade) {
  Head head;
  for (int i = 0; i < 100; ++i) {
    head.Begin(0, {.params = {.temperature = 1, .seed = static_cast<uint64_t>(i)}, .format = i % 2 == 0 ? kWeather : kAnyObject}, 50);
    head.Run(0, i % 3);
    head.sampler().Retire(0);
  }
}

}  // namespace
}  // namespace lime
