#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "planner/plan/baselines/eviction.h"
#include "planner/plan/cluster_plan_json.h"
#include "planner/plan/model/described_model.h"
#include "tests/planner/random_clusters.h"
#include "tests/planner/small_cluster.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

// Three stages on two devices, a streamed part, a split head.
Plan ThreeStages() {
  Plan plan = {.epoch = 7, .model_key = "key", .model_name = "small", .vocab_size = 3000, .context = 64, .page_bytes = 1000};
  plan.embedding_bytes = 500, plan.embedding_pinned_bytes = 20;
  const auto rows = [](TensorRole role, int64_t begin, int64_t end) { return std::vector<MatrixRows>{{role, begin, end}}; };
  plan.parts = {{.block = {BlockKind::kAttention, 0}, .rows = rows(TensorRole::kQ, 0, 8), .bytes = 100, .pinned_bytes = 3, .kv_pages = 4},
                {.block = {BlockKind::kMlp, 0}, .rows = rows(TensorRole::kUp, 0, 64), .bytes = 200, .pinned_bytes = 3},
                {.block = {BlockKind::kMlp, 0}, .rows = rows(TensorRole::kUp, 64, 100), .bytes = 90, .streamed = true},
                {.block = {BlockKind::kHead, 0}, .rows = rows(TensorRole::kOutput, 0, 2048), .bytes = 300, .pinned_bytes = 3},
                {.block = {BlockKind::kHead, 0}, .rows = rows(TensorRole::kOutput, 2048, 3000), .bytes = 150, .pinned_bytes = 3}};
  plan.stages = {{0, 0, 3}, {1, 3, 4}, {0, 4, 5}};
  plan.devices = {{.name = "a", .kv_pages = 4, .disk_mb_per_ms = 1}, {.name = "b"}};
  plan.devices[0].memory = {.runtime = 10, .activations = 20, .kv = 4000, .ring = 90, .weights = 459, .embedding = 520, .margin = 1};
  plan.devices[1].memory = {.runtime = 10, .activations = 20, .weights = 303};
  for (PlanDevice& device : plan.devices) device.budget = device.memory.total();
  plan.devices[0].least_margin = 1;
  return plan;
}

// The same, all of whose head is on the first device, where the embedding is the same tensor.
Plan TiedPlan() {
  Plan plan = ThreeStages();
  plan.embedding = EmbeddingPlacement::kWithHead;
  plan.stages = {{0, 0, 5}};
  plan.devices[0].memory.weights += 303, plan.devices[0].memory.embedding = 20;
  plan.devices[1].memory = {.runtime = 10, .activations = 20};
  for (PlanDevice& device : plan.devices) device.budget = device.memory.total();
  return plan;
}

struct Wrong {
  const char* what;
  std::function<void(Plan&)> make;
  const char* says;
};

TEST(ClusterPlanTest, AnEmbeddingIsWithTheHeadWhereAllOfThatStaysOnTheFirstDevice) {
  ASSERT_TRUE(TiedPlan().Validate().ok()) << TiedPlan().Validate().message();
  const absl::StatusOr<Plan> parsed = ParsePlan(ToJsonText(TiedPlan()), "plan");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(*parsed, TiedPlan());
  const Wrong wrongs[] = {
      {"a head that streams", [](Plan& p) { p.parts[4].streamed = true; },
       "the embedding is with the head, but parts[4] of the head streams"},
      {"a head elsewhere",
       [](Plan& p) {
         p.stages = {{0, 0, 3}, {1, 3, 5}};
       },
       "parts[4] of the head is on another device"},
      {"KV that grows", [](Plan& p) { p.parts[0].kv_pages = 3; }, "as KV grows"},
      {"memory of its own", [](Plan& p) { p.devices[0].memory.embedding = 520; }, "devices[0].memory.embedding\" = 520 is not 20"},
  };
  for (const Wrong& wrong : wrongs) {
    Plan plan = TiedPlan();
    wrong.make(plan);
    EXPECT_THAT(std::string(plan.Validate().message()), HasSubstr(wrong.says)) << wrong.what;
  }
}

