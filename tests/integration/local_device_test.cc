// One process that runs a model by a plan, through the coordinator's loop and a stage, gives every
// bit that the model by itself gives, one request after another.

#include "coordinator/local/local_device.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "common/sampling/logits_hash.h"
#include "common/sampling/sampler.h"
#include "coordinator/local/local_plan.h"
#include "coordinator/reports/trace_timeline.h"
#include "coordinator/rpc/trace_collector.h"
#include "coordinator/serving/cluster_run.h"
#include "coordinator/sessions/generate.h"
#include "coordinator/text/detokenizer.h"
#include "coordinator/text/stop_strings.h"
#include "daemon/engine/stage_engine.h"
#include "daemon/weights/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/row_scorer.h"
#include "planner/kv/kv_levels.h"
#include "planner/plan/cluster_plan_json.h"
#include "planner/plan/kv_spill.h"
#include "tests/cases.h"
#include "tests/integration/fake_machine.h"
#include "tests/integration/models.h"
#include "tests/integration/variants.h"

namespace lime {
namespace {

constexpr int64_t kContext = 96;
constexpr int32_t kSlots = 3;  // fewer than there are requests: slots are used again
constexpr int64_t kChunk = 24;

// Of every kind of block and of weights.
std::vector<Variant> Models() {
  return {{.name = "llama_bf16", .quantization = std::nullopt},
          {.name = "qwen2_f16", .family = "qwen2", .dtype = DType::kF16, .quantization = std::nullopt},
          {.name = "qwen3_f32", .family = "qwen3", .dtype = DType::kF32, .quantization = std::nullopt},
          {.name = "opt_f16",
           .family = "opt",
           .dtype = DType::kF16,
           .quantization = std::nullopt,
           .activation = Activation::kRelu,
           .head_dim = 24},
          {.name = "qwen3_5_bf16", .family = "qwen3_5", .quantization = std::nullopt},
          {.name = "llama_q4_bf16", .dtype = DType::kBF16, .quantization = Quantization{4, 64}}};
}

struct Shape {
  std::optional<double> resident;  // nothing: all
  int threads = 1;
  int64_t logit_rows = 0;
  LoaderKind loader = LoaderKind::kRead;
};
std::vector<Shape> Shapes() {
  return {{.threads = 1},
          {.threads = 2, .loader = LoaderKind::kMmap},
          {.resident = 0.9, .threads = 2, .loader = LoaderKind::kAuto},
          {.resident = 0.6, .loader = LoaderKind::kMmap},
          {.resident = 0, .threads = 2}};
}

// As LocalSession has them.
std::vector<Residency> LevelsAt(const Plan& plan, const std::atomic<bool>* /*cancelled*/) {
  std::vector<Residency> levels;
  for (const KvLevel& level : MakeKvLevels(plan).levels) levels.push_back(level.residency);
  return levels;
}

class LocalDeviceTest : public ::testing::Test {
 protected:
  void Make(const Variant& variant) {
    model_ = dir_ / variant.name;
    ASSERT_TRUE(MakeModel(OptionsOf(variant), model_).ok());
    const auto checkpoint = Checkpoint::Open(model_);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    auto spec = checkpoint->BuildModelSpec();
    ASSERT_TRUE(spec.ok()) << spec.status();
    spec_ = *std::move(spec);
    auto tokenizer = Tokenizer::Load(model_);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
    prompts_.clear();
    for (const int length : {60, 33, 5, 1, 20})
      prompts_.push_back(RandomIds(static_cast<uint32_t>(length), length, std::min<int64_t>(200, spec_.config.vocab_size)));
  }

  Plan PlanFor(const Shape& shape, int32_t sequences, int64_t prompt_tokens) {
    const auto plan = PlanForThisProcess(spec_, {.budget = 8 * kGiB,
                                                 .context = kContext,
                                                 .sequences = sequences,
                                                 .prompt_tokens = prompt_tokens,
                                                 .chunk = kChunk,
                                                 .logit_rows = shape.logit_rows,
                                                 .resident_share = shape.resident,
                                                 .part_bytes = 16 * kKiB,
                                                 .num_threads = shape.threads});
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? plan->plan : Plan{};
  }

