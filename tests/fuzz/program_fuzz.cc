// Any text as a Program, and what follows it as events: an error in one sentence each, or a Program that is written and read back the same
// and whose runner never holds more in its ring than there is.
#include <algorithm>
#include <string_view>
#include <vector>

#include "planner/base/check.h"
#include "planner/plan/program.h"
#include "planner/program_runner.h"

namespace {

using namespace lime;

ProgramRunner::Event EventOf(uint8_t what, uint8_t number) {
  switch (what % 5) {
    case 0:
      return ProgramRunner::BeginStep{number % 2};
    case 1:
      return ProgramRunner::Arrived{.stage = number % 16, .microbatch = number / 16};
    case 2:
      return ProgramRunner::KvArrived{number, 0};
    case 3:
      return ProgramRunner::Loaded{number};
    default:
      return ProgramRunner::Computed{};
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(input.find('\n'), input.size());
  const absl::StatusOr<Program> program = ParseProgram(input.substr(0, end), "fuzz");
  if (!program.ok()) {
    LIME_CHECK(!program.status().message().empty());
    return 0;
  }
  const absl::StatusOr<Program> again = ParseProgram(ToJsonText(*program), "again");
  LIME_CHECK(again.ok()) << again.status().message();
  LIME_CHECK(*again == *program);
  LIME_CHECK(!program->DebugString().empty());
  ProgramRunner runner({&*program});
  std::vector<ProgramRunner::Action> actions;
  runner.Start(actions);
  Bytes in_ring = 0;
  for (size_t i = end; i + 1 < size; i += 2) {
    (void)runner.OnEvent(EventOf(data[i], data[i + 1]), static_cast<double>(i), actions);
    for (const ProgramRunner::Action& action : actions) {
      if (const auto* load = std::get_if<ProgramRunner::StartLoad>(&action)) in_ring += load->what.bytes;
      if (const auto* release = std::get_if<ProgramRunner::Release>(&action)) in_ring -= release->bytes;
      LIME_CHECK_LE(in_ring, program->ring_bytes);
      LIME_CHECK_GE(in_ring, 0);
    }
    actions.clear();
  }
  return 0;
}
