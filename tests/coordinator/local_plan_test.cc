#include "coordinator/local/local_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <limits>
#include <regex>
#include <string>
#include <vector>

#include "coordinator/local/local_device.h"
#include "daemon/engine/process_memory.h"
#include "daemon/engine/stage_engine.h"
#include "daemon/weights/checkpoint.h"
#include "planner/kv/kv_levels.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/model/described_model.h"
#include "planner/plan/plan_residency.h"
#include "testbed/make_model/make_model.h"
#include "tests/cases.h"
#include "tests/planner/made_calibration.h"
#include "tests/temp_dir.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

std::string Config(int layers, int hidden, int inner, int vocab, bool tied, int heads = 16, int kv_heads = 4) {
  return absl::StrCat(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "num_hidden_layers": )",
                      layers, R"(, "hidden_size": )", hidden, R"(, "num_attention_heads": )", heads, R"(, "num_key_value_heads": )",
                      kv_heads, R"(, "intermediate_size": )", inner, R"(, "vocab_size": )", vocab,
                      R"(, "max_position_embeddings": 131072, "tie_word_embeddings": )", tied ? "true" : "false", "}");
}

// Of 1, 3 and 8 billion parameters, and one with a large table of its own.
struct Shape {
  const char* name;
  std::string config;
};
std::vector<Shape> Shapes() {
  return {{"1b, tied", Config(16, 2048, 8192, 128256, true, 32, 8)},
          {"3b, tied", Config(28, 3072, 8192, 128256, true, 24, 8)},
          {"8b", Config(32, 4096, 14336, 128256, false, 32, 8)},
          {"1b", Config(22, 2048, 5632, 32000, false, 32, 4)}};
}

// 75 MB, with weights.
class LocalPlanTest : public ::testing::Test {
 protected:
  void SetUp() override {
    model_ = dir_ / "model";
    MakeModelOptions options;
    options.config.num_layers = 8;
    options.config.hidden_size = 512;
    options.config.num_heads = 8;
    options.config.intermediate_size = 1536;
    options.config.max_positions = 4096;
    options.tokenizer = false;
    ASSERT_TRUE(MakeModel(options, model_).ok());
    auto spec = Checkpoint::Open(model_)->BuildModelSpec();
    ASSERT_TRUE(spec.ok()) << spec.status();
    spec_ = *std::move(spec);
  }

  LocalPlanRequest Request(Bytes budget) const {
    return {.model_name = model_, .budget = budget, .context = 96, .prompt_tokens = 60, .part_bytes = kMiB, .num_threads = 1};
  }

  std::string Refusal(const LocalPlanRequest& request) const {
    const auto plan = PlanForThisProcess(spec_, request);
    EXPECT_TRUE(absl::IsResourceExhausted(plan.status())) << plan.status();
    return std::string(plan.status().message());
  }

  TempDir dir_;
  std::string model_;
  ModelSpec spec_;
};

Bytes Advised(const std::string& sentence) {
  std::smatch found;
  EXPECT_TRUE(std::regex_search(sentence, found, std::regex("give --memory ([0-9]+)MiB or more"))) << sentence;
  return found.empty() ? 0 : std::stoll(found[1]) * kMiB;
}

TEST_F(LocalPlanTest, ABudgetIsDerivedWhereNoneIsGiven) {
  for (const MemoryPriority priority : {MemoryPriority::kMaxTps, MemoryPriority::kBalanced, MemoryPriority::kMaxContext}) {
    LocalPlanRequest request = Request(0);
    request.priority = priority;
    const auto derived = PlanForThisProcess(spec_, request);
    ASSERT_TRUE(derived.ok()) << derived.status();
    const PlanDevice& device = derived->plan.devices.front();
    EXPECT_THAT(derived->budget_text, HasSubstr(FormatBytes(device.budget)));
    EXPECT_THAT(derived->budget_text, HasSubstr(std::string(kMemoryPriorityNames.Of(priority))));
    EXPECT_EQ(device.memory.total(), device.budget);
    EXPECT_FALSE(Summarize(derived->plan).streams());
  }
  const auto asked = PlanForThisProcess(spec_, Request(4 * kGiB));
  ASSERT_TRUE(asked.ok()) << asked.status();
  EXPECT_EQ(asked->budget_text, "");
  EXPECT_EQ(asked->plan.devices.front().budget, 4 * kGiB);
}