  std::unique_ptr<LocalDevice> Install(const Plan& plan, const Shape& shape) {
    auto device = std::make_unique<LocalDevice>(
        LocalDevice::Options{.weights = model_, .make_stage = MakeEngineStages({.num_threads = shape.threads, .loader = shape.loader})});
    const absl::Status status = device->Install(plan, {});
    EXPECT_TRUE(status.ok()) << status << ToJsonText(plan);
    return device;
  }

  cli::GenerateOptions Options(const SamplingParams& sampling) const {
    cli::GenerateOptions options;
    options.sampling = sampling;
    options.max_new_tokens = {30, 12, 1, 20};
    options.hash_logits = true;
    return options;
  }

  std::vector<cli::Generated> ByTheModel(const cli::GenerateOptions& options) const {
    const auto model = OpenReference(model_, {.chunk = kChunk}, context_);
    EXPECT_TRUE(model.ok()) << model.status();
    std::vector<cli::Generated> results;
    for (size_t i = 0; model.ok() && i < prompts_.size(); ++i) results.push_back(OneByTheModel(**model, i, options));
    return results;
  }

  cli::Generated OneByTheModel(ReferenceModel& model, size_t prompt, const cli::GenerateOptions& options) const {
    cli::Generated result{.prompt_tokens = std::ssize(prompts_[prompt])};
    std::vector<int32_t> ids = prompts_[prompt];
    StreamingDetokenizer text(*tokenizer_);
    for (const int32_t id : ids) text.Push(id);
    StopStrings stop(options.stop_strings);
    Sampler sampler;
    LogitsHash hash;
    EXPECT_TRUE(model.StartSequence(0, context_).ok());
    for (size_t at = 0; result.finish == FinishReason::kNone;) {
      MicroBatch batch;
      for (; at < ids.size() && std::ssize(batch.rows) < kChunk; ++at)
        batch.rows.push_back({.token = ids[at], .position = static_cast<int32_t>(at), .wants_logits = at + 1 == ids.size()});
      const auto logits = model.Step(batch);
      EXPECT_TRUE(logits.ok()) << logits.status();
      if (!logits.ok()) break;
      if (at < ids.size()) continue;
      hash.Add(*logits);
      const auto token = sampler.Sample(*logits, options.sampling, {.ids = ids}, {.request = prompt, .position = ids.size()});
      EXPECT_TRUE(token.ok()) << token.status();
      if (!token.ok()) break;
      ids.push_back(*token), result.token_ids.push_back(*token);
      const bool ends = std::ranges::count(options.end_tokens, *token) > 0,
                 is_last = std::ssize(result.token_ids) == options.MaxNewTokens(prompt);
      if (!ends) result.text += stop.Push(text.Push(*token));
      result.finish = ends             ? FinishReason::kEndToken
                      : is_last        ? FinishReason::kLength
                      : stop.stopped() ? FinishReason::kStopped
                                       : FinishReason::kNone;
    }
    model.EndSequence(0);
    if (!stop.stopped()) {
      result.text += stop.Push(text.Finish());
      result.text += stop.Finish();
    }
    result.logits_hash = hash.value();
    return result;
  }

  std::vector<cli::Generated> ByAPlan(Devices& device, const cli::GenerateOptions& options, Serving::Options serving = {}) const {
    cli::Generator generator(device, std::move(serving), *tokenizer_, options, /*expected_prompt_seconds=*/std::nullopt);
    for (const std::vector<int32_t>& prompt : prompts_) generator.Add(prompt);
    auto summary = generator.Run();
    EXPECT_TRUE(summary.ok()) << summary.status();
    return summary.ok() ? std::move(summary->results) : std::vector<cli::Generated>{};
  }

  static void ExpectSame(const std::vector<cli::Generated>& plan, const std::vector<cli::Generated>& model) {
    ASSERT_EQ(plan.size(), model.size());
    for (size_t i = 0; i < plan.size(); ++i) {
      SCOPED_TRACE(absl::StrCat("request ", i));
      EXPECT_EQ(plan[i].token_ids, model[i].token_ids);
      EXPECT_EQ(plan[i].text, model[i].text);
      EXPECT_EQ(plan[i].logits_hash, model[i].logits_hash);
      EXPECT_EQ(plan[i].finish, model[i].finish);
    }
  }

