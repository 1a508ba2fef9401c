// Units on demand that a simulated stage computes for others, or asks others for.
#include <utility>

#include "tests/sim/sim_stage.h"

namespace lime {

void SimStage::OpenUnits() {
  const auto send = [this](int32_t to, std::vector<std::byte> message) { SendToPeer(to, std::move(message), /*may_wait=*/false); };
  const auto matrices_of = [this](int part, const UnitInPlace& unit, std::vector<RowsInMemory>& matrices) {
    WeightsOfUnit(part, unit);  // is there
    const auto units = UnitsIn(plan_.parts[static_cast<size_t>(part)].rows);
    for (const MatrixRows& rows : units[static_cast<size_t>(unit.unit)]) matrices.push_back({.rows = rows});
  };
  asked_units_ = std::make_unique<AskedUnits>(plan_, AskedUnits::Options{.device = device_, .backend = &backend_, .send = send});
  hosted_units_ = std::make_unique<HostedUnits>(
      plan_, spec_,
      HostedUnits::Options{.device = device_, .max_rows = MaxRows(plan_), .backend = &backend_, .matrices_of = matrices_of, .send = send});
}

absl::Status SimStage::OnUnits(int32_t from, const std::vector<std::byte>& message) {
  LIME_ASSIGN_OR_RETURN(const UnitsMessage what, ParseUnitsMessage(message));
  LIME_RETURN_IF_ERROR(logic_->health());
  if (const auto* query = std::get_if<UnitsQuery>(&what)) {
    LIME_ASSIGN_OR_RETURN(const HostedUnits::Visit visit, hosted_units_->OnQuery(from, *query));
    LIME_RETURN_IF_ERROR(logic_->OnUnitsAsked(visit.part, visit.units, visit.rows, visit.decodes, world_.clock.now_ms(), actions_));
  } else if (const auto* guess = std::get_if<UnitsGuess>(&what)) {
    LIME_RETURN_IF_ERROR(hosted_units_->CheckGuess(from, *guess));
    logic_->OnUnitsGuessed(guess->part, guess->units, actions_);
  } else {
    LIME_ASSIGN_OR_RETURN(const auto answered, asked_units_->OnAnswer(from, std::get<UnitsAnswer>(what)));
    if (answered) logic_->OnHostAnswered(answered->first, answered->second, world_.clock.now_ms(), actions_);
  }
  CarryOut();
  return absl::OkStatus();
}

void SimStage::Carry(const ProgramRunner::StartAskHost& start) {
  const AskHost& ask = start.what;
  const absl::StatusOr<bool> asked = asked_units_->Ask(ask.part, ask.microbatch, logic_->inbox().batch(ask.microbatch));
  if (!asked.ok()) return world_.Violation(device().name, ": ", asked.status().message());
  if (!*asked) logic_->OnHostAnswered(ask.part, ask.microbatch, world_.clock.now_ms(), actions_);
}

void SimStage::Carry(const StageLogic::HostedReady& ready) {
  Place& place = unit_places_[{ready.part, ready.unit.place}];
  place.computing = true;
  world_.ahead.used_for_others += std::exchange(place.ahead, false) ? 1 : 0;
  hosted_units_->OnReady(ready.part, ready.unit);
  if (!std::exchange(computes_for_others_, true)) ComputeForOthers();
}

void SimStage::ComputeForOthers() {
  After(world_.Between(0.02, 0.3), [this] {
    if (dead_) return;
    hosted_units_->BeginCompute();
    if (const absl::Status status = hosted_units_->Compute(); !status.ok()) return world_.Violation(device().name, ": ", status.message());
    const HostedUnits::Computed computed = hosted_units_->EndCompute();
    for (const UnitInPlace& unit : computed.units) unit_places_[{computed.part, unit.place}].computing = false;
    world_.hosted_units += std::ssize(computed.units);
    computes_for_others_ = hosted_units_->ready();
    if (computes_for_others_) ComputeForOthers();
    logic_->OnHostedComputed(computed.part, computed.units, world_.clock.now_ms(), actions_);
    CarryOut();
  });
}

}  // namespace lime