TEST_F(LocalPlanTest, ARefusalSaysByKindWhatIsNeededAndABudgetThatSuffices) {
  for (const int32_t sequences : {1, 5}) {
    for (const int64_t chunk : {0, 16, 60}) {
      LocalPlanRequest request = Request(20 * kMiB);
      request.sequences = sequences, request.chunk = chunk;
      const std::string sentence = Refusal(request);
      SCOPED_TRACE(sentence);
      EXPECT_TRUE(std::regex_search(
          sentence, std::regex("needs [0-9]+MiB \\(two parts of streamed weights .*, KV .*, activations .*, runtime .*, margin .*\\), but "
                               "--memory allows 20.00 MiB; give --memory [0-9]+MiB or more, or a smaller --context or --chunk")));
      EXPECT_THAT(sentence, ::testing::StartsWith(model_));
      request.budget = Advised(sentence);
      const auto plan = PlanForThisProcess(spec_, request);
      ASSERT_TRUE(plan.ok()) << plan.status();
      EXPECT_EQ(plan->plan.devices.front().memory.total(), request.budget);
      EXPECT_GT(Summarize(plan->plan).streamed_bytes, 0);
      LocalDevice device({.weights = model_, .make_stage = MakeEngineStages({.num_threads = 1})});
      const absl::Status installed = device.Install(plan->plan, {});
      EXPECT_TRUE(installed.ok()) << installed;
      EXPECT_TRUE(device.Unload().ok());
      request.budget -= 26 * kMiB;  // what a process has differs from one to the next, and a MiB is rounded up
      Refusal(request);
    }
  }
}

TEST_F(LocalPlanTest, ARefusalSaysWhatKvOnTheDiskNeedsIfThereIsNoRoomForThatEither) {
  LocalPlanRequest request = Request(20 * kMiB);
  request.context = 4096, request.chunk = 60, request.sequences = 4;
  for (const bool may_spill : {true, false}) {
    request.budget = 20 * kMiB, request.spills_kv = may_spill;
    const std::string sentence = Refusal(request);
    std::smatch found;
    ASSERT_TRUE(std::regex_search(sentence, found,
                                  std::regex(may_spill ? "or --chunk; with KV on the disk it needs at least ([0-9]+)MiB$"
                                                       : "or --chunk; without --no-kv-spill, with KV on the disk, it needs at least "
                                                         "([0-9]+)MiB$")))
        << sentence;
    const Bytes least = std::stoll(found[1]) * kMiB, in_memory = Advised(sentence);
    EXPECT_LT(least, in_memory - 40 * kMiB) << "of 64 MiB of KV";
    request.budget = (least + in_memory) / 2;
    std::string does;
    request.at = [&](const std::string& what) { does = what; };
    if (may_spill) {
      const auto spills = PlanForThisProcess(spec_, request);
      ASSERT_TRUE(spills.ok()) << spills.status();
      EXPECT_TRUE(SpillsKv(spills->plan));
      EXPECT_EQ(does, "KV that does not fit in memory") << "which may take long";
    } else {
      EXPECT_THAT(Refusal(request), ::testing::EndsWith("or --chunk; without --no-kv-spill KV may go to the disk"));
    }
  }
}

TEST_F(LocalPlanTest, ARingThatIsAskedForIsKeptOrRefused) {
  LocalPlanRequest request = Request(ProcessResidentBytes() + 66 * kMiB);
  request.chunk = 60;
  request.ring = 20 * kMiB;
  const auto bytes = PlanForThisProcess(spec_, request);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(Summarize(bytes->plan).ring, 20 * kMiB);
  request.ring.reset(), request.ring_parts = 7;
  const auto pieces = PlanForThisProcess(spec_, request);
  ASSERT_TRUE(pieces.ok()) << pieces.status();
  EXPECT_EQ(Summarize(pieces->plan).ring, 7 * std::ranges::max_element(pieces->plan.parts, {}, &PlanPart::bytes)->bytes);
  request.ring_parts.reset(), request.ring = 500 * kMiB;
  EXPECT_THAT(Refusal(request), ::testing::EndsWith("--pool asks for 500.00 MiB; lower --pool"));
}

