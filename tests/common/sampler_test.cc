#include "common/sampling/sampler.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>

#include "common/sampling/philox.h"
#include "common/sampling/softmax.h"

namespace lime {
namespace {

using testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> RandomLogits(size_t size, uint32_t seed, float spread = 4) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(size);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

// The known answers published with the generator (Random123's kat_vectors).
TEST(PhiloxTest, KnownAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}), (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}), (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(PhiloxTest, UniformDependsOnEachOfItsArguments) {
  const double base = UniformAt(1, 2, 3);
  EXPECT_EQ(base, UniformAt(1, 2, 3));
  EXPECT_NE(base, UniformAt(2, 2, 3));
  EXPECT_NE(base, UniformAt(1, 3, 3));
  EXPECT_NE(base, UniformAt(1, 2, 4));
  EXPECT_NE(UniformAt(0, 0, uint64_t{1} << 32), UniformAt(0, 0, 0));
}

TEST(PhiloxTest, UniformFillsItsIntervalEvenly) {
  std::vector<int> buckets(16);
  for (int i = 0; i < 16000; ++i) {
    const double u = UniformAt(7, 0, i);
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    ++buckets[static_cast<int>(u * 16)];
  }
  for (const int count : buckets) EXPECT_NEAR(count, 1000, 150);
}

TEST(SoftmaxTest, ExpAgreesWithTheLibrary) {
  for (int i = 0; i < 18868; ++i) {
    const double x = -0.0371 * i;  // to -700
    EXPECT_NEAR(DeterministicExp(x) / std::exp(x), 1.0, 2e-15) << x;
  }
  EXPECT_EQ(DeterministicExp(0), 1.0);
  EXPECT_EQ(DeterministicExp(-kInf), 0.0);
  EXPECT_EQ(DeterministicExp(-1e300), 0.0);
}

TEST(SoftmaxTest, RangesComputedApartHaveTheSameBits) {
  const auto logits = RandomLogits(5000, 1);
  RangeSum total = SumRange(std::span(logits).subspan(0, 1024));
  for (size_t begin = 1024; begin < 5000; begin += 1024) {
    total = Combine(total, SumRange(std::span(logits).subspan(begin, std::min<size_t>(1024, 5000 - begin))));
  }
  EXPECT_EQ(total.sum, SumAll(logits).sum);
  EXPECT_EQ(total.max, SumAll(logits).max);
}

TEST(SoftmaxTest, ProbabilitiesSumToOne) {
  auto logits = RandomLogits(3000, 2);
  std::fill(logits.begin() + 1024, logits.begin() + 2048, -kInf);
  const RangeSum total = SumAll(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit} - double{total.max}) / total.sum;
  EXPECT_NEAR(sum, 1.0, 1e-12);
}

TEST(SamplerTest, GreedyChoosesTheLowestIdAmongEquals) {
  const std::vector<float> logits = {1, 5, 3, 5, -kInf};
  EXPECT_EQ(*ArgMax(logits), 1);
  EXPECT_EQ(*Sampler().Sample(logits, {}, {}, {}), 1);
}

TEST(SamplerTest, BrokenLogitsAreErrorsThatSaySo) {
  Sampler sampler;
  for (const double temperature : {0.0, 1.0}) {
    const SamplingParams params{.temperature = temperature};
    EXPECT_THAT(sampler.Sample(std::vector<float>{1, NAN}, params, {}, {}).status().message(), HasSubstr("id 1 is NaN"));
    EXPECT_THAT(sampler.Sample(std::vector<float>{kInf, 1}, params, {}, {}).status().message(), HasSubstr("id 0 is infinite"));
    EXPECT_FALSE(sampler.Sample(std::vector<float>{-kInf, -kInf}, params, {}, {}).ok());
    EXPECT_FALSE(sampler.Sample({}, params, {}, {}).ok());
  }
}

TEST(SamplerTest, ParametersAreChecked) {
  EXPECT_TRUE(ValidateSamplingParams({}).ok());
  for (const double bad : {-0.1, 1.1, static_cast<double>(NAN)}) {
    EXPECT_THAT(ValidateSamplingParams({.top_p = bad}).message(), HasSubstr("top_p"));
    EXPECT_THAT(ValidateSamplingParams({.min_p = bad}).message(), HasSubstr("min_p"));
  }
  EXPECT_THAT(ValidateSamplingParams({.top_p = 0}).message(), HasSubstr("top_p is 0"));
  EXPECT_THAT(ValidateSamplingParams({.temperature = -1}).message(), HasSubstr("temperature is -1"));
  EXPECT_THAT(ValidateSamplingParams({.temperature = NAN}).message(), HasSubstr("temperature"));
  EXPECT_THAT(ValidateSamplingParams({.top_k = -1}).message(), HasSubstr("top_k is -1"));
  EXPECT_THAT(ValidateSamplingParams({.repetition_penalty = 0}).message(), HasSubstr("repetition_penalty is 0"));
  for (const double bad : {-2.1, 2.1, static_cast<double>(NAN)}) {
    EXPECT_THAT(ValidateSamplingParams({.presence_penalty = bad}).message(), HasSubstr("presence_penalty"));
    EXPECT_THAT(ValidateSamplingParams({.frequency_penalty = bad}).message(), HasSubstr("frequency_penalty"));
  }
  EXPECT_THAT(ValidateSamplingParams({.logit_bias = {{3, 100.5f}}}).message(), HasSubstr("logit_bias of id 3 is 100.5"));
  EXPECT_THAT(ValidateSamplingParams({.logit_bias = {{3, NAN}}}).message(), HasSubstr("logit_bias of id 3"));
  EXPECT_THAT(ValidateSamplingParams({.logit_bias = {{-1, 1}}}).message(), HasSubstr("names id -1"));
  SamplingParams params{
      .presence_penalty = -2, .frequency_penalty = 2, .logit_bias = std::vector<LogitBias>(1024, {.id = 1, .bias = -100})};
  EXPECT_TRUE(ValidateSamplingParams(params).ok());
  params.logit_bias.push_back({});
  EXPECT_THAT(ValidateSamplingParams(params).message(), HasSubstr("has 1025 ids"));
}

