#include "common/sampling/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/sampling/philox.h"

namespace lime {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

absl::Status CheckLogits(std::span<const float> logits) {
  bool possible = false;
  for (size_t id = 0; id < logits.size(); ++id) {
    if (std::isnan(logits[id])) {
      return absl::DataLossError(
          absl::StrCat("the logit of id ", id, " is NaN, so the weights or a kernel are broken; check the checkpoint"));
    }
    if (logits[id] == -kNever) return absl::DataLossError(absl::StrCat("the logit of id ", id, " is infinite; check the checkpoint"));
    possible = possible || logits[id] != kNever;
  }
  return possible ? absl::OkStatus() : absl::InvalidArgumentError("no id has a logit above -infinity");
}

// The first index where the sum of e^(logit - max) exceeds `rest`. If rounding leaves a remainder,
// the last possible index.
int32_t DrawWithin(std::span<const float> logits, float max, double rest) {
  double sum = 0;
  int32_t last = 0;
  for (size_t i = 0; i < logits.size() && sum <= rest; ++i) {
    const double weight = DeterministicExp(double{logits[i]} - double{max});
    if (weight > 0) last = static_cast<int32_t>(i);
    sum += weight;
  }
  return last;
}

bool PenalisesGenerated(const SamplingParams& params) {
  return params.presence_penalty != 0 || params.frequency_penalty != 0;
}

float ToLogit(double value) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  return static_cast<float>(std::clamp(value, -kLargest, kLargest));
}

bool IsAllowed(std::span<const uint64_t> mask, size_t id) {
  return id / 64 < mask.size() && (mask[id / 64] >> (id % 64) & 1) != 0;
}

absl::Status OutOfRange(const char* name, double value, const char* need) {
  return Invalid(name, " is ", value, ", need ", need);
}

}  // namespace

absl::Status ValidateSamplingParams(const SamplingParams& params) {
  const auto within = [](double value, double low, double high) { return value >= low && value <= high; };  // false for NaN
  if (!within(params.temperature, 0, 1e6)) return OutOfRange("temperature", params.temperature, "0 to 1e6");
  if (params.top_k < 0) return OutOfRange("top_k", params.top_k, "0 (off) or more");
  if (!within(params.top_p, 0, 1) || params.top_p == 0) return OutOfRange("top_p", params.top_p, "above 0 and at most 1");
  if (!within(params.min_p, 0, 1)) return OutOfRange("min_p", params.min_p, "0 to 1");
  if (!within(params.repetition_penalty, 1e-6, 1e6)) return OutOfRange("repetition_penalty", params.repetition_penalty, "1e-6 to 1e6");
  if (!within(params.presence_penalty, -2, 2)) return OutOfRange("presence_penalty", params.presence_penalty, "-2 to 2");
  if (!within(params.frequency_penalty, -2, 2)) return OutOfRange("frequency_penalty", params.frequency_penalty, "-2 to 2");
  if (params.logit_bias.size() > SamplingParams::kMaxBiases)
    return Invalid("logit_bias has ", params.logit_bias.size(), " ids, need at most ", SamplingParams::kMaxBiases);
  for (const LogitBias& each : params.logit_bias) {
    if (each.id < 0) return Invalid("logit_bias names id ", each.id, ", need an id of the vocabulary");
    if (!within(each.bias, -100, 100))
      return OutOfRange(absl::StrCat("logit_bias of id ", each.id).c_str(), each.bias, "-100 (forbids it) to 100");
  }
  return absl::OkStatus();
}

// Penalties and biases change the order of the logits.
int64_t LogitsUsed(const SamplingParams& params) {
  if (params.repetition_penalty != 1.0 || PenalisesGenerated(params) || !params.logit_bias.empty()) return kAllLogits;
  if (params.temperature == 0) return 1;
  return params.top_k > 0 ? params.top_k : kAllLogits;
}