  // A model that is small beside its KV: 32 KiB a token. Two sequences, prompts that one memory has
  // no room for.
  void MakeLong() {
    model_ = dir_ / "long";
    MakeModelOptions options;
    options.dtype = DType::kF32;
    options.config.num_layers = 8;
    options.config.num_heads = options.config.num_kv_heads = 8;
    options.config.head_dim = 64;
    options.config.max_positions = 2048;
    ASSERT_TRUE(MakeModel(options, model_).ok());
    spec_ = *Checkpoint::Open(model_)->BuildModelSpec();
    tokenizer_ = *Tokenizer::Load(model_);
    context_ = 1400;
    for (const int length : {1250, 700, 1100}) prompts_.push_back(RandomIds(static_cast<uint32_t>(length), length, 200));
  }

  TempDir dir_;
  std::string model_;
  int64_t context_ = kContext;
  ModelSpec spec_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<std::vector<int32_t>> prompts_;
};

TEST_F(LocalDeviceTest, TokensAndLogitsAreThoseOfTheModelByItself) {
  const std::vector<SamplingParams> samplings = {{.temperature = 0},
                                                 {.repetition_penalty = 1.2, .temperature = 0.9, .top_k = 40, .top_p = 0.9, .seed = 7}};
  for (const Variant& variant : Models()) {
    SCOPED_TRACE(variant.name);
    ASSERT_NO_FATAL_FAILURE(Make(variant));
    std::vector<std::vector<cli::Generated>> expected;
    expected.reserve(samplings.size());
    for (const SamplingParams& sampling : samplings) expected.push_back(ByTheModel(Options(sampling)));
    for (const Shape& shape : Shapes()) {
      const Plan plan = PlanFor(shape, kSlots, 60);
      SCOPED_TRACE(ToJsonText(plan));
      for (size_t i = 0; i < samplings.size(); ++i) {
        const auto device = Install(plan, shape);
        ExpectSame(ByAPlan(*device, Options(samplings[i])), expected[i]);
        EXPECT_TRUE(device->Unload().ok());
      }
    }
  }
}

TEST_F(LocalDeviceTest, WhatFitsIsResidentAndTheRestStreams) {
  ASSERT_NO_FATAL_FAILURE(Make(Models().front()));
  const auto streamed = [](const Plan& plan) { return std::ranges::count_if(plan.parts, &PlanPart::streamed); };
  const Plan whole = PlanFor({}, kSlots, 60);
  EXPECT_EQ(streamed(whole), 0);
  EXPECT_EQ(whole.embedding, EmbeddingPlacement::kResident);
  EXPECT_EQ(whole.devices.front().memory.ring, 0);
  const Plan half = PlanFor({.resident = 0.5}, kSlots, 60), none = PlanFor({.resident = 0}, kSlots, 60);
  EXPECT_GT(streamed(half), 0);
  EXPECT_LT(streamed(half), half.NumParts());
  EXPECT_EQ(streamed(none), none.NumParts());
  const auto too_small = PlanForThisProcess(spec_, {.budget = 1 * kMiB, .context = kContext});
  EXPECT_TRUE(absl::IsResourceExhausted(too_small.status())) << too_small.status();
}

TEST_F(LocalDeviceTest, ABudgetThatIsTooSmallForAllIsKept) {
  const std::string model = dir_ / "larger";
  MakeModelOptions options;
  options.config.num_layers = 8;
  options.config.hidden_size = 512;
  options.config.num_heads = 8;
  options.config.intermediate_size = 1536;
  ASSERT_TRUE(MakeModel(options, model).ok());
  const ModelSpec spec = *Checkpoint::Open(model)->BuildModelSpec();
  LocalPlanRequest request{.budget = 8 * kGiB, .context = kContext, .prompt_tokens = 60, .part_bytes = kMiB, .num_threads = 1};
  const auto whole = PlanForThisProcess(spec, request);
  ASSERT_TRUE(whole.ok()) << whole.status();
  const PlanMemory& memory = whole->plan.devices.front().memory;
  request.budget = memory.total() - memory.margin + 16 * kMiB - memory.weights / 2;
  const auto tight = PlanForThisProcess(spec, request);
  ASSERT_TRUE(tight.ok()) << tight.status();
  EXPECT_LE(tight->plan.devices.front().memory.total(), request.budget);
  Bytes streamed = 0;
  for (const PlanPart& part : tight->plan.parts) streamed += part.streamed ? part.bytes : 0;
  EXPECT_GT(streamed, memory.weights / 2);
  EXPECT_LT(streamed, memory.weights);
  LocalDevice device({.weights = model, .make_stage = MakeEngineStages({.num_threads = 1})});
  const absl::Status installed = device.Install(tight->plan, {});
  EXPECT_TRUE(installed.ok()) << installed << ToJsonText(tight->plan);
}

TEST_F(LocalDeviceTest, RequestsEndAtEndTokensAndStopStrings) {
  ASSERT_NO_FATAL_FAILURE(Make(Models().front()));
  cli::GenerateOptions options = Options({.temperature = 1.0, .seed = 3});
  options.max_new_tokens = {30};
  const std::vector<cli::Generated> plain = ByTheModel(options);
  ASSERT_EQ(plain.size(), prompts_.size());
  options.end_tokens = {plain[0].token_ids[9], plain[1].token_ids[3]};
  ASSERT_GE(plain[2].text.size(), 12u);
  options.stop_strings = {plain[2].text.substr(6, 3)};
  const std::vector<cli::Generated> expected = ByTheModel(options);
  for (const Shape& shape : Shapes()) {
    const auto device = Install(PlanFor(shape, kSlots, 60), shape);
    ExpectSame(ByAPlan(*device, options), expected);
  }
}

TEST_F(LocalDeviceTest, ScoresAreThoseOfTheModelByItself) {
  for (const Variant& variant : Models()) {
    SCOPED_TRACE(variant.name);
    ASSERT_NO_FATAL_FAILURE(Make(variant));
    const std::vector<int32_t> ids = prompts_[0];
    const auto model = OpenReference(model_, {.chunk = std::ssize(ids)}, kContext);
    ASSERT_TRUE(model.ok()) << model.status();
    ASSERT_TRUE((*model)->StartSequence(0, kContext).ok());
    MicroBatch all;
    for (size_t i = 0; i < ids.size(); ++i)
      all.rows.push_back({.token = ids[i], .position = static_cast<int32_t>(i), .wants_logits = true});
    const auto logits = (*model)->Step(all);
    ASSERT_TRUE(logits.ok()) << logits.status();
    LogitsHash expected_hash;
    expected_hash.Add(*logits);
    cpu::RowScorer scorer;
    std::vector<cpu::RowScore> expected;
    const size_t vocab = logits->size() / ids.size();
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto next = i + 1 < ids.size() ? std::optional(ids[i + 1]) : std::nullopt;
      expected.push_back(scorer.Score(logits->subspan(i * vocab, vocab), /*top=*/4, next).value());
    }
    for (const Shape& shape : {Shape{.threads = 2}, Shape{.resident = 0.6}, Shape{.logit_rows = kChunk},
                               Shape{.resident = 0.6, .threads = 2, .logit_rows = 10}}) {
      const auto device = Install(PlanFor(shape, 1, std::ssize(ids)), shape);
      ClusterRun run(*device);
      ASSERT_TRUE(run.Add({.prompt = ids, .max_new_tokens = 0}, {.score_top = 4}).ok());
      std::vector<cpu::RowScore> scores;
      uint64_t hash = 0;
      const absl::Status status = run.Run(
          [&](const ClusterRun::Token& token) {
            if (token.score != nullptr) scores.push_back(*token.score);
            hash = token.logits_hash;
            return true;
          },
          nullptr);
      ASSERT_TRUE(status.ok()) << status;
      ASSERT_EQ(scores.size(), ids.size());
      EXPECT_EQ(hash, expected_hash.value());
      const int64_t rows = std::max<int64_t>(1, shape.logit_rows);
      EXPECT_LE(run.steps(), (std::ssize(ids) + rows - 1) / rows) << "chunks may share a step";
      for (size_t i = 0; i < ids.size(); ++i) {
        EXPECT_EQ(scores[i].top, expected[i].top) << i;
        EXPECT_EQ(scores[i].logprob, expected[i].logprob) << i;
      }
    }
  }
}

TEST_F(LocalDeviceTest, MemoryForMoreLogitsIsCounted) {
  ASSERT_NO_FATAL_FAILURE(Make(Models().front()));
  const Plan one = PlanFor({}, 1, 60), many = PlanFor({.logit_rows = kChunk}, 1, 60), bounded = PlanFor({.logit_rows = 1000}, 1, 60);
  EXPECT_EQ(one.logit_rows, 0);
  EXPECT_EQ(many.logit_rows, kChunk);
  EXPECT_EQ(bounded.logit_rows, kChunk) << "a chunk has no more rows";
  EXPECT_GE(many.devices[0].memory.activations - one.devices[0].memory.activations,
            (kChunk - 1) * spec_.config.vocab_size * static_cast<Bytes>(sizeof(float)));
  const auto read = ParsePlan(ToJsonText(many), "plan.json");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, many);
}

