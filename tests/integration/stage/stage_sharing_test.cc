// Sequences that begin with KV of others have the bits of sequences that compute it: random plans
// by seed, with KV in memory, on disks, and pages that come as sequences grow.

#include "daemon/engine/stage_engine.h"
#include "daemon/weights/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/plan/cluster_plan_json.h"
#include "planner/plan/kv_spill.h"
#include "tests/cases.h"
#include "tests/integration/stage/spilling_plans.h"

namespace lime {
namespace {

// A prompt; the next turn, which begins with the prompt and its answer; and another prompt, which
// begins like both.
struct Chat {
  Reference first, turn, fork;
  int64_t kept = 0;    // positions of `first` in whole units
  int64_t shared = 0;  // of `fork` with both, in whole units
};

Chat ChatOf(const std::string& dir, int length, int64_t unit, int64_t context) {
  const auto join = [](std::vector<int32_t> ids, const std::vector<int32_t>& more) {
    ids.insert(ids.end(), more.begin(), more.end());
    return ids;
  };
  Chat chat{.first = Alone(dir, RandomIds(1, length, 200), kNewTokens, context)};
  chat.kept = (length + kNewTokens - 1) / unit * unit, chat.shared = chat.kept - unit;
  const std::vector<int32_t> all = join(join(chat.first.prompt, chat.first.tokens), RandomIds(2, 9, 200));
  chat.turn = Alone(dir, all, kNewTokens, context);
  chat.fork = Alone(dir, join({all.begin(), all.begin() + chat.shared + 3}, RandomIds(3, 8, 200)), kNewTokens, context);
  return chat;
}

// The tokens of slot s that are not those of `before` earlier sequences.
void ExpectAnswer(StageCluster& cluster, int32_t s, size_t before, const Reference& reference) {
  const std::vector<int32_t> tokens = cluster.Await(s, (before + 1) * kNewTokens);
  EXPECT_EQ(std::vector(tokens.end() - kNewTokens, tokens.end()), reference.tokens) << "slot " << s;
  EXPECT_EQ(cluster.sampler().hash(s), reference.hash) << "slot " << s;
}

void OrderTokens(StageCluster& cluster, const Plan& plan, const std::vector<Reference>& requests) {
  for (int token = 0; token + 1 < kNewTokens; ++token) OrderToken(cluster, plan, requests, token);
}

void Generate(const std::string& dir, const Plan& plan, const Chat& chat, uint64_t seed) {
  StageCluster cluster(dir, plan, seed, 1 + static_cast<int>(seed % 2));
  ASSERT_TRUE(cluster.ok());
  OrderPrompt(cluster, plan, 0, chat.first, plan.context);
  OrderTokens(cluster, plan, {chat.first});
  ExpectAnswer(cluster, 0, 0, chat.first);
  // The next turn continues in the slot. The other prompt gets a copy from the running sequence.
  cluster.SendOrder(RetireOrder{.sequence = 0, .kept = chat.kept});
  OrderPrompt(cluster, plan, 0, chat.turn, plan.context, {.computed = chat.kept});
  const bool copies = CopiesKv(plan) && plan.sequences > 1;
  if (copies) OrderPrompt(cluster, plan, 1, chat.fork, plan.context, {.computed = chat.shared, .source = 0});
  OrderTokens(cluster, plan, copies ? std::vector{chat.turn, chat.fork} : std::vector{chat.turn});
  ExpectAnswer(cluster, 0, 1, chat.turn);
  if (copies) ExpectAnswer(cluster, 1, 0, chat.fork);
  // The other prompt takes the slot itself: it has more than the prompt can use.
  cluster.SendOrder(RetireOrder{.sequence = 0, .kept = chat.kept});
  OrderPrompt(cluster, plan, 0, chat.fork, plan.context, {.computed = chat.shared});
  OrderTokens(cluster, plan, {chat.fork});
  ExpectAnswer(cluster, 0, 2, chat.fork);
  // A slot that is freed has nothing of it.
  cluster.SendOrder(RetireOrder{.sequence = 0, .kept = chat.shared});
  cluster.SendOrder(RetireOrder{.sequence = 0});
  OrderPrompt(cluster, plan, 0, chat.first, plan.context);
  OrderTokens(cluster, plan, {chat.first});
  ExpectAnswer(cluster, 0, 3, chat.first);
  EXPECT_TRUE(cluster.status().ok()) << cluster.status();
}

class StageSharingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    MakeModelOptions options;
    options.config.max_positions = 2 * kLongContext;
    ASSERT_TRUE(MakeModel(options, dir_ / "model").ok());
    const auto spec = Checkpoint::Open(dir_ / "model")->BuildModelSpec();
    ASSERT_TRUE(spec.ok()) << spec.status();
    spec_ = *spec;
  }