absl::StatusOr<int32_t> ArgMax(std::span<const float> logits) {
  LIME_RETURN_IF_ERROR(CheckLogits(logits));
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

absl::StatusOr<int32_t> Sampler::Sample(std::span<const float> logits, const SamplingParams& params, const SampleContext& context,
                                        const SamplePoint& point) {
  LIME_RETURN_IF_ERROR(CheckLogits(logits));
  logits_.assign(logits.begin(), logits.end());
  if (params.repetition_penalty != 1.0) Penalise(params.repetition_penalty, context.ids);
  if (PenalisesGenerated(params)) PenaliseGenerated(params, context);
  Bias(params.logit_bias);
  if (!before_bias_.empty() && !HasPossible(context.mask)) UndoBias();
  if (!context.mask.empty()) KeepAllowed(context.mask);
  if (params.temperature == 0) return ArgMax(logits_);
  if (params.top_k > 0) KeepTopK(params.top_k);  // before the division: dividing all logits changes no order
  Divide(params.temperature);
  if (params.top_p < 1) KeepTopP(params.top_p);
  if (params.min_p > 0) KeepMinP(params.min_p);
  return Draw(UniformAt(params.seed, point.request, point.position));
}

// Whether the id is one of the logits'.
bool Sampler::Has(int32_t id) const {
  return id >= 0 && static_cast<size_t>(id) < logits_.size();
}

void Sampler::Penalise(double penalty, std::span<const int32_t> ids) {
  seen_.resize(std::max(seen_.size(), logits_.size()), call_);
  if (++call_ == 0) {
    std::fill(seen_.begin(), seen_.end(), 0);
    call_ = 1;
  }
  for (const int32_t id : ids) {
    if (!Has(id) || seen_[id] == call_) continue;
    seen_[id] = call_;
    float& logit = logits_[id];
    if (logit != kNever) logit = ToLogit(logit < 0 ? logit * penalty : logit / penalty);
  }
}

// Changes a logit once, however often its id has come, so that it is rounded once.
void Sampler::PenaliseGenerated(const SamplingParams& params, const SampleContext& context) {
  counts_.resize(std::max(counts_.size(), logits_.size()));
  const std::span<const int32_t> generated = context.ids.last(std::min(context.generated, context.ids.size()));
  for (const int32_t id : generated) {
    if (Has(id)) ++counts_[id];
  }
  for (const int32_t id : generated) {
    if (!Has(id) || counts_[id] == 0) continue;
    float& logit = logits_[id];
    if (logit != kNever) logit = ToLogit(logit - (params.presence_penalty + params.frequency_penalty * counts_[id]));
    counts_[id] = 0;
  }
}

void Sampler::Bias(std::span<const LogitBias> biases) {
  before_bias_.clear();
  for (const LogitBias& each : biases) {
    if (!Has(each.id)) continue;
    float& logit = logits_[each.id];
    before_bias_.emplace_back(each.id, logit);
    if (logit != kNever) logit = each.bias <= LogitBias::kForbids ? kNever : ToLogit(double{logit} + double{each.bias});
  }
}

// The biases changed nothing if they and the mask leave no id.
void Sampler::UndoBias() {
  for (size_t i = before_bias_.size(); i-- > 0;) logits_[before_bias_[i].first] = before_bias_[i].second;
  before_bias_.clear();
}

bool Sampler::HasPossible(std::span<const uint64_t> mask) const {
  if (mask.empty()) return std::ranges::any_of(logits_, [](float logit) { return logit != kNever; });
  for (size_t word = 0; word < mask.size() && word * 64 < logits_.size(); ++word) {
    for (uint64_t rest = mask[word]; rest != 0; rest &= rest - 1) {
      const size_t id = word * 64 + static_cast<size_t>(std::countr_zero(rest));
      if (id < logits_.size() && logits_[id] != kNever) return true;
    }
  }
  return false;
}

// If the model gives no id of the mask a chance, all of them are equal.
void Sampler::KeepAllowed(std::span<const uint64_t> mask) {
  const bool is_possible = HasPossible(mask);
  bool has_ids = is_possible;
  for (size_t id = 0; id < logits_.size() && !has_ids; ++id) has_ids = IsAllowed(mask, id);
  if (!has_ids) return;
  for (size_t begin = 0; begin < logits_.size(); begin += 64) {
    const uint64_t word = begin / 64 < mask.size() ? mask[begin / 64] : 0;
    if (~word == 0 && is_possible) continue;
    for (size_t id = begin; id < std::min(begin + 64, logits_.size()); ++id) {
      const bool is_allowed = (word >> (id - begin) & 1) != 0;
      if (!is_allowed) logits_[id] = kNever;
      if (is_allowed && !is_possible) logits_[id] = 0;
    }
  }
}

// Subtracts the largest logit first, so that no temperature overflows. Probabilities do not change.
void Sampler::Divide(double temperature) {
  const double max = *std::max_element(logits_.begin(), logits_.end());
  for (float& logit : logits_) logit = static_cast<float>(std::max((logit - max) / temperature, double{kNever}));
}

void Sampler::KeepTopK(int32_t k) {
  if (static_cast<size_t>(k) >= logits_.size()) return;
  order_.resize(logits_.size());
  std::iota(order_.begin(), order_.end(), 0);
  std::nth_element(order_.begin(), order_.begin() + (k - 1), order_.end(),
                   [this](int32_t a, int32_t b) { return logits_[a] > logits_[b]; });
  const float least = logits_[order_[k - 1]];
  for (float& logit : logits_) {
    if (logit < least) logit = kNever;
  }
}

// Sorts order_[sorted, count), given that order_[0, sorted) is sorted.
void Sampler::SortFront(size_t sorted, size_t count) {
  const auto before = [this](int32_t a, int32_t b) { return logits_[a] != logits_[b] ? logits_[a] > logits_[b] : a < b; };
  if (count < order_.size()) std::nth_element(order_.begin() + sorted, order_.begin() + count, order_.end(), before);
  std::sort(order_.begin() + sorted, order_.begin() + count, before);
}

void Sampler::KeepTopP(double p) {
  const RangeSum total = SumAll(logits_);
  order_.resize(logits_.size());
  std::iota(order_.begin(), order_.end(), 0);
  double reached = 0;
  size_t sorted = 0, kept = 0;
  while (kept < order_.size() && reached < p) {
    if (kept == sorted) {
      sorted = std::min(order_.size(), std::max<size_t>(64, sorted * 8));
      SortFront(kept, sorted);
    }
    reached += DeterministicExp(double{logits_[order_[kept++]]} - double{total.max}) / total.sum;
  }
  for (size_t i = kept; i < order_.size(); ++i) logits_[order_[i]] = kNever;
}

void Sampler::KeepMinP(double p) {
  const double max = *std::max_element(logits_.begin(), logits_.end());
  for (float& logit : logits_) {
    if (DeterministicExp(logit - max) < p) logit = kNever;
  }
}

// The first id, ascending, where the cumulative probability exceeds `uniform`: finds the range,
// then the id.
int32_t Sampler::Draw(double uniform) {
  ranges_.clear();
  for (size_t begin = 0; begin < logits_.size(); begin += kSoftmaxRange) ranges_.push_back(SumRange(Range(begin)));
  RangeSum total = ranges_[0];
  for (size_t i = 1; i < ranges_.size(); ++i) total = Combine(total, ranges_[i]);
  const auto pick = [this](size_t range, double rest) {
    const size_t begin = range * kSoftmaxRange;
    return static_cast<int32_t>(begin) + DrawWithin(Range(begin), ranges_[range].max, rest);
  };
  double rest = uniform * total.sum;
  size_t last = 0;
  for (size_t i = 0; i < ranges_.size(); ++i) {
    const double scale = DeterministicExp(double{ranges_[i].max} - double{total.max});
    const double weight = ranges_[i].sum * scale;
    if (weight == 0) continue;
    if (rest < weight) return pick(i, rest / scale);
    rest -= weight;
    last = i;
  }
  return pick(last, total.sum);  // rounding left a remainder: the last possible id
}

std::span<const float> Sampler::Range(size_t begin) const {
  return std::span<const float>(logits_).subspan(begin, std::min<size_t>(kSoftmaxRange, logits_.size() - begin));
}

}  // namespace lime