TEST_F(LocalDeviceTest, ReportsTheComputedShareOfAPromptWithinAStepToo) {
  ASSERT_NO_FATAL_FAILURE(Make(Models().front()));
  const DeviceProfile slow{.read_bytes_per_second = 1e12, .flops = 1e15, .block_overhead_ms = 80};  // for each of its blocks
  LocalDevice device({.weights = model_, .make_stage = MakeEngineStages({.num_threads = 1, .pace = slow})});
  ASSERT_TRUE(device.Install(PlanFor({}, kSlots, 20), {}).ok());
  EXPECT_EQ(device.StepShare(), 0);
  std::vector<double> shares;
  ClusterRun run(device, {}, {}, {.on_prompt = [&](RequestId, double share) { shares.push_back(share); }});
  ASSERT_TRUE(run.Add({.prompt = prompts_[4], .max_new_tokens = 1}, {}).ok());
  ASSERT_LE(std::ssize(prompts_[4]), kChunk) << "one step";
  const absl::Status status = run.Run([](const ClusterRun::Token&) { return true; }, nullptr);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_GE(shares.size(), 2u);
  EXPECT_TRUE(std::ranges::is_sorted(shares));
  EXPECT_GT(shares.front(), 0);
  EXPECT_LE(shares.back(), 1);
  EXPECT_EQ(device.StepShare(), 1);
}

