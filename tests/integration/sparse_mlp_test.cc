// Models with sparse MLPs give the bits of the model by itself, all in memory: whatever the number of
// neurons that memory has room for, the masks of the window, the chunks of a prompt, threads and the
// other sequences of a batch, in all orders of sums, whether the decider streams or not, and whether
// weights are dense or packed.
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/machine/block_device.h"
#include "daemon/stores/block_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/plan/sparse_parts.h"
#include "tests/cases.h"
#include "tests/integration/loopback_cluster.h"
#include "tests/integration/made_predictor.h"
#include "tests/integration/models.h"
#include "tests/integration/variants.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

std::vector<Variant> ReluModels() {
  std::vector<Variant> variants = {{.name = "opt_f32", .family = "opt", .dtype = DType::kF32},
                                   {.name = "opt_bf16", .family = "opt", .dtype = DType::kBF16},
                                   {.name = "llama_bf16", .family = "llama", .dtype = DType::kBF16},
                                   {.name = "llama_f16", .family = "llama", .dtype = DType::kF16}};
  if (Soaking()) {
    variants.push_back({.name = "opt_f16", .family = "opt", .dtype = DType::kF16});
    variants.push_back({.name = "llama_f32", .family = "llama", .dtype = DType::kF32});
    variants.push_back({.name = "falcon_bf16", .family = "falcon", .dtype = DType::kBF16});
  }
  for (Variant& variant : variants) {
    variant.activation = Activation::kRelu;
    if (variant.family == "opt") variant.head_dim = 24;
  }
  variants.push_back(
      {.name = "opt_q4_bf16", .family = "opt", .quantization = Quantization{4, 64}, .activation = Activation::kRelu, .head_dim = 32});
  variants.push_back({.name = "llama_q3_f16", .dtype = DType::kF16, .quantization = Quantization{3, 64}, .activation = Activation::kRelu});
  variants.push_back({.name = "llama_q6_bf16", .quantization = Quantization{6, 32}, .activation = Activation::kRelu});
  if (Soaking()) {
    variants.push_back(
        {.name = "opt_q8_bf16", .family = "opt", .quantization = Quantization{8, 128}, .activation = Activation::kRelu, .head_dim = 32});
    variants.push_back(
        {.name = "llama_q4_f32", .dtype = DType::kF32, .quantization = Quantization{4, 32}, .activation = Activation::kRelu});
  }
  // FATReLU and dReLU, which these families have by themselves.
  variants.push_back({.name = "sparsellama_bf16", .family = "sparsellama", .dtype = DType::kBF16});
  variants.push_back({.name = "bamboo_f16", .family = "bamboo", .dtype = DType::kF16});
  return variants;
}

class SparseTest : public ::testing::TestWithParam<Variant> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(MakeModel(OptionsOf(GetParam()), Model()).ok());
    const auto prepared = PrepareBlockStore(Model(), Store(), {.bundles = true});
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    ASSERT_EQ(prepared->bundles->without.size(), 0u);
    ids_ = RandomIds(3, 24, 200);
  }
  std::string Model() const { return dir_ / "model"; }
  std::string Store() const { return dir_ / "store"; }
  // Of a layer.
  static int64_t Neurons() { return OptionsOf(GetParam()).config.intermediate_size; }

  TempDir dir_;
  std::vector<int32_t> ids_;
};

TEST_P(SparseTest, AnyNumberOfRowsAndMasksGivesTheSameBits) {
  for (const std::string numerics : {"bf16-dot", "portable"}) {
    const uint64_t expected = ReferenceHash(Model(), ids_, {.numerics = numerics});
    for (const int64_t rows : {int64_t{1}, int64_t{7}, int64_t{60}, Neurons()}) {
      for (const int32_t masks : {1, 5, 4096}) {
        if (!Soaking() && (rows == 60 ? numerics == "portable" : masks != 4096)) continue;
        const RunShape shape{.threads = masks == 1 ? 1 : 2, .chunk = 1, .numerics = numerics, .neuron_rows = rows, .window_masks = masks};
        EXPECT_EQ(LogitsHashOf(Store(), shape, ids_), expected) << numerics << ", " << rows << " rows, " << masks << " masks";
      }
    }
  }
}

