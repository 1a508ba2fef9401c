// Clusters that choose sparse MLPs: only where a calibration says that a token is faster, on devices that have
// what it takes, within their memory.
#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/planning/change_search.h"
#include "coordinator/planning/cluster_planning.h"
#include "coordinator/planning/plan_rates.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_blocks.h"
#include "planner/plan/sparse_parts.h"
#include "planner/sim/simulator.h"
#include "planner/unit_places.h"
#include "tests/planner/made_calibration.h"
#include "tests/planner/small_cluster.h"

namespace lime {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kSparseLayers = 6;
constexpr int32_t kSparseHidden = 2048, kSparseInner = 16384;
constexpr double kTestWorkMs = 60;

// 1.4 GiB, of which MLPs are 1.1. Three devices have room for two thirds of it. Disks read 16 KiB at half the
// rate of large reads.
PlanInputs Boards(Bytes each = 320 * kMiB) {
  PlanInputs inputs;
  inputs.spec = *DescribeModel(LlamaConfig(kSparseLayers, kSparseHidden, kSparseInner, /*vocab=*/8000), "relu");
  inputs.spec.config.activation = Activation::kRelu;
  for (const char* name : {"a", "b", "c"}) {
    inputs.devices.push_back(Board(name, each));
    inputs.devices.back().profile.SetDisk({{.read_bytes = 16 * kKiB, .depth = 32, .bytes_per_second = 0.7e9, .latency_ms = 0.6},
                                           {.read_bytes = kMiB, .depth = 2, .bytes_per_second = 1.2e9, .latency_ms = 1},
                                           {.read_bytes = kMiB, .depth = 8, .bytes_per_second = 1.3e9, .latency_ms = 1}});
  }
  inputs.request = {.model_name = "relu", .context = 256, .part_bytes = 16 * kMiB, .prompt_tokens = 32, .chunks = {32}};
  inputs.request.default_link = {.peer = "", .bytes_per_second = 125e6, .latency_ms = 0.1};
  inputs.sparse.sparsity = SparsityWish::kAuto;
  inputs.sparse.model.neurons = std::vector<int64_t>(kSparseLayers, kSparseInner);
  inputs.sparse.model.calibration = MadeCalibration(kSparseLayers, kSparseInner, 0.04);
  return inputs;
}

struct Chosen {
  Plan plan;
  std::string why;
  absl::Status status;
};

Chosen PlanOf(const PlanInputs& inputs) {
  ClusterPlanning planning({.work_ms = kTestWorkMs}, inputs);
  absl::StatusOr<Plan> plan = planning.Run();
  return {.plan = plan.value_or(Plan{}), .why = planning.sparsity_why(), .status = plan.status()};
}

std::vector<int32_t> SparseLayersOf(const Plan& plan, std::optional<std::string> device = std::nullopt) {
  std::vector<int32_t> layers;
  for (int p = 0; p < plan.NumParts(); ++p) {
    const bool there = !device || plan.devices[static_cast<size_t>(DeviceOf(plan, p))].name == *device;
    if (plan.parts[static_cast<size_t>(p)].sparse() && there) layers.push_back(plan.parts[static_cast<size_t>(p)].block.layer);
  }
  return layers;
}

TEST(SparseClusterTest, SparseMlpsAreChosenWhereDisksAreTheLimit) {
  PlanInputs inputs = Boards();
  const Chosen chosen = PlanOf(inputs);
  ASSERT_TRUE(chosen.status.ok()) << chosen.status;
  inputs.sparse.sparsity = SparsityWish::kOff;
  const Chosen off = PlanOf(inputs);
  ASSERT_TRUE(off.status.ok()) << off.status;
  EXPECT_THAT(off.why, IsEmpty());
  EXPECT_FALSE(HasSparseParts(off.plan));
  EXPECT_TRUE(HasSparseParts(chosen.plan)) << chosen.why;
  EXPECT_THAT(chosen.why, HasSubstr("without sparse MLPs"));
  EXPECT_LT(2 * TimeMs(chosen.plan), TimeMs(off.plan));
  EXPECT_LT(2 * chosen.plan.predicted.ms_per_step, off.plan.predicted.ms_per_step);
  RecordProperty("sparse_ms", absl::StrCat(TimeMs(chosen.plan)));
  RecordProperty("off_ms", absl::StrCat(TimeMs(off.plan)));
  EXPECT_TRUE(NeuronUseOf(chosen.plan).calibrated);
  const auto simulated = SimulateDecode(chosen.plan);
  ASSERT_TRUE(simulated.ok()) << simulated.status();
  EXPECT_EQ(simulated->MsPerStep(), chosen.plan.predicted.ms_per_step);
  inputs.sparse.sparsity = SparsityWish::kAuto;
  EXPECT_EQ(PlanOf(inputs).plan, chosen.plan) << "the same flags give the same plan";
}

// Rows are weights, and what neurons need besides is activations, on the device that has the layer.
TEST(SparseClusterTest, EveryDeviceHasTheMemoryThatItsLayersNeed) {
  PlanInputs inputs = Boards();
  const Chosen chosen = PlanOf(inputs);
  ASSERT_TRUE(HasSparseParts(chosen.plan)) << chosen.status << chosen.why;
  EXPECT_TRUE(chosen.plan.Validate(inputs.spec).ok()) << chosen.plan.Validate(inputs.spec);
  for (int32_t d = 0; d < chosen.plan.NumDevices(); ++d) {
    const PlanDevice& device = chosen.plan.devices[static_cast<size_t>(d)];
    if (!HasPart(chosen.plan, d)) continue;
    const Bytes beside = SparseMemory(inputs.spec, chosen.plan, d);
    Bytes rows = 0;
    for (const int p : PartsOn(chosen.plan, d))
      rows += chosen.plan.parts[static_cast<size_t>(p)].sparse() ? MemoryOf(chosen.plan.parts[static_cast<size_t>(p)]) : 0;
    EXPECT_EQ(beside > 0, HasSparseParts(chosen.plan, d));
    EXPECT_GE(device.memory.activations, inputs.devices[static_cast<size_t>(d)].activations + beside) << device.name;
    EXPECT_GE(device.memory.weights, rows) << device.name;
    EXPECT_EQ(device.memory.total(), device.budget) << device.name;
  }
}

TEST(SparseClusterTest, NothingChangesWithoutACalibration) {
  PlanInputs inputs = Boards();
  inputs.sparse.model.calibration = nullptr;
  const Chosen unknown = PlanOf(inputs);
  inputs.sparse = {};
  const Chosen off = PlanOf(inputs);
  ASSERT_TRUE(off.status.ok()) << off.status;
  EXPECT_EQ(unknown.plan, off.plan);
  EXPECT_THAT(unknown.why, IsEmpty());
}

TEST(SparseClusterTest, DenseIsChosenWhereMostNeuronsAreActiveOrPromptsAreAll) {
  PlanInputs inputs = Boards();
  inputs.sparse.model.calibration = MadeCalibration(kSparseLayers, kSparseInner, 0.9, /*local=*/1);
  Chosen chosen = PlanOf(inputs);
  EXPECT_FALSE(HasSparseParts(chosen.plan));
  EXPECT_THAT(chosen.why, HasSubstr("with sparse MLPs"));
  inputs = Boards();
  inputs.request.prompt_tokens = 256;
  chosen = PlanOf(inputs);
  EXPECT_FALSE(HasSparseParts(chosen.plan));
  EXPECT_THAT(chosen.why, HasSubstr("prompts alone"));
}

// Pushed weights come without bundles, libtorch computes no neurons, and nothing is read without a disk.
TEST(SparseClusterTest, DevicesWithoutWhatItTakesKeepTheirLayersDense) {
  for (const char* lacks : {"bundles", "kernels", "a disk"}) {
    PlanInputs inputs = Boards();
    if (lacks == std::string("bundles")) inputs.sparse.held["b"] = {};
    if (lacks == std::string("kernels")) inputs.devices[1].numerics_id = "torch";
    if (lacks == std::string("a disk")) inputs.devices[1].profile.disk.clear(), inputs.devices[1].budget = 500 * kMiB;
    const Chosen chosen = PlanOf(inputs);
    ASSERT_TRUE(chosen.status.ok()) << lacks << ": " << chosen.status;
    EXPECT_TRUE(HasSparseParts(chosen.plan)) << lacks << ": " << chosen.why;
    EXPECT_THAT(SparseLayersOf(chosen.plan, "b"), IsEmpty()) << lacks;
  }
}

TEST(SparseClusterTest, ExactAsksForSparseMlpsAndSaysWhyThereAreNone) {
  PlanInputs inputs = Boards(900 * kMiB);
  inputs.sparse.sparsity = SparsityWish::kExact;
  const Chosen roomy = PlanOf(inputs);
  EXPECT_TRUE(HasSparseParts(roomy.plan)) << roomy.status;
  EXPECT_THAT(roomy.why, IsEmpty());
  inputs.sparse.neuron_rows = 100;
  const Chosen few = PlanOf(inputs);
  ASSERT_TRUE(few.status.ok()) << few.status;
  EXPECT_EQ(std::ssize(SparseLayersOf(few.plan)), kSparseLayers);
  for (const PlanPart& part : few.plan.parts) EXPECT_EQ(part.places, part.sparse() ? 100 : 0);
  inputs.sparse.neuron_rows.reset();
  inputs.sparse.model.calibration = nullptr;
  const Chosen unknown = PlanOf(inputs);
  ASSERT_TRUE(unknown.status.ok()) << unknown.status;
  EXPECT_EQ(std::ssize(SparseLayersOf(unknown.plan)), kSparseLayers);
  for (const ClusterDevice& device : inputs.devices) inputs.sparse.held[device.name] = {};
  const Chosen none = PlanOf(inputs);
  EXPECT_TRUE(absl::IsFailedPrecondition(none.status)) << none.status;
  EXPECT_THAT(std::string(none.status.message()), HasSubstr("no device has bundles"));
}

// Memory has no room for all deciders.
TEST(SparseClusterTest, CopiesOfDecidersDecideWhereTheKernelsProveZeros) {
  PlanInputs inputs = Boards(200 * kMiB);
  inputs.sparse.model.calibration = WithCopies(*inputs.sparse.model.calibration, 0.045);
  inputs.sparse.model.copies = std::vector<DeciderForm>(kSparseLayers, DeciderForm{8, 64});
  for (ClusterDevice& device : inputs.devices) device.numerics_id = "portable-f32-1";
  const Chosen copies = PlanOf(inputs);
  ASSERT_TRUE(copies.status.ok()) << copies.status;
  EXPECT_TRUE(std::ranges::any_of(copies.plan.parts, &PlanPart::certified)) << copies.why;
  inputs.sparse.sparsity = SparsityWish::kExact, inputs.sparse.decider = DeciderWish::kDense;
  const Chosen dense = PlanOf(inputs);
  EXPECT_TRUE(std::ranges::none_of(dense.plan.parts, &PlanPart::certified));
  EXPECT_LT(TimeMs(copies.plan), 1.01 * TimeMs(dense.plan)) << "smaller searches choose between them";
  // The copies of device "b" are others.
  NeuronFiles other;
  for (int32_t layer = 0; layer < kSparseLayers; ++layer) other.bundles.push_back({.layer = layer, .decider = {6, 32}});
  inputs.sparse.held["b"] = other, inputs.sparse.decider = DeciderWish::kCertified;
  const Chosen some = PlanOf(inputs);
  ASSERT_TRUE(some.status.ok()) << some.status;
  for (int p = 0; p < some.plan.NumParts(); ++p) {
    if (!some.plan.parts[static_cast<size_t>(p)].certified()) continue;
    EXPECT_NE(some.plan.devices[static_cast<size_t>(DeviceOf(some.plan, p))].name, "b");
  }
  for (ClusterDevice& device : inputs.devices) device.numerics_id = "another-order-1";
  const Chosen unproven = PlanOf(inputs);
  EXPECT_TRUE(absl::IsFailedPrecondition(unproven.status)) << unproven.status;
}

// A disk that becomes slow: the next plan reads less there, and takes the KV over.
TEST(SparseClusterTest, APlanForOtherRatesChoosesOtherRowsAndTakesKvOver) {
  const PlanInputs inputs = Boards();
  const Chosen first = PlanOf(inputs);
  ASSERT_TRUE(HasSparseParts(first.plan)) << first.status << first.why;
  ClusterRates now = PlannedRates(inputs, first.plan);
  for (auto& [key, rate] : now) rate = key == DiskKey("a") ? 0.1 : rate;
  const std::atomic<bool> cancelled = false;
  const auto found = SearchForChange(inputs,
                                     {.current = first.plan,
                                      .made_with = {},
                                      .now = now,
                                      .remaining = {.steps = 200, .known = 40, .pages = 2, .pages_at_end = 8, .decodes = true},
                                      .cancelled = cancelled},
                                     {.first = &first.plan, .install_ms = 100, .time_limit_ms = kTestWorkMs, .by_clock = false});
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_GT(found->current_ms, first.plan.predicted.ms_per_step);
  EXPECT_LT(found->ms_per_step, found->current_ms);
  EXPECT_TRUE(HasSparseParts(found->plan));
  EXPECT_NE(found->plan.parts, first.plan.parts);
}

}  // namespace
}  // namespace lime
