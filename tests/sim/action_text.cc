#include "tests/sim/action_text.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/planner/program_text.h"

namespace lime {
namespace {

std::string Text(const ProgramRunner::StartCompute& a) {
  return absl::StrCat("compute step ", a.step, " stage ", a.what.stage, " micro-batch ", a.what.microbatch, " part ", a.what.part);
}
std::string Text(const ProgramRunner::StartLoad& a) {
  return absl::StrCat(a.what.becomes_resident ? "keep" : "load", " ", a.load, ": part ", a.what.part, ", ", a.what.bytes, " bytes");
}
std::string Text(const ProgramRunner::Release& a) {
  return absl::StrCat("release load ", a.load);
}
std::string Text(const ProgramRunner::StartSend& a) {
  return absl::StrCat("send ", PayloadName(a.what.payload), " of step ", a.step, " stage ", a.what.stage, " micro-batch ",
                      a.what.microbatch, " to ", a.what.to);
}
std::string Text(const ProgramRunner::StartAskKv& a) {
  return absl::StrCat("ask ", a.what.to, " for KV of part ", a.what.part, ", micro-batch ", a.what.microbatch);
}
std::string Text(const ProgramRunner::StartAskUnits& a) {
  return absl::StrCat("ask for units of part ", a.what.part, ", micro-batch ", a.what.microbatch);
}
std::string Text(const ProgramRunner::StartAskHost& a) {
  return absl::StrCat("ask ", a.what.to, " for units of part ", a.what.part, ", micro-batch ", a.what.microbatch);
}
std::string Text(const StageLogic::HostedReady& a) {
  return absl::StrCat("unit ", a.unit.unit, " of part ", a.part, " is ready in place ", a.unit.place, " for another device");
}
std::string Text(const ProgramRunner::StartComputeUnits& a) {
  return absl::StrCat("compute units of part ", a.what.part, ", micro-batch ", a.what.microbatch);
}
std::string Text(const StageLogic::StartUnitRead& a) {
  return absl::StrCat("read unit ", a.unit, " of part ", a.part, " into place ", a.place, a.ahead ? ", ahead" : "");
}
std::string Text(const StageLogic::CancelUnitRead& a) {
  return absl::StrCat("cancel read ", a.number);
}
std::string Text(const StageLogic::FreePlace& a) {
  if (a.count > 1) return absl::StrCat("free places ", a.place, " to ", a.place + a.count - 1, " of part ", a.part);
  return absl::StrCat("free place ", a.place, " of part ", a.part);
}
std::string Text(const StageLogic::StartNeuronReads& a) {
  const auto load = [](std::string* out, const NeuronWindow::Load& l) { absl::StrAppend(out, l.neuron, " into ", l.row); };
  return absl::StrCat("read of part ", a.part, " neurons ", absl::StrJoin(a.loads, ", ", load));
}
std::string Text(const StageLogic::StartPieceRead& a) {
  return absl::StrCat("read piece ", a.piece, " of part ", a.part, " into place ", a.place);
}
std::string Text(const StageLogic::StartUnits& a) {
  const auto unit = [](std::string* out, const UnitInPlace& u) { absl::StrAppend(out, u.unit, " in ", u.place); };
  return absl::StrCat("compute of part ", a.what.part, " units ", absl::StrJoin(a.units, ", ", unit));
}
std::string Text(const ProgramRunner::Waited& a) {
  return absl::StrCat("waited at ", InstructionName(a.what), " of step ", a.step);
}
std::string Text(const ProgramRunner::StepEnded& a) {
  return absl::StrCat("step ", a.step, " ended");
}
std::string Text(const ProgramRunner::Border& a) {
  return absl::StrCat("border at step ", a.step);
}
std::string Text(const StageLogic::Admitted& a) {
  return absl::StrCat("admitted request ", a.order->request, " to slot ", a.order->sequence);
}
std::string Text(const StageLogic::Retired& a) {
  return absl::StrCat("retired slot ", a.sequence);
}
std::string Text(const StageLogic::RolledBack& a) {
  return absl::StrCat("slot ", a.sequence, " is back at ", a.positions, " positions");
}
std::string Text(const StageLogic::ChangeResidency& a) {
  return absl::StrCat("change residency to ", a.order->to.layer_pages, " pages, ", a.order->to.streamed.size(), " parts streamed");
}
std::string Text(const StageLogic::StepBegun& a) {
  return absl::StrCat("begin a step of ", a.computes, " computations");
}
std::string Text(const StageLogic::Failed& a) {
  return absl::StrCat("failed: ", a.why.message());
}

std::string Text(const ResidencyLogic::Prepare& a) {
  return absl::StrCat("prepare ", a.to.layer_pages, " pages of a layer, ", a.to.streamed.size(), " parts streamed");
}
std::string Text(const ResidencyLogic::ChangeWeights& a) {
  return absl::StrCat("change weights from step ", a.border, " on");
}
std::string Text(const ResidencyLogic::MakeRoom& a) {
  return absl::StrCat("make room: ", a.pages, " pages after ", a.pages_before, ", a ring of ", a.ring);
}
std::string Text(const ResidencyLogic::SetPlaces& a) {
  const auto part = [](std::string* out, const PartPlaces& p) { absl::StrAppend(out, p.places, " of part ", p.part); };
  return absl::StrCat("set places: ", absl::StrJoin(a.places, ", ", part));
}
std::string Text(const ResidencyLogic::Resident& a) {
  return absl::StrCat("resident ", a.bytes);
}
std::string Text(const ResidencyLogic::Most& a) {
  return absl::StrCat("most ", a.bytes);
}
std::string Text(const ResidencyLogic::Report& a) {
  return a.sentence;
}

}  // namespace

std::string ActionText(const StageLogic::Action& action) {
  return std::visit([](const auto& typed) { return Text(typed); }, action);
}

std::string ActionText(const ResidencyLogic::Action& action) {
  return std::visit([](const auto& typed) { return Text(typed); }, action);
}

}  // namespace lime
