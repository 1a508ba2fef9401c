#include "daemon/units/hosted_units.h"

#include <algorithm>
#include <utility>

#include "planner/base/check.h"
#include "planner/plan/plan_blocks.h"

namespace lime {
namespace {

template <typename... What>
absl::Status WrongQuestion(const What&... what) {
  return Invalid("question about units: ", what...);
}

}  // namespace

HostedUnits::HostedUnits(const Plan& plan, const ModelSpec& spec, Options options)
    : plan_(plan),
      options_(std::move(options)),
      hidden_(spec.config.hidden_size),
      row_bytes_(spec.config.hidden_size * ElementBytes(spec.working_dtype)),
      most_rows_(spec.config.experts ? MostRowsFor(spec, {.max_rows = options_.max_rows}) : 0) {
  for (int32_t d = 0; d < plan.NumDevices(); ++d) {
    if (HostsUnitsOf(plan, options_.device, d)) questions_[d];
  }
  if (!questions_.empty()) results_.resize(static_cast<size_t>(most_rows_ * hidden_));
}

absl::Status HostedUnits::Check(int32_t from, const UnitsQuery& query) const {
  const auto question = questions_.find(from);
  if (question == questions_.end()) return WrongQuestion("device ", from, " has no units on this device");
  if (question->second.missing > 0) return WrongQuestion("device ", from, " asks twice");
  if (query.number != question->second.number + 1)
    return WrongQuestion("number ", query.number, " arrived, expected ", question->second.number + 1);
  LIME_RETURN_IF_ERROR(CheckUnits(from, query.part, query.units));
  if (query.num_rows() > options_.max_rows) return WrongQuestion("it has ", query.num_rows(), " rows, the plan allows ", options_.max_rows);
  if (std::ssize(query.rows) != query.num_rows() * row_bytes_)
    return WrongQuestion(query.rows.size(), " bytes arrived for ", query.num_rows(), " rows, which need ", query.num_rows() * row_bytes_);
  return absl::OkStatus();
}

absl::Status HostedUnits::CheckUnits(int32_t from, int32_t part, std::span<const int32_t> units) const {
  if (part >= plan_.NumParts() || plan_.parts[part].host != options_.device || plan_.stages[StageOf(plan_, part)].device != from)
    return WrongQuestion("part ", part, " is not of device ", from, " on this device");
  const int64_t has = std::ssize(UnitsIn(plan_.parts[part].rows));
  if (const int32_t most = std::ranges::max(units); most >= has)
    return WrongQuestion("unit ", most, " is outside the ", has, " of ", PartName(plan_, part));
  return absl::OkStatus();
}

absl::Status HostedUnits::CheckGuess(int32_t from, const UnitsGuess& guess) const {
  return CheckUnits(from, guess.part, guess.units);
}

absl::StatusOr<HostedUnits::Visit> HostedUnits::OnQuery(int32_t from, const UnitsQuery& query) {
  LIME_RETURN_IF_ERROR(Check(from, query));
  Question& question = questions_.at(from);
  question.number = query.number, question.part = query.part;
  question.rows.assign(query.rows.begin(), query.rows.end());
  question.units.clear();
  std::ranges::copy_if(query.units, std::back_inserter(question.units), [](int32_t unit) { return unit >= 0; });
  std::ranges::sort(question.units);
  question.units.erase(std::unique(question.units.begin(), question.units.end()), question.units.end());
  question.rows_of.assign(question.units.size(), {});
  for (size_t i = 0; i < query.units.size(); ++i) {
    if (query.units[i] < 0) continue;
    const auto unit = std::ranges::lower_bound(question.units, query.units[i]) - question.units.begin();
    question.rows_of[static_cast<size_t>(unit)].push_back(static_cast<int32_t>(i / static_cast<size_t>(query.per_row)));
  }
  question.missing = question.units.size();
  return Visit{.part = query.part, .units = question.units, .rows = static_cast<int32_t>(query.num_rows()), .decodes = query.decodes};
}

void HostedUnits::OnReady(int32_t part, const UnitInPlace& unit) {
  ready_.push_back({.owner = plan_.stages[StageOf(plan_, part)].device, .unit = unit});
}

std::span<const int32_t> HostedUnits::RowsOf(const Question& question, int32_t unit) {
  return question.rows_of[static_cast<size_t>(std::ranges::lower_bound(question.units, unit) - question.units.begin())];
}

int32_t HostedUnits::BeginCompute() {
  LIME_CHECK(ready());
  owner_ = ready_.front().owner;
  const Question& question = questions_.at(owner_);
  computing_.clear();
  int64_t rows = 0;
  while (ready() && ready_.front().owner == owner_) {
    rows += std::ssize(RowsOf(question, ready_.front().unit.unit));
    if (rows > most_rows_) break;
    computing_.push_back(ready_.front().unit);
    ready_.pop_front();
  }
  return owner_;
}

absl::Status HostedUnits::Compute() {
  const Question& question = questions_.at(owner_);
  std::vector<std::vector<RowsInMemory>> matrices(computing_.size());
  std::vector<UnitForRows> units;
  size_t rows = 0;
  for (size_t i = 0; i < computing_.size(); ++i) {
    options_.matrices_of(question.part, computing_[i], matrices[i]);
    units.push_back({.matrices = matrices[i], .rows = RowsOf(question, computing_[i].unit)});
    rows += units.back().rows.size();
  }
  num_results_ = rows * static_cast<size_t>(hidden_);
  return options_.backend->ComputeUnitsFor(plan_.parts[question.part].block, question.rows, units, std::span(results_).first(num_results_));
}

HostedUnits::Computed HostedUnits::EndCompute() {
  Question& question = questions_.at(owner_);
  UnitsAnswer answer{.number = question.number, .results = std::as_bytes(std::span(results_).first(num_results_))};
  for (const UnitInPlace& unit : computing_) answer.units.push_back(unit.unit);
  question.missing -= computing_.size();
  options_.send(owner_, Encode(answer));
  return {.part = question.part, .units = computing_};
}

}  // namespace lime
