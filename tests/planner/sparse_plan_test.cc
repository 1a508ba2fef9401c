// Plans with sparse MLPs: their parts, memory and times, and which of them are refused.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "planner/demand/bundle_layout.h"
#include "planner/one_device.h"
#include "planner/plan/cluster_plan_json.h"
#include "planner/plan/plan_blocks.h"
#include "planner/plan/predictor_parts.h"
#include "planner/plan/sparse_parts.h"
#include "planner/sim/simulator.h"
#include "planner/unit_places.h"
#include "tests/planner/small_cluster.h"

namespace lime {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr int64_t kSparseLayers = 4, kSparseHidden = 1024, kSparseInner = 2816;

// Gated, in bf16: a row of up and a column of down have 2 KiB each.
ModelSpec SparseModel() {
  ModelSpec spec = *DescribeModel(LlamaConfig(kSparseLayers, kSparseHidden, kSparseInner, /*vocab=*/4000), "relu");
  spec.config.activation = Activation::kRelu;
  return spec;
}

PlanRequest SparseRequest(std::vector<int64_t> neuron_rows) {
  return {.context = 200,
          .batches = {1},
          .part_bytes = kMiB,
          .embedding_with_head = true,
          .prompt_tokens = 100,
          .chunks = {64},
          .neuron_rows = std::move(neuron_rows),
          .window_masks = 5};
}

absl::StatusOr<PlanProblem> SparseProblemOf(const ModelSpec& spec, Bytes budget, std::vector<int64_t> neuron_rows) {
  const ClusterDevice device = Board("local", budget, 10e9, 1e9);
  return MakePlanProblem(spec, {&device, 1}, SparseRequest(std::move(neuron_rows)));
}

absl::StatusOr<Plan> SparsePlanWith(const ModelSpec& spec, Bytes budget, std::vector<int64_t> neuron_rows) {
  LIME_ASSIGN_OR_RETURN(const PlanProblem problem, SparseProblemOf(spec, budget, std::move(neuron_rows)));
  return PlanOneDevice(problem, {.rows = 512 * kKiB, .streaming_margin = 256 * kKiB});
}

std::vector<PlanPart> PartsOfMlp(const Plan& plan, int32_t layer) {
  const auto [begin, end] = PartsOf(plan, {BlockKind::kMlp, layer});
  return {plan.parts.begin() + begin, plan.parts.begin() + end};
}

TEST(SparsePlanTest, ASparseMlpIsThePartsOfItsDeciderAndOnePartWithItsOtherRows) {
  const ModelSpec spec = SparseModel();
  const Plan head = SparseProblemOf(spec, 100 * kMiB, {700, 0, 5000})->head;
  for (const int32_t layer : {0, 2}) {
    const std::vector<PlanPart> parts = PartsOfMlp(head, layer);
    ASSERT_GT(parts.size(), 2u) << "the decider has more than a part of 1 MiB";
    int64_t rows = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      EXPECT_FALSE(parts[i].on_demand());
      ASSERT_EQ(parts[i].rows.size(), 1u);
      EXPECT_EQ(parts[i].rows[0].role, TensorRole::kGate);
      EXPECT_EQ(parts[i].rows[0].begin, rows);
      rows = parts[i].rows[0].end;
    }
    EXPECT_EQ(rows, kSparseInner);
    EXPECT_GT(parts.front().pinned_bytes, 0) << "the norm";
    const PlanPart& sparse = parts.back();
    EXPECT_TRUE(sparse.sparse() && sparse.on_demand() && !sparse.has_experts_on_demand());
    EXPECT_EQ(sparse.rows, (std::vector<MatrixRows>{{TensorRole::kUp, 0, kSparseInner}, {TensorRole::kDown, 0, kSparseHidden}}));
    EXPECT_EQ(sparse.window_masks, 5);
    EXPECT_EQ(sparse.places, layer == 0 ? 700 : kSparseInner) << "no more than there are neurons";
    // Records of 6 KiB lie 6 KiB apart. Of some, the row of up and the column of down begin 2 KiB before a
    // multiple of 4 KiB.
    EXPECT_EQ(sparse.unit_bytes, 8 * kKiB);
    EXPECT_EQ(MemoryOf(sparse), sparse.places * 8 * kKiB);
    EXPECT_EQ(MovableBytes(sparse), 0);
    EXPECT_EQ(NeuronsOf(head, PartsOf(head, {BlockKind::kMlp, layer}).second - 1), kSparseInner);
  }
  for (const int32_t layer : {1, 3}) {
    for (const PlanPart& part : PartsOfMlp(head, layer)) EXPECT_FALSE(part.on_demand());
  }
  EXPECT_TRUE(HasSparseParts(head));
  EXPECT_FALSE(HasSparseParts(SparseProblemOf(spec, 100 * kMiB, {})->head));
}