TEST_F(LocalDeviceTest, ReportsTheComputedShareOfAPromptStepByStep) {
  ASSERT_NO_FATAL_FAILURE(Make(Models().front()));
  const auto device = Install(PlanFor({}, kSlots, 60), {});
  std::vector<double> shares;
  ClusterRun run(*device, {}, {}, {.on_prompt = [&](RequestId, double share) { shares.push_back(share); }});
  ASSERT_TRUE(run.Add({.prompt = prompts_[0], .max_new_tokens = 3}, {}).ok());
  size_t before_tokens = 0;
  const absl::Status status = run.Run(
      [&](const ClusterRun::Token&) {
        if (before_tokens == 0) before_tokens = shares.size();
        return true;
      },
      nullptr);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(shares.size(), before_tokens) << "nothing after the first token";
  EXPECT_TRUE(std::ranges::is_sorted(shares));
}

TEST_F(LocalDeviceTest, AnotherPlanGoesOnWithTheKvOfTheOneBefore) {
  ASSERT_NO_FATAL_FAILURE(Make(Models().front()));
  cli::GenerateOptions options = Options({.temperature = 0});
  prompts_.resize(2);
  const std::vector<cli::Generated> expected = ByTheModel(options);
  for (const auto& [before, after] : {std::pair<Shape, Shape>{{}, {.resident = 0.5}},
                                      {{.resident = 0.5}, {}},
                                      {{.loader = LoaderKind::kMmap}, {.resident = 0.5}},
                                      {{.resident = 0.5, .loader = LoaderKind::kMmap}, {}},
                                      {{.loader = LoaderKind::kMmap}, {}}}) {
    SCOPED_TRACE(
        absl::StrCat(std::string(LoaderName(before.loader)), ", ", before.resident.value_or(1), " to ", after.resident.value_or(1)));
    const auto device = Install(PlanFor(before, kSlots, 60), before);
    bool changed = false;
    std::string said;
    ClusterRun::Survival survival{.say = [&](const std::string& sentence) { said += sentence + "\n"; }};
    survival.change = [&, shape = after](const OrderWriter::Remaining& remaining) -> std::optional<ClusterRun::Change> {
      if (remaining.steps > 20 || std::exchange(changed, true)) return std::nullopt;
      return ClusterRun::Change{
          .plan = PlanFor(shape, kSlots, 60), .why = "why", .taking_over = absl::Seconds(20), .computing_again = absl::Seconds(40)};
    };
    ClusterRun run(*device, survival);
    for (size_t i = 0; i < prompts_.size(); ++i)
      ASSERT_TRUE(
          run.Add({.prompt = prompts_[i], .max_new_tokens = options.MaxNewTokens(i)}, {.params = options.sampling, .hash_logits = true})
              .ok());
    std::vector<cli::Generated> results(prompts_.size());
    const absl::Status status = run.Run(
        [&](const ClusterRun::Token& token) {
          results[static_cast<size_t>(token.request)].token_ids.push_back(token.token);
          results[static_cast<size_t>(token.request)].logits_hash = token.logits_hash;
          return true;
        },
        nullptr);
    ASSERT_TRUE(status.ok()) << status << said;
    EXPECT_EQ(run.changes(), 1) << said;
    EXPECT_THAT(said, ::testing::Not(::testing::HasSubstr("computed again")));
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_EQ(results[i].token_ids, expected[i].token_ids);
      EXPECT_EQ(results[i].logits_hash, expected[i].logits_hash);
    }
  }
}

