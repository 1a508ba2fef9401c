#include "coordinator/logic/order_writer.h"

#include <map>
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
using ::testing::IsEmpty;

// "admit 0=request 3", "retire 0", "to 8 pages", "step 0:5@0 0:?@1* | 1:7@0*": rows by micro-batch,
// ? for a sampled token, * where logits are wanted.
std::string Show(const Order& order) {
  if (const auto* admit = std::get_if<AdmitOrder>(&order.what)) return absl::StrCat("admit ", admit->sequence, "=request ", admit->request);
  if (const auto* retire = std::get_if<RetireOrder>(&order.what)) return absl::StrCat("retire ", retire->sequence);
  if (const auto* residency = std::get_if<ResidencyOrder>(&order.what)) return absl::StrCat("to ", residency->to.layer_pages, " pages");
  std::string text = "step";
  const std::vector<MicroBatch>& batches = std::get<StepOrder>(order.what).microbatches;
  for (size_t m = 0; m < batches.size(); ++m) {
    if (m > 0) absl::StrAppend(&text, " |");
    for (const BatchRow& row : batches[m].rows) {
      absl::StrAppend(&text, " ", row.sequence, ":", row.token == kSampledToken ? "?" : absl::StrCat(row.token), "@", row.position,
                      row.wants_logits ? "*" : "");
    }
  }
  return text;
}

std::vector<std::string> Show(const std::vector<Order>& orders) {
  std::vector<std::string> lines;
  lines.reserve(orders.size());
  for (const Order& order : orders) lines.push_back(Show(order));
  return lines;
}

Request Ask(std::vector<int32_t> prompt, int64_t max_new_tokens, std::vector<int32_t> ends = {}) {
  return {.prompt = std::move(prompt), .max_new_tokens = max_new_tokens, .end_tokens = std::move(ends)};
}

OrderWriter::Options Small() {
  return {.sequences = 1, .context = 100, .batch = 1, .microbatches = 1, .max_rows = 4, .chunk = 4, .chunks = 1, .look_ahead = 3};
}

TEST(OrderWriterTest, OrdersAPromptInChunksAndThenStepsAheadOfTheirTokens) {
  OrderWriter writer(Small());
  ASSERT_TRUE(writer.Add(Ask({5, 6, 7, 8, 9}, 10)).ok());
  EXPECT_THAT(Show(writer.NextOrders()), ElementsAre("admit 0=request 0", "step 0:5@0 0:6@1 0:7@2 0:8@3", "step 0:9@4*", "step 0:?@5*"));
  EXPECT_THAT(writer.NextOrders(), IsEmpty());
  ASSERT_TRUE(writer.OnStepEnded(0).ok());
  EXPECT_THAT(Show(writer.NextOrders()), ElementsAre("step 0:?@6*"));
}

// What a change of plans is weighed with.
TEST(OrderWriterTest, ReportsTheRemainingWorkAndWhetherTokensCome) {
  OrderWriter writer(Small());
  ASSERT_TRUE(writer.Add(Ask({5, 6, 7, 8, 9}, 4), OrderWriter::Logits::kAgain).ok());
  ASSERT_TRUE(writer.Add(Ask({5}, 3)).ok());
  EXPECT_FALSE(writer.decodes());
  (void)writer.NextOrders();
  EXPECT_FALSE(writer.decodes()) << "the prompt is ordered, and no token is there";
  EXPECT_EQ(writer.remaining().steps, 7) << "one after another";
  EXPECT_EQ(writer.remaining().known, 5);
  EXPECT_EQ(writer.remaining().again, 0);
  EXPECT_EQ(writer.remaining().pages, 1);
  EXPECT_EQ(writer.remaining().level_pages, 0) << "KV does not grow";
  ASSERT_TRUE(writer.OnStepEnded(0).ok());
  ASSERT_TRUE(writer.OnTokens(1, std::vector<SampledToken>{{0, 5, 3}}).ok());
  EXPECT_TRUE(writer.decodes() && writer.remaining().decodes);
  EXPECT_EQ(writer.remaining().known, 6);
  EXPECT_EQ(writer.remaining().again, 1) << "of a hash over all logits";
  ASSERT_TRUE(writer.Restart(Small()).ok());
  EXPECT_FALSE(writer.decodes()) << "its tokens are a prompt again";
}

