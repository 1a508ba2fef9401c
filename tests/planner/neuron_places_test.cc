// Plans with sparse MLPs from calibrations: rows of each layer, and whether they pay.
#include "planner/neuron_places.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "planner/one_device.h"
#include "planner/plan/cluster_plan_json.h"
#include "planner/plan/sparse_parts.h"
#include "planner/problem/neuron_demand.h"
#include "planner/sim/simulator.h"
#include "planner/unit_places.h"
#include "tests/planner/made_calibration.h"
#include "tests/planner/small_cluster.h"

namespace lime {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Le;

constexpr int64_t kPlacesHidden = 1024, kPlacesInner = 4096;
constexpr int kPlacesLayers = 4;

class NeuronPlacesTest : public ::testing::Test {
 protected:
  NeuronPlacesTest() { spec_.config.activation = Activation::kRelu; }

  PlanRequest Request(std::vector<int64_t> rows) const {
    return {.context = 200,
            .batches = {1},
            .part_bytes = kMiB,
            .embedding_with_head = true,
            .prompt_tokens = 100,
            .chunks = {64},
            .neuron_rows = std::move(rows),
            .deciders = deciders_,
            .calibration = calibration_};
  }
  absl::StatusOr<Plan> PlanWith(Bytes budget, std::vector<int64_t> rows) const {
    const ClusterDevice device = Board("local", budget, 10e9, 1e9);
    LIME_ASSIGN_OR_RETURN(const PlanProblem problem, MakePlanProblem(spec_, {&device, 1}, Request(std::move(rows))));
    return PlanOneDevice(problem, {.rows = 512 * kKiB, .streaming_margin = 256 * kKiB});
  }
  absl::StatusOr<Plan> Choose(Bytes budget) const {
    return ChooseNeuronRows(spec_, {.neurons = neurons_,
                                    .calibration = calibration_.get(),
                                    .deciders = deciders_,
                                    .burst = BurstCostOf(BoardProfile(10e9, 1e9)).value(),
                                    .plan = [&](const std::vector<int64_t>& rows) { return PlanWith(budget, rows); }});
  }
  static std::vector<int64_t> RowsOf(const Plan& plan) {
    std::vector<int64_t> rows;
    for (const PlanPart& part : plan.parts) {
      if (part.sparse()) rows.push_back(part.places);
    }
    return rows;
  }

  ModelSpec spec_ = *DescribeModel(LlamaConfig(kPlacesLayers, kPlacesHidden, kPlacesInner, /*vocab=*/4000), "relu");
  std::vector<DeciderForm> deciders_;
  std::vector<int64_t> neurons_ = std::vector<int64_t>(kPlacesLayers, kPlacesInner);
  std::shared_ptr<const Calibration> calibration_ = MadeCalibration(kPlacesLayers, kPlacesInner, 0.05);
};

TEST_F(NeuronPlacesTest, ACalibratedPlanSaysWhatATokenReadsRunsAsPredictedAndSurvivesJson) {
  const auto plan = PlanWith(100 * kMiB, {1024, 1024, 1024, 1024});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(plan->Validate(spec_).ok()) << plan->Validate(spec_);
  const double loads = 0.05 * 0.75 * 0.75 * 0.75 * kPlacesInner;
  for (const PlanPart& part : plan->parts) {
    if (!part.sparse()) continue;
    EXPECT_NEAR(part.chosen_units, 0.05 * kPlacesInner, 1e-9);
    EXPECT_NEAR(part.chosen_units * (1 - part.hit_share), loads, 1e-9);
    EXPECT_NEAR(part.demand_reads, loads, 1e-9) << "bundles of 6 KiB share pages";
    EXPECT_NEAR(DemandBytes(part), loads * 8192, 1e-6);
    EXPECT_GT(part.demand_io_ms, 0);
    EXPECT_LE(part.demand_ms, part.demand_io_ms);
  }
  const NeuronUse use = NeuronUseOf(*plan);
  EXPECT_TRUE(use.calibrated);
  EXPECT_NEAR(use.active, 4 * 0.05 * kPlacesInner, 1e-9);
  EXPECT_NEAR(use.loads, 4 * loads, 1e-6);
  EXPECT_THAT(use.Text(1), AllOf(HasSubstr("25.0 % of the neurons of 4 layers kept, 5.0 % active"), HasSubstr("read a token in")));
  const auto decode = SimulateDecode(*plan);
  ASSERT_TRUE(decode.ok()) << decode.status();
  EXPECT_EQ(decode->MsPerStep(), plan->predicted.ms_per_step);
  const auto read = ParsePlan(ToJsonText(*plan), "plan.json");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, *plan);
}