TEST(SamplerTest, WhatChangesTheOrderOfLogitsNeedsAllOfThem) {
  EXPECT_EQ(LogitsUsed({}), 1);
  EXPECT_EQ(LogitsUsed({.temperature = 1, .top_k = 7}), 7);
  EXPECT_EQ(LogitsUsed({.repetition_penalty = 1.1}), kAllLogits);
  EXPECT_EQ(LogitsUsed({.presence_penalty = 0.1}), kAllLogits);
  EXPECT_EQ(LogitsUsed({.frequency_penalty = -0.1}), kAllLogits);
  EXPECT_EQ(LogitsUsed({.logit_bias = {{1, 1}}, .temperature = 1, .top_k = 7}), kAllLogits);
}

// The filters as Hugging Face defines them, by sorting everything: the probability of each id.
std::vector<double> OracleProbabilities(std::vector<double> logits, const SamplingParams& params, const std::vector<int32_t>& context) {
  std::vector<bool> seen(logits.size());
  for (const int32_t id : context) seen[id] = true;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (seen[i]) logits[i] = logits[i] < 0 ? logits[i] * params.repetition_penalty : logits[i] / params.repetition_penalty;
    logits[i] /= params.temperature;
  }
  const auto softmax = [&] {
    const double max = *std::max_element(logits.begin(), logits.end());
    std::vector<double> p(logits.size());
    for (size_t i = 0; i < p.size(); ++i) p[i] = std::exp(logits[i] - max);
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& value : p) value /= sum;
    return p;
  };
  const auto drop_below = [&](double least) {
    for (double& logit : logits) logit = logit < least ? -kInf : logit;
  };
  auto sorted = logits;
  std::sort(sorted.rbegin(), sorted.rend());
  if (params.top_k > 0 && params.top_k < static_cast<int>(sorted.size())) drop_below(sorted[params.top_k - 1]);
  std::vector<double> p = softmax();
  std::vector<size_t> order(p.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return p[a] > p[b]; });
  double before = 0;
  for (const size_t i : order) {
    if (before >= params.top_p) logits[i] = -kInf;
    before += p[i];
  }
  p = softmax();
  const double largest = *std::max_element(p.begin(), p.end());
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] < params.min_p * largest) logits[i] = -kInf;
  }
  return softmax();
}

class SamplerAgainstOracle : public testing::TestWithParam<SamplingParams> {};