TEST(SparsePlanTest, PiecesAreAllRowsInOrderAndMemoryHasTwoOfTheLargest) {
  const ModelSpec spec = SparseModel();
  const Plan head = SparseProblemOf(spec, 100 * kMiB, {700})->head;
  const PlanPart sparse = PartsOfMlp(head, 0).back();
  const BlockSpec& mlp = spec.block({BlockKind::kMlp, 0});
  std::vector<MatrixRows> joined;
  Bytes largest = 0;
  for (const BlockPart& piece : SparsePieces(mlp, sparse)) {
    ASSERT_EQ(piece.rows.size(), 1u);
    largest = std::max(largest, piece.bytes);
    if (!joined.empty() && joined.back().role == piece.rows[0].role) {
      EXPECT_EQ(piece.rows[0].begin, joined.back().end);
      joined.back().end = piece.rows[0].end;
    } else {
      joined.push_back(piece.rows[0]);
    }
  }
  EXPECT_EQ(joined, sparse.rows);
  EXPECT_LE(largest, kSparsePieceBytes + 64 * kKiB);
  EXPECT_GT(largest, kSparsePieceBytes / 2);
  Plan plan = head;
  plan.stages = {{0, 0, plan.NumParts()}};
  EXPECT_EQ(SparseMemory(spec, plan, 0), 2 * largest + 96 * kSparseInner);
}

TEST(SparsePlanTest, APlanIsValidForItsModelRunsAsPredictedAndSurvivesJson) {
  const ModelSpec spec = SparseModel();
  for (const Bytes budget : {40 * kMiB, 60 * kMiB, 90 * kMiB}) {
    for (const int64_t rows : {1, 300, 1000}) {
      SCOPED_TRACE(absl::StrCat(budget, " ", rows));
      const auto plan = SparsePlanWith(spec, budget, {rows, rows, rows, rows});
      if (absl::IsResourceExhausted(plan.status()) && rows == 1000) continue;
      ASSERT_TRUE(plan.ok()) << plan.status();
      EXPECT_TRUE(plan->Validate(spec).ok()) << plan->Validate(spec);
      EXPECT_EQ(plan->devices[0].memory.total(), budget);
      EXPECT_TRUE(NeedsOf(*plan)[0].demands);
      const PlanPart sparse = PartsOfMlp(*plan, 0).back();
      EXPECT_FALSE(sparse.streamed);
      EXPECT_EQ(sparse.chosen_units, kSparseInner) << "nothing is known of zeros";
      EXPECT_DOUBLE_EQ(sparse.hit_share, static_cast<double>(rows) / kSparseInner);
      EXPECT_GT(sparse.demand_ms, 0);
      EXPECT_GT(sparse.prefill_demand_ms, 0);
      const auto decode = SimulateDecode(*plan), prefill = SimulatePrefill(*plan);
      ASSERT_TRUE(decode.ok() && prefill.ok()) << decode.status() << prefill.status();
      EXPECT_EQ(decode->MsPerStep(), plan->predicted.ms_per_step);
      EXPECT_EQ(prefill->step_ends_ms.back(), plan->predicted.ttft_ms);
      const auto read = ParsePlan(ToJsonText(*plan), "plan.json");
      ASSERT_TRUE(read.ok()) << read.status();
      EXPECT_EQ(*read, *plan);
      EXPECT_EQ(UnitUseOf(*plan).units, 0) << "experts";
    }
  }
}