TEST_F(NeuronPlacesTest, ACertifiedPlanSaysWhatIsComputedAndWhatIsActive) {
  calibration_ = WithCopies(*calibration_, 0.07);
  deciders_ = {{8, 64}, {}, {8, 64}, {8, 64}};
  const auto plan = PlanWith(160 * kMiB, {1024, 1024, 1024, 1024});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(plan->Validate(spec_).ok()) << plan->Validate(spec_);
  for (const PlanPart& part : plan->parts) {
    if (!part.sparse()) continue;
    const double computed = part.certified() ? 0.07 : 0.05;
    EXPECT_NEAR(part.chosen_units, computed * kPlacesInner, 1e-9);
    EXPECT_NEAR(part.active_units, part.certified() ? 0.05 * kPlacesInner : 0, 1e-9);
    EXPECT_NEAR(DemandBytes(part) / part.demand_reads, part.certified() ? 12288 : 8192, 4096) << "whole records";
  }
  const NeuronUse use = NeuronUseOf(*plan);
  EXPECT_EQ(use.certified, 3);
  EXPECT_NEAR(use.computed, (3 * 0.07 + 0.05) * kPlacesInner, 1e-6);
  EXPECT_NEAR(use.active, 4 * 0.05 * kPlacesInner, 1e-6);
  EXPECT_THAT(use.Text(1), HasSubstr("5.0 % active, 6.5 % computed with copies of the deciders of 3 layers, "));
  const auto decode = SimulateDecode(*plan);
  ASSERT_TRUE(decode.ok()) << decode.status();
  EXPECT_EQ(decode->MsPerStep(), plan->predicted.ms_per_step);
  const auto read = ParsePlan(ToJsonText(*plan), "plan.json");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, *plan);
}

// Two devices, of which the second has room for three times as much: its layers get more rows. Without any
// advantage, the layers of a device stay dense.
TEST_F(NeuronPlacesTest, EachDevicesLayersGetTheRowsForWhichItHasMemory) {
  const auto plan_with = [&](const std::vector<int64_t>& rows) -> absl::StatusOr<Plan> {
    const std::vector<ClusterDevice> devices = {Board("small", 40 * kMiB, 10e9, 1e9), Board("large", 60 * kMiB, 10e9, 1e9)};
    PlanRequest request = Request(rows);
    request.counts_beside_neurons = true;
    LIME_ASSIGN_OR_RETURN(const PlanProblem problem, MakePlanProblem(spec_, devices, request));
    PlanChoice choice{.batch = 1};
    choice.stages.embedding_by_rows = true;
    const int half = PartsOf(problem.head, {BlockKind::kAttention, kPlacesLayers / 2}).first;
    choice.stages.stages = {{0, 0, half}, {1, half, problem.head.NumParts()}};
    for (int p = 0; p < problem.head.NumParts(); ++p) {
      if (!problem.head.parts[static_cast<size_t>(p)].on_demand()) choice.stages.streamed.push_back(p);
    }
    choice.first_token = FirstTokenPredictor(*problem.first_token).Predict(choice.stages);
    return MakePlan(problem, choice);
  };
  const std::vector<int32_t> groups = {0, 0, 1, 1};
  const auto plan = ChooseNeuronRows(spec_, {.neurons = neurons_,
                                             .calibration = calibration_.get(),
                                             .burst = BurstCostOf(BoardProfile(10e9, 1e9)).value(),
                                             .groups = groups,
                                             .plan = plan_with,
                                             .most_plans = 40});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const std::vector<int64_t> rows = RowsOf(*plan);
  ASSERT_EQ(rows.size(), kPlacesLayers) << "everything streams that is not sparse";
  EXPECT_GT(rows[2] + rows[3], 1.5 * static_cast<double>(rows[0] + rows[1]));
  for (int32_t d = 0; d < 2; ++d) {
    const PlanDevice& device = plan->devices[static_cast<size_t>(d)];
    EXPECT_GE(device.memory.activations, 4 * kMiB + 2 * kPlacesInner * 96) << "of its own layers";
    EXPECT_LT(device.memory.activations, 4 * kMiB + 3 * kPlacesInner * 96);
  }
}

