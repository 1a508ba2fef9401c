// One process that runs a model by a plan, through the coordinator's loop and a stage, gives every
// bit that the model by itself gives, one request after another.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/reports/trace_timeline.h"
#include "coordinator/rpc/trace_collector.h"
#include "coordinator/serving/cluster_run.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/row_scorer.h"
#include "planner/plan/cluster_plan_json.h"
#include "tests/integration/local_device_fixture.h"

namespace lime {
namespace {

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

}  // namespace
}  // namespace lime