TEST(SparsePlanTest, MoreRowsAreExpectedToReadLess) {
  const ModelSpec spec = SparseModel();
  double before = 1e9;
  for (const int64_t rows : {100, 400, 1600}) {
    const auto plan = SparsePlanWith(spec, 200 * kMiB, {rows, rows, rows, rows});
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_LT(plan->predicted.ms_per_step, before);
    before = plan->predicted.ms_per_step;
  }
}

TEST(SparsePlanTest, WrongPartsAreRefusedByName) {
  const ModelSpec spec = SparseModel();
  const auto valid = SparsePlanWith(spec, 60 * kMiB, {300, 300, 300, 300});
  ASSERT_TRUE(valid.ok()) << valid.status();
  const auto [begin, end] = PartsOf(*valid, {BlockKind::kMlp, 1});
  const int sparse = end - 1;
  const auto error = [&](const auto& change) {
    Plan plan = *valid;
    change(plan.parts[sparse]);
    return std::string(plan.Validate(spec).message());
  };
  EXPECT_EQ(error([](PlanPart&) {}), "");
  EXPECT_THAT(error([](PlanPart& part) { part.streamed = true; }), HasSubstr("is on demand and streams"));
  EXPECT_THAT(error([](PlanPart& part) { part.host = 0; }), HasSubstr("is sparse and has a host"));
  EXPECT_THAT(error([](PlanPart& part) { part.places = kSparseInner + 1; }), HasSubstr(".places\" = 2817 is outside 1 to 2816"));
  EXPECT_THAT(error([](PlanPart& part) { part.window_masks = kMaxWindowMasks + 1; }), HasSubstr(".window_masks\" = 4097"));
  EXPECT_THAT(error([](PlanPart& part) { part.window_masks = 0; }), HasSubstr("is on demand, but is of mlp 1"));
  EXPECT_THAT(error([](PlanPart& part) { part.places = 0; }), HasSubstr(".window_masks\" = 5 is outside 0 to 0"));
  EXPECT_THAT(error([](PlanPart& part) { part.ahead_places = 1; }), HasSubstr(".ahead_places\" = 1 is outside 0 to 0"));
  EXPECT_THAT(error([](PlanPart& part) { part.unit_bytes = kMaxNeuronBytes + 1; }), HasSubstr(".unit_bytes"));
  const auto other = [&](int part, const auto& change) {
    Plan plan = *valid;
    change(plan.parts[part]);
    return std::string(plan.Validate().message());
  };
  EXPECT_THAT(other(begin, [](PlanPart& part) { part.streamed = false, part.places = part.window_masks = 1, part.unit_bytes = 4096; }),
              HasSubstr("no part before it decides"));
  EXPECT_THAT(other(begin + 1, [](PlanPart& part) { part.streamed = false, part.places = part.window_masks = 1, part.unit_bytes = 4096; }),
              HasSubstr("does not have all rows of mlp 1 behind those of its decider"));
  ModelSpec silu = spec;
  silu.config.activation = Activation::kSilu;
  EXPECT_THAT(std::string(valid->Validate(silu).message()), HasSubstr("have no ReLU"));
}

// Layers 0 and 2 decide with copies.
absl::StatusOr<Plan> CertifiedPlan(const ModelSpec& spec, Bytes budget, int64_t rows) {
  const ClusterDevice device = Board("local", budget, 10e9, 1e9);
  PlanRequest request = SparseRequest({rows, rows, rows, rows});
  request.deciders = {{.bits = 6, .directions = 64}, {}, {.bits = 8, .directions = 32}};
  LIME_ASSIGN_OR_RETURN(const PlanProblem problem, MakePlanProblem(spec, {&device, 1}, request));
  return PlanOneDevice(problem, {.rows = 512 * kKiB, .streaming_margin = 256 * kKiB});
}