TEST(ClusterPlanTest, ValidateNamesTheFirstThingWrong) {
  ASSERT_TRUE(ThreeStages().Validate().ok()) << ThreeStages().Validate().message();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Wrong wrongs[] = {
      {"a gap", [](Plan& p) { p.stages[1].lo = 4; }, "stages[1].lo\" = 4 leaves a gap"},
      {"an end", [](Plan& p) { p.stages.pop_back(); }, "ends at part 4 of 5"},
      {"neighbours", [](Plan& p) { p.stages[1].device = 0; }, "stages[1] is on the device of the stage before"},
      {"a cut block", [](Plan& p) { p.stages[0].hi = p.stages[1].lo = 2; }, "stages[1] begins inside mlp 0"},
      {"no such device", [](Plan& p) { p.stages[2].device = 2; }, "stages[2].device\" = 2 is outside 0 to 1"},
      {"a missing block", [](Plan& p) { p.parts.erase(p.parts.begin()); }, "parts[0] is of mlp 0, which does not follow the embedding"},
      {"layers out of order", [](Plan& p) { p.parts[1].block.layer = 1; }, "parts[1] is of mlp 1"},
      {"no head", [](Plan& p) { p.parts.resize(3), p.stages.resize(1); }, "not of the head"},
      {"a row missing", [](Plan& p) { p.parts[2].rows[0].begin = 65; }, "65 to 100, but rows from 64 on are next"},
      {"an odd cut of the head", [](Plan& p) { p.parts[3].rows[0].end = p.parts[4].rows[0].begin = 2000; }, "not a multiple of 1024"},
      {"a short head", [](Plan& p) { p.parts[4].rows[0].end = 2999; }, "not at the vocabulary's 3000"},
      {"no rows", [](Plan& p) { p.parts[0].rows.clear(); }, "parts[0].rows\" = 0"},
      {"NaN", [&](Plan& p) { p.parts[0].decode_ms = nan; }, "parts[0].decode_ms\" = nan"},
      {"negative bytes", [](Plan& p) { p.parts[0].bytes = -1; }, "parts[0].bytes\" = -1"},
      {"pages of an MLP", [](Plan& p) { p.parts[1].kv_pages = 1; }, "parts[1].kv_pages\" = 1"},
      {"weights", [](Plan& p) { p.devices[0].memory.weights -= 1; },
       "devices[0].memory.weights\" = 458 is not 459, the bytes of its parts that stay"},
      {"a ring too small", [](Plan& p) { p.devices[0].memory.ring -= 1; }, "devices[0].memory.ring\" = 89"},
      {"a budget exceeded", [](Plan& p) { p.devices[1].budget -= 1; }, "devices[1].budget\""},
      {"pages", [](Plan& p) { p.devices[1].kv_pages = 3; }, "devices[1].kv_pages\" = 3 is not 0, the pages of its parts"},
      {"no disk", [](Plan& p) { p.devices[0].disk_mb_per_ms = 0; }, "devices[0] streams, but its disk reads 0 MB/ms"},
      {"a name twice", [](Plan& p) { p.devices[1].name = p.devices[0].name; }, "two devices are named \"a\""},
      {"a host that is not there", [](Plan& p) { p.devices[0].kv_host = 2; }, "devices[0].kv_host\" = 2 is outside -1 to 1"},
      {"a host of its own", [](Plan& p) { p.devices[0].kv_host = 0; }, "devices[0].kv_host is the device itself"},
      {"a host of other kernels", [](Plan& p) { p.devices[0].kv_host = 1, p.devices[1].numerics_id = "other"; },
       "devices[0].kv_host has kernels of order \"other\", but the device has kernels of order \"\""},
      {"what is hosted for nobody", [](Plan& p) { p.devices[1].memory.hosted = 1; }, "devices[1].memory.hosted\" = 1 is not 0"},
      {"sequences", [](Plan& p) { p.sequences = 2; }, "sequences\" = 2"},
      {"no device", [](Plan& p) { p.devices.clear(); }, "devices\" = 0"},
      {"reading again", [](Plan& p) { p.reads_once = false; }, "stages[2] visits its device again"},
      {"a prompt without chunks", [](Plan& p) { p.prompt_tokens = 9; }, "prefill_chunk\" = 0"},
      {"logits of more rows than a micro-batch has", [](Plan& p) { p.logit_rows = static_cast<int32_t>(OwnRows(p)) + 1; },
       "logit_rows\" = "},
      {"logits of many rows where the head is shared", [](Plan& p) { p.logit_rows = 1; }, "logit_rows\" is given, but devices share"},
      {"a state of attention with KV", [](Plan& p) { p.parts[0].state_bytes = 64; }, "parts[0].state_bytes\" = 64 is outside 0 to 0"},
      {"snapshots of no state", [](Plan& p) { p.state_snapshots = 1; }, "state_snapshots\" = 1 is outside 0 to 0"},
      {"a state that no part has", [](Plan& p) { p.devices[0].memory.state = 64; },
       "devices[0].memory.state\" = 64 is not 0, the bytes of the states of its layers"},
      {"pages of linear attention", [](Plan& p) { p.parts[0].block.kind = BlockKind::kLinearAttention; }, "parts[0].kv_pages\" = 4"},
      {"two kinds of attention in a layer",
       [](Plan& p) {
         p.parts.insert(p.parts.begin(), p.parts[0]);
         p.parts[0].block.kind = BlockKind::kLinearAttention, p.parts[0].kv_pages = 0;
       },
       "parts[1] is of attention 0, which does not follow linear_attention 0"},
      {"a prompt beyond the context", [](Plan& p) { p.prompt_tokens = 65, p.prefill_chunk = 5; }, "prompt_tokens\" = 65"},
  };
  for (const Wrong& wrong : wrongs) {
    Plan plan = ThreeStages();
    wrong.make(plan);
    EXPECT_THAT(std::string(plan.Validate().message()), HasSubstr(wrong.says)) << wrong.what;
  }
}