TEST_P(SparseTest, ChunksOfAPromptReadAllRowsAndGiveTheSameBits) {
  const uint64_t expected = ReferenceHash(Model(), ids_);
  for (const int64_t chunk : {2, 7, 64})
    EXPECT_EQ(LogitsHashOf(Store(), {.chunk = chunk, .neuron_rows = 50}, ids_), expected) << "chunk " << chunk;
}

// The last chunk may have one row, which computes its neurons alone.
TEST_P(SparseTest, TheStepAfterAPromptFindsNeuronsOfItsLastRowsInMemoryAndHasTheSameBits) {
  int64_t computed = 0, loaded = 0;
  for (const std::string numerics : {"bf16-dot", "portable"}) {
    const uint64_t expected = ReferenceHash(Model(), ids_, {.numerics = numerics});
    for (const int64_t chunk : {22, 23}) {
      for (const int64_t rows : {int64_t{60}, Neurons()}) {
        for (const int32_t masks : {1, 5, 4096}) {
          const RunShape shape{.threads = 1 + masks % 2, .chunk = chunk, .numerics = numerics, .neuron_rows = rows, .window_masks = masks};
          const auto device = InstallHere(Store(), shape, std::ssize(ids_));
          ASSERT_TRUE(device.ok()) << device.status();
          Serving serving(**device, {});
          const auto scores = cli::ScoreWindows(serving, {ids_}, {.top = 5});
          ASSERT_TRUE(scores.ok()) << scores.status();
          EXPECT_EQ(scores->logits_hash, expected) << numerics << ", chunk " << chunk << ", " << rows << " rows, " << masks << " masks";
          const auto statistics = (*device)->Statistics(0);
          ASSERT_TRUE(statistics.ok()) << statistics.status();
          if (rows < Neurons() || masks < 4096) continue;
          EXPECT_GT(statistics->neurons_copied, 0);
          computed += statistics->neurons_computed, loaded += statistics->neurons_loaded;
        }
      }
    }
  }
  EXPECT_GT(computed, 0) << "no chunk had one row";
  EXPECT_LT(2 * loaded, computed) << "most neurons of the last row were active in a row before";
}

TEST_P(SparseTest, BatchesHaveTheSameBitsAsSingleSequences) {
  const uint64_t expected = ReferenceHash(Model(), ids_);
  std::vector<std::vector<int32_t>> companions;
  for (const size_t batch : {2, 8}) {
    while (companions.size() + 1 < batch) companions.push_back(RandomIds(static_cast<uint32_t>(10 + companions.size()), 30, 200));
    for (const int64_t rows : {int64_t{50}, Neurons()}) {
      EXPECT_EQ(LogitsHashOf(Store(), {.chunk = 1, .companions = companions, .neuron_rows = rows}, ids_), expected)
          << batch << " sequences, " << rows << " rows";
    }
  }
}

