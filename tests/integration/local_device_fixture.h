// A made model that this process runs by a plan, beside the model by itself, for tests of LocalDevice.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/sampling/logits_hash.h"
#include "common/sampling/sampler.h"
#include "coordinator/local/local_device.h"
#include "coordinator/local/local_plan.h"
#include "coordinator/serving/serving.h"
#include "coordinator/sessions/generate.h"
#include "coordinator/text/detokenizer.h"
#include "coordinator/text/stop_strings.h"
#include "daemon/engine/stage_engine.h"
#include "daemon/weights/checkpoint.h"
#include "gtest/gtest.h"
#include "planner/plan/cluster_plan_json.h"
#include "tests/integration/models.h"
#include "tests/integration/variants.h"

namespace lime {

class LocalDeviceTest : public ::testing::Test {
 protected:
  static constexpr int64_t kContext = 96;
  static constexpr int32_t kSlots = 3;  // fewer than there are requests: slots are used again
  static constexpr int64_t kChunk = 24;

  // Of every kind of block and of weights.
  static std::vector<Variant> Models() {
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
  static std::vector<Shape> Shapes() {
    return {{.threads = 1},
            {.threads = 2, .loader = LoaderKind::kMmap},
            {.resident = 0.9, .threads = 2, .loader = LoaderKind::kAuto},
            {.resident = 0.6, .loader = LoaderKind::kMmap},
            {.resident = 0, .threads = 2}};
  }

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

}  // namespace lime
