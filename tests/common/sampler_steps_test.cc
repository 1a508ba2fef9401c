// Every step of the sampler against a slow reference: penalties, biases, mask, filters and the
// draw, in their order.

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "common/sampling/philox.h"
#include "common/sampling/sampler.h"

namespace lime {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

float ToFloat(double value) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  return static_cast<float>(std::clamp(value, -kLargest, kLargest));
}

bool IsAllowed(const std::vector<uint64_t>& mask, size_t id) {
  return mask.empty() || (id / 64 < mask.size() && (mask[id / 64] >> (id % 64) & 1) != 0);
}

bool HasPossible(const std::vector<float>& logits, const std::vector<uint64_t>& mask) {
  for (size_t id = 0; id < logits.size(); ++id) {
    if (IsAllowed(mask, id) && logits[id] != kNever) return true;
  }
  return false;
}

struct StepCase {
  std::vector<float> logits;
  SamplingParams params;
  std::vector<int32_t> ids;
  size_t generated = 0;
  std::vector<uint64_t> mask;
  SamplePoint point;
};

std::vector<float> Penalised(const StepCase& c) {
  std::vector<float> logits = c.logits;
  for (const int32_t id : std::set<int32_t>(c.ids.begin(), c.ids.end())) {
    float& logit = logits[static_cast<size_t>(id)];
    logit = ToFloat(logit < 0 ? logit * c.params.repetition_penalty : logit / c.params.repetition_penalty);
  }
  std::map<int32_t, int> counts;
  for (size_t i = c.ids.size() - c.generated; i < c.ids.size(); ++i) ++counts[c.ids[i]];
  for (const auto& [id, count] : counts) {
    float& logit = logits[static_cast<size_t>(id)];
    logit = ToFloat(logit - (c.params.presence_penalty + c.params.frequency_penalty * count));
  }
  return logits;
}

std::vector<float> BiasedAndMasked(const StepCase& c, const std::vector<float>& before) {
  std::vector<float> logits = before;
  for (const LogitBias& each : c.params.logit_bias) {
    float& logit = logits[static_cast<size_t>(each.id)];
    logit = each.bias <= -100 ? kNever : ToFloat(double{logit} + double{each.bias});
  }
  if (!HasPossible(logits, c.mask)) logits = before;
  for (size_t id = 0; id < logits.size(); ++id) {
    if (!IsAllowed(c.mask, id)) logits[id] = kNever;
  }
  return logits;
}

// The logits of ids that may be drawn; the others are -infinity.
std::vector<float> Filtered(const StepCase& c, std::vector<float> logits) {
  std::vector<float> sorted = logits;
  std::ranges::sort(sorted, std::greater());
  if (c.params.top_k > 0 && static_cast<size_t>(c.params.top_k) < sorted.size()) {
    for (float& logit : logits) logit = logit < sorted[static_cast<size_t>(c.params.top_k) - 1] ? kNever : logit;
  }
  const double max = sorted[0];
  for (float& logit : logits) logit = static_cast<float>((logit - max) / c.params.temperature);
  std::vector<size_t> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  double total = 0, reached = 0;
  for (const float logit : logits) total += std::exp(double{logit});
  for (const size_t id : order) {
    if (c.params.top_p < 1 && reached >= c.params.top_p) logits[id] = kNever;
    reached += std::exp(double{logits[id]}) / total;
  }
  for (float& logit : logits) {
    if (std::exp(double{logit}) < c.params.min_p) logit = kNever;
  }
  return logits;
}

// Whether `token` is the one: its interval of the cumulative probability holds the random number.
void ExpectSampled(const StepCase& c, int32_t token) {
  std::vector<float> logits = BiasedAndMasked(c, Penalised(c));
  if (c.params.temperature == 0) {
    EXPECT_EQ(token, std::ranges::max_element(logits) - logits.begin());
    return;
  }
  logits = Filtered(c, std::move(logits));
  ASSERT_NE(logits[static_cast<size_t>(token)], kNever) << "id " << token << " was filtered out";
  double total = 0, before = 0;
  for (const float logit : logits) total += std::exp(double{logit});
  for (int32_t id = 0; id < token; ++id) before += std::exp(double{logits[static_cast<size_t>(id)]}) / total;
  const double uniform = UniformAt(c.params.seed, c.point.request, c.point.position);
  EXPECT_GE(uniform, before - 1e-12);
  EXPECT_LE(uniform, before + std::exp(double{logits[static_cast<size_t>(token)]}) / total + 1e-12);
}

class Draws {
 public:
  explicit Draws(uint64_t seed) : random_(seed) {}
  int Below(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }
  bool OneIn(int n) { return Below(n) == 0; }
  double Between(double low, double high) { return low + (high - low) * (static_cast<double>(random_() >> 11) * 0x1p-53); }

