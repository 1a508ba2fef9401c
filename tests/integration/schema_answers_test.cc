// JSON by a schema, from the body of a request to the tokens of its answer: a tiny model with random
// weights, random schemas and seeds, and max_tokens at the least for which an answer is promised.
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/json_schema/grammar_builder.h"
#include "coordinator/api/requests/parse_request.h"
#include "coordinator/generation/generation.h"
#include "coordinator/generation/served_model.h"
#include "coordinator/local/local_device.h"
#include "coordinator/local/local_plan.h"
#include "coordinator/serving/serving.h"
#include "coordinator/text/unicode/utf8.h"
#include "daemon/engine/stage_engine.h"
#include "daemon/weights/checkpoint.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "testbed/make_model/make_model.h"
#include "tests/cases.h"
#include "tests/common/json_schema/random_schema.h"
#include "tests/common/json_schema/validator.h"
#include "tests/common/json_schema/vocabularies.h"
#include "tests/coordinator/byte_level_tokenizer.h"
#include "tests/coordinator/recorded_answer.h"
#include "tests/temp_dir.h"

namespace lime {
namespace {

constexpr int64_t kVocabulary = 320, kContext = 512;
constexpr int32_t kSlots = 4, kTextEnd = 257;
constexpr int kGroup = 12;  // requests at a time: some wait while others end

// Bytes, and the tokens of kJsonTokens that are characters.
std::shared_ptr<const Tokenizer> JsonTokenizer() {
  TokenizerJson json = ByteLevelJson();
  int32_t id = 260;
  for (const std::string_view text : json_schema::kJsonTokens) {
    const bool is_there = text == "ab" || text == "abc";
    if (is_there || !IsUtf8(text) || id == kVocabulary) continue;
    json["model"]["vocab"][std::string(text)] = id;
    json["added_tokens"].push_back({{"id", id++}, {"content", text}, {"special", false}, {"normalized", false}});
  }
  return FromJsonOrDie(json);
}

class SchemaAnswersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string folder = dir_ / "model";
    ASSERT_TRUE(MakeModel({.config = {.vocab_size = kVocabulary, .max_positions = kContext}}, folder).ok());
    const auto spec = Checkpoint::Open(folder)->BuildModelSpec();
    ASSERT_TRUE(spec.ok()) << spec.status();
    auto model = ServedModel::Create(
        {.listed = {.id = "tiny"}, .tokenizer = JsonTokenizer(), .bos = 256, .end_tokens = {kTextEnd}, .vocab_size = kVocabulary});
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    const auto plan = PlanForThisProcess(
        *spec, {.budget = 8 * kGiB, .context = kContext, .sequences = kSlots, .prompt_tokens = 32, .chunk = 32, .num_threads = 1});
    ASSERT_TRUE(plan.ok()) << plan.status();
    device_ = std::make_unique<LocalDevice>(LocalDevice::Options{.weights = folder, .make_stage = MakeEngineStages({.num_threads = 1})});
    ASSERT_TRUE(device_->Install(plan->plan, {}).ok());
    const std::vector<std::string> numerics = {"cpu-1"};
    model_->SetPlan(kContext, numerics);
    Serving::Options options;
    options.vocabulary = model_->vocabulary();
    serving_ = std::make_unique<Serving>(*device_, std::move(options));
  }

  struct Asked {
    uint64_t seed = 0;
    Json schema;
    int64_t most = 0;  // max_tokens
    std::shared_ptr<RecordedAnswer> answer;
  };

  // Bytes of the shortest answer and 2; 0 if the schema is refused.
  int64_t LeastTokens(const Json& schema) const {
    const auto grammar = json_schema::CompileAnswer(schema.dump(), {.writable = model_->vocabulary()->single_bytes()});
    return grammar.ok() ? (*grammar)->LeastBytes() + 2 : 0;
  }

  ApiResult<ApiRequest> RequestFor(const Asked& asked) const {
    constexpr double kTemperatures[] = {0, 0.7, 1, 2};
    const Json body = {{"messages", {{{"role", "user"}, {"content", absl::StrCat("Number ", asked.seed)}}}},
                       {"max_tokens", asked.most},
                       {"seed", asked.seed},
                       {"temperature", kTemperatures[asked.seed % 4]},
                       {"response_format", {{"type", "json_schema"}, {"json_schema", {{"name", "answer"}, {"schema", asked.schema}}}}}};
    return ParseRequest(Endpoint::kChat, body.dump(), model_->parse_options());
  }

  // False: the answer does not fit the context.
  bool Send(Asked& asked) {
    const ApiResult<ApiRequest> request = RequestFor(asked);
    EXPECT_TRUE(request.ok()) << request.error().message;
    if (!request.ok()) return false;
    ApiResult<Generation> made = PrepareGeneration(*model_, Endpoint::kChat, *request, {.now = {}, .random = nullptr});
    EXPECT_TRUE(made.ok()) << made.error().message;
    if (!made.ok()) return false;
    ServingRequest& choice = (*made).requests.at(0);
    if (choice.max_new_tokens < asked.most) return false;
    asked.answer = std::make_shared<RecordedAnswer>();
    const absl::StatusOr<RequestId> id = serving_->Submit(std::move(choice), asked.answer);
    EXPECT_TRUE(id.ok()) << id.status();
    return id.ok();
  }

  void Check(const Asked& asked) const {
    SCOPED_TRACE(absl::StrCat("seed ", asked.seed, " max_tokens ", asked.most, " ", asked.schema.dump()));
    const RequestEnd end = asked.answer->Wait();
    ASSERT_TRUE(end.status.ok()) << end.status;
    std::string text;
    for (const int32_t id : asked.answer->tokens()) {
      if (!model_->IsEnd(id)) text += model_->vocabulary()->Bytes(id);
    }
    ASSERT_EQ(end.reason, FinishReason::kEndToken) << text;
    const Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    ASSERT_FALSE(value.is_discarded()) << text;
    ASSERT_TRUE(json_schema::IsValid(value, asked.schema, asked.schema)) << text;
  }

  TempDir dir_;
  std::unique_ptr<ServedModel> model_;
  std::unique_ptr<LocalDevice> device_;
  std::unique_ptr<Serving> serving_;  // goes first
};

TEST_F(SchemaAnswersTest, EveryAnswerIsValidWithTheFewestTokensForWhichItIsPromised) {
  const int wanted = Cases(300, 10'000);
  const uint64_t seeds = 4 * static_cast<uint64_t>(wanted);
  int answers = 0;
  for (uint64_t seed = 1; answers < wanted;) {
    ASSERT_LT(seed, seeds) << "most schemas are refused";
    std::vector<Asked> group;
    for (; seed < seeds && std::ssize(group) < std::min(kGroup, wanted - answers); ++seed) {
      Asked asked{.seed = seed, .schema = json_schema::RandomSchema(seed).Make(), .answer = nullptr};
      asked.most = LeastTokens(asked.schema);
      if (asked.most > 0 && Send(asked)) group.push_back(std::move(asked));
      if (HasFailure()) return;
    }
    for (const Asked& asked : group) Check(asked);
    if (HasFailure()) return;
    answers += static_cast<int>(group.size());
  }
}

}  // namespace
}  // namespace lime
