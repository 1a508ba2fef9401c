#include "coordinator/generation/answer_reader.h"

#include <gtest/gtest.h>

#include <chrono>

#include "tests/coordinator/generation/made_model.h"

namespace lime {
namespace {

using std::chrono::milliseconds;
constexpr ServingClock::time_point kStart;

RequestEnd EndAt(int64_t submitted, int64_t started, int64_t cached) {
  return {.reason = FinishReason::kEndToken,
          .text = {},
          .cached_tokens = cached,
          .submitted = kStart + milliseconds(submitted),
          .started = kStart + milliseconds(started)};
}

ServedToken TokenAt(int32_t token, int64_t at) {
  return {.token = token, .text = {}, .at = kStart + milliseconds(at)};
}

TEST(AnswerReaderTest, ItCountsPromptsOnceAndTokensOfAllChoices) {
  const auto model = MadeModel().Make();
  const ApiRequest request = RequestFor(*model, Endpoint::kCompletions, R"({"prompt":["xy","z"],"n":2,"seed":7})");
  const Generation generation = Prepared(*model, Endpoint::kCompletions, request);
  const auto writer = MakeAnswerWriter(Endpoint::kCompletions, request, {});
  AnswerReader reader(*model, generation, CountedBits(), *writer);
  for (int64_t choice = 0; choice < 4; ++choice) {
    EXPECT_FALSE(reader.is_over());
    EXPECT_TRUE(reader.OnToken(choice, TokenAt('a', 120 + 10 * choice)));
    EXPECT_TRUE(reader.OnToken(choice, TokenAt(kEos, 124 + 10 * choice)));
    EXPECT_FALSE(reader.has_ended(choice));
    reader.OnEnd(choice, EndAt(100, 105 + choice, choice));
    EXPECT_TRUE(reader.has_ended(choice));
  }
  ASSERT_TRUE(reader.is_over());
  const AnswerReport report = reader.Report();
  EXPECT_EQ(report.prompt_tokens, 5);
  EXPECT_EQ(report.cached_tokens, 0 + 2);
  EXPECT_EQ(report.completion_tokens, 8);
  EXPECT_EQ(report.seed, 7u);
  EXPECT_EQ(report.queue_ms, 5);
  EXPECT_EQ(report.prompt_ms, 15);
  EXPECT_EQ(report.ttft_ms, 20);
  EXPECT_EQ(report.ms_per_token, 4);
  EXPECT_EQ(report.generation_ms, 34);
  EXPECT_EQ(report.total_ms, 54);
}

TEST(AnswerReaderTest, AChoiceThatHasStoppedWaitsForTheEndOfItsRequest) {
  const auto model = MadeModel().Make();
  const ApiRequest request = ChatFor(*model, R"("stop":"x")");
  const Generation generation = Prepared(*model, Endpoint::kChat, request);
  const auto writer = MakeAnswerWriter(Endpoint::kChat, request, {});
  AnswerReader reader(*model, generation, CountedBits(), *writer);
  EXPECT_FALSE(reader.OnToken(0, TokenAt('x', 120)));
  EXPECT_TRUE(reader.has_ended(0));
  EXPECT_FALSE(reader.is_over());
  EXPECT_FALSE(reader.OnToken(0, TokenAt('y', 130)));
  RequestEnd end = EndAt(100, 105, 0);
  end.reason = FinishReason::kInterrupted;
  end.status = absl::CancelledError("cancelled");
  reader.OnEnd(0, end);
  ASSERT_TRUE(reader.is_over());
  EXPECT_EQ(reader.Report().completion_tokens, 1);
  EXPECT_EQ(reader.Report().total_ms, 20);
  writer->Finish(reader.Report());
  std::string out;
  writer->Write(out);
  EXPECT_TRUE(writer->done());
}

}  // namespace
}  // namespace lime