TEST_F(LocalDeviceTest, ItsTraceIsATimelineAsOneOfACluster) {
  ASSERT_NO_FATAL_FAILURE(Make(Models().front()));
  const Plan plan = PlanFor({.resident = 0.5}, kSlots, 60);
  LocalDevice device({.weights = model_, .make_stage = MakeEngineStages({.num_threads = 1})});
  EXPECT_FALSE(device.DrainTrace({.most = 1}).ok());
  ASSERT_TRUE(device.Install(plan, {.trace_spans = kTraceSpans}).ok());
  TraceCollector collector({{plan.devices[0].name, [&](const TraceCall& call) { return device.DrainTrace(call); }}}, {});
  ByAPlan(device, Options({.temperature = 0}));
  const std::vector<DeviceTrace> traces = collector.Finish();
  ASSERT_EQ(traces.size(), 1u);
  EXPECT_TRUE(traces[0].status.ok()) << traces[0].status;
  EXPECT_EQ(traces[0].epoch, device.plan().epoch);
  EXPECT_EQ(traces[0].lost, 0);
  std::vector<std::string> parts;
  parts.reserve(plan.NumParts());
  for (int part = 0; part < plan.NumParts(); ++part) parts.push_back(PartName(plan, part));
  const auto measured = cli::MergeTraces({plan.devices[0].name}, parts, traces);
  ASSERT_TRUE(measured.ok()) << measured.status();
  EXPECT_TRUE(measured->devices[0].traced);
  EXPECT_EQ(std::ssize(cli::StepsOf(measured->timeline)), device.Statistics(0)->steps);
  EXPECT_TRUE(
      std::ranges::any_of(measured->timeline.spans, [](const TimelineSpan& span) { return span.kind == TimelineSpan::Kind::kLoad; }));
  EXPECT_TRUE(device.Unload().ok());
  EXPECT_FALSE(device.DrainTrace({.most = 1}).ok());
}

