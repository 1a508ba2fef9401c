#include "kernels/cpu/experts.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/base/hwy_targets.h"
#include "planner/base/check.h"
#include "planner/base/float_bits.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/experts.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include "kernels/cpu/row_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lime::cpu::HWY_NAMESPACE {
namespace {

// ---- Scores of one row, in place

void SoftmaxScores(float* x, int64_t n) {
  float largest = x[0];
  for (int64_t i = 1; i < n; ++i) largest = x[i] > largest ? x[i] : largest;
  for (int64_t i = 0; i < n; i += kLanes) StoreGroup(Exp(Sub(LoadGroup(x, i, n), Set(largest))), x, i, n);
  F32x16 lanes = Zero();
  for (int64_t i = 0; i < n; i += kLanes) lanes = Add(lanes, LoadGroup(x, i, n));
  const F32x16 sum = Set(ReduceAdd(lanes));
  for (int64_t i = 0; i < n; i += kLanes) StoreGroup(Div(LoadGroup(x, i, n), sum), x, i, n);
}

void ScoreRow(RouterScoring scoring, float* x, int64_t n) {
  if (scoring == RouterScoring::kSoftmax) return SoftmaxScores(x, n);
  if (scoring == RouterScoring::kSoftmaxOfBest) return;
  for (int64_t i = 0; i < n; i += kLanes) StoreGroup(Sigmoid(LoadGroup(x, i, n)), x, i, n);
}

// out = score + correction.
void CorrectRow(const float* scores, const Values& correction, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += kLanes)
    StoreGroup(Add(LoadGroup(scores, i, n), LoadAny(correction.data, correction.dtype, i, n)), out, i, n);
}

// ---- Weights of one row

void SoftmaxOfChosen(float* weights, int64_t n) {
  const float largest = *std::max_element(weights, weights + n);
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += weights[i] = ExpOne(weights[i] - largest);
  for (int64_t i = 0; i < n; ++i) weights[i] /= sum;
}

void WeighRow(const ExpertsConfig& config, const float* scores, const int32_t* chosen, float* weights) {
  const int64_t n = config.per_token;
  for (int64_t i = 0; i < n; ++i) weights[i] = scores[chosen[i]];
  if (config.scoring == RouterScoring::kSoftmaxOfBest) SoftmaxOfChosen(weights, n);
  if (config.normalized) {
    float sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += weights[i];
    for (int64_t i = 0; i < n; ++i) weights[i] /= sum + 1e-20f;
  }
  if (config.weight_factor == 1) return;
  for (int64_t i = 0; i < n; ++i) weights[i] *= static_cast<float>(config.weight_factor);
}

// ---- Sum of one row

template <typename T>
void AddRow(const ExpertOutputs& e, int64_t row, float multiplier, T* x) {
  const int32_t* const places = e.places + row * e.per_token;
  const float* const weights = e.weights + row * e.per_token;
  const F32x16 shared_scale = e.shared_scale == nullptr ? Zero() : Sigmoid(Set(e.shared_scale[row]));
  for (int64_t i = 0; i < e.width; i += kLanes) {
    F32x16 sum = Zero();
    for (int64_t s = 0; s < e.per_token; ++s) sum = MulAdd(Set(weights[s]), LoadGroup(e.outputs + places[s] * e.stride, i, e.width), sum);
    if (e.shared != nullptr) {
      const F32x16 shared = LoadGroup(e.shared + row * e.width, i, e.width);
      sum = e.shared_scale == nullptr ? Add(sum, shared) : MulAdd(shared_scale, shared, sum);
    }
    StoreGroup(Add(LoadGroup(x, i, e.width), Mul(sum, Set(multiplier))), x, i, e.width);
  }
}

void AddRows(const ExpertOutputs& e, float multiplier, void* x, DType dtype, int64_t begin, int64_t end) {
  WithWorkingType(dtype, [&](auto type) HWY_ATTR {
    auto* const rows = static_cast<decltype(type)*>(x);
    for (int64_t row = begin; row < end; ++row) AddRow(e, row, multiplier, rows + row * e.width);
  });
}

}  // namespace
}  // namespace lime::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lime::cpu {

HWY_EXPORT(ScoreRow);
HWY_EXPORT(CorrectRow);
HWY_EXPORT(WeighRow);
HWY_EXPORT(AddRows);