TEST_F(LocalPlanTest, WhatTheModelHasNotIsRefused) {
  LocalPlanRequest request = Request(kGiB);
  for (const int64_t context : {0, 4097}) {
    request.context = context;
    const auto plan = PlanForThisProcess(spec_, request);
    EXPECT_TRUE(absl::IsInvalidArgument(plan.status()));
    EXPECT_THAT(std::string(plan.status().message()), HasSubstr("positions is outside 1 to 4096"));
  }
  ModelSpec deep = spec_;
  deep.config.max_positions = int64_t{1} << 40;
  request.context = int64_t{1} << 36;
  EXPECT_THAT(std::string(PlanForThisProcess(deep, request).status().message()), HasSubstr("KV pages, which exceeds the limit"));
  request = Request(kGiB);
  request.backend = "abacus";
  EXPECT_TRUE(absl::IsInvalidArgument(PlanForThisProcess(spec_, request).status()));
}

TEST_F(LocalPlanTest, ChunksAreUsualWhereAllIsResidentAndLongWhereEachCostsASweep) {
  const ModelSpec spec = *DescribeModel(Shapes()[0].config, "model");
  LocalPlanRequest request{.budget = 16 * kGiB, .context = 4096, .prompt_tokens = 4000, .new_tokens = 10};
  const auto resident = PlanForThisProcess(spec, request);
  ASSERT_TRUE(resident.ok()) << resident.status();
  EXPECT_EQ(resident->plan.prefill_chunk, kUsualChunk);
  DeviceProfile profile{.read_bytes_per_second = 20e9, .flops = 4e12};
  profile.SetDisk({{.read_bytes = kMiB, .depth = 8, .bytes_per_second = 2e8, .latency_ms = 1}});
  request.profile = &profile;
  request.budget = kGiB;  // half of the weights stream, whatever this process takes
  const auto streams = PlanForThisProcess(spec, request);
  ASSERT_TRUE(streams.ok()) << streams.status();
  EXPECT_TRUE(streams->disk_profiled);
  EXPECT_GT(Summarize(streams->plan).streamed_bytes, 0);
  EXPECT_GE(streams->plan.prefill_chunk, 2000) << "a slow disk";
  request.chunk = 100;
  const auto asked = PlanForThisProcess(spec, request);
  ASSERT_TRUE(asked.ok()) << asked.status();
  EXPECT_EQ(asked->plan.prefill_chunk, 100);
  // Too small a budget for the usual chunk.
  request.chunk = 0, request.budget = 1;
  const Bytes least = Advised(std::string(PlanForThisProcess(spec, request).status().message()));
  request.budget = least;
  const auto tight = PlanForThisProcess(spec, request);
  ASSERT_TRUE(tight.ok()) << tight.status();
  EXPECT_LT(tight->plan.prefill_chunk, kUsualChunk);
}

TEST_F(LocalPlanTest, ASummarySaysWhatStaysAndWhatStreams) {
  const auto all = PlanForThisProcess(spec_, Request(4 * kGiB));
  ASSERT_TRUE(all.ok()) << all.status();
  const LocalPlanSummary whole = Summarize(all->plan);
  EXPECT_EQ(whole.total(), 4 * kGiB);
  EXPECT_EQ(whole.blocks, 18);
  EXPECT_EQ(whole.resident_blocks, 18);
  EXPECT_EQ(whole.streamed_bytes, 0);
  EXPECT_EQ(whole.disk_bytes_per_second, 0);
  EXPECT_FALSE(all->disk_profiled);
  LocalPlanRequest request = Request(4 * kGiB);
  request.resident_share = 0.5;
  const auto half = PlanForThisProcess(spec_, request);
  ASSERT_TRUE(half.ok()) << half.status();
  const LocalPlanSummary some = Summarize(half->plan);
  EXPECT_EQ(some.total(), 4 * kGiB);
  EXPECT_EQ(some.disk_bytes_per_second, 1e9) << "assumed";
  EXPECT_NEAR(static_cast<double>(some.resident_bytes), 0.5 * static_cast<double>(whole.resident_bytes), 2.0 * kMiB);
  EXPECT_GT(some.resident_blocks, 4);
  EXPECT_LT(some.resident_blocks, 14);
  EXPECT_GT(some.ms_per_step, whole.ms_per_step);
}