// ThreeStages with experts in place of the MLP: a router, and three experts on demand, two in memory.
Plan DemandPlan() {
  Plan plan = ThreeStages();
  plan.parts[1] = {.block = {BlockKind::kExperts, 0}, .rows = {{TensorRole::kRouter, 0, 3}}, .bytes = 200, .pinned_bytes = 3};
  PlanPart experts = {.block = {BlockKind::kExperts, 0}, .bytes = 90, .unit_bytes = 30, .places = 2};
  for (int32_t e = 0; e < 3; ++e) {
    for (const TensorRole role : {TensorRole::kUp, TensorRole::kDown}) experts.rows.push_back({role, 0, 8, e});
  }
  experts.demand_ms = 1.5, experts.prefill_demand_ms = 7, experts.hit_share = 0.25, experts.chosen_units = 2;
  plan.parts[2] = std::move(experts);
  PlanMemory& memory = plan.devices[0].memory;
  memory.ring = 0, memory.weights += 60;
  plan.devices[0].budget = memory.total();
  return plan;
}

TEST(ClusterPlanTest, AWrongPartOnDemandIsASentence) {
  ASSERT_TRUE(DemandPlan().Validate().ok()) << DemandPlan().Validate().message();
  EXPECT_EQ(MemoryOf(DemandPlan().parts[2]), 60);
  EXPECT_EQ(DemandBytes(DemandPlan().parts[2]), 45);
  const Wrong wrongs[] = {
      {"also streams", [](Plan& p) { p.parts[2].streamed = true; }, "parts[2] is on demand and streams"},
      {"of another kind", [](Plan& p) { p.parts[3].places = 1, p.parts[3].unit_bytes = 1; }, "parts[3] is on demand, but is of head"},
      {"nothing chooses", [](Plan& p) { p.parts[1].places = 1, p.parts[1].unit_bytes = 1; }, "parts[1] is on demand, but"},
      {"no router",
       [](Plan& p) {
         p.parts.erase(p.parts.begin() + 1), p.stages = {{0, 0, 2}, {1, 2, 3}, {0, 3, 4}};
       },
       "no part before it chooses its units"},
      {"rows of no expert", [](Plan& p) { p.parts[2].rows[0].expert = -1; }, "has rows of no expert"},
      {"more places than experts", [](Plan& p) { p.parts[2].places = 4; }, "parts[2].places\" = 4 is outside 1 to 3"},
      {"negative places", [](Plan& p) { p.parts[2].places = -1; }, "parts[2].places\" = -1"},
      {"units of a part that is not on demand", [](Plan& p) { p.parts[2].places = 0; }, "parts[2].unit_bytes\" = 30"},
      {"a unit larger than all", [](Plan& p) { p.parts[2].unit_bytes = 91; }, "parts[2].unit_bytes\" = 91"},
      {"hits", [](Plan& p) { p.parts[2].hit_share = 1.5; }, "parts[2].hit_share = 1.5 is more than 1"},
      {"a policy of a part that is not on demand", [](Plan& p) { p.parts[0].policy = UnitPolicy::kLfu; },
       "parts[0].policy is lfu, but the part is not on demand"},
      {"read-ahead of a part that is not on demand", [](Plan& p) { p.parts[0].ahead_places = 1; },
       "parts[0].ahead_places\" = 1 is outside 0 to 0"},
      {"read-ahead into all places", [](Plan& p) { p.parts[2].ahead_places = static_cast<int32_t>(p.parts[2].places); },
       "parts[2].ahead_places\" = "},
      {"time", [](Plan& p) { p.parts[2].demand_ms = -1; }, "parts[2].demand_ms\" = -1"},
      {"chosen", [](Plan& p) { p.parts[2].chosen_units = -1; }, "parts[2].chosen_units\" = -1"},
      {"memory", [](Plan& p) { p.devices[0].memory.weights -= 60, p.devices[0].budget -= 60; }, "memory.weights"},
      {"no disk", [](Plan& p) { p.devices[0].disk_mb_per_ms = 0; }, "devices[0] loads on demand, but its disk reads 0 MB/ms"},
  };
  for (const Wrong& wrong : wrongs) {
    Plan plan = DemandPlan();
    wrong.make(plan);
    EXPECT_THAT(std::string(plan.Validate().message()), HasSubstr(wrong.says)) << wrong.what;
  }
}