namespace {

// The best of the ids that were added in ascending order: the largest values, the lower id among
// equals.
class BestIds {
 public:
  // `ids`: room for `capacity` ids, the best first.
  BestIds(const float* values, int64_t capacity, int32_t* ids) : values_(values), capacity_(capacity), ids_(ids) {}

  void Add(int32_t id) {
    int64_t at = size_;
    while (at > 0 && values_[id] > values_[ids_[at - 1]]) --at;
    if (at == capacity_) return;
    size_ = std::min(size_ + 1, capacity_);
    std::copy_backward(ids_ + at, ids_ + size_ - 1, ids_ + size_);
    ids_[at] = id;
  }

 private:
  const float* values_;
  int64_t capacity_;
  int32_t* ids_;
  int64_t size_ = 0;
};

// The sum of the two best values; of a group of one, its value.
float GroupScore(const float* values, int64_t n) {
  int32_t best[2] = {};
  BestIds two(values, 2, best);
  for (int64_t i = 0; i < n; ++i) two.Add(static_cast<int32_t>(i));
  return n == 1 ? values[0] : values[best[0]] + values[best[1]];
}

// Sets kept[g] for the best groups.
void KeepGroups(const ExpertsConfig& config, const float* values, bool* kept) {
  float scores[kMaxExperts];
  int32_t best[kMaxExperts];
  const int64_t size = config.count / config.groups;
  BestIds groups(scores, config.groups_kept, best);
  for (int64_t g = 0; g < config.groups; ++g) {
    scores[g] = GroupScore(values + g * size, size);
    kept[g] = false;
    groups.Add(static_cast<int32_t>(g));
  }
  for (int64_t i = 0; i < config.groups_kept; ++i) kept[best[i]] = true;
}

// The ids of one row, ascending.   values: [count], none is NaN.
void ChooseRow(const ExpertsConfig& config, const float* values, int32_t* chosen) {
  bool kept[kMaxExperts] = {true};
  if (config.groups > 1) KeepGroups(config, values, kept);
  const int64_t size = config.count / config.groups;
  BestIds best(values, config.per_token, chosen);
  for (int64_t g = 0; g < config.groups; ++g) {
    if (!kept[g]) continue;
    for (int64_t i = g * size; i < (g + 1) * size; ++i) best.Add(static_cast<int32_t>(i));
  }
  std::sort(chosen, chosen + config.per_token);
}

bool HasNaN(const float* values, int64_t n) {
  return std::any_of(values, values + n, [](float value) { return std::isnan(value); });
}

// False: there is a NaN.
bool RouteRow(const ExpertsConfig& config, float* scores, const Values& correction, int32_t* chosen, float* weights) {
  HWY_DYNAMIC_DISPATCH(ScoreRow)(config.scoring, scores, config.count);
  const float* values = scores;
  alignas(64) float corrected[kMaxExperts];
  if (correction.data != nullptr) {
    HWY_DYNAMIC_DISPATCH(CorrectRow)(scores, correction, config.count, corrected);
    values = corrected;
  }
  if (HasNaN(values, config.count)) return false;
  ChooseRow(config, values, chosen);
  HWY_DYNAMIC_DISPATCH(WeighRow)(config, scores, chosen, weights);
  return !HasNaN(weights, config.per_token);
}

}  // namespace

int64_t ChooseExperts(ThreadPool& pool, const ExpertsConfig& config, int64_t rows, float* products, const Values& correction,
                      int32_t* chosen, float* weights) {
  const int64_t n = config.per_token;
  LIME_CHECK(0 < n && n <= config.count && config.count <= kMaxExperts && n <= kMaxExpertsPerToken) << n << " of " << config.count;
  LIME_CHECK(config.groups > 0 && config.count % config.groups == 0 && config.groups_kept <= config.groups) << config.groups;
  LIME_CHECK_GE(config.count / config.groups * config.groups_kept, n);
  ParallelRows(pool, rows, 8 * config.count, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (!RouteRow(config, products + row * config.count, correction, chosen + row * n, weights + row * n)) chosen[row * n] = -1;
    }
  });
  for (int64_t row = 0; row < rows; ++row) {
    if (chosen[row * n] < 0) return row;
  }
  return -1;
}

void AddExperts(ThreadPool& pool, const ExpertOutputs& experts, float multiplier, void* x, DType dtype) {
  ParallelRows(pool, experts.rows, experts.width * (experts.per_token + 1), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(AddRows)(experts, multiplier, x, dtype, begin, end);
  });
}

}  // namespace lime::cpu
#endif  // HWY_ONCE