// With rows ahead of a sequence's own a step is long, and its rows are all in one micro-batch.
TEST(OrderWriterTest, WhereKvIsEvictedASlotsRowsAreInItsMicroBatchAndFewStepsAhead) {
  OrderWriter::Options options = Small();
  options.sequences = 2, options.microbatches = 2, options.retained_positions = 20, options.again_ahead = 1;
  OrderWriter writer(options);
  ASSERT_TRUE(writer.Add(Ask({5}, 90)).ok());
  ASSERT_TRUE(writer.Add(Ask({5, 6, 7, 8, 9}, 10)).ok());
  EXPECT_THAT(Show(writer.NextOrders()), ElementsAre("admit 0=request 0", "admit 1=request 1", "step 0:5@0* | 1:5@0 1:6@1 1:7@2",
                                                     "step 0:?@1* | 1:8@3 1:9@4*", "step 0:?@2* | 1:?@5*"));
  int32_t step = 0;
  for (; writer.steps_ordered() < 17; ++step) {
    std::vector<SampledToken> tokens = {{0, step + 1, 3}};
    if (step > 0 && step < 11) tokens.push_back({1, step + 4, 3});
    ASSERT_TRUE(writer.OnTokens(step, tokens).ok()) << step;
    ASSERT_TRUE(writer.OnStepEnded(step).ok());
    (void)writer.NextOrders();
    EXPECT_EQ(writer.steps_under_way(), 3) << step;
  }
  // The next step might evict: it waits for all others.
  for (; writer.steps_under_way() > 0; ++step) {
    EXPECT_THAT(writer.NextOrders(), IsEmpty()) << step;
    ASSERT_TRUE(writer.OnTokens(step, std::vector<SampledToken>{{0, step + 1, 3}}).ok());
    ASSERT_TRUE(writer.OnStepEnded(step).ok());
  }
  EXPECT_THAT(Show(writer.NextOrders()), ElementsAre("step 0:?@17*"));
}

TEST(OrderWriterTest, NumbersOrdersWithoutGaps) {
  OrderWriter writer(Small());
  ASSERT_TRUE(writer.Add(Ask({5}, 3)).ok());
  int64_t next = 0;
  for (const Order& order : writer.NextOrders()) EXPECT_EQ(order.number, next++);
  EXPECT_EQ(next, 4);  // admit, the prompt, two decode steps
}

TEST(OrderWriterTest, ARequestThatEndsWastesAtMostTheStepsOrderedAhead) {
  OrderWriter writer(Small());
  ASSERT_TRUE(writer.Add(Ask({5}, 50, /*ends=*/{2})).ok());
  EXPECT_THAT(Show(writer.NextOrders()), ElementsAre("admit 0=request 0", "step 0:5@0*", "step 0:?@1*", "step 0:?@2*"));
  const auto tokens = writer.OnTokens(0, std::vector<SampledToken>{{0, 1, 2}});
  ASSERT_TRUE(tokens.ok());
  EXPECT_EQ(tokens->front().reason, FinishReason::kEndToken);
  EXPECT_EQ(writer.steps_ordered() - 1, 2);  // wasted: look_ahead - 1
  EXPECT_THAT(Show(writer.NextOrders()), ElementsAre("retire 0"));
  // Tokens of wasted rows come still, and are dropped.
  ASSERT_TRUE(writer.OnStepEnded(0).ok());
  EXPECT_THAT(*writer.OnTokens(1, std::vector<SampledToken>{{0, 2, 9}}), IsEmpty());
  ASSERT_TRUE(writer.OnStepEnded(1).ok());
  EXPECT_THAT(*writer.OnTokens(2, std::vector<SampledToken>{{0, 3, 9}}), IsEmpty());
  EXPECT_TRUE(writer.idle());
}

TEST(OrderWriterTest, ASlotIsUsedAgainBehindItsLastOrderedStep) {
  OrderWriter writer(Small());
  ASSERT_TRUE(writer.Add(Ask({5}, 50, {2})).ok());
  ASSERT_TRUE(writer.Add(Ask({6}, 1)).ok());
  ASSERT_EQ(writer.NextOrders().size(), 4u);
  ASSERT_TRUE(writer.OnTokens(0, std::vector<SampledToken>{{0, 1, 2}}).ok());
  ASSERT_TRUE(writer.OnStepEnded(0).ok());
  EXPECT_THAT(Show(writer.NextOrders()), ElementsAre("retire 0", "admit 0=request 1", "step 0:6@0*"));
  // Tokens belong to the request whose step made them, not to who has the slot now.
  EXPECT_THAT(*writer.OnTokens(1, std::vector<SampledToken>{{0, 2, 9}}), IsEmpty());
  const auto tokens = writer.OnTokens(3, std::vector<SampledToken>{{0, 1, 4}});
  ASSERT_TRUE(tokens.ok());
  EXPECT_EQ(tokens->front().request, 1);
  EXPECT_EQ(tokens->front().reason, FinishReason::kLength);
}