TEST_F(LocalPlanTest, PredictionsAreForThePositionsThatAreExpected) {
  const ModelSpec spec = *DescribeModel(Shapes()[0].config, "model");
  const DeviceProfile profile{.read_bytes_per_second = 20e9, .flops = 1e12};
  LocalPlanRequest request{.budget = 64 * kGiB, .context = 100000, .profile = &profile};
  const auto at = [&](int64_t positions) {
    request.expected_positions = positions;
    const auto plan = PlanForThisProcess(spec, request);
    EXPECT_TRUE(plan.ok()) << plan.status();
    EXPECT_NEAR(plan->plan.predicted.ms_per_step, profile.StepMs(spec, {.rows = 1, .context = positions > 0 ? positions : 100000}), 1e-6);
    return plan->plan.predicted.ms_per_step;
  };
  EXPECT_LT(at(100), at(50000));
  EXPECT_LT(at(50000), at(0));
}

TEST_F(LocalPlanTest, KvThatIsReservedForFewTokensGrowsByLevelsWithinTheSameBudget) {
  LocalPlanRequest request = Request(0);
  request.context = 4096, request.chunk = 60, request.sequences = 4;
  const Bytes kv = request.sequences * request.context * spec_.KvBytesPerToken();
  request.budget = ProcessResidentBytes() + kv + 56 * kMiB;
  const auto whole = PlanForThisProcess(spec_, request);
  ASSERT_TRUE(whole.ok()) << whole.status();
  ASSERT_TRUE(Summarize(whole->plan).streams());
  EXPECT_FALSE(GrowsKv(whole->plan));
  request.kv_tokens = 512;
  const auto grows = PlanForThisProcess(spec_, request);
  ASSERT_TRUE(grows.ok()) << grows.status();
  ASSERT_TRUE(GrowsKv(grows->plan));
  EXPECT_EQ(ResidencyOf(grows->plan).layer_pages, 4 * 512 / kPageTokens);
  EXPECT_LT(Summarize(grows->plan).streamed_bytes, Summarize(whole->plan).streamed_bytes);
  EXPECT_EQ(grows->plan.devices.front().budget, request.budget);
  const KvLevels levels = MakeKvLevels(grows->plan);
  EXPECT_EQ(levels.exhausted, "");
  ASSERT_GT(levels.levels.size(), 3u);
  for (const KvLevel& level : levels.levels) {
    const auto at = WithResidency(grows->plan, level.residency);
    ASSERT_TRUE(at.ok()) << at.status();
    EXPECT_GE(Summarize(*at).margin, 16 * kMiB + request.budget / 256);
    EXPECT_EQ(Summarize(*at).total(), request.budget);
  }
  LocalDevice device({.weights = model_, .make_stage = MakeEngineStages({.num_threads = 1})});
  const absl::Status installed = device.Install(grows->plan, {});
  EXPECT_TRUE(installed.ok()) << installed;
  EXPECT_TRUE(device.Unload().ok());
  // All of it at once where that is what was asked for, or nothing streams.
  request.ring_parts = 4;
  EXPECT_FALSE(GrowsKv(PlanForThisProcess(spec_, request)->plan));
  request.ring_parts.reset(), request.budget = 4 * kGiB;
  EXPECT_FALSE(GrowsKv(PlanForThisProcess(spec_, request)->plan));
}