TEST(SparsePlanTest, ACertifiedMlpIsOnePartWithWholeRecordsAndACopy) {
  const ModelSpec spec = SparseModel();
  const auto plan = CertifiedPlan(spec, 90 * kMiB, 300);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(plan->Validate(spec).ok()) << plan->Validate(spec);
  for (const int32_t layer : {0, 2}) {
    const std::vector<PlanPart> parts = PartsOfMlp(*plan, layer);
    ASSERT_EQ(parts.size(), 1u);
    EXPECT_TRUE(parts[0].certified());
    EXPECT_EQ(parts[0].rows,
              (std::vector<MatrixRows>{
                  {TensorRole::kGate, 0, kSparseInner}, {TensorRole::kUp, 0, kSparseInner}, {TensorRole::kDown, 0, kSparseHidden}}));
    EXPECT_EQ(parts[0].unit_bytes, LayoutOf(/*gated=*/true, 2 * kSparseHidden)->SlotBytes(0));
    EXPECT_GT(parts[0].pinned_bytes, 0) << "the norm";
    EXPECT_EQ(NeuronsOf(*plan, PartsOf(*plan, {BlockKind::kMlp, layer}).first), kSparseInner);
  }
  EXPECT_FALSE(PartsOfMlp(*plan, 1).back().certified());
  EXPECT_EQ(CopiedDirections(*plan, 0), 64);
  const BlockSpec& mlp = spec.block({BlockKind::kMlp, 0});
  EXPECT_EQ(CopyMemory(mlp, 6, 64), kSparseInner * (kSparseHidden * 6 / 8 + 36 + 64) + kSparseHidden * (4 + 2 * 64));
  EXPECT_EQ(SparseMemory(spec, *plan, std::vector<int>{PartsOf(*plan, {BlockKind::kMlp, 0}).first}) - CopyMemory(mlp, 6, 64),
            2 * LargestPiece(mlp, PartsOfMlp(*plan, 0)[0]) + 96 * kSparseInner);
  const auto decode = SimulateDecode(*plan), prefill = SimulatePrefill(*plan);
  ASSERT_TRUE(decode.ok() && prefill.ok()) << decode.status() << prefill.status();
  EXPECT_EQ(decode->MsPerStep(), plan->predicted.ms_per_step);
  EXPECT_EQ(prefill->step_ends_ms.back(), plan->predicted.ttft_ms);
  const auto read = ParsePlan(ToJsonText(*plan), "plan.json");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, *plan);
}

TEST(SparsePlanTest, WrongCertifiedPartsAreRefusedByName) {
  const ModelSpec spec = SparseModel();
  const auto valid = CertifiedPlan(spec, 90 * kMiB, 300);
  ASSERT_TRUE(valid.ok()) << valid.status();
  const auto error = [&](int32_t layer, const auto& change) {
    Plan plan = *valid;
    change(plan.parts[PartsOf(plan, {BlockKind::kMlp, layer}).second - 1]);
    return std::string(plan.Validate(spec).message());
  };
  EXPECT_EQ(error(0, [](PlanPart&) {}), "");
  EXPECT_THAT(error(0, [](PlanPart& part) { part.decider_bits = 3; }), HasSubstr(".decider_bits\" = 3 is outside 4 to 8"));
  EXPECT_THAT(error(0, [](PlanPart& part) { part.decider_bits = 9; }), HasSubstr(".decider_bits\" = 9"));
  EXPECT_THAT(error(0, [](PlanPart& part) { part.decider_directions = 0; }), HasSubstr(".decider_directions\" = 0 is outside 1 to 4096"));
  EXPECT_THAT(error(0, [](PlanPart& part) { part.decider_bits = 0; }),
              HasSubstr("has decider_directions or active_units, but no decider_bits"));
  EXPECT_THAT(error(0, [](PlanPart& part) { part.decider_bits = part.decider_directions = 0; }), HasSubstr("no part before it decides"));
  EXPECT_THAT(error(0, [](PlanPart& part) { part.unit_bytes -= 4096; }), HasSubstr("the bytes of its parts that stay"));
  EXPECT_THAT(error(0, [](PlanPart& part) { part.places = part.window_masks = 0; }), HasSubstr("but is not sparse"));
  EXPECT_THAT(error(1, [](PlanPart& part) { part.decider_bits = 8, part.decider_directions = 8; }),
              HasSubstr("is not the only part of mlp 1"));
  // Rows of one matrix may be named in pieces.
  Plan pieces = *valid;
  const int first = PartsOf(pieces, {BlockKind::kMlp, 0}).first;
  std::vector<MatrixRows>& rows = pieces.parts[first].rows;
  rows.front().end = 64;
  rows.insert(rows.begin() + 1, {TensorRole::kGate, 64, kSparseInner});
  EXPECT_TRUE(pieces.Validate().ok()) << pieces.Validate();
  EXPECT_EQ(NeuronsOf(pieces, first), kSparseInner);
  const json plan = json::parse(ToJsonText(*valid));
  for (const json& part : plan["parts"]) EXPECT_EQ(part.contains("decider_bits"), part.contains("decider_directions"));
}

