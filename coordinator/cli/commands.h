// The commands of `lime`. Each lives in a file of its own, tells its flags, and ends with a status.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/command_line.h"
#include "coordinator/cli/command.h"
#include "planner/base/status.h"

namespace lime::cli {

class Commands {
 public:
  explicit Commands(const CommandFlags& program) : program_(program) {}

  template <typename Flags>
  struct Added {
    CommandFlags command;
    Flags& flags;
  };
  // A command whose `run` is called with its flags once they are read, unless one of them would change nothing in the form of the call
  // given: that is refused by name. `footer` stands at the end of its --help.
  template <typename Flags, typename Run>
  Added<Flags> Add(const std::string& name, const std::string& what, const std::string& footer, Run run) {
    const auto flags = std::make_shared<Flags>();
    return {AddCommand(name, what, footer, [flags, run] { return run(*flags); }), *flags};
  }

  // Of the command that has run.
  int exit_code() const { return exit_code_; }

 private:
  CommandFlags AddCommand(const std::string& name, const std::string& what, const std::string& footer, std::function<absl::Status()> run);

  const CommandFlags program_;
  int exit_code_ = kDone;
};

void AddRunCommand(Commands& commands);       // generates text from a checkpoint
void AddTraceCommand(Commands& commands);     // the same with a trace of it
void AddScoreCommand(Commands& commands);     // teacher-forced log-probabilities and perplexity
void AddTokenizeCommand(Commands& commands);  // text on stdin to ids, or back
void AddQuantizeCommand(Commands& commands);  // makes an MLX-style affine checkpoint
void AddPrepareCommand(Commands& commands);   // writes the block store that streams fastest, and verifies it
void AddBenchCommand(Commands& commands);     // decode and prefill beside the limits of this machine
void AddProfileCommand(Commands& commands);   // measures this machine, or a cluster's, and keeps the figures for predictions
void AddPlanCommand(Commands& commands);      // which device would run what, how fast, and why; nothing is loaded
void AddSimulateCommand(Commands& commands);  // the timeline of a plan, as text and as a Perfetto trace
void AddSolveCommand(Commands& commands);     // planner problems, JSON on stdin, JSON on stdout
void AddUpCommand(Commands& commands);        // starts the daemons of a cluster, on this machine and over ssh
void AddDownCommand(Commands& commands);      // ends them
void AddDevicesCommand(Commands& commands);   // what devices a cluster has, and which answer
void AddStoreCommand(Commands& commands);     // the models that devices hold, and their removal
void AddUnloadCommand(Commands& commands);    // takes a plan off the devices that a coordinator has left behind
void AddDoctorCommand(Commands& commands);    // what is wrong with machines and ways, and what to do
void AddKeysCommand(Commands& commands);      // an authority for a cluster, and a key for each of its devices
void AddPushCommand(Commands& commands);      // sends devices the weights that they need
void AddDemoCommand(Commands& commands);      // lets the shipped model tell a story and explains what happened

}  // namespace lime::cli