TEST_F(LocalPlanTest, KvThatMemoryHasNoRoomForGoesToTheDiskWithinTheSameBudget) {
  if (kSanitized) GTEST_SKIP() << "from plan to plan, a sanitizer takes more memory than a margin has";
  LocalPlanRequest request = Request(1);
  request.context = 4096, request.chunk = 60, request.sequences = 4, request.spills_kv = false;
  const Bytes kv = request.sequences * request.context * spec_.KvBytesPerToken(), all = Advised(Refusal(request));
  for (const double share : {0.75, 0.5, 0.2}) {
    request.budget = all - static_cast<Bytes>((1 - share) * static_cast<double>(kv));
    request.spills_kv = false, request.kv_tokens = 0;
    Refusal(request);
    request.spills_kv = true;
    for (const int64_t kv_tokens : {0, 512}) {
      request.kv_tokens = kv_tokens;
      const auto spills = PlanForThisProcess(spec_, request);
      ASSERT_TRUE(spills.ok()) << spills.status();
      ASSERT_TRUE(SpillsKv(spills->plan));
      EXPECT_TRUE(Summarize(spills->plan).streams());
      if (kv_tokens > 0) {
        EXPECT_LE(ResidencyOf(spills->plan).layer_pages, 4 * 512 / kPageTokens);
      }
      const KvLevels levels = MakeKvLevels(spills->plan);
      EXPECT_EQ(levels.exhausted, "");
      EXPECT_EQ(levels.levels.back().residency.layer_pages, FullLayerPages(spills->plan));
      for (const KvLevel& level : levels.levels) {
        const auto at = WithResidency(spills->plan, level.residency);
        ASSERT_TRUE(at.ok()) << at.status();
        EXPECT_GE(Summarize(*at).margin, 16 * kMiB + request.budget / 256);
        EXPECT_EQ(Summarize(*at).total(), request.budget);
      }
      LocalDevice device({.weights = model_, .make_stage = MakeEngineStages({.num_threads = 1, .kv_dir = dir_.path()})});
      const absl::Status installed = device.Install(spills->plan, {});
      EXPECT_TRUE(installed.ok()) << installed;
      EXPECT_TRUE(device.Unload().ok());
    }
  }
  // What has room stays as it is, and so does what is refused for other reasons.
  request.budget = all + 8 * kMiB, request.kv_tokens = 0;
  EXPECT_FALSE(SpillsKv(PlanForThisProcess(spec_, request)->plan));
  request.budget = 1;
  EXPECT_NEAR(static_cast<double>(Advised(Refusal(request))), static_cast<double>(all), 8.0 * kMiB);
}

// Whatever the model, the budget and the disk: it adds up, no memory is left over, and more of it
// is never worse.
TEST_F(LocalPlanTest, AsMuchStaysAsFitsAndMoreMemoryIsNotSlower) {
  constexpr double kAsGood = 1.04;           // times that differ by less may be taken for one
  constexpr Bytes kUnused = 3 * kPartBytes;  // a part that just does not fit, room at the end of the ring, rows of the embedding
  constexpr Bytes kOther = 8 * kMiB;         // that this process takes between two plans
  for (const Shape& shape : Shapes()) {
    const ModelSpec spec = *DescribeModel(shape.config, shape.name);
    for (const double disk_rate : {5e8, 5e9}) {
      DeviceProfile profile{.read_bytes_per_second = 20e9, .flops = 1e12};
      profile.SetDisk({{.read_bytes = kMiB, .depth = 8, .bytes_per_second = disk_rate, .latency_ms = 0.5}});
      LocalPlanRequest request{.model_name = shape.name,
                               .budget = 64 * kGiB,
                               .context = 2048,
                               .prompt_tokens = 512,
                               .chunk = 512,
                               .num_threads = 2,
                               .profile = &profile};
      const auto all = PlanForThisProcess(spec, request);
      ASSERT_TRUE(all.ok()) << all.status();
      const LocalPlanSummary whole = Summarize(all->plan);
      ASSERT_FALSE(whole.streams());
      const Bytes needed = whole.total() - whole.margin + 16 * kMiB;
      LocalPlanSummary before;
      before.ms_per_step = std::numeric_limits<double>::infinity();
      for (const double share : {0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.97, 1.05}) {
        request.budget = ProcessResidentBytes() + 300 * kMiB + static_cast<Bytes>(share * static_cast<double>(spec.WeightBytes()));
        const auto plan = PlanForThisProcess(spec, request);
        ASSERT_TRUE(plan.ok()) << plan.status();
        const LocalPlanSummary summary = Summarize(plan->plan);
        SCOPED_TRACE(absl::StrCat(shape.name, ", disk ", disk_rate, ", ", share, ": ", summary.resident_bytes, " resident, ring ",
                                  summary.ring, ", ", summary.ms_per_step, " ms"));
        EXPECT_EQ(summary.total(), request.budget);
        EXPECT_GE(summary.resident_bytes + summary.ring + kUnused, before.resident_bytes + before.ring);
        EXPECT_LE(summary.ms_per_step, kAsGood * before.ms_per_step);
        before = summary;
        if (!summary.streams()) {
          EXPECT_GT(request.budget, needed - plan->plan.embedding_bytes - kOther);
          continue;
        }
        EXPECT_LT(request.budget, needed + kOther);
        EXPECT_LE(summary.margin, 16 * kMiB + request.budget / 256 + kUnused);
        // No faster than the disk, no slower than one after the other.
        const double read_ms = 1000 * static_cast<double>(summary.streamed_bytes) / summary.disk_bytes_per_second;
        EXPECT_GE(summary.ms_per_step, 0.999 * read_ms);
        EXPECT_LE(summary.ms_per_step, read_ms + kAsGood * whole.ms_per_step + 0.5 * plan->plan.NumParts());
      }
      EXPECT_FALSE(before.streams()) << "the last one has room for all";
    }
  }
}