// All layers have predictors, and layers 0 and 2 are sparse.
absl::StatusOr<Plan> PredictedPlan(const ModelSpec& spec, Bytes budget) {
  const ClusterDevice device = Board("local", budget, 10e9, 1e9);
  PlanRequest request = SparseRequest({300, 0, 300, 0});
  request.predictor = "0123456789abcdef", request.predictor_ranks = {32, 16, 64, 8};
  LIME_ASSIGN_OR_RETURN(const PlanProblem problem, MakePlanProblem(spec, {&device, 1}, request));
  return PlanOneDevice(problem, {.rows = 512 * kKiB, .streaming_margin = 256 * kKiB});
}

TEST(SparsePlanTest, APredictedMlpIsOnePartWithWholeRecords) {
  const ModelSpec spec = SparseModel();
  const auto plan = PredictedPlan(spec, 90 * kMiB);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(plan->Validate(spec).ok()) << plan->Validate(spec);
  EXPECT_EQ(plan->predictor, "0123456789abcdef");
  for (const int32_t layer : {0, 1, 2, 3}) {
    const std::vector<PlanPart> parts = PartsOfMlp(*plan, layer);
    EXPECT_EQ(parts[0].predictor_rank, (std::vector<int>{32, 16, 64, 8})[static_cast<size_t>(layer)]);
    EXPECT_EQ(parts[0].predicted(), layer % 2 == 0) << "the others use their predictors with whole matrices";
    if (!parts[0].predicted()) continue;
    EXPECT_EQ(parts.size(), 1u);
    EXPECT_EQ(parts[0].rows.front().role, TensorRole::kGate);
    EXPECT_EQ(parts[0].unit_bytes, LayoutOf(/*gated=*/true, 2 * kSparseHidden)->SlotBytes(0));
  }
  EXPECT_EQ(LargestPredictorRank(*plan, 0), 64);
  EXPECT_EQ(PredictorMemory(spec, *plan, 0), 2 * (32 + 16 + 64 + 8) * (kSparseHidden + kSparseInner) + 4 * (2 * kSparseInner + 64));
  const auto decode = SimulateDecode(*plan), prefill = SimulatePrefill(*plan);
  ASSERT_TRUE(decode.ok() && prefill.ok()) << decode.status() << prefill.status();
  EXPECT_EQ(decode->MsPerStep(), plan->predicted.ms_per_step);
  EXPECT_EQ(prefill->step_ends_ms.back(), plan->predicted.ttft_ms);
  const auto read = ParsePlan(ToJsonText(*plan), "plan.json");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, *plan);
}

TEST(SparsePlanTest, WrongPredictorsAreRefusedByName) {
  const ModelSpec spec = SparseModel();
  const auto valid = PredictedPlan(spec, 90 * kMiB);
  ASSERT_TRUE(valid.ok()) << valid.status();
  const auto error = [&](const auto& change) {
    Plan plan = *valid;
    change(plan);
    return std::string(plan.Validate(spec).message());
  };
  const auto part_error = [&](BlockKind kind, int32_t layer, const auto& change) {
    return error([&](Plan& plan) { change(plan.parts[PartsOf(plan, {kind, layer}).first]); });
  };
  EXPECT_EQ(error([](Plan&) {}), "");
  EXPECT_THAT(error([](Plan& plan) { plan.predictor = "0123456789ABCDEF"; }), HasSubstr("not 16 hexadecimal digits"));
  EXPECT_THAT(error([](Plan& plan) { plan.predictor.clear(); }), HasSubstr(".predictor_rank\" = 32 is outside 0 to 0"));
  EXPECT_THAT(part_error(BlockKind::kMlp, 1, [](PlanPart& part) { part.predictor_rank = 5000; }), HasSubstr("is outside 0 to 4096"));
  EXPECT_THAT(part_error(BlockKind::kMlp, 1, [](PlanPart& part) { part.predictor_rank = 1025; }), HasSubstr("more than the 1024 features"));
  EXPECT_THAT(part_error(BlockKind::kAttention, 1, [](PlanPart& part) { part.predictor_rank = 1; }), HasSubstr("is outside 0 to 0"));
  EXPECT_THAT(part_error(BlockKind::kMlp, 0, [](PlanPart& part) { part.predictor_rank = 0; }), HasSubstr("no part before it decides"));
  EXPECT_THAT(part_error(BlockKind::kMlp, 0, [](PlanPart& part) { part.decider_bits = 8, part.decider_directions = 8; }),
              HasSubstr("has decider_bits and predictor_rank"));
  ModelSpec silu = spec;
  silu.config.activation = Activation::kSilu;
  EXPECT_THAT(std::string(valid->Validate(silu).message()), HasSubstr("have no ReLU"));
}