TEST(OrderWriterTest, RequestsJoinBetweenStepsAndShareTheirMicroBatches) {
  OrderWriter::Options options = Small();
  options.sequences = 3, options.batch = 2, options.microbatches = 2;
  OrderWriter writer(options);
  ASSERT_TRUE(writer.Add(Ask({1}, 9)).ok());
  ASSERT_TRUE(writer.Add(Ask({2}, 9)).ok());
  EXPECT_EQ(Show(writer.NextOrders()).at(2), "step 0:1@0* 1:2@0*");
  ASSERT_TRUE(writer.OnTokens(0, std::vector<SampledToken>{{0, 1, 7}, {1, 1, 7}}).ok());
  ASSERT_TRUE(writer.OnStepEnded(0).ok());
  ASSERT_TRUE(writer.Add(Ask({3, 4, 5}, 9)).ok());
  EXPECT_THAT(Show(writer.NextOrders()), ElementsAre("admit 2=request 2", "step 0:?@3* 1:?@3* 2:3@0 2:4@1 | 2:5@2*"));
  for (int64_t step = 1; step < 4; ++step) {
    std::vector<SampledToken> tokens = {{0, static_cast<int32_t>(step) + 1, 7}, {1, static_cast<int32_t>(step) + 1, 7}};
    if (step == 3) tokens.push_back({2, 3, 7});
    ASSERT_TRUE(writer.OnTokens(step, tokens).ok());
    ASSERT_TRUE(writer.OnStepEnded(step).ok());
  }
  EXPECT_EQ(Show(writer.NextOrders()).front(), "step 0:?@4* 1:?@4* | 2:?@3*");
}

TEST(OrderWriterTest, PromptsAloneFlowFurtherAheadThanDecoding) {
  OrderWriter::Options options = Small();
  options.chunks = 2, options.microbatches = 2, options.prompts_ahead = 5;
  OrderWriter writer(options);
  ASSERT_TRUE(writer.Add(Ask(std::vector<int32_t>(60, 1), 9)).ok());
  const std::vector<Order> orders = writer.NextOrders();
  ASSERT_EQ(orders.size(), 6u);
  EXPECT_EQ(Show(orders[1]), "step 0:1@0 0:1@1 0:1@2 0:1@3 | 0:1@4 0:1@5 0:1@6 0:1@7");
}

TEST(OrderWriterTest, APromptWaitsBesideDecodingForOneChunkAtMost) {
  OrderWriter::Options options = Small();
  options.sequences = 2, options.batch = 2, options.microbatches = 2, options.chunks = 2, options.look_ahead = 1;
  OrderWriter writer(options);
  ASSERT_TRUE(writer.Add(Ask({1}, 9)).ok());
  ASSERT_EQ(writer.NextOrders().size(), 2u);
  ASSERT_TRUE(writer.OnTokens(0, std::vector<SampledToken>{{0, 1, 7}}).ok());
  ASSERT_TRUE(writer.OnStepEnded(0).ok());
  ASSERT_TRUE(writer.Add(Ask(std::vector<int32_t>(12, 3), 9)).ok());
  EXPECT_THAT(Show(writer.NextOrders()), ElementsAre("admit 1=request 1", "step 0:?@1* 1:3@0 1:3@1 1:3@2 | 1:3@3"));
}

TEST(OrderWriterTest, RefusesWhatNeverFits) {
  OrderWriter writer(Small());
  EXPECT_THAT(std::string(writer.Add(Ask({}, 1)).status().message()), HasSubstr("no tokens"));
  EXPECT_FALSE(writer.Add(Ask({1}, 0)).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(writer.Add(Ask({1}, 100)).status()));
  EXPECT_FALSE(writer.Add(Ask({1}, std::numeric_limits<int64_t>::max())).ok());
  EXPECT_TRUE(writer.Add(Ask({1}, 99)).ok());
}

TEST(OrderWriterTest, RefusesReportsThatCannotBe) {
  OrderWriter writer(Small());
  ASSERT_TRUE(writer.Add(Ask({5}, 50)).ok());
  (void)writer.NextOrders();
  EXPECT_FALSE(writer.OnTokens(7, std::vector<SampledToken>{{0, 1, 9}}).ok());
  EXPECT_FALSE(writer.OnTokens(0, std::vector<SampledToken>{{0, 2, 9}}).ok());
  EXPECT_FALSE(writer.OnTokens(0, std::vector<SampledToken>{{0, 1, 9}, {0, 1, 9}}).ok());
  EXPECT_FALSE(writer.OnStepEnded(1).ok());
  EXPECT_FALSE(writer.OnStepEnded(0).ok()) << "its token is missing";
  EXPECT_EQ(writer.generated(0).size(), 0u);
  ASSERT_TRUE(writer.OnTokens(0, std::vector<SampledToken>{{0, 1, 9}}).ok());
  EXPECT_FALSE(writer.OnTokens(0, std::vector<SampledToken>{{0, 1, 9}}).ok()) << "it has come already";
  EXPECT_TRUE(writer.OnStepEnded(0).ok());
}

