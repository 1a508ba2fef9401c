#include "coordinator/logic/request_scheduler.h"

#include <random>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// "slot:token@position", with * where logits are wanted.
std::string Show(const RequestScheduler::Step& step) {
  std::string text;
  for (const BatchRow& row : step.batch.rows) {
    absl::StrAppend(&text, text.empty() ? "" : " ", row.sequence, ":", row.token, "@", row.position, row.wants_logits ? "*" : "");
  }
  return text;
}

Request Ask(std::vector<int32_t> prompt, int64_t max_new_tokens, std::vector<int32_t> ends = {}) {
  return {.prompt = std::move(prompt), .max_new_tokens = max_new_tokens, .end_tokens = std::move(ends)};
}

TEST(RequestSchedulerTest, PromptGoesInChunksAndOnlyItsLastRowWantsLogits) {
  RequestScheduler scheduler({.max_rows = 4, .chunk = 2, .max_sequences = 1, .context = 10});
  ASSERT_TRUE(scheduler.Add(Ask({5, 6, 7}, 2)).ok());
  RequestScheduler::Step step;
  ASSERT_TRUE(scheduler.NextStep(step));
  EXPECT_EQ(Show(step), "0:5@0 0:6@1");
  EXPECT_EQ(step.admitted.size(), 1u);
  EXPECT_EQ(step.admitted[0].positions, 5);
  ASSERT_TRUE(scheduler.NextStep(step));
  EXPECT_EQ(Show(step), "0:7@2*");
  EXPECT_EQ(scheduler.OnToken(0, 9), FinishReason::kNone);
  ASSERT_TRUE(scheduler.NextStep(step));
  EXPECT_EQ(Show(step), "0:9@3*");
  EXPECT_EQ(scheduler.OnToken(0, 8), FinishReason::kLength);
  EXPECT_FALSE(scheduler.NextStep(step));
  EXPECT_THAT(scheduler.generated(0), ElementsAre(9, 8));
}

TEST(RequestSchedulerTest, APromptWaitsBesideDecodingForOneChunkAtMost) {
  RequestScheduler scheduler({.max_rows = 4, .chunk = 2, .max_sequences = 2, .context = 10});
  ASSERT_TRUE(scheduler.Add(Ask({1}, 5)).ok());
  RequestScheduler::Step step;
  ASSERT_TRUE(scheduler.NextStep(step));
  scheduler.OnToken(0, 2);
  ASSERT_TRUE(scheduler.Add(Ask({11, 12, 13}, 1)).ok());
  ASSERT_TRUE(scheduler.NextStep(step));
  EXPECT_EQ(Show(step), "0:2@1* 1:11@0 1:12@1");
  scheduler.OnToken(0, 3);
  ASSERT_TRUE(scheduler.NextStep(step));
  EXPECT_EQ(Show(step), "0:3@2* 1:13@2*");
  EXPECT_THAT(step.sampled, ElementsAre(0, 1));
}

TEST(RequestSchedulerTest, AnEndTokenFreesTheSlotForTheNextRequest) {
  RequestScheduler scheduler({.max_rows = 4, .chunk = 4, .max_sequences = 1, .context = 10});
  ASSERT_TRUE(scheduler.Add(Ask({1}, 5, {42})).ok());
  ASSERT_TRUE(scheduler.Add(Ask({2}, 5)).ok());
  RequestScheduler::Step step;
  ASSERT_TRUE(scheduler.NextStep(step));
  EXPECT_EQ(Show(step), "0:1@0*");
  EXPECT_EQ(scheduler.OnToken(0, 42), FinishReason::kEndToken);
  ASSERT_TRUE(scheduler.NextStep(step));
  EXPECT_EQ(Show(step), "0:2@0*");
  EXPECT_EQ(step.admitted[0].request, 1);
}

TEST(RequestSchedulerTest, AStoppedRequestLeavesAtOnce) {
  RequestScheduler scheduler({.max_rows = 4, .chunk = 4, .max_sequences = 1, .context = 10});
  ASSERT_TRUE(scheduler.Add(Ask({1}, 5)).ok());
  ASSERT_TRUE(scheduler.Add(Ask({2}, 5)).ok());
  RequestScheduler::Step step;
  ASSERT_TRUE(scheduler.NextStep(step));
  scheduler.Stop(1);  // still waiting
  scheduler.Stop(0);
  EXPECT_FALSE(scheduler.NextStep(step));
  EXPECT_TRUE(scheduler.finished(0) && scheduler.finished(1));
}

TEST(RequestSchedulerTest, WhatCanNeverFitIsRefusedWithTheNumbers) {
  RequestScheduler scheduler({.max_rows = 4, .chunk = 4, .max_sequences = 1, .context = 10});
  EXPECT_THAT(std::string(scheduler.Add(Ask({1, 2, 3}, 8)).status().message()),
              HasSubstr("3 prompt + 8 new = 11 positions and the context is 10"));
  EXPECT_FALSE(scheduler.Add(Ask({}, 8)).ok());
  EXPECT_FALSE(scheduler.Add(Ask({1}, 0)).ok());
}

// Every position of every request is computed once, in order, whatever the chunking and the slots.
TEST(RequestSchedulerTest, EveryPositionIsComputedOnceInOrder) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const int64_t slots = 1 + random() % 4;
    const int64_t max_rows = slots + random() % 5, chunk = 1 + random() % 4;
    RequestScheduler scheduler({.max_rows = max_rows, .chunk = chunk, .max_sequences = slots, .context = 64});
    const int count = 1 + random() % 6;
    std::vector<int64_t> expected, seen(count, 0);
    for (int i = 0; i < count; ++i) {
      const int64_t prompt = 1 + random() % 9, fresh = 1 + random() % 7;
      ASSERT_TRUE(scheduler.Add(Ask(std::vector<int32_t>(prompt, i), fresh)).ok());
      expected.push_back(prompt + fresh - 1);  // the last token is never computed
    }
    std::vector<int> owner(slots, -1);
    RequestScheduler::Step step;
    for (int guard = 0; scheduler.NextStep(step); ++guard) {
      ASSERT_LT(guard, 1000) << "seed " << seed;
      for (const auto& admitted : step.admitted) owner[admitted.slot] = admitted.request;
      for (const BatchRow& row : step.batch.rows) ASSERT_EQ(row.position, seen[owner[row.sequence]]++) << "seed " << seed;
      for (const RequestId id : step.sampled) scheduler.OnToken(id, 100 + id);
    }
    EXPECT_EQ(seen, expected) << "seed " << seed;
  }
}

}  // namespace
}  // namespace lime
