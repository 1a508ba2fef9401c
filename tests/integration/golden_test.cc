// Real trained models, and small seeded ones of further families, against the golden values stored
// beside them.
//
// fp32: 1e-3 absolute. bf16 and f16, whose residual stream is rounded at block boundaries: within
// 0.3, 0.05 on average, perplexity within 1 %; greedy ids equal up to the first step whose golden
// margin is below 0.3. The weights of the seeded models are random, so rounding moves their logits
// further: their golden files say how far on average, and a run may be off by twice as much.

#include <algorithm>
#include <cmath>
#include <limits>

#include "coordinator/cli/model_files.h"
#include "coordinator/sessions/generate.h"
#include "coordinator/sessions/score.h"
#include "gtest/gtest.h"
#include "kernels/registry/registry.h"
#include "planner/plan/device/backend_names.h"
#include "tests/integration/models.h"
#include "tests/skips.h"

namespace lime {
namespace {

using nlohmann::json;

class GoldenTest : public ::testing::TestWithParam<std::string> {
 protected:
  virtual std::string Folder() const { return SharedModel(GetParam()); }
  // Of one value: the largest difference. Of all values: the mean.
  virtual double bound() const { return exact() ? 1e-3 : 0.3; }
  virtual double mean_bound() const { return exact() ? 1e-3 : 0.05; }

  void SetUp() override {
    LIME_SKIP_WITHOUT_SHARED(Folder());
    dir_ = Folder();
    golden_ = ReadJson(dir_ + "/golden.json");
    ASSERT_TRUE(golden_.is_object());
    auto files = cli::ModelFiles::Open(dir_);
    ASSERT_TRUE(files.ok()) << files.status();
    files_ = std::make_unique<cli::ModelFiles>(*std::move(files));
  }

  bool exact() const { return files_->spec.working_dtype == DType::kF32; }

  // Teacher-forced positions of one sequence, with the `top` likeliest.
  std::vector<cli::ScoredPosition> Score(const std::vector<int32_t>& ids, int64_t top) {
    std::vector<cli::ScoredPosition> positions = ScoresOf(dir_, {.backend = backend_, .numerics = numerics_}, ids, top).positions;
    EXPECT_EQ(positions.size(), ids.size());
    positions.resize(ids.size());
    return positions;
  }

  // Logits by id after the last position.
  std::vector<float> Dense(const cli::ScoredPosition& position) {
    std::vector<float> logits(files_->spec.config.vocab_size);
    for (const auto& [id, logit] : position.top) logits[id] = logit;
    return logits;
  }

  // Collects differences, so that their mean can be bounded too.
  void Compare(double got, double golden, const std::string& where) {
    const double difference = std::abs(got - golden);
    EXPECT_LE(difference, bound()) << where << ": " << got << " against " << golden;
    sum_ += difference;
    ++count_;
  }
  void CheckMean() {
    RecordProperty("mean_difference", std::to_string(sum_ / static_cast<double>(count_)));
    EXPECT_LE(sum_ / static_cast<double>(count_), mean_bound()) << count_ << " values";
  }

  void CompareLastLogitsOfOnePrompt();
  void CompareWindows();
  void CompareGreedyPath();
  void CompareGreedyIds();