TEST(OrderWriterTest, ARestartComputesAgainWhatIsKnownAndGoesOn) {
  OrderWriter writer(Small());
  ASSERT_TRUE(writer.Add(Ask({5, 6}, 4)).ok());
  ASSERT_TRUE(writer.Add(Ask({9}, 2)).ok());
  (void)writer.NextOrders();
  ASSERT_TRUE(writer.OnTokens(0, std::vector<SampledToken>{{0, 2, 7}}).ok());
  ASSERT_TRUE(writer.OnTokens(1, std::vector<SampledToken>{{0, 3, 8}}).ok());
  ASSERT_TRUE(writer.Restart(Small()).ok());
  const std::vector<Order> orders = writer.NextOrders();
  EXPECT_EQ(orders[0].number, 0);
  EXPECT_EQ(std::get<AdmitOrder>(orders[0].what).positions, 6);
  EXPECT_THAT(std::get<AdmitOrder>(orders[0].what).prompt, ElementsAre(5, 6, 7, 8));
  EXPECT_EQ(std::get<AdmitOrder>(orders[0].what).generated, 2) << "7 and 8: the prompt ends before them";
  EXPECT_EQ(Show(orders[1]), "step 0:5@0 0:6@1 0:7@2 0:8@3*");
  ASSERT_TRUE(writer.OnTokens(0, std::vector<SampledToken>{{0, 4, 1}}).ok());
  EXPECT_THAT(writer.generated(0), ElementsAre(7, 8, 1));
  EXPECT_EQ(writer.OnTokens(1, std::vector<SampledToken>{{0, 5, 2}})->front().reason, FinishReason::kLength);
  EXPECT_TRUE(writer.finished(0));
  EXPECT_EQ(Show(writer.NextOrders()).at(1), "admit 0=request 1") << "requests keep their numbers";
}

TEST(OrderWriterTest, WithItsKvARequestGoesOnBehindWhatIsComputed) {
  OrderWriter writer(Small());
  ASSERT_TRUE(writer.Add(Ask({5, 6}, 9), OrderWriter::Logits::kAgain).ok());
  ASSERT_TRUE(writer.Add(Ask({9}, 2)).ok());
  (void)writer.NextOrders();
  for (int32_t step = 0; step < 3; ++step) {
    ASSERT_TRUE(writer.OnTokens(step, std::vector<SampledToken>{{0, step + 2, 7 + step}}).ok());
    ASSERT_TRUE(writer.OnStepEnded(step).ok());
  }
  OrderWriter::Options two = Small();
  two.sequences = two.microbatches = 2;
  const auto continued = writer.GoOn(two);
  ASSERT_TRUE(continued.ok()) << continued.status();
  ASSERT_EQ(continued->size(), 1u);
  EXPECT_EQ(continued->front().request, 0);
  EXPECT_EQ(continued->front().sequence, (KvSequence{.from = 0, .to = 0, .positions = 4}));
  const std::vector<Order> orders = writer.NextOrders();
  const auto& admit = std::get<AdmitOrder>(orders.at(0).what);
  EXPECT_EQ(admit.computed, 4);
  EXPECT_THAT(admit.prompt, ElementsAre(5, 6, 7, 8, 9));
  EXPECT_EQ(admit.generated, 3);
  EXPECT_THAT(Show(orders),
              ElementsAre("admit 0=request 0", "admit 1=request 1", "step 0:9@4* | 1:9@0*", "step 0:?@5* | 1:?@1*", "step 0:?@6*"))
      << "no logits are made again";
  EXPECT_EQ(std::get<AdmitOrder>(orders.at(1).what).computed, 0);
  EXPECT_EQ(std::get<AdmitOrder>(orders.at(1).what).generated, 0);
}

TEST(OrderWriterTest, WithinItsPromptARequestGoesOnWithTheRestOfIt) {
  OrderWriter writer(Small());
  ASSERT_TRUE(writer.Add(Ask({5, 6, 7, 8, 9}, 9)).ok());
  OrderWriter::Options one = Small();
  one.prompts_ahead = 1, one.look_ahead = 1;
  ASSERT_TRUE(writer.Restart(one).ok());
  EXPECT_THAT(Show(writer.NextOrders()), ElementsAre("admit 0=request 0", "step 0:5@0 0:6@1 0:7@2 0:8@3"));
  ASSERT_TRUE(writer.OnStepEnded(0).ok());
  ASSERT_EQ(writer.GoOn(Small())->front().sequence.positions, 4);
  EXPECT_THAT(Show(writer.NextOrders()), ElementsAre("admit 0=request 0", "step 0:9@4*", "step 0:?@5*", "step 0:?@6*"));
}

