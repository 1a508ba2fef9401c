// A plan, and what follows its line as events: an error in one sentence each, and no device's
// runner ever holds more in its ring than there is.
#include <algorithm>
#include <string_view>
#include <vector>

#include "planner/base/check.h"
#include "planner/plan/cluster_plan_json.h"
#include "planner/program/compile.h"
#include "planner/program/program_runner.h"

namespace {

using namespace lime;

ProgramRunner::Event EventOf(uint8_t what, uint8_t number) {
  switch (what % 8) {
    case 0:
      return ProgramRunner::BeginStep{number % 2};
    case 1:
      return ProgramRunner::Arrived{.stage = number % 16, .microbatch = number / 16};
    case 2:
      return ProgramRunner::KvArrived{number, 0};
    case 3:
      return ProgramRunner::Loaded{number};
    case 4:
      return ProgramRunner::HostAnswered{number, 0};
    case 5:
      return ProgramRunner::UnitsChosen{.part = number % 64, .units = number / 64};
    case 6:
      return ProgramRunner::UnitsReady{.part = number % 64, .units = number / 64};
    default:
      return ProgramRunner::Computed{.units = number % 4};
  }
}

void Run(const Program& program, std::string_view events) {
  ProgramRunner runner({&program});
  std::vector<ProgramRunner::Action> actions;
  runner.Start(actions);
  Bytes in_ring = 0;
  for (size_t i = 0; i + 1 < events.size(); i += 2) {
    (void)runner.OnEvent(EventOf(static_cast<uint8_t>(events[i]), static_cast<uint8_t>(events[i + 1])), static_cast<double>(i), actions);
    for (const ProgramRunner::Action& action : actions) {
      if (const auto* load = std::get_if<ProgramRunner::StartLoad>(&action)) in_ring += load->what.bytes;
      if (const auto* release = std::get_if<ProgramRunner::Release>(&action)) in_ring -= release->bytes;
      LIME_CHECK_LE(in_ring, program.ring_bytes);
      LIME_CHECK_GE(in_ring, 0);
    }
    actions.clear();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(input.find('\n'), input.size());
  const absl::StatusOr<Plan> plan = ParsePlan(input.substr(0, end), "fuzz");
  if (!plan.ok() || int64_t{plan->NumParts()} * plan->microbatches > 1000) return 0;  // for the sake of speed
  const absl::StatusOr<std::vector<Program>> programs = Compile(*plan, DecodeShape(*plan));
  if (!programs.ok()) {
    LIME_CHECK(!programs.status().message().empty());
    return 0;
  }
  for (const Program& program : *programs) Run(program, input.substr(end));
  return 0;
}
