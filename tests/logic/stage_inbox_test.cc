#include "daemon/logic/stage_inbox.h"

#include <map>
#include <random>
#include <set>
#include <string>

#include "daemon/logic/head_partial.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Visit = StageInbox::Visit;

constexpr Bytes kRowBytes = 8;
constexpr int32_t kVocab = 100;

// Two devices take turns: stages 0 and 2 on device 0, 1 and 3, with the head, on device 1.
Plan TwoDevices() {
  Plan plan = {.epoch = 5,
               .context = 64,
               .sequences = 4,
               .microbatches = 2,
               .batch = 2,
               .prompt_tokens = 8,
               .prefill_chunk = 4,
               .chunks_per_sweep = 1};
  plan.devices.resize(2);
  const int64_t pages = FullLayerPages(plan);
  plan.parts = {{.block = {BlockKind::kAttention, 0}, .kv_pages = pages},
                {.block = {BlockKind::kMlp, 0}},
                {.block = {BlockKind::kAttention, 1}, .kv_pages = pages},
                {.block = {BlockKind::kMlp, 1}}};
  plan.stages = {
      {.device = 0, .lo = 0, .hi = 1}, {.device = 1, .lo = 1, .hi = 2}, {.device = 0, .lo = 2, .hi = 3}, {.device = 1, .lo = 3, .hi = 4}};
  return plan;
}

class StageInboxTest : public ::testing::Test {
 protected:
  StageInbox Inbox(int32_t device) const { return {plan_, device, {.vocab_size = kVocab, .row_bytes = kRowBytes, .microbatches = 2}}; }

  ActivationMessage Hidden(int64_t step, int32_t stage, int32_t microbatch, int64_t rows = 1) const {
    ActivationMessage message{
        .header = {.epoch = plan_.epoch, .step = step, .stage = stage, .microbatch = microbatch},
        .payload = std::vector<std::byte>(static_cast<size_t>(rows * kRowBytes), std::byte{static_cast<uint8_t>(stage)})};
    message.header.bytes = rows * kRowBytes;
    return message;
  }
  ActivationMessage Tokens(int64_t step, const std::vector<SampledToken>& tokens) const {
    ActivationMessage message{.header = {.epoch = plan_.epoch, .step = step, .stage = 3, .payload = Payload::kToken},
                              .payload = Encode(tokens)};
    message.header.bytes = static_cast<int64_t>(message.payload.size());
    return message;
  }
  static MicroBatch Rows(int32_t sequence, int32_t position, int count = 1, int32_t token = 1) {
    MicroBatch batch;
    for (int i = 0; i < count; ++i)
      batch.rows.push_back({.sequence = sequence, .token = token, .position = position + i, .wants_logits = i + 1 == count});
    return batch;
  }
  // What is wrong with it; empty where nothing is.
  static std::string Says(const absl::StatusOr<std::optional<Visit>>& result) { return std::string(result.status().message()); }
  static std::string Says(const absl::Status& status) { return std::string(status.message()); }

  const Plan plan_ = TwoDevices();
};

// ---- Orders

TEST_F(StageInboxTest, RowsOfAStepKnowHowLongTheirSequencesWillBe) {
  StageInbox inbox = Inbox(0);
  inbox.Admit({.sequence = 0, .positions = 40, .prompt = {1}});
  inbox.Admit({.sequence = 1, .positions = 64, .prompt = {1}});
  std::vector<MicroBatch> batches = {Rows(0, 0, 2), Rows(1, 0)};
  inbox.BeginStep(std::move(batches));
  EXPECT_EQ(inbox.batch(0).rows[1].length, 40);
  EXPECT_EQ(inbox.batch(1).rows[0].length, 64);
  inbox.EndStep();
  inbox.Admit({.sequence = 0, .positions = 9, .prompt = {1}});
  batches = {Rows(0, 0)};
  inbox.BeginStep(std::move(batches));
  EXPECT_EQ(inbox.batch(0).rows[0].length, 9) << "of the sequence that has the slot now";
}