// Memory that the deciders do not fill has neurons, unless the copies prove little.
TEST_F(NeuronPlacesTest, CopiesDecideWhereTheyMakeATokenFaster) {
  const std::vector<DeciderForm> all(kPlacesLayers, DeciderForm{8, 64});
  const auto choose = [&](Bytes budget) {
    const auto with = [&](const std::vector<DeciderForm>& deciders) {
      deciders_ = deciders;
      return Choose(budget);
    };
    return ChooseDeciders({.calibration = calibration_.get(), .copies = KnownCopies(*calibration_, all), .plan = with});
  };
  const auto certified = [](const Plan& plan) { return std::ranges::count_if(plan.parts, &PlanPart::certified); };
  const std::shared_ptr<const Calibration> bare = calibration_;
  for (const Bytes budget : {60 * kMiB, 80 * kMiB}) {
    calibration_ = WithCopies(*bare, 0.055);
    const auto good = choose(budget);
    ASSERT_TRUE(good.ok()) << good.status();
    deciders_.clear();
    const auto dense = Choose(budget);
    ASSERT_TRUE(dense.ok()) << dense.status();
    EXPECT_GT(certified(*good), 0);
    EXPECT_LT(TimeMs(*good), TimeMs(*dense));
    calibration_ = WithCopies(*bare, 0.95, 1);
    const auto poor = choose(budget);
    ASSERT_TRUE(poor.ok()) << poor.status();
    EXPECT_EQ(certified(*poor), 0) << "nearly everything is computed";
    EXPECT_LE(TimeMs(*poor), TimeMs(*dense) * (1 + 1e-12));
  }
  calibration_ = bare;
  EXPECT_EQ(KnownCopies(*calibration_, all), std::vector<DeciderForm>(kPlacesLayers)) << "nothing is known of copies";
  calibration_ = WithCopies(*bare, 0.06);
  const std::vector<DeciderForm> other(kPlacesLayers, DeciderForm{6, 64});
  EXPECT_EQ(KnownCopies(*calibration_, other), std::vector<DeciderForm>(kPlacesLayers)) << "the calibration has other copies";
  EXPECT_EQ(KnownCopies(*calibration_, all), all);
}

TEST_F(NeuronPlacesTest, NoSmallerOrLargerShareOfTheNeuronsIsFaster) {
  for (const Bytes budget : {60 * kMiB, 80 * kMiB, 110 * kMiB, 220 * kMiB}) {
    SCOPED_TRACE(budget);
    const auto best = Choose(budget);
    ASSERT_TRUE(best.ok()) << best.status();
    EXPECT_TRUE(best->Validate(spec_).ok()) << best->Validate(spec_);
    for (int64_t rows = 256; rows <= kPlacesInner; rows += 256) {
      const auto other = PlanWith(budget, {rows, rows, rows, rows});
      if (other.ok()) EXPECT_LE(TimeMs(*best), 1.05 * TimeMs(*other)) << rows;
    }
  }
  EXPECT_THAT(RowsOf(*Choose(220 * kMiB)), Each(kPlacesInner)) << "there is memory for all neurons";
}

TEST_F(NeuronPlacesTest, WithoutStreamingNoMemoryForARowIsLeft) {
  const auto best = Choose(110 * kMiB);
  ASSERT_TRUE(best.ok()) << best.status();
  ASSERT_TRUE(std::ranges::none_of(best->parts, &PlanPart::streamed));
  ASSERT_THAT(RowsOf(*best), Each(Le(kPlacesInner - 1)));
  const PlanDevice& device = best->devices.front();
  EXPECT_LT(device.memory.margin - device.least_margin, 2 * 8 * kKiB);
}

TEST_F(NeuronPlacesTest, LayersGetRowsWhereTheySaveMost) {
  Calibration mixed = *calibration_;
  mixed.layers[1] = MadeLayer(1, kPlacesInner, 0.20);
  mixed.layers[2] = MadeLayer(2, kPlacesInner, 0.01);
  calibration_ = std::make_shared<const Calibration>(mixed);
  const auto best = Choose(80 * kMiB);
  ASSERT_TRUE(best.ok()) << best.status();
  const std::vector<int64_t> rows = RowsOf(*best);
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_GT(rows[1], rows[0]);
  EXPECT_GT(rows[0], rows[2]);
  EXPECT_GE(rows[1], 0.20 * kPlacesInner) << "a step's neurons";
}