// With a predictor, the bits are others, but again one for all ways to compute.
TEST_P(SparseTest, PredictedNeuronsGiveOneResultInAllPlans) {
  if (OptionsOf(GetParam()).config.quantization) {
    EXPECT_FALSE(WriteRandomPredictor(Store(), 9).value_or(0) > 0) << "packed weights have none";
    return;
  }
  const absl::StatusOr<int64_t> layers = WriteRandomPredictor(Store(), 9);
  ASSERT_TRUE(layers.ok()) << layers.status();
  ASSERT_EQ(*layers, OptionsOf(GetParam()).config.num_layers);
  std::vector<std::vector<int32_t>> companions;
  for (uint32_t i = 0; i < 3; ++i) companions.push_back(RandomIds(10 + i, 30, 200));
  for (const std::string numerics : {"bf16-dot", "portable"}) {
    SCOPED_TRACE(numerics);
    const uint64_t expected = LogitsHashOf(Store(), {.numerics = numerics, .predicted = true}, ids_);
    EXPECT_NE(expected, ReferenceHash(Model(), ids_, {.numerics = numerics})) << "it misses neurons";
    const auto same = [&](RunShape shape, const char* what) {
      shape.numerics = numerics, shape.predicted = true;
      EXPECT_EQ(LogitsHashOf(Store(), shape, ids_), expected) << what;
    };
    same({.threads = 1, .chunk = 1}, "all in memory, row by row");
    same({.chunk = 5, .companions = companions}, "all in memory, in a batch");
    same({.chunk = 7, .resident = 0, .part_bytes = 8 * kKiB}, "all streams");
    same({.chunk = 1, .neuron_rows = 1}, "a row of neurons");
    same({.threads = 1, .chunk = 1, .neuron_rows = 40, .window_masks = 2}, "a short window");
    same({.chunk = 1, .neuron_rows = Neurons()}, "rows for all neurons");
    same({.chunk = 7, .neuron_rows = 50}, "chunks from pieces");
    same({.chunk = 23, .neuron_rows = 50}, "a row after a chunk");
    same({.chunk = 1, .companions = companions, .neuron_rows = 50}, "neurons of a batch");
    same({.chunk = 3, .companions = companions, .resident = 0, .part_bytes = 8 * kKiB, .neuron_rows = 20}, "a batch of chunks, streamed");
  }
}

TEST_P(SparseTest, AnotherPredictorThanThePlansIsRefused) {
  if (OptionsOf(GetParam()).config.quantization) return;
  ASSERT_TRUE(WriteRandomPredictor(Store(), 9).ok());
  const Checkpoint checkpoint = Checkpoint::Open(Store()).value();
  const ModelSpec spec = checkpoint.BuildModelSpec().value();
  const RunShape shape{.predicted = true};
  auto request = RequestFor(Store(), shape, std::ssize(ids_));
  const auto device = InstallHere(Store(), shape, request);
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_THAT((*device)->installed().front().numerics_id, HasSubstr("+predicted-" + PredictorStore::Open(Store(), spec)->hash()));
  ASSERT_TRUE(WriteRandomPredictor(Store(), 9, /*seed=*/99).ok());
  LocalDevice other({.weights = Store(), .make_stage = MakeEngineStages({.num_threads = 1})});
  EXPECT_THAT(std::string(other.Install((*device)->plan(), {}).message()), HasSubstr("but the plan is for"));
  std::filesystem::resize_file(PredictorPath(Store()), std::filesystem::file_size(PredictorPath(Store())) - 1);
  EXPECT_THAT(std::string(InstallHere(Store(), shape, request).status().message()), HasSubstr(std::string(kPredictorFileName)));
}

TEST_P(SparseTest, AStreamedDeciderGivesTheSameBits) {
  const uint64_t expected = ReferenceHash(Model(), ids_);
  for (const int64_t chunk : {1, 16}) {
    const RunShape shape{.chunk = chunk, .resident = 0, .part_bytes = 8 * kKiB, .neuron_rows = 20};
    EXPECT_EQ(LogitsHashOf(Store(), shape, ids_), expected) << "chunk " << chunk;
  }
}

TEST_P(SparseTest, StagesOnSeveralDevicesGiveTheSameBits) {
  const uint64_t expected = ReferenceHash(Model(), ids_);
  const auto checkpoint = Checkpoint::Open(Store());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const ModelSpec spec = checkpoint->BuildModelSpec().value();
  const auto layers = static_cast<size_t>(spec.config.num_layers());
  for (const int64_t rows : {int64_t{11}, Neurons()}) {
    std::vector<int64_t> neuron_rows(layers, rows);
    neuron_rows.back() = 0;  // in one of the layers, the whole MLP is in memory
    const auto plan = SplitPlan(spec, {.devices = 2, .context = 96, .prompt = 64, .neuron_rows = neuron_rows});
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_TRUE(HasSparseParts(*plan));
    LoopbackCluster cluster(Store(), MakeEngineStages({.num_threads = 1}));
    const absl::Status installed = cluster.Install(*plan, {});
    ASSERT_TRUE(installed.ok()) << installed;
    Serving serving(cluster, {});
    const auto scores = cli::ScoreWindows(serving, {ids_}, {.top = 5});
    ASSERT_TRUE(scores.ok()) << scores.status();
    EXPECT_EQ(scores->logits_hash, expected) << rows << " rows";
    int64_t computed = 0, loaded = 0;
    for (int32_t device = 0; device < 2; ++device) {
      const auto statistics = cluster.Statistics(device);
      ASSERT_TRUE(statistics.ok()) << statistics.status();
      computed += statistics->neurons_computed, loaded += statistics->neurons_loaded;
    }
    EXPECT_GT(computed, 0);
    EXPECT_GT(loaded, 0);
    EXPECT_EQ(loaded < computed, rows == Neurons()) << "with few rows, every neuron is read for every token";
  }
}