TEST_F(StageInboxTest, OrdersComeInTheirTurnAndNameWhatIsThere) {
  StageInbox inbox = Inbox(1);
  EXPECT_THAT(Says(inbox.AddOrder({.number = 1, .what = RetireOrder{0}})), HasSubstr("expected order 0"));
  EXPECT_THAT(Says(inbox.AddOrder({.number = 0, .what = RetireOrder{4}})), HasSubstr("the plan has 4"));
  EXPECT_THAT(Says(inbox.AddOrder({.number = 0, .what = AdmitOrder{.sequence = 0, .positions = 65}})),
              HasSubstr("the plan allows 1 to 64"));
  EXPECT_THAT(Says(inbox.AddOrder({.number = 0, .what = AdmitOrder{.sequence = 0, .positions = 3, .prompt = {kVocab}}})),
              HasSubstr("outside the vocabulary"));
  EXPECT_THAT(Says(inbox.AddOrder({.number = 0, .what = StepOrder{}})), HasSubstr("0 micro-batches"));
  EXPECT_THAT(Says(inbox.AddOrder({.number = 0, .what = StepOrder{{Rows(0, 0, 5)}}})), HasSubstr("allows at most 4"));
  EXPECT_THAT(Says(inbox.AddOrder({.number = 0, .what = StepOrder{{Rows(0, 64)}}})), HasSubstr("position 64 is outside the context of 64"));
  EXPECT_THAT(Says(inbox.AddOrder({.number = 0, .what = ResidencyOrder{}})), HasSubstr("its residency cannot change"));
  EXPECT_THAT(Says(inbox.AddOrder({.number = 0, .what = RetireOrder{.sequence = 0, .kept = 24}})), HasSubstr("multiples of 16 up to 64"));
  EXPECT_THAT(Says(inbox.AddOrder({.number = 0, .what = RetireOrder{.sequence = 0, .kept = 80}})), HasSubstr("KV of 80 positions"));
  EXPECT_THAT(Says(inbox.AddOrder({.number = 0, .what = RetireOrder{.sequence = 0, .kept = -16}})), HasSubstr("KV of -16 positions"));
  Plan hybrid = plan_;
  hybrid.parts.front().block.kind = BlockKind::kLinearAttention;
  StageInbox of_hybrid(hybrid, 0, {.vocab_size = kVocab, .row_bytes = kRowBytes, .microbatches = 2});
  EXPECT_THAT(Says(of_hybrid.AddOrder({.number = 0, .what = RetireOrder{.sequence = 0, .kept = 16}})),
              HasSubstr("the plan no snapshots of it"));
  EXPECT_THAT(Says(inbox.AddOrder({.number = 0, .what = AdmitOrder{.sequence = 0, .positions = 3, .prompt = {1}, .snapshot = 0}})),
              HasSubstr("there is no snapshot 0: the plan has 0"));
  hybrid.state_snapshots = 2;
  StageInbox with_snapshots(hybrid, 0, {.vocab_size = kVocab, .row_bytes = kRowBytes, .microbatches = 2});
  for (const int32_t snapshot : {-2, 2}) {
    StepOrder step{{Rows(0, 0)}};
    step.microbatches[0].rows[0].snapshot = snapshot;
    EXPECT_THAT(Says(with_snapshots.AddOrder({.number = 0, .what = step})), HasSubstr("the plan has 2 for each slot"));
  }
  EXPECT_TRUE(with_snapshots.AddOrder({.number = 0, .what = RetireOrder{.sequence = 0, .kept = 16}}).ok());
  EXPECT_THAT(Says(inbox.AddOrder({.number = 0, .what = AdmitOrder{.sequence = 0, .positions = 3, .prompt = {1}, .source = 4}})),
              HasSubstr("no sequence slot 4"));
  EXPECT_THAT(Says(inbox.AddOrder({.number = 0, .what = AdmitOrder{.sequence = 0, .positions = 3, .prompt = {1}, .source = -2}})),
              HasSubstr("no sequence slot -2"));
  EXPECT_EQ(inbox.NextOrder(), nullptr);
  EXPECT_TRUE(inbox.AddOrder({.number = 0, .what = RetireOrder{3}}).ok());
  EXPECT_TRUE(inbox.AddOrder({.number = 1, .what = StepOrder{{Rows(0, 0, 4)}}}).ok());
  EXPECT_EQ(inbox.PopOrder(), (Order{.number = 0, .what = RetireOrder{3}}));
  EXPECT_EQ(inbox.NextOrder()->number, 1);
}