TEST(ClusterPlanTest, WhatIsWrittenIsReadBackTheSame) {
  const Plan plan = ThreeStages();
  const absl::StatusOr<Plan> read = ParsePlan(ToJsonText(plan), "plan.json");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(*read, plan);
}

TEST(ClusterPlanTest, RowsOfEveryMatrixThatStreamsAreReadBack) {
  for (const TensorRole role : {TensorRole::kQDown, TensorRole::kQUp, TensorRole::kKvDown, TensorRole::kLayerGate, TensorRole::kLayerUp}) {
    Plan plan = ThreeStages();
    plan.parts[1].rows[0].role = plan.parts[2].rows[0].role = role;
    const absl::StatusOr<Plan> parsed = ParsePlan(ToJsonText(plan), "plan");
    ASSERT_TRUE(parsed.ok()) << static_cast<int>(role) << ": " << parsed.status().message();
    EXPECT_EQ(*parsed, plan);
  }
}

TEST(ClusterPlanTest, PlacesForUnitsThatAreReadAheadAreWrittenIfThereAreSome) {
  Plan plan = DemandPlan();
  EXPECT_THAT(ToJsonText(plan), ::testing::Not(HasSubstr("ahead_places")));
  ASSERT_GE(plan.parts[2].places, 2);
  plan.parts[2].ahead_places = 1;
  const absl::StatusOr<Plan> read = PlanFromJson(nlohmann::json::parse(ToJsonText(plan)), "p");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, plan);
}

TEST(ClusterPlanTest, APolicyOfUnitsIsNamedUnlessItIsTheUsualOne) {
  Plan plan = DemandPlan();
  EXPECT_THAT(ToJsonText(plan), ::testing::Not(HasSubstr("\"policy\"")));
  plan.parts[2].policy = UnitPolicy::kLeastStale;
  nlohmann::json json = nlohmann::json::parse(ToJsonText(plan));
  EXPECT_EQ(json["parts"][2]["policy"], "least-stale");
  const absl::StatusOr<Plan> read = PlanFromJson(json, "p");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, plan);
  json["parts"][2]["policy"] = "lru";
  EXPECT_EQ(PlanFromJson(json, "p")->parts[2].policy, UnitPolicy::kLru);
  json["parts"][2]["policy"] = "newest";
  EXPECT_THAT(std::string(PlanFromJson(json, "p").status().message()), HasSubstr("\"policy\" is none of lru, lfu and least-stale"));
}

TEST(ClusterPlanTest, TheKindsOfBlocksWithPartsAreNamed) {
  nlohmann::json plan = nlohmann::json::parse(ToJsonText(ThreeStages()));
  plan["parts"][0]["block"] = "embedding";
  EXPECT_THAT(std::string(PlanFromJson(plan, "p").status().message()),
              HasSubstr("field \"block\" is none of attention, mlp, head, linear_attention and experts"));
  plan = nlohmann::json::parse(ToJsonText(ThreeStages()));
  plan["reads"] = "twice";
  EXPECT_THAT(std::string(PlanFromJson(plan, "p").status().message()), HasSubstr("field \"reads\" is neither once nor per_microbatch"));
}