  StepCase Next(size_t vocab) {
    const int size = static_cast<int>(vocab);
    StepCase c{.point = {.request = random_(), .position = random_()}};
    std::normal_distribution<float> normal(0, 3);
    for (size_t i = 0; i < vocab; ++i) c.logits.push_back(normal(random_));
    c.params.temperature = OneIn(3) ? 0 : Between(0.2, 2);
    c.params.seed = random_();
    if (OneIn(2)) c.params.top_k = 1 + Below(size);
    if (OneIn(2)) c.params.top_p = Between(0.3, 1);
    if (OneIn(3)) c.params.min_p = Between(0, 0.2);
    if (OneIn(2)) c.params.repetition_penalty = Between(0.7, 1.6);
    if (OneIn(2)) c.params.presence_penalty = Between(-2, 2);
    if (OneIn(2)) c.params.frequency_penalty = Between(-2, 2);
    for (int i = Below(30); i > 0; --i) c.ids.push_back(Below(OneIn(2) ? size : std::min(size, 5)));
    c.generated = static_cast<size_t>(Below(static_cast<int>(c.ids.size()) + 1));
    for (int i = OneIn(2) ? Below(20) : 0; i > 0; --i)
      c.params.logit_bias.push_back({.id = Below(size), .bias = OneIn(3) ? -100 : static_cast<float>(Between(-100, 100))});
    if (OneIn(2)) SetMask(vocab, c);
    return c;
  }

 private:
  // Some of the words may be missing.
  void SetMask(size_t vocab, StepCase& c) {
    c.mask.resize(1 + static_cast<size_t>(Below(static_cast<int>(vocab + 63) / 64)));
    const int rarely = 1 + Below(200);
    for (uint64_t& word : c.mask) {
      for (int bit = 0; bit < 64; ++bit) word |= uint64_t{OneIn(rarely) ? 1u : 0u} << bit;
    }
    const auto first = static_cast<size_t>(Below(static_cast<int>(std::min(vocab, c.mask.size() * 64))));
    c.mask[first / 64] |= uint64_t{1} << (first % 64);
  }

  std::mt19937_64 random_;
};

TEST(SamplerStepsTest, TokensAreThoseOfASlowReference) {
  Sampler sampler;
  Draws draws(7);
  for (const size_t vocab : {size_t{1}, size_t{40}, size_t{64}, size_t{130}, size_t{1500}}) {
    for (int i = 0; i < (vocab > 1000 ? 150 : 1500); ++i) {
      SCOPED_TRACE(testing::Message() << "vocabulary " << vocab << ", case " << i);
      const StepCase c = draws.Next(vocab);
      const auto token = sampler.Sample(c.logits, c.params, {.ids = c.ids, .generated = c.generated, .mask = c.mask}, c.point);
      ASSERT_TRUE(token.ok()) << token.status();
      ExpectSampled(c, *token);
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(SamplerStepsTest, PresenceCountsOnceAndFrequencyEachTimeOfGeneratedIdsAlone) {
  const std::vector<float> logits = {5, 4.5f, 4.2f, 4.1f};
  const std::vector<int32_t> ids = {0, 0, 1, 2, 2, 2};  // the prompt has 0 0
  const auto greedy = [&](const SamplingParams& params) { return *Sampler().Sample(logits, params, {.ids = ids, .generated = 4}, {}); };
  EXPECT_EQ(greedy({}), 0);
  EXPECT_EQ(greedy({.presence_penalty = -0.7}), 1) << "4.5 + 0.7";
  EXPECT_EQ(greedy({.frequency_penalty = -0.3}), 2) << "4.2 + 3 * 0.3";
  EXPECT_EQ(greedy({.presence_penalty = 2, .frequency_penalty = 2, .logit_bias = {{0, -100}}}), 3);
}

TEST(SamplerStepsTest, AMaskWinsOverBiasesAndOverTheModel) {
  const std::vector<float> logits = {1, 2, 3, kNever, kNever};
  const auto greedy = [&](const SamplingParams& params, std::vector<uint64_t> mask) {
    return *Sampler().Sample(logits, params, {.mask = mask}, {});
  };
  EXPECT_EQ(greedy({}, {0b00011}), 1);
  EXPECT_EQ(greedy({.logit_bias = {{1, -100}}}, {0b00011}), 0);
  EXPECT_EQ(greedy({.logit_bias = {{0, -100}, {1, -100}, {1, -100}}}, {0b00011}), 1) << "the biases leave nothing of the mask";
  EXPECT_EQ(greedy({}, {0b11000}), 3) << "the model has no chance for any of them";
  EXPECT_EQ(greedy({}, {~uint64_t{0} << 5}), 2) << "a mask without an id of the vocabulary";
  EXPECT_EQ(greedy({.logit_bias = {{0, -100}, {1, -100}, {2, -100}}}, {}), 2) << "biases that leave nothing";
  std::vector<int> counts(5);
  for (uint64_t i = 0; i < 200; ++i)
    ++counts[static_cast<size_t>(*Sampler().Sample(logits, {.temperature = 1}, {.mask = std::vector<uint64_t>{0b11000}}, {.position = i}))];
  EXPECT_EQ(counts[0] + counts[1] + counts[2], 0);
  EXPECT_GT(std::min(counts[3], counts[4]), 0);
}

TEST(SamplerStepsTest, ABiasOfOneCallIsNoneOfTheNext) {
  Sampler sampler;
  const std::vector<float> logits = {3, 2, 1};
  EXPECT_EQ(*sampler.Sample(logits, {.logit_bias = {{0, -100}, {2, 5}}}, {}, {}), 2);
  EXPECT_EQ(*sampler.Sample(logits, {}, {.mask = std::vector<uint64_t>{0b110}}, {}), 1);
  EXPECT_EQ(*sampler.Sample(logits, {.frequency_penalty = 2}, {}, {}), 0);
}

}  // namespace
}  // namespace lime