// An eighth of the neurons takes 32 MiB, and memory has room for about 12.
TEST(LocalPlanSparseTest, AnEighthOfTheNeuronsIsHalvedUntilItFits) {
  constexpr int64_t kNeurons = 8192;
  ModelSpec spec = *DescribeModel(Config(4, 1024, kNeurons, 8000, true), "relu");
  spec.config.activation = Activation::kRelu;
  LocalPlanRequest request{.model_name = "relu",
                           .budget = 20 * kMiB,
                           .context = 96,
                           .sparsity = SparsityWish::kExact,
                           .neurons = {kNeurons, kNeurons, kNeurons, kNeurons},
                           .prompt_tokens = 60,
                           .part_bytes = kMiB,
                           .num_threads = 1};
  const auto refused = PlanForThisProcess(spec, request);
  ASSERT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
  request.budget = Advised(std::string(refused.status().message())) + 4 * kMiB;
  const auto plan = PlanForThisProcess(spec, request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto sparse = std::ranges::find_if(plan->plan.parts, &PlanPart::sparse);
  ASSERT_NE(sparse, plan->plan.parts.end());
  const int64_t rows = sparse->places;
  EXPECT_GT(rows, 1);
  EXPECT_LT(rows, kNeurons / 8);
  request.neuron_rows = 2 * rows;
  EXPECT_TRUE(absl::IsResourceExhausted(PlanForThisProcess(spec, request).status())) << "twice as many fit";
}

// A model of which MLPs are most, with calibrated bundles.
class LocalPlanSparsityTest : public ::testing::Test {
 protected:
  static constexpr int32_t kLayers = 4, kNeurons = 8192;

  LocalPlanSparsityTest() {
    spec_.config.activation = Activation::kRelu;
    profile_.SetDisk({{.read_bytes = 16 * kKiB, .depth = 32, .bytes_per_second = 0.7e9, .latency_ms = 0.6},
                      {.read_bytes = kMiB, .depth = 8, .bytes_per_second = 1.3e9, .latency_ms = 1}});
    request_.budget = ProcessResidentBytes() + 110 * kMiB;  // of 200 MiB
    request_.calibration = MadeCalibration(kLayers, kNeurons, 0.04);
  }
  LocalPlan Planned() const {
    const auto plan = PlanForThisProcess(spec_, request_);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.value_or(LocalPlan{});
  }

  ModelSpec spec_ = *DescribeModel(Config(kLayers, 1024, kNeurons, 8000, true), "relu");
  DeviceProfile profile_{.read_bytes_per_second = 10e9, .flops = 1e11};
  LocalPlanRequest request_{.model_name = "relu",
                            .context = 96,
                            .sparsity = SparsityWish::kAuto,
                            .neurons = std::vector<int64_t>(kLayers, kNeurons),
                            .prompt_tokens = 20,
                            .all_prompt_tokens = 20,
                            .new_tokens = 60,
                            .part_bytes = kMiB,
                            .num_threads = 1,
                            .profile = &profile_};
};

TEST_F(LocalPlanSparsityTest, SparseMlpsAreChosenWhereTheyAreFasterThanStreaming) {
  const LocalPlan chosen = Planned();
  EXPECT_TRUE(HasSparseParts(chosen.plan)) << chosen.sparsity_why;
  EXPECT_THAT(chosen.sparsity_why, HasSubstr("without sparse MLPs"));
  EXPECT_TRUE(NeuronUseOf(chosen.plan).calibrated);
  request_.sparsity = SparsityWish::kOff;
  const LocalPlan off = Planned();
  EXPECT_FALSE(HasSparseParts(off.plan));
  EXPECT_THAT(off.sparsity_why, ::testing::IsEmpty());
  EXPECT_LT(TimeMs(chosen.plan), TimeMs(off.plan));
  request_.sparsity = SparsityWish::kExact;
  const LocalPlan exact = Planned();
  EXPECT_TRUE(HasSparseParts(exact.plan));
  EXPECT_NEAR(TimeMs(exact.plan), TimeMs(chosen.plan), 0.02 * TimeMs(chosen.plan)) << "more than the growth of this process in between";
  request_.neuron_rows = 100;
  const LocalPlan few = Planned();
  for (const PlanPart& part : few.plan.parts) EXPECT_EQ(part.places, part.sparse() ? 100 : 0);
  EXPECT_LE(TimeMs(chosen.plan), TimeMs(few.plan));
}

TEST_F(LocalPlanSparsityTest, DenseIsChosenWhereItIsFasterOrNothingIsKnown) {
  const auto active = request_.calibration;
  request_.calibration = MadeCalibration(kLayers, kNeurons, 0.9);
  EXPECT_FALSE(HasSparseParts(Planned().plan)) << "most neurons are active";
  EXPECT_THAT(Planned().sparsity_why, HasSubstr("with sparse MLPs"));
  request_.calibration = nullptr;
  EXPECT_FALSE(HasSparseParts(Planned().plan)) << "nothing is known of zeros";
  request_.calibration = active;
  request_.neurons.clear();
  EXPECT_FALSE(HasSparseParts(Planned().plan)) << "no bundles";
  request_.neurons.assign(kLayers, kNeurons);
  request_.placement = Placement::kFirstN;
  EXPECT_FALSE(HasSparseParts(Planned().plan));
  EXPECT_THAT(Planned().sparsity_why, HasSubstr("--placement"));
  request_.placement = Placement::kAuto;
  request_.new_tokens = 0, request_.all_prompt_tokens = 2000, request_.prompt_tokens = 90;
  EXPECT_FALSE(HasSparseParts(Planned().plan)) << "prompts gain nothing: " << Planned().sparsity_why;
}

TEST_F(LocalPlanSparsityTest, APromptReadsNoLessWithSparseMlps) {
  request_.prompt_tokens = 60;  // one chunk in both
  for (const double flops : {1e11, 1e13}) {
    profile_.flops = flops;
    request_.sparsity = SparsityWish::kOff;
    const LocalPlan off = Planned();
    request_.sparsity = SparsityWish::kExact;
    const LocalPlan exact = Planned();
    Bytes reads = 0;
    for (const PlanPart& part : exact.plan.parts) reads += part.sparse() || part.streamed ? part.bytes : 0;
    EXPECT_GE(PromptMs(exact.plan), 0.9999 * static_cast<double>(reads) / 1.3e6) << "one disk reads sparse and streamed parts";
    EXPECT_GT(PromptMs(exact.plan), 0.99 * PromptMs(off.plan))
        << flops << ": chunks of " << exact.plan.prefill_chunk << " and " << off.plan.prefill_chunk << ", " << exact.plan.chunks_per_sweep
        << " and " << off.plan.chunks_per_sweep << " in a sweep, " << reads << " bytes";
    EXPECT_LT(TimeMs(exact.plan), TimeMs(off.plan)) << "a token";
  }
}

TEST_F(LocalPlanSparsityTest, ACalibrationOfAnotherModelIsRefused) {
  request_.calibration = MadeCalibration(kLayers, kNeurons / 2, 0.04);
  EXPECT_FALSE(HasSparseParts(Planned().plan));
  EXPECT_THAT(Planned().sparsity_why, HasSubstr("8192 neurons, but 4096 in the calibration"));
  request_.sparsity = SparsityWish::kExact;
  const absl::Status refused = PlanForThisProcess(spec_, request_).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("8192 neurons, but 4096 in the calibration"));
}

