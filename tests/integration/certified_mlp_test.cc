// Sparse MLPs that decide with a low-bit copy of the decider give the bits of the model by itself, all in memory:
// whatever the rows of neurons, the masks of the window, chunks, threads, batches, and orders of sums.
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/plan/sparse_parts.h"
#include "tests/cases.h"
#include "tests/integration/loopback_cluster.h"
#include "tests/integration/made_copies.h"
#include "tests/integration/models.h"
#include "tests/integration/variants.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

std::vector<Variant> DenseReluModels() {
  std::vector<Variant> variants = {
      {.name = "opt_f32", .family = "opt", .dtype = DType::kF32, .activation = Activation::kRelu, .head_dim = 24},
      {.name = "opt_bf16", .family = "opt", .dtype = DType::kBF16, .activation = Activation::kRelu, .head_dim = 24},
      {.name = "llama_bf16", .family = "llama", .dtype = DType::kBF16, .activation = Activation::kRelu},
      {.name = "falcon_bf16", .family = "falcon", .dtype = DType::kBF16, .activation = Activation::kRelu},
      // FATReLU and dReLU, which these families have by themselves.
      {.name = "sparsellama_bf16", .family = "sparsellama", .dtype = DType::kBF16},
      {.name = "bamboo_f16", .family = "bamboo", .dtype = DType::kF16}};
  if (Soaking()) variants.push_back({.name = "llama_f16", .family = "llama", .dtype = DType::kF16, .activation = Activation::kRelu});
  return variants;
}

class CertifiedTest : public ::testing::TestWithParam<Variant> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(MakeModel(OptionsOf(GetParam()), Model()).ok());
    const auto copies = PrepareWithCopies(Model(), Store());
    ASSERT_TRUE(copies.ok()) << copies.status();
    copies_ = *copies;
    ids_ = RandomIds(3, 24, 200);
  }
  std::string Model() const { return dir_ / "model"; }
  std::string Store() const { return dir_ / "store"; }
  // Of a layer.
  static int64_t Neurons() { return OptionsOf(GetParam()).config.intermediate_size; }

  TempDir dir_;
  std::vector<DeciderForm> copies_;
  std::vector<int32_t> ids_;
};

TEST_P(CertifiedTest, AnyNumberOfRowsAndMasksGivesTheSameBits) {
  for (const std::string numerics : {"auto", "portable"}) {
    const uint64_t expected = ReferenceHash(Model(), ids_, {.numerics = numerics});
    for (const int64_t rows : {int64_t{1}, int64_t{7}, Neurons()}) {
      for (const int32_t masks : {1, 5, 4096}) {
        if (!Soaking() && rows == 7 && masks == 5) continue;
        const RunShape shape{
            .threads = masks == 1 ? 1 : 2, .chunk = 1, .numerics = numerics, .neuron_rows = rows, .window_masks = masks, .certified = true};
        EXPECT_EQ(LogitsHashOf(Store(), shape, ids_), expected) << numerics << ", " << rows << " rows, " << masks << " masks";
      }
    }
  }
}

TEST_P(CertifiedTest, ChunksOfAPromptAndTheWarmStepsAfterItHaveTheSameBits) {
  int64_t copied = 0;
  for (const std::string numerics : {"auto", "portable"}) {
    const uint64_t expected = ReferenceHash(Model(), ids_, {.numerics = numerics});
    for (const int64_t chunk : {2, 7, 22, 23, 64}) {
      for (const int64_t rows : {int64_t{50}, Neurons()}) {
        const RunShape shape{.chunk = chunk, .numerics = numerics, .neuron_rows = rows, .certified = true};
        const auto device = InstallHere(Store(), shape, std::ssize(ids_));
        ASSERT_TRUE(device.ok()) << device.status();
        Serving serving(**device, {});
        const auto scores = cli::ScoreWindows(serving, {ids_}, {.top = 5});
        ASSERT_TRUE(scores.ok()) << scores.status();
        EXPECT_EQ(scores->logits_hash, expected) << numerics << ", chunk " << chunk << ", " << rows << " rows";
        copied += (*device)->Statistics(0)->neurons_copied;
      }
    }
  }
  EXPECT_GT(copied, 0) << "no decode step began warm";
}

TEST_P(CertifiedTest, BatchesHaveTheSameBitsAsSingleSequences) {
  const uint64_t expected = ReferenceHash(Model(), ids_);
  std::vector<std::vector<int32_t>> companions;
  for (const size_t batch : {2, 8}) {
    while (companions.size() + 1 < batch) companions.push_back(RandomIds(static_cast<uint32_t>(10 + companions.size()), 30, 200));
    for (const int64_t rows : {int64_t{50}, Neurons()}) {
      EXPECT_EQ(LogitsHashOf(Store(), {.chunk = 1, .companions = companions, .neuron_rows = rows, .certified = true}, ids_), expected)
          << batch << " sequences, " << rows << " rows";
    }
  }
}

