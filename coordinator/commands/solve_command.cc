#include <iostream>
#include <string>

#include "common/steady_clock.h"
#include "coordinator/cli/user_text.h"
#include "coordinator/commands/commands.h"
#include "planner/solve.h"

namespace lime::cli {
namespace {

// Reads at most one byte past the limit, so that Solve() can refuse a larger problem.
std::string ReadProblem(std::istream& in) {
  std::string text(kMaxProblemBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  return text;
}

absl::Status RunSolve(bool /*as_json*/) {
  LIME_RETURN_IF_ERROR(CheckStdin());
  const absl::StatusOr<std::string> answer = Solve(ReadProblem(std::cin), {.now_ms = SteadyMs});
  if (!answer.ok()) return WrongCall(std::string(answer.status().message()));
  std::cout << *answer << std::endl;
  return std::cout ? absl::OkStatus() : absl::UnavailableError("solve: cannot write the answer to stdout");
}

}  // namespace

void AddSolveCommand(Commands& commands) {
  const auto [command, as_json] =
      commands.Add<bool>("solve", "Planner problems, JSON in and out",
                         "One object with a \"kind\" on stdin: optimize, eval, replan, eq1, slots, online or kvtransfer.", RunSolve);
  command.Add("--json", &as_json, "Print JSON, which this command always does");
}

}  // namespace lime::cli