TEST(OrderWriterTest, RequestsGoOnWithTheirKvAsFarAsThePlanHasSlotsAndPages) {
  OrderWriter::Options three = Small();
  three.sequences = three.batch = 3, three.max_rows = three.chunk = 60;
  const auto continued = [&](const OrderWriter::Options& next) {
    OrderWriter writer(three);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(writer.Add(Ask(std::vector<int32_t>(20, i + 1), 9)).ok());
    (void)writer.NextOrders();
    for (int32_t step = 0; step < 3; ++step) {
      const int32_t position = 20 + step;
      EXPECT_TRUE(writer.OnTokens(step, std::vector<SampledToken>{{0, position, 7}, {1, position, 7}, {2, position, 7}}).ok());
      EXPECT_TRUE(writer.OnStepEnded(step).ok());
    }
    return writer.GoOn(next)->size();
  };
  EXPECT_EQ(continued(three), 3u);
  OrderWriter::Options two = three;
  two.sequences = 2;
  EXPECT_EQ(continued(two), 2u);
  OrderWriter::Options few = three;
  few.levels = {{.layer_pages = 3}, {.layer_pages = 8}};
  EXPECT_EQ(continued(few), 1u) << "22 positions are two pages";
}

TEST(OrderWriterTest, ARequestThatIsStoppedBeforeItGoesOnFreesItsSlot) {
  OrderWriter writer(Small());
  ASSERT_TRUE(writer.Add(Ask({5}, 9)).ok());
  ASSERT_TRUE(writer.Add(Ask({6}, 9)).ok());
  (void)writer.NextOrders();
  for (int32_t step = 0; step < 3; ++step) {
    ASSERT_TRUE(writer.OnTokens(step, std::vector<SampledToken>{{0, step + 1, 7}}).ok());
    ASSERT_TRUE(writer.OnStepEnded(step).ok());
  }
  ASSERT_EQ(writer.GoOn(Small())->size(), 1u);
  writer.Stop(0);
  const std::vector<std::string> orders = Show(writer.NextOrders());
  EXPECT_EQ(orders.at(0), "retire 0");
  EXPECT_EQ(orders.at(1), "admit 0=request 1");
}

TEST(OrderWriterTest, AScoredPromptHasTheLogitsOfEveryRowAndEndsWithItsLast) {
  OrderWriter::Options options = Small();
  options.microbatches = 3;
  options.chunks = 3;
  OrderWriter writer(options);
  ASSERT_TRUE(writer.Add(Ask({5, 6, 7, 8}, 0), OrderWriter::Logits::kAll).ok());
  EXPECT_FALSE(writer.Add(Ask({5}, -1), OrderWriter::Logits::kAll).ok());
  EXPECT_THAT(Show(writer.NextOrders()), ElementsAre("admit 0=request 0", "step 0:5@0* | 0:6@1* | 0:7@2*", "step 0:8@3*"));
  const auto known = writer.OnTokens(0, std::vector<SampledToken>{{0, 1, 6}, {0, 2, 7}, {0, 3, 8}});
  ASSERT_TRUE(known.ok()) << known.status();
  ASSERT_EQ(known->size(), 3u);
  for (const OrderWriter::Token& token : *known) EXPECT_TRUE(token.again);
  ASSERT_TRUE(writer.OnStepEnded(0).ok());
  const auto last = writer.OnTokens(1, std::vector<SampledToken>{{0, 4, 1}});
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_FALSE(last->front().again);
  EXPECT_EQ(last->front().reason, FinishReason::kLength);
  EXPECT_TRUE(writer.finished(0));
  ASSERT_TRUE(writer.OnStepEnded(1).ok());
  EXPECT_THAT(Show(writer.NextOrders()), ElementsAre("retire 0"));
}

TEST(OrderWriterTest, AScoredPromptHasAsManyLogitsInAStepAsThePlanHasRoomFor) {
  OrderWriter::Options options = Small();
  options.logit_rows = 3;
  OrderWriter writer(options);
  ASSERT_TRUE(writer.Add(Ask({5, 6, 7, 8, 9}, 0), OrderWriter::Logits::kAll).ok());
  EXPECT_THAT(Show(writer.NextOrders()), ElementsAre("admit 0=request 0", "step 0:5@0* 0:6@1* 0:7@2*", "step 0:8@3* 0:9@4*"));
  EXPECT_EQ(writer.OnTokens(0, std::vector<SampledToken>{{0, 1, 6}, {0, 2, 7}, {0, 3, 8}})->size(), 3u);
  EXPECT_EQ(writer.OnTokens(1, std::vector<SampledToken>{{0, 4, 9}, {0, 5, 1}})->back().reason, FinishReason::kLength);
}