TEST(SparsePlanTest, AffineGroupsKeepTheirScalesInMemoryAndOtherPackedWeightsAreRefusedByName) {
  for (const bool affine : {true, false}) {
    std::string config = LlamaConfig(kSparseLayers, kSparseHidden, kSparseInner, /*vocab=*/4000);
    config.insert(1, affine ? R"("quantization": {"bits": 4, "group_size": 64}, )"
                            : R"("quantization": {"bits": 4, "group_size": 32, "mode": "mxfp4"}, )");
    ModelSpec spec = *DescribeModel(config, "packed");
    spec.config.activation = Activation::kRelu;
    const auto dense = SparsePlanWith(spec, 60 * kMiB, {}), sparse = SparsePlanWith(spec, 60 * kMiB, {300});
    ASSERT_TRUE(dense.ok() && sparse.ok()) << dense.status() << sparse.status();
    EXPECT_TRUE(dense->Validate(spec).ok()) << dense->Validate(spec);
    const absl::Status valid = sparse->Validate(spec);
    if (!affine) {
      EXPECT_THAT(std::string(valid.message()), HasSubstr("the weights of mlp 0 are mxfp4 or FP8"));
      continue;
    }
    EXPECT_TRUE(valid.ok()) << valid;
    const PlanPart& part = *std::ranges::find_if(sparse->parts, &PlanPart::sparse);
    EXPECT_EQ(part.unit_bytes, LayoutOf(/*gated=*/true, kSparseHidden / 2)->SlotBytes(1)) << "codes of half a byte, and nothing else";
    const Bytes largest = LargestPiece(spec.block(part.block), part);
    // Scales and biases of bf16, of up and of down.
    EXPECT_EQ(SparseMemory(spec, *sparse, 0), 2 * largest + 96 * kSparseInner + 2 * 2 * 2 * kSparseInner * kSparseHidden / 64);
  }
}

TEST(SparsePlanTest, WrongRequestsAreRefusedByName) {
  const ModelSpec spec = SparseModel();
  EXPECT_THAT(std::string(SparseProblemOf(spec, 60 * kMiB, {1, 1, 1, 1, 1}).status().message()), HasSubstr("name layer 4"));
  EXPECT_THAT(std::string(SparseProblemOf(spec, 60 * kMiB, {-1}).status().message()), HasSubstr("neuron_rows"));
  ModelSpec silu = spec;
  silu.config.activation = Activation::kSilu;
  EXPECT_THAT(std::string(SparseProblemOf(silu, 60 * kMiB, {1}).status().message()), HasSubstr("no ReLU"));
  ModelSpec inputs = spec;
  inputs.config.layer_inputs = 8;
  EXPECT_THAT(std::string(SparseProblemOf(inputs, 60 * kMiB, {1}).status().message()), HasSubstr("inputs of their own"));
  const ClusterDevice device = Board("local", 60 * kMiB, 10e9, 1e9);
  PlanRequest grows = SparseRequest({1});
  grows.kv_tokens = 100;
  EXPECT_THAT(std::string(MakePlanProblem(spec, {&device, 1}, grows).status().message()), HasSubstr("reserve all KV"));
}

}  // namespace
}  // namespace lime