TEST_F(LocalDeviceTest, ATraceThatIsKeptWhenAskedForHasNoSpansUntilSomebodyAsks) {
  ASSERT_NO_FATAL_FAILURE(Make(Models().front()));
  const Plan plan = PlanFor({.resident = 0.5}, kSlots, 60);
  for (const bool asks : {false, true}) {
    LocalDevice device({.weights = model_, .make_stage = MakeEngineStages({.num_threads = 1})});
    ASSERT_TRUE(device.Install(plan, {.trace_spans = kTraceSpans, .trace_when_asked = true}).ok());
    if (asks) ASSERT_TRUE(device.DrainTrace({.most = 0}).ok());
    ByAPlan(device, Options({.temperature = 0}));
    const absl::StatusOr<TraceChunk> chunk = device.DrainTrace({.most = kTraceSpans});
    ASSERT_TRUE(chunk.ok()) << chunk.status();
    EXPECT_NE(chunk->spans.empty(), asks);
    EXPECT_EQ(chunk->lost, 0);
    EXPECT_TRUE(device.Unload().ok());
  }
}

TEST_F(LocalDeviceTest, ShedsWeightsWhileOthersNeedMemoryAndChangesNoBit) {
  ASSERT_NO_FATAL_FAILURE(Make(Models().front()));
  const cli::GenerateOptions options = Options({.temperature = 0});
  const std::vector<cli::Generated> expected = ByTheModel(options);
  FakeMachine machine;
  absl::Notification ended;
  std::thread others([&] {  // which need memory, and then do not, while requests are computed
    for (Bytes i = 0; !ended.WaitForNotificationWithTimeout(absl::Milliseconds(7)); ++i)
      machine.SetAvailable(i % 3 == 0 ? 8 * kGiB : i % 7 * kMiB);
  });
  int64_t changes = 0;
  const absl::Time end = absl::Now() + absl::Minutes(1);
  for (const Shape& shape : {Shape{}, Shape{.loader = LoaderKind::kMmap}, Shape{.resident = 0.6, .threads = 2}}) {
    // How often memory changes during a run depends on the machine, so runs go on until it has.
    for (int run = 0; run < 4 || (changes <= 2 && absl::Now() < end); ++run) {
      LocalDevice device({.weights = model_,
                          .make_stage = MakeEngineStages({.num_threads = shape.threads,
                                                          .loader = shape.loader,
                                                          .follow_memory = true,
                                                          .pressure = machine.Watch(),
                                                          .pressure_hold = absl::Milliseconds(20)})});
      const absl::Status installed = device.Install(PlanFor(shape, kSlots, 60), {});
      EXPECT_TRUE(installed.ok()) << installed;
      if (!installed.ok()) break;
      ExpectSame(ByAPlan(device, options), expected);
      changes += device.Statistics(0)->residency_changes;
    }
  }
  ended.Notify();
  others.join();
  EXPECT_GT(changes, 2);
}