  // One order of sums on every machine: over the few values of one test, what another order rounds
  // otherwise decides.
  std::string numerics_ = "portable";
  std::string backend_ = kCpuBackend;
  std::string dir_;
  json golden_;
  std::unique_ptr<cli::ModelFiles> files_;
  double sum_ = 0;
  int64_t count_ = 0;
};

void GoldenTest::CompareLastLogitsOfOnePrompt() {
  const json& golden = golden_["full_last_logits"];
  const std::vector<int32_t> ids = *files_->EncodePrompt(golden["prompt"].get<std::string>());
  const std::vector<float> logits = Dense(Score(ids, files_->spec.config.vocab_size).back());
  ASSERT_EQ(logits.size(), golden["logits"].size());
  for (size_t id = 0; id < logits.size(); ++id) Compare(logits[id], golden["logits"][id].get<double>(), absl::StrCat("id ", id));
}

void GoldenTest::CompareWindows() {
  const json& golden = golden_["teacher_forced"];
  std::string source = golden["text"].get<std::string>();
  const std::string path = SharedDir().string() + source.substr(6, source.find(':') - 6);  // "shared/text/x.txt: first ..."
  std::ifstream file(path);
  ASSERT_TRUE(file) << path;
  std::string text;
  for (std::string line; std::getline(file, line);) {
    if (line != "<|endoftext|>") text += line + "\n";
  }
  text.resize(std::min<size_t>(text.size(), 12000));
  const std::vector<int32_t> ids = *files_->tokenizer->Encode(text, {.add_special = false});
  ASSERT_EQ(static_cast<int64_t>(ids.size()), golden["ids"].get<int64_t>());
  for (size_t i = 0; i < golden["first_ids"].size(); ++i) ASSERT_EQ(ids[i], golden["first_ids"][i].get<int32_t>()) << i;

  const int64_t step = files_->spec.config.max_positions - 1;
  double nll = 0;
  int64_t scored = 0;
  for (size_t window = 0; window < golden["windows"].size(); ++window) {
    const int64_t begin = static_cast<int64_t>(window) * step;
    std::vector<int32_t> here = {golden_["bos"][0].get<int32_t>()};
    here.insert(here.end(), ids.begin() + begin, ids.begin() + std::min<int64_t>(begin + step, static_cast<int64_t>(ids.size())));
    ASSERT_EQ(static_cast<int64_t>(here.size()), golden["windows"][window]["tokens"].get<int64_t>());
    const std::vector<cli::ScoredPosition> positions = Score(here, files_->spec.config.vocab_size);
    double sum = 0;
    for (const auto& position : positions) sum -= position.logprob.value_or(0);
    if (exact()) {
      EXPECT_NEAR(sum, golden["windows"][window]["sum_nll"].get<double>(), 1e-3 * static_cast<double>(here.size()));
    }
    const std::vector<float> last = Dense(positions.back());
    for (const json& top : golden["windows"][window]["last_top5"])
      Compare(last[top[0].get<int32_t>()], top[1].get<double>(), absl::StrCat("window ", window));
    nll += sum;
    scored += static_cast<int64_t>(here.size()) - 1;
  }
  const double perplexity = std::exp(nll / static_cast<double>(scored)), expected = golden["perplexity"].get<double>();
  EXPECT_NEAR(perplexity / expected, 1.0, exact() ? 1e-3 : 0.01);
}

void GoldenTest::CompareGreedyPath() {
  for (const json& golden : golden_["greedy"]) {
    std::vector<int32_t> ids = golden["prompt_ids"].get<std::vector<int32_t>>();
    const size_t prompt = ids.size();
    for (const json& id : golden["greedy_ids"]) ids.push_back(id.get<int32_t>());
    ids.pop_back();
    const std::vector<cli::ScoredPosition> positions = Score(ids, files_->spec.config.vocab_size);
    for (const auto& [step, top] : golden["top5_at_step"].items()) {
      const std::vector<float> logits = Dense(positions[prompt - 1 + std::stoul(step)]);
      for (const json& entry : top) Compare(logits[entry[0].get<int32_t>()], entry[1].get<double>(), "step " + step);
    }
  }
}

TEST_P(GoldenTest, LogitsAfterOnePromptAgreeOverTheWholeVocabulary) {
  CompareLastLogitsOfOnePrompt();
  CheckMean();
}

TEST_P(GoldenTest, PerplexityAndLastLogitsOfEveryWindowAgree) {
  if (!golden_.contains("teacher_forced")) GTEST_SKIP() << GetParam() << " has no teacher-forced golden values";
  CompareWindows();
  CheckMean();
}

TEST_P(GoldenTest, LikeliestLogitsAlongTheGreedyPathAgree) {
  CompareGreedyPath();
  CheckMean();
}

// In the order of this machine's own dot products: what `lime score` does without a flag. The mean
// is that of all golden logits of the folder.
TEST_P(GoldenTest, AllLogitsAgreeInTheOrderOfThisMachine) {
  numerics_ = "auto";
  CompareLastLogitsOfOnePrompt();
  if (golden_.contains("teacher_forced")) CompareWindows();
  CompareGreedyPath();
  CheckMean();
}

TEST_P(GoldenTest, LogitsOfTheBackendTorchAgreeOverTheWholeVocabulary) {
  if (std::ranges::count(BackendsHere(), kTorchBackend) == 0) GTEST_SKIP() << "liblime_torch.so was not built";
  backend_ = kTorchBackend;
  CompareLastLogitsOfOnePrompt();
  CheckMean();
}

TEST_P(GoldenTest, GreedyIdsAreTheGoldenOnes) {
  CompareGreedyIds();
}

void GoldenTest::CompareGreedyIds() {
  for (const json& golden : golden_["greedy"]) {
    const std::vector<int32_t> prompt = *files_->EncodePrompt(golden["prompt"].get<std::string>());
    ASSERT_EQ(prompt, golden["prompt_ids"].get<std::vector<int32_t>>());
    const std::vector<int32_t> expected = golden["greedy_ids"].get<std::vector<int32_t>>();
    const auto device = InstallHere(dir_, {.chunk = std::ssize(prompt)}, std::ssize(prompt) + std::ssize(expected));
    ASSERT_TRUE(device.ok()) << device.status();
    cli::GenerateOptions options;
    options.max_new_tokens = {std::ssize(expected)};
    cli::Generator generator(**device, {}, *files_->tokenizer, options, /*expected_prompt_seconds=*/std::nullopt);
    generator.Add(prompt);
    const auto summary = generator.Run();
    ASSERT_TRUE(summary.ok()) << summary.status();
    const std::vector<int32_t>& got = summary->results[0].token_ids;
    size_t certain = expected.size();
    for (size_t i = 0; i < expected.size() && !exact(); ++i) {
      if (golden["margins"][i].get<double>() < 0.3) {
        certain = i;
        break;
      }
    }
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < certain; ++i)
      ASSERT_EQ(got[i], expected[i]) << "prompt \"" << golden["prompt"].get<std::string>() << "\" step " << i;
    if (certain == expected.size()) {
      const std::string text = golden["prompt"].get<std::string>() + summary->results[0].text;
      EXPECT_EQ(text, golden["text"].get<std::string>());
    }
  }
}

// ---- Small seeded models of further families

// The folders of ../shared/families that are supported. gpt_oss-tiny-bf16 is left out: rounding tips
// the choice of experts, which moves the mean beyond twice the stated one. A model in float64 that is
// rounded where LIME rounds is off by 0.21 in the mean over the values below, LIME by 0.17.
std::vector<std::string> SupportedFamilies() {
  return {"qwen3_5-tiny",          "qwen3_5-tied-tiny", "qwen3_5-tiny-bf16",  "qwen3_5-mlx-tiny", "granite-tiny",
          "smollm3-tiny",          "phi3-window-tiny",  "qwen3_moe-tiny",     "mixtral-tiny",     "qwen3_5_moe-tiny",
          "qwen3_5_moe-mlx4-tiny", "qwen3_next-tiny",   "minimax_m2-tiny",    "glm4_moe-tiny",    "ministral3-tiny",
          "gpt_oss-tiny",          "gpt_oss-mlx-tiny",  "falcon-tiny",        "falcon-new-tiny",  "gemma3-tiny",
          "gemma3-vl-tiny",        "gemma4-moe-tiny",   "glm4_moe_lite-tiny", "phi3-tiny",        "gemma4-tiny"};
}

class FamilyGoldenTest : public GoldenTest {
 protected:
  std::string Folder() const override { return SharedDir() / "families" / GetParam(); }
  double bound() const override { return exact() ? 1e-3 : std::numeric_limits<double>::infinity(); }
  double mean_bound() const override { return exact() ? 1e-3 : 2 * Rounding("mean"); }