  TempDir dir_;
  ModelSpec spec_;
};

TEST_F(StageSharingTest, PagesInMemoryAreSharedAndCopied) {
  const Chat chat = ChatOf(dir_ / "model", 40, kPageTokens, kContext);
  for (uint64_t seed = 1; seed <= static_cast<uint64_t>(Cases(24, 200)); ++seed) {
    const Plan plan = RandomPlan(spec_, seed).Draw();
    SCOPED_TRACE(absl::StrCat("seed ", seed, "\n", ToJsonText(plan)));
    ASSERT_NO_FATAL_FAILURE(Generate(dir_ / "model", plan, chat, seed));
    if (HasFailure()) return;
  }
}

// Layers with linear attention begin with snapshots of their states.
TEST(StageSharingStateTest, StatesBeginAtSnapshots) {
  TempDir dir;
  MakeModelOptions options = OptionsOf({.name = "qwen3_5_bf16", .family = "qwen3_5", .quantization = std::nullopt});
  ASSERT_TRUE(MakeModel(options, dir / "model").ok());
  const auto spec = LoadModelSpec(dir / "model");
  ASSERT_TRUE(spec.ok()) << spec.status();
  const Chat chat = ChatOf(dir / "model", 40, kPageTokens, kContext);
  for (uint64_t seed = 1; seed <= static_cast<uint64_t>(Cases(12, 100)); ++seed) {
    const Plan plan = RandomPlan(*spec, seed, {.state_snapshots = 1 + kContext / kPageTokens}).Draw();
    SCOPED_TRACE(absl::StrCat("seed ", seed, "\n", ToJsonText(plan)));
    ASSERT_NO_FATAL_FAILURE(Generate(dir / "model", plan, chat, seed));
    if (HasFailure()) return;
  }
}

// With pages for nearly all positions, so that they come as sequences grow.
TEST_F(StageSharingTest, PagesAreCopiedWhileKvGrows) {
  const Chat chat = ChatOf(dir_ / "model", 40, kPageTokens, kContext);
  for (uint64_t seed = 1; seed <= static_cast<uint64_t>(Cases(12, 100)); ++seed) {
    const Plan all = Elastic(RandomPlan(spec_, seed).Draw());
    if (all.sequences == 1) continue;
    const absl::StatusOr<Plan> plan = WithResidency(all, {.layer_pages = FullLayerPages(all) - 1, .streamed = ResidencyOf(all).streamed});
    ASSERT_TRUE(plan.ok()) << plan.status();
    SCOPED_TRACE(absl::StrCat("seed ", seed, "\n", ToJsonText(*plan)));
    ASSERT_NO_FATAL_FAILURE(Generate(dir_ / "model", *plan, chat, seed));
    if (HasFailure()) return;
  }
}

TEST_F(StageSharingTest, PiecesOnADiskStayTheSlots) {
  const Chat chat = ChatOf(dir_ / "model", 800, kKvPiece, kLongContext);
  int tried = 0;
  for (uint64_t seed = 1; tried < Cases(8, 40); ++seed) {
    const Plan spilling = Spilling(spec_, seed);
    if (SharedKvUnit(spilling) != kKvPiece) continue;
    Draws draws(spilling, seed);
    const absl::StatusOr<Plan> plan = WithResidency(spilling, draws.Draw(FullLayerPages(spilling)));
    ASSERT_TRUE(plan.ok()) << plan.status();
    SCOPED_TRACE(absl::StrCat("seed ", seed, "\n", ToJsonText(*plan)));
    ASSERT_NO_FATAL_FAILURE(Generate(dir_ / "model", *plan, chat, seed));
    if (HasFailure()) return;
    ++tried;
  }
}