TEST_F(LocalDeviceTest, KvThatMemoryHasNoRoomForGoesToTheDiskAndChangesNoBit) {
  if (!ManyCases()) GTEST_SKIP() << "under a sanitizer it takes more than a minute, in scripts/soak asan";
  ASSERT_NO_FATAL_FAILURE(MakeLong());
  const cli::GenerateOptions options = Options({.temperature = 0});
  const std::vector<cli::Generated> expected = ByTheModel(options);
  LocalPlanRequest request{.budget = 8 * kGiB,
                           .context = context_,
                           .spills_kv = false,
                           .sequences = 2,
                           .prompt_tokens = 1250,
                           .chunk = 64,
                           .part_bytes = 64 * kKiB,
                           .num_threads = 1};
  const auto whole = PlanForThisProcess(spec_, request);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_FALSE(SpillsKv(whole->plan));
  ExpectSame(ByAPlan(*Install(whole->plan, {}), options), expected);
  // A sanitizer retains freed memory for a while.
  request.beside = 64 * kMiB;
  // Half of the KV, beside what this process has by now.
  const auto half_of_kv = [&, roomy = request]() -> Bytes {
    const auto fits = PlanForThisProcess(spec_, roomy);
    EXPECT_TRUE(fits.ok()) << fits.status();
    if (!fits.ok()) return 0;
    const PlanMemory& memory = fits->plan.devices.front().memory;
    return memory.total() - memory.margin + 16 * kMiB - memory.kv / 2;
  };
  request.budget = half_of_kv();
  const auto refused = PlanForThisProcess(spec_, request);
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
  request.spills_kv = true;
#ifdef LIME_SANITIZED
  const std::vector<int64_t> kv_tokens_of = {100};  // planning takes half a minute there
#else
  const std::vector<int64_t> kv_tokens_of = {0, 100};
#endif
  for (const int64_t kv_tokens : kv_tokens_of) {
    request.kv_tokens = kv_tokens;
    request.budget = half_of_kv();
    const auto spills = PlanForThisProcess(spec_, request);
    ASSERT_TRUE(spills.ok()) << spills.status();
    SCOPED_TRACE(ToJsonText(spills->plan));
    ASSERT_TRUE(SpillsKv(spills->plan));
    EXPECT_EQ(spills->plan.devices.front().budget, request.budget);
    EXPECT_LE(spills->plan.devices.front().memory.total(), request.budget);
    LocalDevice nowhere({.weights = model_, .make_stage = MakeEngineStages({.num_threads = 1, .kv_dir = dir_ / "nowhere"})});
    EXPECT_THAT(std::string(nowhere.Install(spills->plan, {}).message()), ::testing::HasSubstr("give a --kv-dir that limed may write"));
    LocalDevice device({.weights = model_, .make_stage = MakeEngineStages({.num_threads = 1, .grow_kv = kv_tokens > 0})});
    const absl::Status installed = device.Install(spills->plan, {});
    ASSERT_TRUE(installed.ok()) << installed;
    ExpectSame(ByAPlan(device, options, {.levels = LevelsAt}), expected);
    const auto statistics = device.Statistics(0);
    ASSERT_TRUE(statistics.ok()) << statistics.status();
    EXPECT_GT(statistics->kv_written, 0);
    EXPECT_GT(statistics->kv_read, statistics->kv_written) << "in every step again";
    EXPECT_GT(statistics->residency_changes, 0);
  }
  // What is asked for of a ring or of what stays is kept or refused.
  request.ring_parts = 4;
  EXPECT_TRUE(absl::IsResourceExhausted(PlanForThisProcess(spec_, request).status()));
}

TEST_F(LocalDeviceTest, SaysHowTheWeightsWereLoaded) {
  ASSERT_NO_FATAL_FAILURE(Make(Models().front()));
  using ::testing::StartsWith;
  const Bytes all = spec_.WeightBytes();
  for (const auto& [shape, says] : {std::pair<Shape, const char*>{{}, "read ("},
                                    {{.loader = LoaderKind::kMmap}, "mmap (views of the files"},
                                    {{.resident = 0.5, .loader = LoaderKind::kAuto}, "read: resident blocks"}}) {
    const LoadSummary load = Install(PlanFor(shape, kSlots, 60), shape)->load();
    EXPECT_THAT(load.loader, StartsWith(says));
    EXPECT_GT(load.seconds, 0);
    EXPECT_GT(load.bytes, 0);
    if (shape.resident) {
      EXPECT_LT(load.bytes, all * 3 / 4);
    } else {
      EXPECT_EQ(load.bytes, all);
    }
  }
  EXPECT_EQ(LocalDevice({.weights = model_, .make_stage = MakeEngineStages({})}).load().loader, "");
}

TEST_F(LocalDeviceTest, APlanThatCannotBeIsRefusedAndLeavesNothing) {
  ASSERT_NO_FATAL_FAILURE(Make(Models().front()));
  Plan plan = PlanFor({}, kSlots, 60);
  LocalDevice device({.weights = model_, .make_stage = MakeEngineStages({.num_threads = 1})});
  Plan two = plan;
  two.devices.push_back(two.devices.front());
  EXPECT_TRUE(absl::IsInvalidArgument(device.Install(two, {})));
  plan.model_key = "another";
  EXPECT_TRUE(absl::IsInvalidArgument(device.Install(plan, {})));
  EXPECT_FALSE(device.Statistics(0).ok());
  EXPECT_TRUE(device.Unload().ok());
}

}  // namespace
}  // namespace lime