TEST(OrderWriterTest, ReportsTheComputedRowsOfEachPrompt) {
  OrderWriter::Options options = Small();
  options.sequences = 2, options.batch = 2, options.prompts_ahead = 1;
  OrderWriter writer(options);
  ASSERT_TRUE(writer.Add(Ask({5, 6, 7, 8, 9, 1}, 10)).ok());
  ASSERT_TRUE(writer.Add(Ask({5, 6}, 10)).ok());
  ASSERT_TRUE(writer.Add(Ask({5}, 10)).ok()) << "has no slot yet, and is in no step";
  const auto prompts = [&] {
    std::vector<std::string> lines;
    for (const OrderWriter::InPromptOf& of : writer.in_prompt())
      lines.push_back(absl::StrCat(of.request, ": ", of.computed, " and ", of.under_way, " of ", of.rows));
    return lines;
  };
  EXPECT_THAT(prompts(), IsEmpty());
  (void)writer.NextOrders();
  EXPECT_THAT(prompts(), ElementsAre("0: 0 and 4 of 6", "1: 0 and 0 of 2"));
  ASSERT_TRUE(writer.OnStepEnded(0).ok());
  (void)writer.NextOrders();
  EXPECT_THAT(prompts(), ElementsAre("0: 4 and 2 of 6", "1: 0 and 2 of 2"));
  ASSERT_TRUE(writer.OnTokens(1, std::vector<SampledToken>{{0, 6, 3}, {1, 2, 3}}).ok());
  ASSERT_TRUE(writer.OnStepEnded(1).ok());
  EXPECT_THAT(prompts(), IsEmpty()) << "they decode";
  ASSERT_TRUE(writer.Restart(options).ok());
  (void)writer.NextOrders();
  EXPECT_THAT(prompts(), ElementsAre("0: 0 and 4 of 7", "1: 0 and 0 of 3")) << "and the tokens so far are computed again";
}

TEST(OrderWriterTest, ARequestHasTheNumberOfItsCallAndLaterOnesHigherOnes) {
  OrderWriter writer(Small());
  EXPECT_EQ(*writer.Add(Ask({5}, 3), OrderWriter::Logits::kNewest, 7), 7);
  EXPECT_EQ(*writer.Add(Ask({5}, 3)), 8);
  EXPECT_EQ(Show(writer.NextOrders()).front(), "admit 0=request 7");
  EXPECT_FALSE(writer.finished(7));
  EXPECT_FALSE(writer.finished(9)) << "it is yet to come";
  writer.Stop(7);
  EXPECT_TRUE(writer.finished(7));
}

TEST(OrderWriterTest, ARestartMakesLogitsAgainWhereTheyAreWanted) {
  OrderWriter writer(Small());
  ASSERT_TRUE(writer.Add(Ask({5, 6}, 4), OrderWriter::Logits::kAgain).ok());
  (void)writer.NextOrders();
  ASSERT_TRUE(writer.OnTokens(0, std::vector<SampledToken>{{0, 2, 7}}).ok());
  ASSERT_TRUE(writer.OnTokens(1, std::vector<SampledToken>{{0, 3, 8}}).ok());
  ASSERT_TRUE(writer.Restart(Small()).ok());
  EXPECT_THAT(Show(writer.NextOrders()), ElementsAre("admit 0=request 0", "step 0:5@0 0:6@1*", "step 0:7@2*", "step 0:8@3*"));
  for (int32_t position = 2; position < 4; ++position) {
    const auto tokens = writer.OnTokens(position - 2, std::vector<SampledToken>{{0, position, position + 5}});
    ASSERT_TRUE(tokens.ok());
    ASSERT_EQ(tokens->size(), 1u);
    EXPECT_TRUE(tokens->front().again);
  }
  EXPECT_FALSE(writer.OnTokens(2, std::vector<SampledToken>{{0, 4, 1}})->front().again);
  EXPECT_THAT(writer.generated(0), ElementsAre(7, 8, 1));
}