TEST_P(SamplerAgainstOracle, DrawsFollowTheProbabilities) {
  const SamplingParams params = GetParam();
  const std::vector<int32_t> context = {3, 17, 3, 40};
  for (const size_t size : {size_t{50}, size_t{2500}}) {
    const auto logits = RandomLogits(size, 5, size > 1000 ? 1 : 2);
    const auto expected = OracleProbabilities({logits.begin(), logits.end()}, params, context);
    std::vector<int> counts(size);
    Sampler sampler;
    constexpr int kDraws = 20000;
    for (int i = 0; i < kDraws / (size > 1000 ? 10 : 1); ++i)
      ++counts[*sampler.Sample(logits, params, {.ids = context}, {.request = 9, .position = static_cast<uint64_t>(i)})];
    for (size_t id = 0; id < size; ++id) {
      if (expected[id] == 0) {
        EXPECT_EQ(counts[id], 0) << "id " << id << " was filtered out";
      }
      if (size < 1000) {
        EXPECT_NEAR(counts[id], expected[id] * kDraws, 6 * std::sqrt(expected[id] * kDraws) + 1) << id;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Filters, SamplerAgainstOracle,
                         testing::Values(SamplingParams{.temperature = 1}, SamplingParams{.temperature = 0.6, .top_k = 5},
                                         SamplingParams{.temperature = 1.3, .top_p = 0.8}, SamplingParams{.temperature = 1, .min_p = 0.1},
                                         SamplingParams{.repetition_penalty = 1.8, .temperature = 0.9},
                                         SamplingParams{
                                             .repetition_penalty = 0.7, .temperature = 0.8, .top_k = 20, .top_p = 0.9, .min_p = 0.05}));

TEST(SamplerTest, TopPKeepsTheFewestThatReachIt) {
  const std::vector<float> logits = {std::log(0.1f), std::log(0.5f), std::log(0.15f), std::log(0.25f)};
  Sampler sampler;
  std::vector<int> counts(4);
  for (uint64_t i = 0; i < 2000; ++i) ++counts[*sampler.Sample(logits, {.temperature = 1, .top_p = 0.7}, {}, {.position = i})];
  EXPECT_EQ(counts[0] + counts[2], 0);
  EXPECT_NEAR(counts[1], 2000 * 2.0 / 3, 100);
}

TEST(SamplerTest, TopKKeepsTheEqualsOfTheLast) {
  const std::vector<float> logits = {2, 1, 1, 0, 1};
  Sampler sampler;
  std::vector<int> counts(5);
  for (uint64_t i = 0; i < 500; ++i) ++counts[*sampler.Sample(logits, {.temperature = 1, .top_k = 2}, {}, {.position = i})];
  EXPECT_EQ(counts[3], 0);
  EXPECT_GT(std::min({counts[1], counts[2], counts[4]}), 0);
}

TEST(SamplerTest, LogitsThatAreNotUsedMayBeMissing) {
  std::mt19937_64 random(1);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); };
  Sampler sampler;
  int fewer = 0;
  for (uint64_t i = 0; i < 400; ++i) {
    SCOPED_TRACE(i);
    SamplingParams params{.temperature = below(3) == 0 ? 0 : 0.3 + 0.2 * below(8), .seed = random()};
    if (below(3) > 0) params.top_k = 1 + below(80);
    if (below(2) == 0) params.top_p = 0.5 + 0.05 * below(10);
    if (below(3) == 0) params.min_p = 0.01 * below(10);
    if (below(4) == 0) params.repetition_penalty = 0.8 + 0.1 * below(6);
    std::vector<float> logits = RandomLogits(3000, static_cast<uint32_t>(i));
    const float grain = below(2) == 0 ? 1.0f : 1e-4f;  // coarse: many are equal
    for (float& logit : logits) logit = std::round(logit / grain) * grain;
    const std::vector<int32_t> context = {below(3000), *ArgMax(logits)};
    const SamplePoint point{.request = i, .position = 3};
    const int32_t token = *sampler.Sample(logits, params, {.ids = context}, point);
    const int64_t used = LogitsUsed(params);
    if (used < std::ssize(logits)) {  // from some id on all are there
      std::vector<float> sorted = logits;
      std::ranges::sort(sorted, std::greater());
      const float least = sorted[static_cast<size_t>(used) - 1];
      const int known = below(3001);
      for (int id = 0; id < known; ++id) fewer += logits[id] < least ? 1 : 0, logits[id] = logits[id] < least ? -kInf : logits[id];
    }
    ASSERT_EQ(*sampler.Sample(logits, params, {.ids = context}, point), token);
  }
  EXPECT_GT(fewer, 100'000);
}

TEST(SamplerTest, ExtremeTemperaturesStayDefined) {
  const auto logits = RandomLogits(3000, 3);
  Sampler sampler;
  EXPECT_EQ(*sampler.Sample(logits, {.temperature = 1e-300}, {}, {}), *ArgMax(logits));
  EXPECT_TRUE(sampler.Sample(logits, {.temperature = 1e6, .top_p = 0.9999}, {}, {}).ok());
  EXPECT_TRUE(sampler.Sample(std::vector<float>{3e38f, -3e38f}, {.temperature = 0.1}, {}, {}).ok());
  const std::vector<int32_t> both = {0, 1};
  EXPECT_TRUE(sampler.Sample(std::vector<float>{3e38f, -3e38f}, {.repetition_penalty = 1e6, .temperature = 0.1}, {.ids = both}, {}).ok());
}

TEST(SamplerTest, ContextIdsOutsideTheVocabularyAreIgnored) {
  const auto logits = RandomLogits(10, 3);
  const std::vector<int32_t> ids = {-1, 10, 1 << 30};
  const SamplingParams params{
      .repetition_penalty = 2, .presence_penalty = 1, .frequency_penalty = 1, .logit_bias = {{10, 1}, {1 << 30, -100}}, .temperature = 1};
  EXPECT_TRUE(Sampler().Sample(logits, params, {.ids = ids, .generated = 9}, {}).ok());
}

TEST(SamplerTest, TheSamePointLeadsToTheSameIdInAnySampler) {
  const auto logits = RandomLogits(4000, 4);
  const SamplingParams params{.temperature = 1, .top_p = 0.95, .seed = 11};
  Sampler used;
  for (uint64_t i = 0; i < 20; ++i)
    used.Sample(RandomLogits(100, 1), {.temperature = 1, .top_k = 3}, {}, {.position = i}).status().IgnoreError();
  for (uint64_t i = 0; i < 20; ++i) EXPECT_EQ(*used.Sample(logits, params, {}, {5, i}), *Sampler().Sample(logits, params, {}, {5, i}));
}

}  // namespace
}  // namespace lime