// Layers with a window give pages back: a sequence begins with KV of a slot only close behind its
// newest position. The pages of the full layers are copied and kept as ever.
TEST(StageSharingWindowTest, BehindAWindowTheEndOfASequenceIsShared) {
  for (const std::string family : {"gemma3", "gpt_oss"}) {
    MakeModelOptions options = OptionsOf({.name = family, .family = family, .quantization = std::nullopt, .window = 50});
    options.config.max_positions = 2 * kLongContext;
    TempDir dir;
    ASSERT_TRUE(MakeModel(options, dir / "model").ok());
    const auto spec = LoadModelSpec(dir / "model");
    ASSERT_TRUE(spec.ok()) << spec.status();
    const Chat chat = ChatOf(dir / "model", 600, kPageTokens, kLongContext);
    for (uint64_t seed = 1; seed <= static_cast<uint64_t>(Cases(8, 60)); ++seed) {
      const Plan plan = RandomPlan(*spec, seed, {.context = kLongContext, .prompt = 200, .most_chunk = 90}).Draw();
      ASSERT_GT(WindowOf(plan).positions, 0);
      SCOPED_TRACE(absl::StrCat(family, ", seed ", seed, "\n", ToJsonText(plan)));
      ASSERT_NO_FATAL_FAILURE(Generate(dir / "model", plan, chat, seed));
      if (HasFailure()) return;
    }
  }
}

// A prompt begins with a snapshot where the windows of the request before it have long passed: in a
// copy, and in the slot itself.
TEST(StageSharingWindowTest, BehindAWindowASequenceBeginsAtASnapshot) {
  for (const std::string family : {"gemma3", "gpt_oss"}) {
    MakeModelOptions options = OptionsOf({.name = family, .family = family, .quantization = std::nullopt, .window = 50});
    options.config.max_positions = 2 * kLongContext;
    TempDir dir;
    ASSERT_TRUE(MakeModel(options, dir / "model").ok());
    const auto spec = LoadModelSpec(dir / "model");
    ASSERT_TRUE(spec.ok()) << spec.status();
    constexpr int64_t kShared = 160;  // its snapshot is taken again at 416 positions
    const Reference first = Alone(dir / "model", RandomIds(1, 400, 200), kNewTokens, kLongContext);
    std::vector<int32_t> fork(first.prompt.begin(), first.prompt.begin() + kShared + 3);
    for (const int32_t id : RandomIds(3, 200, 200)) fork.push_back(id);
    const Reference other = Alone(dir / "model", fork, kNewTokens, kLongContext);
    for (uint64_t seed = 1; seed <= static_cast<uint64_t>(Cases(6, 40)); ++seed) {
      const RandomPlan::Shape shape{.context = kLongContext, .prompt = 200, .most_chunk = 90, .state_snapshots = kMaxStateSnapshots};
      const Plan plan = RandomPlan(*spec, seed, shape).Draw();
      SCOPED_TRACE(absl::StrCat(family, ", seed ", seed, "\n", ToJsonText(plan)));
      ASSERT_GT(WindowOf(plan).LeastSharedAt(std::ssize(first.prompt)), kShared);
      StageCluster cluster(dir / "model", plan, seed, 1 + static_cast<int>(seed % 2));
      ASSERT_TRUE(cluster.ok());
      OrderPrompt(cluster, plan, 0, first, plan.context);
      const bool copies = plan.sequences > 1;
      if (copies) OrderPrompt(cluster, plan, 1, other, plan.context, {.computed = kShared, .source = 0});
      OrderTokens(cluster, plan, copies ? std::vector{first, other} : std::vector{first});
      ExpectAnswer(cluster, 0, 0, first);
      if (copies) ExpectAnswer(cluster, 1, 0, other);
      cluster.SendOrder(RetireOrder{.sequence = 0, .kept = 400});
      OrderPrompt(cluster, plan, 0, other, plan.context, {.computed = kShared});
      OrderTokens(cluster, plan, {other});
      ExpectAnswer(cluster, 0, 1, other);
      EXPECT_TRUE(cluster.status().ok()) << cluster.status();
      if (HasFailure()) return;
    }
  }
}

TEST_F(StageSharingTest, KvThatIsNotThereEndsThePlan) {
  const auto says = [this](const AdmitOrder& admit) {
    Plan plan;
    for (uint64_t seed = 1; plan.sequences < 2; ++seed) plan = RandomPlan(spec_, seed).Draw();
    StageCluster cluster(dir_ / "model", plan, 1);
    EXPECT_TRUE(cluster.ok());
    (void)cluster.engine(plan.stages.front().device).OnOrder({0, admit});
    return std::string(cluster.status().message());
  };
  const std::vector<int32_t> prompt(40, 1);
  EXPECT_THAT(says({.sequence = 0, .positions = 50, .prompt = prompt, .computed = 16}), ::testing::HasSubstr("but it has 0"));
  EXPECT_THAT(says({.sequence = 0, .positions = 50, .prompt = prompt, .computed = 16, .source = 1}),
              ::testing::HasSubstr("of slot 1, which cannot be copied"));
}

}  // namespace
}  // namespace lime