TEST(OrderWriterTest, ARestartBeginsAtTheFirstLevelAndRaisesItForWhatIsKnownBeforeThatIsComputed) {
  OrderWriter::Options options = Small();
  options.context = 200, options.levels = {{.layer_pages = 4}, {.layer_pages = 8}, {.layer_pages = 12}};
  OrderWriter writer(options);
  ASSERT_TRUE(writer.Add(Ask({5}, 150)).ok());
  std::vector<std::string> levels;
  for (int32_t step = 0; step < 120; ++step) {
    for (const std::string& order : Show(writer.NextOrders())) {
      if (order.starts_with("to ")) levels.push_back(order);
    }
    ASSERT_TRUE(writer.OnTokens(step, std::vector<SampledToken>{{0, step + 1, 7}}).ok());
    ASSERT_TRUE(writer.OnStepEnded(step).ok());
  }
  EXPECT_THAT(levels, ElementsAre("to 8 pages", "to 12 pages"));
  ASSERT_TRUE(writer.Restart(options).ok());
  const std::vector<Order> orders = writer.NextOrders();
  EXPECT_EQ(orders.front().number, 0);
  const std::vector<std::string> shown = Show(orders);
  constexpr size_t kLead = kResidencyLead;
  ASSERT_GT(shown.size(), kLead + 2);
  EXPECT_EQ(shown.front(), "to 12 pages") << "121 tokens are known, and 24 steps go on before another level could be there";
  for (size_t i = 1; i <= kLead; ++i) EXPECT_EQ(shown[i], "step") << "without rows, order " << i;
  EXPECT_EQ(shown[kLead + 1], "admit 0=request 0");
  EXPECT_EQ(shown[kLead + 2], "step 0:5@0 0:7@1 0:7@2 0:7@3");
}

TEST(OrderWriterTest, RequestsThatComeTogetherWaitForOneChangeOfLevel) {
  OrderWriter::Options options = Small();
  options.context = 60, options.sequences = 2, options.batch = 2,
  options.levels = {{.layer_pages = 1}, {.layer_pages = 4}, {.layer_pages = 8}};
  OrderWriter writer(options);
  for (int request = 0; request < 3; ++request) ASSERT_TRUE(writer.Add(Ask(std::vector<int32_t>(40, 5), 20)).ok());
  const std::vector<std::string> shown = Show(writer.NextOrders());
  EXPECT_EQ(shown.front(), "to 8 pages") << "for the two that have slots";
  EXPECT_EQ(std::ranges::count_if(shown, [](const std::string& order) { return order.starts_with("to "); }), 1);
  EXPECT_EQ(shown[kResidencyLead + 1], "admit 0=request 0");
  EXPECT_EQ(shown[kResidencyLead + 2], "admit 1=request 1");
}

TEST(OrderWriterTest, ARestartOnAPlanWhoseKvDoesNotGrowFarEnoughChangesNothing) {
  OrderWriter::Options options = Small();
  options.levels = {{.layer_pages = 2}, {.layer_pages = 6}};
  OrderWriter writer(options);
  EXPECT_TRUE(absl::IsResourceExhausted(writer.Add(Ask({5}, 99)).status())) << "100 positions are 7 pages";
  ASSERT_TRUE(writer.Add(Ask({5}, 50)).ok());
  (void)writer.NextOrders();
  options.levels.pop_back();
  EXPECT_TRUE(absl::IsResourceExhausted(writer.Restart(options)));
  EXPECT_TRUE(writer.OnTokens(0, std::vector<SampledToken>{{0, 1, 9}}).ok());
}

TEST(OrderWriterTest, ARestartOnAPlanThatIsTooShortChangesNothing) {
  OrderWriter writer(Small());
  ASSERT_TRUE(writer.Add(Ask({5}, 50)).ok());
  (void)writer.NextOrders();
  OrderWriter::Options shorter = Small();
  shorter.context = 50;
  EXPECT_TRUE(absl::IsResourceExhausted(writer.Restart(shorter)));
  EXPECT_TRUE(writer.OnTokens(0, std::vector<SampledToken>{{0, 1, 9}}).ok());
}

TEST(OrderWriterTest, StoppedRequestsLeaveTheirSlotAndTheirTokensAreDropped) {
  OrderWriter writer(Small());
  ASSERT_TRUE(writer.Add(Ask({5}, 50)).ok());
  ASSERT_TRUE(writer.Add(Ask({6}, 50)).ok());
  (void)writer.NextOrders();
  writer.Stop(1);  // it was waiting
  writer.Stop(0);
  EXPECT_THAT(Show(writer.NextOrders()), ElementsAre("retire 0"));
  EXPECT_THAT(*writer.OnTokens(0, std::vector<SampledToken>{{0, 1, 9}}), IsEmpty());
  EXPECT_TRUE(writer.idle());
}

