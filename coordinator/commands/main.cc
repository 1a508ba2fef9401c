// lime: the coordinator and its command line. Each command has a file of its own; this file
// collects them.

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <iostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "common/input/command_line.h"
#include "coordinator/commands/commands.h"
#include "daemon/machine/unreadable_pages.h"
#include "nlohmann/json.hpp"
#include "planner/base/json_text.h"
#include "planner/base/release.h"
#include "proto/convert/convert.h"
#include "proto/grpc_log.h"

namespace {

// Prints the help or version that was asked for.
void PrintAnswer(CLI::App& app, const CLI::Success& asked, bool in_json) {
  if (!in_json) return void(app.exit(asked));
  std::ostringstream text;
  app.exit(asked, text, text);
  nlohmann::json answer = {{"help", text.str()}};
  if (asked.get_name() == "CallForVersion") answer = {{"version", std::string(lime::Release())}, {"protocol", lime::kProtocol}};
  std::cout << lime::JsonText(answer) << "\n";
}

// CLI11 takes the words in reverse order.
int Parse(CLI::App& app, std::vector<std::string> words, const lime::cli::Commands& commands) {
  const bool in_json = lime::AsksForJson(words);
  lime::cli::AnswerInJson(in_json);
  if (const absl::Status checked = lime::CheckWords(app, words); !checked.ok()) return lime::cli::Finish(lime::cli::OfUser(checked));
  try {
    std::ranges::reverse(words);
    app.parse(std::move(words));
  } catch (const CLI::Success& asked) {  // --help, --version
    PrintAnswer(app, asked, in_json);
    return lime::cli::kDone;
  } catch (const CLI::ParseError& error) {
    return lime::cli::Finish(lime::cli::WrongCall(lime::SentenceOf(app, error)));
  }
  return commands.exit_code();
}

}  // namespace

int main(int argc, char** argv) try {
  lime::cli::HandleInterrupts();
  // A write beyond the file size limit then returns an error, like a write to a full disk.
  std::signal(SIGXFSZ, SIG_IGN);
  lime::ExitOnUnreadablePages();
  lime::SilenceGrpc();
  CLI::App app("LIME runs a large language model, losslessly, on the small machines you own.", "lime");
  app.require_subcommand(1);
  app.set_version_flag("--version", absl::StrCat("lime ", std::string(lime::Release()), ", protocol ", lime::kProtocol));
  app.footer(
      "`lime COMMAND --help` or `lime help COMMAND` shows the flags of a command.\n"
      "Exit codes: 0 done; 1 the work failed: a device, a disk, no memory; 2 the call was wrong, or a file that you wrote;\n"
      "130 interrupted by Ctrl-C or SIGTERM. An error is one sentence on stderr that begins with `lime:`; with --json it is also\n"
      "{\"error\": {\"message\", \"kind\", \"exit_code\"}} on stdout.");
  lime::cli::Commands commands{lime::CommandFlags(app)};
  for (const auto add :
       {lime::cli::AddRunCommand,      lime::cli::AddTraceCommand,    lime::cli::AddScoreCommand,    lime::cli::AddTokenizeCommand,
        lime::cli::AddTemplateCommand, lime::cli::AddQuantizeCommand, lime::cli::AddPrepareCommand,  lime::cli::AddBenchCommand,
        lime::cli::AddProfileCommand,  lime::cli::AddPlanCommand,     lime::cli::AddSimulateCommand, lime::cli::AddSolveCommand,
        lime::cli::AddUpCommand,       lime::cli::AddDownCommand,     lime::cli::AddDevicesCommand,  lime::cli::AddStoreCommand,
        lime::cli::AddUnloadCommand,   lime::cli::AddDoctorCommand,   lime::cli::AddKeysCommand,     lime::cli::AddPushCommand,
        lime::cli::AddDemoCommand,     lime::cli::AddServeCommand,    lime::cli::AddChatCommand,     lime::cli::AddCalibrateCommand}) {
    add(commands);
  }
  const int exit_code = Parse(app, lime::WithHelpWords({argv + 1, argv + argc}), commands);
  if (exit_code != lime::cli::kDone || lime::AnswerWritten()) return exit_code;
  std::fputs("lime: the answer cannot be written to stdout\n", stderr);
  return lime::cli::kFailed;
} catch (const std::exception& error) {  // errors without a Status: no memory, no thread
  return lime::cli::Finish(absl::ResourceExhaustedError(absl::StrCat(error.what(), "; the machine may be out of memory or threads")));
}