TEST(LocalPlanStateTest, MemoryCountsTheStateOfEverySequenceAndPagesOfLayersWithKv) {
  TempDir dir;
  MakeModelOptions options;
  options.config.family = "qwen3_5";
  options.config.num_layers = 5;
  options.tokenizer = false;
  ASSERT_TRUE(MakeModel(options, dir / "model").ok());
  const auto spec = LoadModelSpec(dir / "model");
  ASSERT_TRUE(spec.ok()) << spec.status();
  const LocalPlanRequest request{
      .model_name = "hybrid", .budget = kGiB, .context = 96, .sequences = 3, .prompt_tokens = 60, .part_bytes = kMiB, .num_threads = 1};
  const auto plan = PlanForThisProcess(*spec, request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  Bytes state = 0;
  for (int64_t layer = 0; layer < spec->config.num_layers(); ++layer) state += 3 * spec->StateBytes(layer);
  const PlanDevice& device = plan->plan.devices.front();
  EXPECT_GT(state, 0);
  EXPECT_EQ(device.memory.state, state);
  EXPECT_EQ(device.kv_pages, 3 * 96 / 16 * spec->NumKvLayers());
  EXPECT_LE(device.memory.total(), kGiB);
}

// States of 50 MiB, so 12 snapshots of four requests need 600 MiB.
TEST(LocalPlanStateTest, SnapshotsAreLeftOutIfAStepWithoutThemIsClearlyFaster) {
  std::ifstream file(LIME_SOURCE_DIR "/testbed/models/qwen3.5-9b.json");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto spec = DescribeModel(text, "qwen3.5-9b.json");
  ASSERT_TRUE(spec.ok()) << spec.status();
  LocalPlanRequest request{.model_name = "9b",
                           .budget = 40 * kGiB,
                           .context = 2048,
                           .sequences = 4,
                           .snapshots = {.count = 3},
                           .prompt_tokens = 512,
                           .num_threads = 1};
  const auto plan = [&](Bytes budget, int32_t snapshots) {
    request.budget = budget, request.snapshots.count = snapshots;
    return PlanForThisProcess(*spec, request);
  };
  const auto ample = plan(40 * kGiB, 3), least = plan(40 * kGiB, 0);
  ASSERT_TRUE(ample.ok() && least.ok()) << ample.status() << least.status();
  EXPECT_EQ(ample->plan.state_snapshots, 3);
  // So much streams that reads take longer than the computation, and twelve states are a large part.
  const Bytes streams_little = 40 * kGiB - least->plan.devices.front().memory.margin - 5 * kGiB;
  const auto left_out = plan(streams_little, 3);
  ASSERT_TRUE(left_out.ok()) << left_out.status();
  EXPECT_TRUE(Summarize(left_out->plan).streams());
  EXPECT_EQ(left_out->plan.state_snapshots, 0);
  // Much streams anyway.
  const auto streams = plan(9 * kGiB, 3), without = plan(9 * kGiB, 0);
  ASSERT_TRUE(streams.ok() && without.ok()) << streams.status() << without.status();
  EXPECT_EQ(streams->plan.state_snapshots, 3);
  EXPECT_LT(streams->plan.predicted.ms_per_step, 1.1 * without->plan.predicted.ms_per_step);
}

}  // namespace
}  // namespace lime