TEST(ClusterPlanTest, EveryFieldThatIsWrongInJsonIsASentence) {
  const nlohmann::json good = nlohmann::json::parse(ToJsonText(ThreeStages()));
  const nlohmann::json values[] = {nullptr, -1, 1e300, "x", nlohmann::json::array(), nlohmann::json::object(), 18446744073709551615u, true};
  int refused = 0;
  const nlohmann::json leaves = good.flatten();
  for (const auto& [pointer, leaf] : leaves.items()) {
    for (const nlohmann::json& value : values) {
      nlohmann::json bad = good;
      bad[nlohmann::json::json_pointer(pointer)] = value;
      const absl::StatusOr<Plan> read = PlanFromJson(bad, "plan.json");
      if (read.ok()) continue;
      ++refused;
      ASSERT_THAT(std::string(read.status().message()), HasSubstr("plan.json")) << pointer;
    }
  }
  EXPECT_GT(refused, 400);
}

TEST(ClusterPlanTest, HostileTextsAreSentences) {
  EXPECT_FALSE(ParsePlan("", "p").ok());
  EXPECT_FALSE(ParsePlan("[]", "p").ok());
  EXPECT_FALSE(ParsePlan(std::string(100'000, '['), "p").ok());
  EXPECT_FALSE(ParsePlan(R"({"version": 2})", "p").ok());
  nlohmann::json many = nlohmann::json::parse(ToJsonText(ThreeStages()));
  const nlohmann::json part = many["parts"][0];
  for (int i = 0; i < kMaxPlanBlocks; ++i) many["parts"].push_back(part);
  EXPECT_THAT(std::string(PlanFromJson(many, "p").status().message()), HasSubstr("more than 65536"));
}

TEST(ClusterPlanTest, APlanIsHeldToItsModel) {
  const ModelSpec spec = SmallModel();
  const std::vector<ClusterDevice> devices = {Board("a", 400 * kMiB)};
  const absl::StatusOr<PlanProblem> problem = MakePlanProblem(spec, devices, {.part_bytes = 4 * kMiB});
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  const absl::StatusOr<Plan> plan = MakePlan(*problem, {.stages = {.stages = {{0, 0, problem->instance.NumBlocks()}}}});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_TRUE(plan->Validate(spec).ok()) << plan->Validate(spec).message();
  Plan other = *plan;
  other.model_key = "other";
  EXPECT_THAT(std::string(other.Validate(spec).message()), HasSubstr("the model is"));
  other = *plan;
  other.parts[1].rows[0].role = TensorRole::kGate;
  EXPECT_THAT(std::string(other.Validate(spec).message()), HasSubstr("not all rows of its"));
  other = *plan;
  other.parts[0].bytes += 4096, other.devices[0].memory.weights += 4096, other.devices[0].memory.margin -= 4096;
  EXPECT_THAT(std::string(other.Validate(spec).message()), HasSubstr("parts[0].bytes"));
  other = *plan;
  other.page_bytes *= 2, other.devices[0].memory.margin -= other.devices[0].memory.kv, other.devices[0].memory.kv *= 2;
  EXPECT_THAT(std::string(other.Validate(spec).message()), HasSubstr("page_bytes"));
}

ModelSpec ModelOfExperts() {
  constexpr char kConfig[] = R"({"model_type": "qwen3_moe", "hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 512, "moe_intermediate_size": 128, "num_experts": 20,
    "num_experts_per_tok": 4, "vocab_size": 4096, "max_position_embeddings": 2048, "mlp_only_layers": [1], "dtype": "bfloat16"})";
  return *DescribeModel(kConfig, "config.json");
}

// An expert has 192 KiB.
TEST(ClusterPlanTest, APlanOfExpertsIsHeldToItsModel) {
  const ModelSpec spec = ModelOfExperts();
  const std::vector<ClusterDevice> devices = {Board("a", 400 * kMiB)};
  for (const auto& [part_bytes, parts_of_block] : {std::pair<Bytes, int>{0, 1}, {kMiB, 5}, {200 * kKiB, 21}, {64 * kKiB, 121}}) {
    const absl::StatusOr<PlanProblem> problem = MakePlanProblem(spec, devices, {.part_bytes = part_bytes});
    ASSERT_TRUE(problem.ok()) << problem.status().message();
    const absl::StatusOr<Plan> plan = MakePlan(*problem, {.stages = {.stages = {{0, 0, problem->instance.NumBlocks()}}}});
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_TRUE(plan->Validate(spec).ok()) << plan->Validate(spec).message();
    EXPECT_EQ(*ParsePlan(ToJsonText(*plan), "plan.json"), *plan);
    const auto [begin, end] = PartsOf(*plan, {BlockKind::kExperts, 2});
    EXPECT_EQ(end - begin, parts_of_block) << part_bytes;
    Plan other = *plan;
    MatrixRows& rows = other.parts[end - 1].rows.back();
    ASSERT_EQ(rows.expert, 19);
    rows.expert = 18;
    EXPECT_FALSE(other.Validate(spec).ok());
  }
}

// ThreeStages with two experts in the place of its MLP.
Plan PlanOfExperts() {
  Plan plan = ThreeStages();
  plan.parts[1].block = plan.parts[2].block = {BlockKind::kExperts, 0};
  plan.parts[1].rows = {{TensorRole::kRouter, 0, 2}};
  plan.parts[2].rows = {{TensorRole::kGate, 0, 64, 0}, {TensorRole::kUp, 0, 64, 0}, {TensorRole::kGate, 0, 64, 1}};
  return plan;
}

TEST(ClusterPlanTest, RowsOfAnExpertHaveItsNumberInJson) {
  const Plan plan = PlanOfExperts();
  ASSERT_TRUE(plan.Validate().ok()) << plan.Validate().message();
  nlohmann::json written = nlohmann::json::parse(ToJsonText(plan));
  EXPECT_EQ(written["parts"][1]["rows"].dump(), R"([["router",0,2]])");
  EXPECT_EQ(written["parts"][2]["rows"].dump(), R"([["gate",0,64,0],["up",0,64,0],["gate",0,64,1]])");
  EXPECT_EQ(*PlanFromJson(written, "p"), plan);
  for (const nlohmann::json& expert : {nlohmann::json(-1), nlohmann::json(1024), nlohmann::json(18446744073709551615u)}) {
    written["parts"][2]["rows"][2][3] = expert;
    EXPECT_THAT(std::string(PlanFromJson(written, "p").status().message()), HasSubstr("which is outside 0 to 1023")) << expert;
  }
  written["parts"][2]["rows"][2][3] = "1";
  EXPECT_THAT(std::string(PlanFromJson(written, "p").status().message()), HasSubstr("or [matrix, begin, end, expert]"));
}

TEST(ClusterPlanTest, OnlyBlocksWithExpertsHaveRowsOfThem) {
  Plan plan = ThreeStages();
  plan.parts[1].rows[0].expert = 0;
  EXPECT_THAT(std::string(plan.Validate().message()), HasSubstr("rows are of expert 0, which mlp 0 cannot have"));
  plan = PlanOfExperts();
  plan.parts[2].rows[2].expert = 1024;
  EXPECT_THAT(std::string(plan.Validate().message()), HasSubstr("rows are of expert 1024, which experts 0 cannot have"));
}

TEST(ClusterPlanTest, NamesOfPartsAndOfTheVocabulary) {
  const Plan plan = ThreeStages();
  EXPECT_EQ(PartName(plan, 0), "attention 0");
  EXPECT_EQ(PartName(plan, 2), "mlp 0 [2/2]");
  EXPECT_EQ(PartName(plan, 4), "head 2048..2999");
  EXPECT_EQ(HeadRange(plan.parts[3]), (MatrixRows{TensorRole::kOutput, 0, 2048}));
  EXPECT_EQ(StageOf(plan, 3), 1);
  EXPECT_EQ(PartsOf(plan, {BlockKind::kMlp, 0}), std::pair(1, 3));
  EXPECT_EQ(PartsOf(plan, {BlockKind::kAttention, 0}), std::pair(0, 1));
  EXPECT_EQ(PartsOf(plan, {BlockKind::kLinearAttention, 0}), std::pair(0, 0));
}

}  // namespace
}  // namespace lime