TEST_F(StageInboxTest, WherePiecesLeaveMemoryASlotKeepsPiecesAndWithAHostNothing) {
  Plan plan = plan_;
  plan.context = 600;
  plan.devices[0].max_layer_pages = 100;
  const auto says = [&plan](int64_t kept) {
    StageInbox inbox(plan, 1, {.vocab_size = kVocab, .row_bytes = kRowBytes, .microbatches = 2});
    return Says(inbox.AddOrder({.number = 0, .what = RetireOrder{.sequence = 0, .kept = kept}}));
  };
  EXPECT_THAT(says(272), HasSubstr("multiples of 256 up to 600"));
  EXPECT_EQ(says(256), "");
  plan.devices[0].kv_host = 1;
  EXPECT_THAT(says(256), HasSubstr("lends it to a host"));
}

TEST_F(StageInboxTest, AsManyRowsAskForLogitsAsThePlanHasRoomFor) {
  const auto ask = [](int rows) {
    MicroBatch batch = Rows(0, 0, rows);
    for (BatchRow& row : batch.rows) row.wants_logits = true;
    return Order{.number = 0, .what = StepOrder{{batch}}};
  };
  EXPECT_THAT(Says(Inbox(1).AddOrder(ask(3))), HasSubstr("a micro-batch asks for logits of 3 rows, the plan allows at most 2"));
  Plan plan = plan_;
  plan.logit_rows = 3;
  StageInbox inbox(plan, 1, {.vocab_size = kVocab, .row_bytes = kRowBytes, .microbatches = 2});
  EXPECT_THAT(Says(inbox.AddOrder(ask(4))), HasSubstr("at most 3"));
  EXPECT_TRUE(inbox.AddOrder(ask(3)).ok());
}

TEST_F(StageInboxTest, ASteppedOrderLeavesItsMemoryToTheNext) {
  StageInbox inbox = Inbox(1);
  ASSERT_TRUE(inbox.AddOrder({.number = 0, .what = StepOrder{{Rows(0, 0, 4)}}}).ok());
  auto* step = &std::get<StepOrder>(inbox.PopOrder().what);
  const BatchRow* const first = step->microbatches[0].rows.data();
  inbox.BeginStep(std::move(step->microbatches));
  EXPECT_EQ(inbox.batch(0).rows.data(), first);
  inbox.EndStep();
  ASSERT_TRUE(inbox.AddOrder({.number = 1, .what = StepOrder{{Rows(0, 4, 2)}}}).ok());
  step = &std::get<StepOrder>(inbox.PopOrder().what);
  const BatchRow* const second = step->microbatches[0].rows.data();
  EXPECT_NE(second, first);
  inbox.BeginStep(std::move(step->microbatches));
  inbox.EndStep();
  ASSERT_TRUE(inbox.AddOrder({.number = 2, .what = StepOrder{{Rows(0, 6, 2)}}}).ok());
  step = &std::get<StepOrder>(inbox.PopOrder().what);
  EXPECT_EQ(step->microbatches[0].rows.data(), first);
  EXPECT_THAT(step->microbatches, ElementsAre(Rows(0, 6, 2)));
}