TEST_F(NeuronPlacesTest, LayersWithoutACalibrationStayDense) {
  Calibration some = *calibration_;
  some.layers.erase(some.layers.begin() + 2);
  calibration_ = std::make_shared<const Calibration>(some);
  const auto best = Choose(100 * kMiB);
  ASSERT_TRUE(best.ok()) << best.status();
  for (const PlanPart& part : best->parts) {
    if (part.block.kind == BlockKind::kMlp && part.block.layer == 2) EXPECT_FALSE(part.sparse());
  }
  EXPECT_EQ(RowsOf(*best).size(), 3u);
}

TEST_F(NeuronPlacesTest, CalibrationsThatDoNotFitTheModelAreRefusedByName) {
  EXPECT_TRUE(absl::IsResourceExhausted(Choose(14 * kMiB).status())) << Choose(14 * kMiB).status();
  calibration_ = MadeCalibration(kPlacesLayers, kPlacesInner / 2, 0.05);
  EXPECT_THAT(std::string(Choose(100 * kMiB).status().message()), HasSubstr("layer 0 has 4096 neurons, but 2048 in the calibration"));
  EXPECT_THAT(std::string(PlanWith(100 * kMiB, {64}).status().message()), HasSubstr("layer 0 has 4096 neurons, but 2048"));
  calibration_ = MadeCalibration(2, kPlacesInner, 0.05);
  EXPECT_THAT(std::string(PlanWith(100 * kMiB, {0, 0, 64}).status().message()), HasSubstr("says nothing of layer 2"));
  calibration_ = std::make_shared<const Calibration>();
  EXPECT_THAT(std::string(Choose(100 * kMiB).status().message()), HasSubstr("the calibration has no layer with bundles"));
}

TEST_F(NeuronPlacesTest, OtherErrorsEndTheSearch) {
  const auto failed = ChooseNeuronRows(spec_, {.neurons = neurons_,
                                               .calibration = calibration_.get(),
                                               .burst = {.bytes_per_ms = 1e6},
                                               .plan = [](const std::vector<int64_t>&) { return absl::DataLossError("broken"); }});
  EXPECT_TRUE(absl::IsDataLoss(failed.status())) << failed.status();
}

TEST(SparsityChoiceTest, TheFasterPlanIsChosenAndSaysWhy) {
  const SparsityChoice exact = ChooseSparsity({.off_ms = 40, .exact_ms = 10, .off_work_ms = 4000, .exact_work_ms = 1000});
  EXPECT_TRUE(exact.exact);
  EXPECT_EQ(exact.why, "10.00 ms a token predicted, 40.00 without sparse MLPs");
  const SparsityChoice off = ChooseSparsity({.off_ms = 10, .exact_ms = 12, .off_work_ms = 1000, .exact_work_ms = 1200});
  EXPECT_FALSE(off.exact);
  EXPECT_EQ(off.why, "10.00 ms a token predicted, 12.00 with sparse MLPs");
  EXPECT_FALSE(ChooseSparsity({.off_ms = 10, .exact_ms = 9.95, .off_work_ms = 1000, .exact_work_ms = 995}).exact) << "hardly faster";
  const SparsityChoice prompts = ChooseSparsity({.off_ms = 10, .exact_ms = 5, .off_work_ms = 1000, .exact_work_ms = 1200});
  EXPECT_FALSE(prompts.exact);
  EXPECT_THAT(prompts.why, HasSubstr("; the prompts decide"));
  EXPECT_TRUE(ChooseSparsity({.exact_ms = 9}).exact);
  EXPECT_THAT(ChooseSparsity({.exact_ms = 9}).why, HasSubstr("no plan for this memory"));
  EXPECT_FALSE(ChooseSparsity({.off_ms = 9}).exact);
  EXPECT_EQ(ParseSparsity("auto"), SparsityWish::kAuto);
  EXPECT_EQ(ParseSparsity("predicted"), SparsityWish::kPredicted);
  EXPECT_EQ(ParseSparsity("guessed"), std::nullopt);
}

}  // namespace
}  // namespace lime