// The device of the test damages what it reads.
class WrongDevice final : public BlockDevice {
 public:
  WrongDevice(std::unique_ptr<BlockDevice> device, std::atomic<int>& wrong) : device_(std::move(device)), wrong_(wrong) {}
  int num_channels() const override { return device_->num_channels(); }
  Bytes alignment() const override { return device_->alignment(); }
  const std::vector<std::string>& paths() const override { return device_->paths(); }
  std::string Describe() const override { return device_->Describe(); }
  void Post(std::function<void()> task) override { device_->Post(std::move(task)); }
  void StartRead(int channel, int file, int64_t offset, std::byte* destination, Bytes bytes, Completion done) override {
    device_->StartRead(channel, file, offset, destination, bytes, std::move(done));
  }
  // Of as many reads as `wrong` says, every byte.
  void StartScatteredRead(int channel, int file, int64_t offset, std::span<const Segment> segments, Completion done) override {
    const bool wrong = wrong_.fetch_sub(1) > 0;
    device_->StartScatteredRead(channel, file, offset, segments,
                                [copy = std::vector(segments.begin(), segments.end()), wrong, done = std::move(done)](Result result) {
                                  for (const Segment& segment : copy) {
                                    for (Bytes i = 0; wrong && i < segment.bytes; ++i) segment.memory[i] ^= std::byte{0x55};
                                  }
                                  done(result);
                                });
  }

 private:
  std::unique_ptr<BlockDevice> device_;
  std::atomic<int>& wrong_;
};

TEST_P(SparseTest, AWrongRecordIsReadAgainAndATwiceWrongOneEndsTheRunByName) {
  const uint64_t expected = ReferenceHash(Model(), ids_);
  const auto checkpoint = Checkpoint::Open(Store());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const ModelSpec spec = checkpoint->BuildModelSpec().value();
  LocalPlanRequest request = RequestFor(Store(), {.chunk = 1, .neuron_rows = 5}, std::ssize(ids_));
  request.neurons = BundleStore::SparseNeurons(*checkpoint, spec).value();
  const auto plan = PlanForThisProcess(spec, request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  for (const int wrong_reads : {1, 1'000'000}) {
    std::atomic<int> wrong = wrong_reads;
    LocalDevice device({.weights = Store(), .make_stage = [&](StageSetup setup) -> absl::StatusOr<std::unique_ptr<StageEngine>> {
                          StageEngine::Options options{std::move(setup), EngineSettings{.num_threads = 2}};
                          options.wrap_device = [&wrong](std::unique_ptr<BlockDevice> of) -> std::unique_ptr<BlockDevice> {
                            return std::make_unique<WrongDevice>(std::move(of), wrong);
                          };
                          return StageEngine::Install(std::move(options));
                        }});
    ASSERT_TRUE(device.Install(plan->plan, {}).ok());
    Serving serving(device, {});
    const auto scores = cli::ScoreWindows(serving, {ids_}, {.top = 5});
    if (wrong_reads == 1) {
      ASSERT_TRUE(scores.ok()) << scores.status();
      EXPECT_EQ(scores->logits_hash, expected);
    } else {
      EXPECT_THAT(std::string(scores.status().message()), HasSubstr("bundles_0000.safetensors: layer 0, neuron "));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, SparseTest, ::testing::ValuesIn(ReluModels()), [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lime