TEST_F(StageInboxTest, OrdersThatWaitAreBounded) {
  StageInbox inbox = Inbox(1);
  int64_t accepted = 0;
  while (accepted < 10'000 && inbox.AddOrder({.number = accepted, .what = RetireOrder{0}}).ok()) ++accepted;
  EXPECT_EQ(accepted, 4096);
}

// ---- Hidden states

TEST_F(StageInboxTest, AnEarlyVisitIsReturnedWhenItsStepBegins) {
  StageInbox inbox = Inbox(1);
  EXPECT_EQ(*inbox.OnActivation(Hidden(0, 0, 1)), std::nullopt);
  EXPECT_EQ(*inbox.OnActivation(Hidden(1, 0, 0)), std::nullopt);
  EXPECT_THAT(inbox.BeginStep({Rows(0, 0), Rows(1, 0)}), ElementsAre(Visit(1, 1)));
  EXPECT_EQ(*inbox.OnActivation(Hidden(0, 0, 0)), Visit(1, 0));
  EXPECT_EQ(inbox.PopInput({1, 0}).size(), kRowBytes);
  EXPECT_EQ(inbox.PopInput({1, 1}).size(), kRowBytes);
  inbox.EndStep();
  EXPECT_THAT(inbox.BeginStep({Rows(0, 1)}), ElementsAre(Visit(1, 0)));
}

TEST_F(StageInboxTest, WhatComesAgainOrForAnotherPlanIsRefusedAndChangesNothing) {
  StageInbox inbox = Inbox(1);
  inbox.BeginStep({Rows(0, 0)});
  ActivationMessage other = Hidden(0, 0, 0);
  other.header.epoch = 4;
  EXPECT_THAT(Says(inbox.OnActivation(other)), HasSubstr("epoch 4, but epoch 5 is installed"));
  other = Hidden(0, 0, 0);
  other.header.bytes = 7;
  EXPECT_THAT(Says(inbox.OnActivation(other)), HasSubstr("its header says 7"));
  EXPECT_THAT(Says(inbox.OnActivation(Hidden(0, 1, 0))), HasSubstr("this device expects no"));  // stage 2 is device 0's
  EXPECT_THAT(Says(inbox.OnActivation(Hidden(0, 3, 0))), HasSubstr("this device expects no"));  // the last one sends tokens
  EXPECT_THAT(Says(inbox.OnActivation(Hidden(0, 0, 0, 2))), HasSubstr("16 bytes arrived for 1 rows"));
  EXPECT_THAT(Says(inbox.OnActivation(Hidden(0, 0, 1))), HasSubstr("no micro-batch 1"));
  EXPECT_THAT(Says(inbox.OnActivation(Hidden(100, 0, 0))), HasSubstr("far beyond"));
  EXPECT_EQ(*inbox.OnActivation(Hidden(0, 0, 0)), Visit(1, 0));
  EXPECT_THAT(Says(inbox.OnActivation(Hidden(0, 0, 0))), HasSubstr("already"));
  EXPECT_EQ(inbox.PopInput({1, 0}).size(), kRowBytes);
  EXPECT_THAT(Says(inbox.OnActivation(Hidden(0, 0, 0))), HasSubstr("has used micro-batch 0"));
  inbox.EndStep();
  EXPECT_THAT(Says(inbox.OnActivation(Hidden(0, 0, 0))), HasSubstr("step 0 has ended"));
}

TEST_F(StageInboxTest, HiddenStatesThatWaitAreBounded) {
  StageInbox inbox = Inbox(1);
  Bytes waiting = 0;
  absl::Status status;
  for (int64_t step = 0; step < 6 && status.ok(); ++step) {
    for (const auto& [stage, microbatch] : {Visit(0, 0), Visit(0, 1), Visit(2, 0), Visit(2, 1)}) {
      status = inbox.OnActivation(Hidden(step, stage, microbatch, 4)).status();
      if (!status.ok()) break;
      waiting += 4 * kRowBytes;
    }
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_LE(waiting, StageInbox::WaitingBytes(plan_, 1, kRowBytes));
  EXPECT_GT(waiting + 4 * kRowBytes, StageInbox::WaitingBytes(plan_, 1, kRowBytes));
}

// ---- Logits so far

// Device 1 has the layers and the first 2,048 ids, device 0 the rest, and neither all tokens.
class SharedHeadTest : public StageInboxTest {
 protected:
  static constexpr int64_t kIds = 2 * kVocabRange;

  SharedHeadTest() {
    split_.parts = {{.block = {BlockKind::kAttention, 0}},
                    {.block = {BlockKind::kHead, 0}, .rows = {{TensorRole::kOutput, 0, kIds}}},
                    {.block = {BlockKind::kHead, 0}, .rows = {{TensorRole::kOutput, kIds, kIds + 52}}}};
    split_.stages = {{.device = 1, .lo = 0, .hi = 2}, {.device = 0, .lo = 2, .hi = 3}};
  }

  StageInbox Last() const { return {split_, 0, {.vocab_size = kIds + 52, .row_bytes = kRowBytes, .microbatches = 2}}; }
  ActivationMessage Partial(int64_t step, int64_t rows, const std::vector<int64_t>& used, int64_t ids = kIds) const {
    const std::vector<float> logits(used.size() * kIds, 1.0f);
    ActivationMessage message = Hidden(step, 0, 0, rows);
    message.header.payload = Payload::kHeadPartial;
    message.payload = HeadPartialEncoder().Encode(logits, kIds, ids, used, message.payload);
    message.header.bytes = std::ssize(message.payload);
    return message;
  }

  Plan split_ = TwoDevices();
};

TEST_F(SharedHeadTest, LogitsComeWithTheRowsThatAskForThem) {
  StageInbox inbox = Last();
  EXPECT_TRUE(inbox.OnActivation(Partial(1, 3, {INT64_MAX})).ok());  // nobody knows its rows yet
  inbox.BeginStep({Rows(0, 0, 3), {}});
  EXPECT_THAT(Says(inbox.OnActivation(Hidden(0, 0, 0, 3))), HasSubstr("this device expects no"));
  EXPECT_THAT(Says(inbox.OnActivation(Partial(0, 2, {1}))), HasSubstr("16 bytes arrived for 3 rows"));
  EXPECT_THAT(Says(inbox.OnActivation(Partial(0, 3, {}))), HasSubstr("logits of 0 rows arrived, but 1 rows need logits"));
  EXPECT_THAT(Says(inbox.OnActivation(Partial(0, 3, {1, 1}))), HasSubstr("logits of 2 rows arrived, but 1 rows need logits"));
  EXPECT_THAT(Says(inbox.OnActivation(Partial(0, 3, {1, 1, 1}))), HasSubstr("the limit is 2"));
  EXPECT_THAT(Says(inbox.OnActivation(Partial(0, 0, {1}, 8))), HasSubstr("early"));
  ActivationMessage none = Partial(0, 0, {});
  none.header.microbatch = 1;  // has no rows, so nothing is said of it
  EXPECT_THAT(Says(inbox.OnActivation(none)), HasSubstr("4 bytes arrived for 0 rows"));
  EXPECT_EQ(*inbox.OnActivation(Partial(0, 3, {INT64_MAX})), Visit(1, 0));
  EXPECT_EQ(inbox.PopInput({1, 0}).size(), 4 + 4 + 4 * kIds + 3 * kRowBytes);
  inbox.EndStep();
  EXPECT_THAT(inbox.BeginStep({Rows(0, 0, 3)}), ElementsAre(Visit(1, 0)));
}

TEST_F(SharedHeadTest, WhatWaitsIsBoundedAndCountsOnBothSides) {
  const Bytes allowed = StageInbox::WaitingBytes(split_, 0, kRowBytes);
  EXPECT_EQ(StageInbox::WaitingBytes(split_, 1, kRowBytes), allowed);
  EXPECT_GT(allowed, StageInbox::WaitingBytes(plan_, 0, kRowBytes) + 4 * kIds * (split_.sequences + 3 * split_.batch));
  StageInbox inbox = Last();
  Bytes waiting = 0;
  absl::Status status;
  for (int64_t step = 0; step < 6 && status.ok(); ++step) {
    for (int32_t microbatch = 0; microbatch < 2 && status.ok(); ++microbatch) {
      ActivationMessage message = Partial(step, 4, {INT64_MAX, INT64_MAX});
      message.header.microbatch = microbatch;
      const Bytes bytes = message.header.bytes;
      status = inbox.OnActivation(std::move(message)).status();
      waiting += status.ok() ? bytes : 0;
    }
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_LE(waiting, allowed);
}

TEST_F(StageInboxTest, TheMemoryOfUsedPayloadsServesSentOnesAndMakesWayForNewOnes) {
  StageInbox inbox = Inbox(1);
  const Bytes allowed = StageInbox::WaitingBytes(plan_, 1, kRowBytes);
  const auto of_a_step = static_cast<size_t>(plan_.batch * kRowBytes);
  std::vector<std::byte> memory = inbox.PopSpare(kRowBytes);
  EXPECT_TRUE(memory.empty());
  EXPECT_EQ(memory.capacity(), of_a_step) << "all payloads of decode steps have room for the largest one";
  const std::byte* const used = memory.data();
  inbox.AddSpare(std::move(memory));
  memory = inbox.PopSpare(kRowBytes);
  EXPECT_TRUE(memory.empty());
  EXPECT_EQ(memory.data(), used);
  inbox.AddSpare(std::move(memory));
  EXPECT_GE(inbox.PopSpare(allowed).capacity(), static_cast<size_t>(allowed)) << "of a prompt";
  inbox.AddSpare(std::vector<std::byte>(static_cast<size_t>(allowed)));
  EXPECT_EQ(inbox.PopSpare(kRowBytes).data(), used) << "memory of a prompt is not kept";
  // Full of what has come, it keeps no memory beside.
  inbox.AddSpare(inbox.PopSpare(kRowBytes));
  for (int64_t step = 0; step < 6; ++step) {
    for (const int32_t stage : {0, 2}) (void)inbox.OnActivation(Hidden(step, stage, 0, 4));
  }
  std::vector<std::byte> mine(of_a_step);
  const std::byte* const refused = mine.data();
  inbox.AddSpare(std::move(mine));
  const std::vector<std::byte> next(of_a_step);  // may get what was freed
  EXPECT_NE(inbox.PopSpare(kRowBytes).data(), refused) << "there is no room beside what has come";
}

// ---- Tokens

TEST_F(StageInboxTest, AMicroBatchWaitsForItsTokensInTurn) {
  StageInbox inbox = Inbox(0);
  inbox.Admit({.sequence = 0});
  inbox.Admit({.sequence = 1});
  inbox.BeginStep({Rows(0, 0), Rows(1, 0)});
  EXPECT_EQ(inbox.NextWithTokens(), 0);
  EXPECT_EQ(inbox.NextWithTokens(), 1);
  EXPECT_EQ(inbox.NextWithTokens(), std::nullopt);
  inbox.EndStep();
  inbox.BeginStep({Rows(0, 1, 1, kSampledToken), Rows(1, 1, 1, kSampledToken)});
  EXPECT_EQ(*inbox.OnActivation(Tokens(0, {{.sequence = 1, .position = 1, .token = 8}})), std::nullopt);
  EXPECT_EQ(inbox.NextWithTokens(), std::nullopt);  // the first one's is not known
  EXPECT_TRUE(inbox.OnActivation(Tokens(0, {{.sequence = 0, .position = 1, .token = 7}})).ok());
  EXPECT_EQ(inbox.NextWithTokens(), 0);
  EXPECT_EQ(inbox.NextWithTokens(), 1);
  EXPECT_EQ(inbox.batch(0).rows[0].token, 7);
  EXPECT_EQ(inbox.batch(1).rows[0].token, 8);
}

TEST_F(StageInboxTest, TokensComeOnceEachAndOfSequencesThatAreThere) {
  StageInbox inbox = Inbox(0);
  inbox.Admit({.sequence = 0});
  EXPECT_THAT(Says(inbox.OnActivation(Tokens(0, {{0, 1, 7}}))), HasSubstr("that step has not begun"));
  inbox.BeginStep({Rows(0, 0)});
  EXPECT_THAT(Says(inbox.OnActivation(Tokens(0, {{4, 1, 7}}))), HasSubstr("sequence slot 4"));
  EXPECT_THAT(Says(inbox.OnActivation(Tokens(0, {{0, 1, kVocab}}))), HasSubstr("outside the vocabulary"));
  EXPECT_THAT(Says(inbox.OnActivation(Tokens(0, {{0, 1, 7}, {0, 1, 8}}))), HasSubstr("but it already has the token at position 1"));
  EXPECT_TRUE(inbox.OnActivation(Tokens(0, {{0, 1, 7}})).ok());
  EXPECT_THAT(Says(inbox.OnActivation(Tokens(0, {{0, 1, 7}}))), HasSubstr("but it already has the token at position 1"));
  EXPECT_THAT(Says(Inbox(1).OnActivation(Tokens(0, {{0, 1, 7}}))), HasSubstr("this device expects no"));
}

TEST_F(StageInboxTest, TokensBehindThePositionOfARollbackCountNoMore) {
  StageInbox inbox = Inbox(0);
  inbox.Admit({.sequence = 0});
  inbox.BeginStep({Rows(0, 0)});
  EXPECT_TRUE(inbox.OnActivation(Tokens(0, {{0, 1, 7}})).ok());
  inbox.EndStep();
  inbox.BeginStep({Rows(0, 1, 1, kSampledToken)});
  inbox.EndStep();
  inbox.RollBack({.sequence = 0, .positions = 1});
  inbox.BeginStep({Rows(0, 1, 1, kSampledToken)});
  EXPECT_EQ(inbox.NextWithTokens(), 0);
  EXPECT_EQ(inbox.batch(0).rows[0].token, 7) << "it was sampled before the row";
  inbox.EndStep();
  inbox.BeginStep({Rows(0, 2, 1, kSampledToken)});
  EXPECT_TRUE(inbox.OnActivation(Tokens(1, {{0, 2, 8}})).ok());
  EXPECT_EQ(inbox.NextWithTokens(), std::nullopt) << "of the row that was taken back";
  EXPECT_TRUE(inbox.OnActivation(Tokens(2, {{0, 2, 9}})).ok());
  EXPECT_EQ(inbox.NextWithTokens(), 0);
  EXPECT_EQ(inbox.batch(0).rows[0].token, 9);
}

TEST_F(StageInboxTest, OnlyASequenceWhoseKvIsInMemoryGoesBack) {
  const auto says = [](const Plan& plan, const RollbackOrder& back) {
    StageInbox inbox(plan, 0, {.vocab_size = kVocab, .row_bytes = kRowBytes, .microbatches = 2});
    return Says(inbox.AddOrder({.number = 0, .what = back}));
  };
  EXPECT_EQ(says(plan_, {.sequence = 3, .positions = 63}), "");
  EXPECT_THAT(says(plan_, {.sequence = 4, .positions = 1}), HasSubstr("no sequence slot 4"));
  EXPECT_THAT(says(plan_, {.sequence = 0, .positions = 0}), HasSubstr("back to 0 positions, the plan allows 1 to 63"));
  EXPECT_THAT(says(plan_, {.sequence = 0, .positions = 64}), HasSubstr("back to 64 positions"));
  EXPECT_THAT(says(plan_, {.sequence = 0, .positions = 9, .snapshot = 0}), HasSubstr("the plan has 0 for each slot"));
  Plan spills = plan_;
  spills.devices[0].max_layer_pages = 100;
  EXPECT_THAT(says(spills, {.sequence = 0, .positions = 9}), HasSubstr("moves it to a disk or a host"));
  Plan evicts = plan_;
  evicts.retained_positions = 32;
  EXPECT_THAT(says(evicts, {.sequence = 0, .positions = 9}), HasSubstr("the plan evicts KV"));
}

// What is evicted goes ahead of a sequence's rows, with the tokens that the first device has seen.
TEST(StageInboxEvictionTest, WhatIsEvictedComesAlongAndItsTokensAreKnown) {
  Plan plan = TwoDevices();
  plan.retained_positions = 32;
  StageInbox first(plan, 0, {.vocab_size = kVocab, .row_bytes = kRowBytes, .microbatches = 2}),
      second(plan, 1, {.vocab_size = kVocab, .row_bytes = kRowBytes, .microbatches = 2});
  AdmitOrder admit{.sequence = 0, .positions = 64};
  for (int32_t i = 0; i < 31; ++i) admit.prompt.push_back(i);
  for (StageInbox* inbox : {&first, &second}) {
    inbox->Admit(admit);
    for (int32_t position = 31; position < 34; ++position) {
      const MicroBatch batch{{{.sequence = 0, .token = kSampledToken, .position = position, .wants_logits = true}}};
      inbox->BeginStep({batch});
      const std::vector<SampledToken> sampled = {{0, position + 1, 50 + position}};
      EXPECT_EQ(inbox->WholeBatch(0).rows.size(), position < 32 ? 1u : 17u);
      if (inbox == &second) {
        const int64_t rows = position < 32 ? 1 : 17;
        for (const int64_t wrong : {rows - 1, rows + 1}) {
          ActivationMessage message{.header = {.epoch = plan.epoch, .step = position - 31, .stage = 0, .bytes = wrong * kRowBytes},
                                    .payload = std::vector<std::byte>(static_cast<size_t>(wrong * kRowBytes))};
          EXPECT_THAT(std::string(inbox->OnActivation(std::move(message)).status().message()), HasSubstr(absl::StrCat(rows, " rows")));
        }
        ActivationMessage message{.header = {.epoch = plan.epoch, .step = position - 31, .stage = 0, .bytes = rows * kRowBytes},
                                  .payload = std::vector<std::byte>(static_cast<size_t>(rows * kRowBytes))};
        EXPECT_TRUE(inbox->OnActivation(std::move(message)).ok());
      }
      inbox->OnTokens(position - 31, sampled);
      inbox->EndStep();
    }
  }
  first.BeginStep({MicroBatch{{{.sequence = 0, .token = 9, .position = 63}}}});
  const MicroBatch whole = first.WholeBatch(0);
  ASSERT_EQ(whole.rows.size(), 33u);
  EXPECT_EQ(whole.rows[30].token, 30);
  EXPECT_EQ(whole.rows[31].token, 0) << "nobody told position 31's";
  EXPECT_EQ(whole.rows[32].token, 9);
}

TEST_F(StageInboxTest, TokensOfTheSequenceBeforeAreNotUsed) {
  StageInbox inbox = Inbox(0);
  inbox.Admit({.sequence = 0});
  inbox.BeginStep({Rows(0, 0)});
  inbox.EndStep();
  inbox.Admit({.sequence = 0});  // another one in the same slot
  inbox.BeginStep({Rows(0, 1, 1, kSampledToken)});
  EXPECT_TRUE(inbox.OnActivation(Tokens(0, {{0, 1, 7}})).ok());
  EXPECT_EQ(inbox.NextWithTokens(), std::nullopt);
  EXPECT_TRUE(inbox.OnActivation(Tokens(1, {{0, 1, 9}})).ok());
  EXPECT_EQ(inbox.NextWithTokens(), 0);
  EXPECT_EQ(inbox.batch(0).rows[0].token, 9);
}

// A peer that repeats, shuffles and invents: every visit of every step is announced once, with the
// bytes that were sent for it first.
TEST_F(StageInboxTest, APeerThatRepeatsAndInventsIsHeardOncePerVisit) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const auto below = [&](uint64_t n) { return static_cast<int32_t>(random() % n); };
    StageInbox inbox = Inbox(1);
    for (int64_t step = 0; step < 20; ++step) {
      std::set<Visit> announced;
      const auto announce = [&](const Visit& visit) { EXPECT_TRUE(announced.insert(visit).second); };
      const int32_t microbatches = 1 + below(2);
      for (const Visit& visit : inbox.BeginStep(std::vector<MicroBatch>(static_cast<size_t>(microbatches), Rows(0, 0)))) announce(visit);
      while (std::ssize(announced) < 2 * microbatches) {
        ActivationMessage message = Hidden(step + below(3) - 1, below(4), below(3), 1 + below(8) / 7);
        if (below(10) == 0) message.header.epoch += below(3) - 1;
        if (below(10) == 0) message.header.payload = Payload::kToken;
        const absl::StatusOr<std::optional<Visit>> visit = inbox.OnActivation(std::move(message));
        if (visit.ok() && *visit) announce(**visit);
        if (below(4) == 0 && !announced.empty()) inbox.PopInput(*announced.begin());
      }
      for (const Visit& visit : announced) {
        const std::vector<std::byte> input = inbox.PopInput(visit);
        if (!input.empty()) {
          EXPECT_EQ(input[0], std::byte{static_cast<uint8_t>(visit.first - 1)});
        }
      }
      inbox.EndStep();
    }
  }
}

}  // namespace
}  // namespace lime
