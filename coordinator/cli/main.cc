// lime: the coordinator and its command line. Each command lives in its own file; this one only gathers them.

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "common/command_line.h"
#include "coordinator/cli/bench_command.h"
#include "coordinator/cli/command.h"
#include "coordinator/cli/demo_command.h"
#include "coordinator/cli/devices_command.h"
#include "coordinator/cli/doctor_command.h"
#include "coordinator/cli/flag_rules.h"
#include "coordinator/cli/keys_command.h"
#include "coordinator/cli/plan_command.h"
#include "coordinator/cli/prepare_command.h"
#include "coordinator/cli/profile_command.h"
#include "coordinator/cli/push_command.h"
#include "coordinator/cli/quantize_command.h"
#include "coordinator/cli/run_command.h"
#include "coordinator/cli/score_command.h"
#include "coordinator/cli/simulate_command.h"
#include "coordinator/cli/solve_command.h"
#include "coordinator/cli/store_command.h"
#include "coordinator/cli/tokenize_command.h"
#include "coordinator/cli/unload_command.h"
#include "coordinator/cli/up_command.h"
#include "daemon/weights/unreadable_pages.h"
#include "nlohmann/json.hpp"
#include "planner/base/release.h"
#include "proto/convert.h"
#include "proto/grpc_log.h"

namespace {

struct WrongFlags : std::runtime_error {  // past CLI11, which calls back
  using std::runtime_error::runtime_error;
};

// Commands of parts that are not built yet answer so, whatever follows them.
void AddUnbuilt(CLI::App& app, int& exit_code) {
  constexpr std::pair<const char*, const char*> kCommands[] = {{"serve", "HTTP server compatible with OpenAI's"}};
  for (const auto& [name, what] : kCommands) {
    CLI::App* command = app.add_subcommand(name, std::string(what) + " (not built yet)");
    command->group("Not built yet")->allow_extras();
    command->add_flag("--json")->description("Print one JSON object");
    command->callback([name = std::string(name), &exit_code] {
      exit_code = lime::cli::Finish(lime::cli::WrongCall("`" + name + "` is not built yet; see `lime --help` for what is"));
    });
  }
}

// Before a command runs, when its flags are parsed: tells how errors are printed, and refuses flags that would change nothing.
void LookAtFlags(CLI::App& app) {
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; })) {
    command->parse_complete_callback([command] {
      lime::cli::AnswerInJson(command->count("--json") > 0);
      if (const absl::Status checked = lime::cli::CheckFlagRules(*command); !checked.ok()) throw WrongFlags(std::string(checked.message()));
    });
  }
}

// The help or the version that was asked for.
void Tell(CLI::App& app, const CLI::Success& asked, bool in_json) {
  if (!in_json) return void(app.exit(asked));
  std::ostringstream text;
  app.exit(asked, text, text);
  nlohmann::json answer = {{"help", text.str()}};
  if (asked.get_name() == "CallForVersion") answer = {{"version", std::string(lime::Release())}, {"protocol", lime::kProtocol}};
  std::cout << answer.dump() << "\n";
}

// CLI11 takes the words from the last to the first.
int Parse(CLI::App& app, std::vector<std::string> words, const int& exit_code) {
  const bool in_json = lime::AsksForJson(words);
  lime::cli::AnswerInJson(in_json);
  if (const absl::Status checked = lime::CheckWords(app, words); !checked.ok()) return lime::cli::Finish(lime::cli::OfUser(checked));
  try {
    std::ranges::reverse(words);
    app.parse(std::move(words));
  } catch (const CLI::Success& asked) {  // --help, --version
    Tell(app, asked, in_json);
    return lime::cli::kDone;
  } catch (const WrongFlags& error) {
    return lime::cli::Finish(lime::cli::WrongCall(error.what()));
  } catch (const CLI::ParseError& error) {
    return lime::cli::Finish(lime::cli::WrongCall(lime::SentenceOf(app, error)));
  }
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  lime::cli::HandleInterrupts();
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow further is an error of writing, as a full disk is
  lime::ExitOnUnreadablePages();
  lime::SilenceGrpc();
  CLI::App app("LIME runs a large language model, losslessly, on the small machines you own.", "lime");
  app.require_subcommand(1);
  app.set_version_flag("--version", absl::StrCat("lime ", std::string(lime::Release()), ", protocol ", lime::kProtocol));
  app.footer(
      "`lime COMMAND --help` or `lime help COMMAND` tells the flags of a command.\n"
      "Exit codes: 0 done; 1 the work failed: a device, a disk, no room; 2 the call was wrong, or a file in it that you wrote;\n"
      "130 interrupted by Ctrl-C or SIGTERM. An error is one sentence on stderr that begins with `lime:`; with --json it is also\n"
      "{\"error\": {\"message\", \"kind\", \"exit_code\"}} on stdout.");
  int exit_code = lime::cli::kDone;
  lime::cli::AddRunCommand(app, exit_code);
  lime::cli::AddTraceCommand(app, exit_code);
  lime::cli::AddScoreCommand(app, exit_code);
  lime::cli::AddTokenizeCommand(app, exit_code);
  lime::cli::AddQuantizeCommand(app, exit_code);
  lime::cli::AddPrepareCommand(app, exit_code);
  lime::cli::AddBenchCommand(app, exit_code);
  lime::cli::AddProfileCommand(app, exit_code);
  lime::cli::AddPlanCommand(app, exit_code);
  lime::cli::AddSimulateCommand(app, exit_code);
  lime::cli::AddSolveCommand(app, exit_code);
  lime::cli::AddUpCommand(app, exit_code);
  lime::cli::AddDownCommand(app, exit_code);
  lime::cli::AddDevicesCommand(app, exit_code);
  lime::cli::AddStoreCommand(app, exit_code);
  lime::cli::AddUnloadCommand(app, exit_code);
  lime::cli::AddDoctorCommand(app, exit_code);
  lime::cli::AddKeysCommand(app, exit_code);
  lime::cli::AddPushCommand(app, exit_code);
  lime::cli::AddDemoCommand(app, exit_code);
  AddUnbuilt(app, exit_code);
  LookAtFlags(app);
  try {
    exit_code = Parse(app, lime::WithHelpWords({argv + 1, argv + argc}), exit_code);
  } catch (const std::exception& error) {  // no memory, no thread: what no Status told
    return lime::cli::Finish(absl::ResourceExhaustedError(absl::StrCat(error.what(), "; the machine may be out of memory or threads")));
  }
  if (exit_code != lime::cli::kDone || lime::AnswerWritten()) return exit_code;
  std::fputs("lime: the answer cannot be written to stdout\n", stderr);
  return lime::cli::kFailed;
}
