#include "daemon/units/asked_units.h"

#include <algorithm>

#include "daemon/logic/stage_programs.h"
#include "planner/base/check.h"

namespace lime {

AskedUnits::AskedUnits(const Plan& plan, Options options) : plan_(plan), options_(std::move(options)) {
  for (const Stage& stage : plan.stages) {
    for (int p = stage.lo; stage.device == options_.device && p < stage.hi; ++p) {
      if (!plan.parts[p].hosted()) continue;
      for (const auto unit : UnitsIn(plan.parts[p].rows)) experts_[p].push_back(unit.front().expert);
      questions_[plan.parts[p].host];
    }
  }
}

absl::StatusOr<bool> AskedUnits::Ask(int part, int32_t microbatch, const MicroBatch& batch) {
  Question& question = questions_.at(plan_.parts[part].host);
  LIME_CHECK_EQ(question.missing, 0U) << "results for part " << question.part << " are missing";
  question.part = part, question.microbatch = microbatch;
  question.experts.clear();
  if (batch.rows.empty()) return false;
  LIME_ASSIGN_OR_RETURN(const UnitInputs inputs, options_.backend->InputsOfUnits(plan_.parts[part].block));
  const size_t per_row = inputs.units.size() / batch.rows.size(), row_bytes = inputs.rows.size() / batch.rows.size();
  const std::vector<int32_t>& here = experts_.at(part);
  UnitsQuery query{.part = part, .decodes = IsDecode(batch), .per_row = static_cast<int32_t>(per_row)};
  std::vector<std::byte> rows;
  for (size_t row = 0; row < batch.rows.size(); ++row) {
    const size_t before = query.units.size();
    for (const int32_t expert : inputs.units.subspan(row * per_row, per_row)) {
      const auto unit = std::ranges::lower_bound(here, expert);
      if (unit == here.end() || *unit != expert) continue;
      query.units.push_back(static_cast<int32_t>(unit - here.begin()));
      question.experts.push_back(expert);
    }
    if (query.units.size() == before) continue;
    query.units.resize(before + per_row, -1);
    const auto input = inputs.rows.subspan(row * row_bytes, row_bytes);
    rows.insert(rows.end(), input.begin(), input.end());
  }
  if (query.units.empty()) return false;
  std::ranges::sort(question.experts);
  question.experts.erase(std::unique(question.experts.begin(), question.experts.end()), question.experts.end());
  question.is_here.assign(question.experts.size(), false);
  question.missing = question.experts.size();
  query.number = ++question.number;
  query.rows = rows;
  options_.send(plan_.parts[part].host, Encode(query));
  return true;
}

absl::StatusOr<std::optional<std::pair<int32_t, int32_t>>> AskedUnits::OnAnswer(int32_t from, const UnitsAnswer& answer) {
  const auto found = questions_.find(from);
  if (found == questions_.end() || found->second.missing == 0 || found->second.number != answer.number)
    return Invalid("device ", from, " sent results of question ", answer.number, " about experts, which was not asked or is answered");
  Question& question = found->second;
  const BlockId block = plan_.parts[question.part].block;
  std::vector<bool> here = question.is_here;
  std::vector<std::pair<size_t, size_t>> places;  // of each unit: its index, and the bytes of its results
  size_t bytes = 0;
  for (const int32_t unit : answer.units) {
    const bool exists = unit >= 0 && unit < std::ssize(experts_.at(question.part));
    const auto expert = exists ? std::ranges::lower_bound(question.experts, ExpertOf(question.part, unit)) : question.experts.end();
    const auto at = static_cast<size_t>(expert - question.experts.begin());
    if (expert == question.experts.end() || *expert != ExpertOf(question.part, unit) || here[at])
      return Invalid("device ", from, " sent results of unit ", unit, " of ", PartName(plan_, question.part), ", which was not asked for");
    here[at] = true;
    LIME_ASSIGN_OR_RETURN(const Bytes of_unit, options_.backend->UnitResultBytes(block, *expert));
    places.emplace_back(at, static_cast<size_t>(of_unit)), bytes += static_cast<size_t>(of_unit);
  }
  if (bytes != answer.results.size())
    return Invalid("device ", from, " sent ", answer.results.size(), " bytes of results of ", answer.units.size(), " experts, need ",
                   bytes);
  size_t at = 0;
  for (const auto& [index, of_unit] : places) {
    LIME_RETURN_IF_ERROR(options_.backend->TakeUnitResult(block, question.experts[index], answer.results.subspan(at, of_unit)));
    at += of_unit;
  }
  question.is_here = std::move(here);
  question.missing -= answer.units.size();
  if (question.missing > 0) return std::nullopt;
  return std::pair(question.part, question.microbatch);
}

void AskedUnits::Guess(int part, std::span<const int32_t> units) {
  options_.send(plan_.parts[part].host, Encode(UnitsGuess{.part = part, .units = {units.begin(), units.end()}}));
}

absl::Status AskedUnits::UseAnswer(int part) {
  const Question& question = questions_.at(plan_.parts[part].host);
  LIME_CHECK(question.part == part && question.missing == 0) << "part " << part;
  if (question.experts.empty()) return absl::OkStatus();
  return options_.backend->UseUnitResults(plan_.parts[part].block, question.experts);
}

}  // namespace lime
