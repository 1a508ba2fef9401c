// The commands of `lime`. Each has a file of its own, adds its flags, and ends with a status.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/input/command_line.h"
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
  // Adds a command. `run` gets its flags after they are read. A flag that has no effect in this
  // form of the call is an error that names it. `footer`: the end of its --help.
  template <typename Flags, typename Run>
  Added<Flags> Add(const std::string& name, const std::string& what, const std::string& footer, Run run) {
    const auto flags = std::make_shared<Flags>();
    return {AddCommand(name, what, footer, [flags, run] { return run(*flags); }), *flags};
  }

  // The exit code of the command that has run.
  int exit_code() const { return exit_code_; }

 private:
  CommandFlags AddCommand(const std::string& name, const std::string& what, const std::string& footer, std::function<absl::Status()> run);

  const CommandFlags program_;
  int exit_code_ = kDone;
};

void AddRunCommand(Commands& commands);        // generates text from a checkpoint
void AddTraceCommand(Commands& commands);      // run, with a trace
void AddChatCommand(Commands& commands);       // a conversation in the terminal
void AddScoreCommand(Commands& commands);      // teacher-forced log-probabilities and perplexity
void AddTokenizeCommand(Commands& commands);   // text on stdin to ids, or back
void AddTemplateCommand(Commands& commands);   // a chat template to the text of a prompt
void AddQuantizeCommand(Commands& commands);   // makes an MLX-style affine checkpoint
void AddCalibrateCommand(Commands& commands);  // learns which neurons text activates
void AddPrepareCommand(Commands& commands);    // writes and verifies a block store, to stream fast
void AddBenchCommand(Commands& commands);      // measures decode and prefill against this machine
void AddProfileCommand(Commands& commands);    // measures this machine or a cluster, for predictions
void AddPlanCommand(Commands& commands);       // predicts which device runs what; loads nothing
void AddSimulateCommand(Commands& commands);   // shows the timeline of a plan, also as a trace
void AddSolveCommand(Commands& commands);      // planner problems, JSON on stdin, JSON on stdout
void AddUpCommand(Commands& commands);         // starts a cluster's daemons, here and over ssh
void AddDownCommand(Commands& commands);       // stops those daemons
void AddDevicesCommand(Commands& commands);    // lists a cluster's devices and which ones answer
void AddStoreCommand(Commands& commands);      // lists and removes the models that devices hold
void AddUnloadCommand(Commands& commands);     // unloads a plan that a coordinator left behind
void AddDoctorCommand(Commands& commands);     // finds faults of machines and links
void AddKeysCommand(Commands& commands);       // makes an authority and keys for a cluster
void AddPushCommand(Commands& commands);       // sends devices the weights that they need
void AddDemoCommand(Commands& commands);       // runs the shipped model and explains what happened
void AddServeCommand(Commands& commands);      // answers clients of OpenAI's and Ollama's APIs

}  // namespace lime::cli