// Executes orders as devices do, and holds them to what must be true of any.
class Device {
 public:
  explicit Device(const OrderWriter::Options& options) : options_(options) {}

  void OnOrder(const Order& order) {
    ASSERT_EQ(order.number, orders_++);
    if (const auto* admit = std::get_if<AdmitOrder>(&order.what)) {
      ASSERT_TRUE(next_.emplace(admit->sequence, 0).second) << "the slot is taken";
      limit_[admit->sequence] = admit->positions;
    } else if (const auto* retire = std::get_if<RetireOrder>(&order.what)) {
      ASSERT_EQ(next_.erase(retire->sequence), 1u) << "the slot is free already";
    } else {
      OnStep(std::get<StepOrder>(order.what));
    }
  }

  std::deque<std::vector<SampledToken>> samples;  // of steps that have not ended, oldest first

 private:
  void OnStep(const StepOrder& step) {
    std::vector<SampledToken>& sampled = samples.emplace_back();
    ASSERT_LE(step.microbatches.size(), static_cast<size_t>(options_.microbatches));
    int64_t prompt_rows = 0, prompt_logits = 0;
    bool decodes = false;
    for (const MicroBatch& batch : step.microbatches) {
      ASSERT_FALSE(batch.rows.empty());
      ASSERT_LE(batch.rows.size(), static_cast<size_t>(options_.max_rows));
      int32_t logit_rows = 0;
      for (const BatchRow& row : batch.rows) {
        ASSERT_TRUE(next_.contains(row.sequence));
        ASSERT_EQ(row.position, next_[row.sequence]++) << "positions of a sequence follow one another";
        ASSERT_LT(row.position + 1, limit_[row.sequence] + 1);
        if (row.wants_logits) sampled.push_back({row.sequence, row.position + 1, 0}), ++logit_rows;
        if (row.token == kSampledToken) {
          decodes = true;
        } else {
          ++prompt_rows;
          prompt_logits += row.wants_logits ? 1 : 0;
        }
      }
      ASSERT_LE(logit_rows, options_.batch);
    }
    ASSERT_LE(prompt_rows, options_.chunk * (decodes ? 1 : options_.chunks));
    ASSERT_LE(prompt_logits, options_.prompt_logits);
  }

  const OrderWriter::Options options_;
  int64_t orders_ = 0;
  std::map<int32_t, int32_t> next_;   // position, by slot
  std::map<int32_t, int64_t> limit_;  // positions, by slot
};

TEST(OrderWriterTest, RandomRequestsAllEndWithTheirTokensAndBounds) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 random(seed);
    const auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
    OrderWriter::Options options;
    options.sequences = draw(1, 6), options.context = 64, options.batch = draw(1, options.sequences);
    options.microbatches = (options.sequences + options.batch - 1) / options.batch + draw(0, 2);
    options.max_rows = options.batch + draw(0, 8), options.chunk = options.max_rows, options.chunks = draw(1, 3);
    options.look_ahead = draw(1, 4), options.prompts_ahead = draw(1, 8);
    const auto logits = draw(0, 1) == 0 ? OrderWriter::Logits::kAll : OrderWriter::Logits::kNewest;
    if (draw(0, 1) == 0) options.prompt_logits = draw(1, options.batch);
    OrderWriter writer(options);
    Device device(options);
    int requests = 0;
    const int total = draw(1, 12);
    for (int turn = 0; turn < 100000 && (requests < total || !writer.idle()); ++turn) {
      if (requests < total && draw(0, 3) == 0) {
        const int prompt = draw(1, 40);
        ASSERT_TRUE(writer.Add(Ask(std::vector<int32_t>(static_cast<size_t>(prompt), 5), draw(1, 64 - prompt), {1}), logits).ok());
        ++requests;
      }
      if (const int id = draw(0, 4 * total); id < requests && !writer.finished(id)) writer.Stop(id);
      for (const Order& order : writer.NextOrders()) ASSERT_NO_FATAL_FAILURE(device.OnOrder(order));
      ASSERT_LE(writer.steps_under_way(), std::max(options.look_ahead, options.prompts_ahead));
      if (device.samples.empty()) continue;
      for (SampledToken& token : device.samples.front()) token.token = draw(0, 19);  // 1 ends its request
      const int64_t step = writer.steps_ordered() - writer.steps_under_way();
      ASSERT_TRUE(writer.OnTokens(step, device.samples.front()).ok());
      ASSERT_TRUE(writer.OnStepEnded(step).ok());
      device.samples.pop_front();
    }
    EXPECT_EQ(requests, total);
    EXPECT_TRUE(writer.idle()) << "no request may wait for ever";
  }
}

}  // namespace
}  // namespace lime