  // What rounding to bf16 does to a right engine.
  double Rounding(const char* what) const { return golden_["bf16_residual_simulated"][what].get<double>(); }

  // Prompts beyond a piece of 256 positions: the log-probability of every next id, the likeliest
  // ids, and all logits after the last position.
  void ComparePrompts();
};

void FamilyGoldenTest::ComparePrompts() {
  int64_t others = 0, positions = 0;
  for (const json& golden : golden_["prefill"]) {
    const std::vector<int32_t> ids = golden["ids"].get<std::vector<int32_t>>();
    SCOPED_TRACE(absl::StrCat("a prompt of ", ids.size(), " ids"));
    const std::vector<cli::ScoredPosition> scored = Score(ids, files_->spec.config.vocab_size);
    ASSERT_EQ(golden["logprobs"].size() + 1, ids.size());
    for (size_t i = 1; i < ids.size(); ++i)
      Compare(scored[i].logprob.value_or(0), golden["logprobs"][i - 1].get<double>(), absl::StrCat("position ", i));
    ASSERT_EQ(golden["top1"].size(), ids.size());
    for (size_t i = 0; i < ids.size(); ++i) others += scored[i].top.front().first != golden["top1"][i].get<int32_t>() ? 1 : 0;
    positions += std::ssize(ids);
    const std::vector<float> last = Dense(scored.back());
    ASSERT_EQ(last.size(), golden["last_logits"].size());
    for (size_t id = 0; id < last.size(); ++id) Compare(last[id], golden["last_logits"][id].get<double>(), absl::StrCat("id ", id));
  }
  const double share = exact() ? 0 : 2 * Rounding("share_of_positions_with_another_likeliest_id");
  EXPECT_LE(static_cast<double>(others), share * static_cast<double>(positions)) << "likeliest ids of " << positions << " positions";
}

// The mean is that of all golden logits of the folder: a single prompt may be further off.
TEST_P(FamilyGoldenTest, AllLogitsAgree) {
  CompareLastLogitsOfOnePrompt();
  CompareGreedyPath();
  ComparePrompts();
  CheckMean();
}

TEST_P(FamilyGoldenTest, AllLogitsAgreeInTheOrderOfThisMachine) {
  numerics_ = "auto";
  CompareLastLogitsOfOnePrompt();
  CompareGreedyPath();
  ComparePrompts();
  CheckMean();
}

TEST_P(FamilyGoldenTest, GreedyIdsAreTheGoldenOnes) {
  if (!exact()) GTEST_SKIP() << "rounding decides where logits are close";
  CompareGreedyIds();
}

INSTANTIATE_TEST_SUITE_P(Families, FamilyGoldenTest, ::testing::ValuesIn(SupportedFamilies()), [](const auto& info) {
  std::string name = info.param;
  std::ranges::replace(name, '-', '_');
  return name;
});

std::vector<std::string> ModelsOrNone() {
  std::vector<std::string> models = SharedModels();
  if (models.empty()) models.push_back("none");
  return models;
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenTest, ::testing::ValuesIn(ModelsOrNone()), [](const auto& info) {
  std::string name = info.param;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
});

}  // namespace
}  // namespace lime