TEST_P(CertifiedTest, StreamedWeightsBesideThemAndOtherDevicesGiveTheSameBits) {
  const uint64_t expected = ReferenceHash(Model(), ids_);
  for (const int64_t chunk : {1, 16}) {
    const RunShape shape{.chunk = chunk, .resident = 0, .part_bytes = 8 * kKiB, .neuron_rows = 20, .certified = true};
    EXPECT_EQ(LogitsHashOf(Store(), shape, ids_), expected) << "chunk " << chunk;
  }
  const auto checkpoint = Checkpoint::Open(Store());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const ModelSpec spec = checkpoint->BuildModelSpec().value();
  const std::vector<int64_t> neuron_rows(static_cast<size_t>(spec.config.num_layers()), 60);
  for (const int devices : {2, 3}) {
    const auto plan = SplitPlan(
        spec, {.devices = devices, .rounds = devices - 1, .context = 96, .prompt = 64, .neuron_rows = neuron_rows, .deciders = copies_});
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_TRUE(std::ranges::any_of(plan->parts, &PlanPart::certified));
    LoopbackCluster cluster(Store(), MakeEngineStages({.num_threads = 1}));
    const absl::Status installed = cluster.Install(*plan, {});
    ASSERT_TRUE(installed.ok()) << installed;
    Serving serving(cluster, {});
    const auto scores = cli::ScoreWindows(serving, {ids_}, {.top = 5});
    ASSERT_TRUE(scores.ok()) << scores.status();
    EXPECT_EQ(scores->logits_hash, expected) << devices << " devices";
  }
}

// Copies prove something, whole records are read, and the decider is not in memory.
TEST_P(CertifiedTest, TheDeciderIsNeitherReadNorKept) {
  const auto checkpoint = Checkpoint::Open(Store());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const ModelSpec spec = checkpoint->BuildModelSpec().value();
  LocalPlanRequest request = RequestFor(Store(), {.chunk = 1, .neuron_rows = Neurons(), .certified = true}, std::ssize(ids_));
  request.neurons = BundleStore::SparseNeurons(*checkpoint, spec).value();
  request.copies = copies_;
  const auto plan = PlanForThisProcess(spec, request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  int64_t certified = 0;
  for (size_t layer = 0; layer < copies_.size(); ++layer) {
    const auto [begin, end] = PartsOf(plan->plan, {BlockKind::kMlp, static_cast<int32_t>(layer)});
    const PlanPart& part = plan->plan.parts[static_cast<size_t>(end - 1)];
    EXPECT_EQ(part.certified(), copies_[layer].bits > 0) << layer;
    EXPECT_EQ(part.decider_bits, copies_[layer].bits);
    if (!part.certified()) continue;
    EXPECT_EQ(end - begin, 1) << "no part has the decider alone";
    EXPECT_EQ(part.unit_bytes, NeuronBytes(spec.block(part.block), /*certified=*/true));
    ++certified;
  }
  EXPECT_GT(certified, 0);
  LocalDevice device({.weights = Store(), .make_stage = MakeEngineStages({.num_threads = 2})});
  ASSERT_TRUE(device.Install(plan->plan, {}).ok());
  Serving serving(device, {});
  ASSERT_TRUE(cli::ScoreWindows(serving, {ids_}, {.top = 5}).ok());
  const DeviceStatistics statistics = device.Statistics(0).value();
  const double all = static_cast<double>(statistics.neuron_visits) * static_cast<double>(Neurons());
  EXPECT_GT(statistics.neurons_computed, 0);
  EXPECT_LT(static_cast<double>(statistics.neurons_computed), 0.95 * all) << "nothing is proven";
}

// A byte of the copy differs from its checksum: the file is named, and nothing runs.
TEST_P(CertifiedTest, ADamagedCopyIsRefusedByName) {
  const std::string path = Store() + "/bundles_0000.safetensors";
  const SafetensorsHeader header = ReadSafetensorsHeader(path).value();
  const RunShape shape{.neuron_rows = 20, .certified = true};
  for (const char* name : {"__lime_decider__.codes", "__lime_decider__.rows", "__lime_decider__.axes"}) {
    const auto tensor = std::ranges::find(header.tensors, name, &SafetensorsTensor::name);
    ASSERT_NE(tensor, header.tensors.end()) << name;
    const auto flip = [&] {
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(tensor->offset + 5);
      const char byte = static_cast<char>(file.get());
      file.seekp(tensor->offset + 5);
      file.put(static_cast<char>(byte ^ 0x10));
    };
    flip();
    const absl::Status refused = InstallHere(Store(), shape, std::ssize(ids_)).status();
    EXPECT_TRUE(absl::IsDataLoss(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("bundles_0000.safetensors"));
    // The decider itself decides, and the copy is not read.
    EXPECT_TRUE(InstallHere(Store(), {.neuron_rows = 20}, std::ssize(ids_)).ok());
    flip();
  }
  EXPECT_TRUE(InstallHere(Store(), shape, std::ssize(ids_)).ok());
}

TEST_P(CertifiedTest, APlanForAnotherCopyIsRefused) {
  const auto checkpoint = Checkpoint::Open(Store());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const ModelSpec spec = checkpoint->BuildModelSpec().value();
  LocalPlanRequest request = RequestFor(Store(), {.chunk = 1, .neuron_rows = 10, .certified = true}, std::ssize(ids_));
  request.neurons = BundleStore::SparseNeurons(*checkpoint, spec).value();
  request.copies = copies_;
  request.copies.front().directions += 1;
  const auto plan = PlanForThisProcess(spec, request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  LocalDevice device({.weights = Store(), .make_stage = MakeEngineStages({.num_threads = 2})});
  const absl::Status refused = device.Install(plan->plan, {});
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("another copy of the decider than the plan"));
}

INSTANTIATE_TEST_SUITE_P(Families, CertifiedTest, ::testing::ValuesIn(DenseReluModels()), [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lime
