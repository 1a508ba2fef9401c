#include "planner/demand/route_model.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "planner/base/check.h"
#include "planner/demand/replay.h"

namespace lime {
namespace {

constexpr int kTries = 16;  // to choose a unit that the row does not have

// Of the default curve: fewer steps if rows choose many units.
constexpr int64_t kMostSteps = 1024, kLeastSteps = 32, kDefaultChoices = 1 << 20;

// Of the weights 1 / (r + flat)^2 up to each rank r.
std::vector<double> SumsOfWeights(int32_t units, double flat) {
  std::vector<double> sums;
  double sum = 0;
  for (int32_t r = 0; r < units; ++r) sums.push_back(sum += 1 / ((r + flat) * (r + flat)));
  return sums;
}

// Every order is as likely as every other one.
std::vector<int32_t> Shuffled(int32_t units, Random& random) {
  std::vector<int32_t> order(static_cast<size_t>(units));
  std::iota(order.begin(), order.end(), 0);
  for (int32_t i = units - 1; i > 0; --i) std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(random.Below(i + 1))]);
  return order;
}

}  // namespace

absl::StatusOr<RouteModel> RouteModel::Create(const RouteModelOptions& options) {
  LIME_RETURN_IF_ERROR(CheckRouteShape(options.shape));
  if (options.shape.per_token < 1) return Invalid("model of routes: per_token is 0; say how many units a row chooses");
  if (!(options.recent >= 0 && options.recent <= 1)) return Invalid("model of routes: recent is ", options.recent, ", not 0 to 1");
  for (const double flat : {options.recent_flat, options.favourite_flat}) {
    if (!(flat >= 0.01 && flat <= 1e6)) return Invalid("model of routes: a flatness is ", flat, ", not 0.01 to 1e6");
  }
  return RouteModel(options);
}

RouteModel::RouteModel(const RouteModelOptions& options)
    : options_(options),
      random_(options.seed),
      recent_sums_(SumsOfWeights(options.shape.units, options.recent_flat * options.shape.per_token)),
      favourite_sums_(SumsOfWeights(options.shape.units, options.favourite_flat * options.shape.per_token)),
      of_row_(static_cast<size_t>(options.shape.units)),
      of_visit_(static_cast<size_t>(options.shape.units)) {
  for (int32_t i = 0; i < options.shape.layers; ++i) {
    std::vector<int32_t> recent = Shuffled(options.shape.units, random_);
    layers_.push_back({.recent = std::move(recent), .favourites = Shuffled(options.shape.units, random_)});
  }
}

int32_t RouteModel::ChooseUnit(const Layer& layer) {
  const bool is_recent = random_.Uniform() < options_.recent;
  const std::vector<double>& sums = is_recent ? recent_sums_ : favourite_sums_;
  const std::vector<int32_t>& order = is_recent ? layer.recent : layer.favourites;
  const auto is_chosen = [this](int32_t unit) { return of_row_[static_cast<size_t>(unit)]; };
  for (int i = 0; i < kTries; ++i) {
    const auto found = std::ranges::upper_bound(sums, random_.Uniform() * sums.back());
    const int32_t unit = order[std::min(static_cast<size_t>(found - sums.begin()), order.size() - 1)];
    if (!is_chosen(unit)) return unit;
  }
  size_t& first = is_recent ? first_recent_ : first_favourite_;
  while (is_chosen(order[first])) ++first;
  return order[first];
}

void RouteModel::ChooseRow(Layer& layer) {
  row_.clear();
  first_recent_ = first_favourite_ = 0;
  for (int32_t i = 0; i < options_.shape.per_token; ++i) {
    row_.push_back(ChooseUnit(layer));
    of_row_[static_cast<size_t>(row_.back())] = true;
  }
  std::stable_partition(layer.recent.begin(), layer.recent.end(), [this](int32_t unit) { return of_row_[static_cast<size_t>(unit)]; });
  for (const int32_t unit : row_) {
    of_row_[static_cast<size_t>(unit)] = false;
    if (!of_visit_[static_cast<size_t>(unit)]) visit_.push_back(unit);
    of_visit_[static_cast<size_t>(unit)] = true;
  }
}

absl::Status RouteModel::AddStep(int32_t rows, RouteLog& log) {
  LIME_CHECK(log.shape() == options_.shape) << log.shape().model;
  const int64_t step = log.num_steps();
  for (int32_t i = 0; i < options_.shape.layers; ++i) {
    visit_.clear();
    for (int32_t row = 0; row < rows; ++row) ChooseRow(layers_[static_cast<size_t>(i)]);
    for (const int32_t unit : visit_) of_visit_[static_cast<size_t>(unit)] = false;
    std::ranges::sort(visit_);
    LIME_RETURN_IF_ERROR(log.Add(step, i, rows, visit_));
  }
  return absl::OkStatus();
}

absl::StatusOr<RouteLog> ModelRoutes(const RouteModelOptions& options, int64_t steps) {
  LIME_ASSIGN_OR_RETURN(RouteModel model, RouteModel::Create(options));
  RouteLog log(options.shape);
  for (int64_t i = 0; i < steps; ++i) LIME_RETURN_IF_ERROR(model.AddStep(1, log));
  return log;
}

absl::StatusOr<HitCurve> DefaultHitCurve(int32_t units, int32_t per_token) {
  const RouteModelOptions options{.shape = {.model = "default", .layers = 1, .units = units, .per_token = per_token}};
  const int64_t steps = std::clamp(kDefaultChoices / std::max(per_token, 1), kLeastSteps, kMostSteps);
  LIME_ASSIGN_OR_RETURN(const RouteLog log, ModelRoutes(options, steps));
  return HitCurvesOf(log, UnitPolicy::kLru, {.warm_up = steps / 4}).front();
}

}  // namespace lime
