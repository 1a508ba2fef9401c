// The model that a server serves, from its folder and flags.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/input/command_line.h"
#include "coordinator/cli/model_files.h"
#include "coordinator/cli/model_weights.h"
#include "coordinator/generation/served_model.h"
#include "planner/base/status.h"

namespace lime::cli {

struct ServedModelFlags {
  std::string name;  // empty: that of the folder
  std::vector<std::string> aliases;
  std::string chat_template = "auto";  // auto, plain, or the path of a template
  std::string tool_format = "auto";
  std::string reasoning = "auto";

  void AddTo(const CommandFlags& command);
};

// Takes the tokenizer of `files`, which are those of `weights`. Wrong calls: the flags, and a template
// of --chat-template that cannot be parsed.
// REQUIRES: `files` were opened with text
absl::StatusOr<std::unique_ptr<ServedModel>> OpenServedModel(const ModelWeights& weights, ModelFiles& files, const ServedModelFlags& flags);

}  // namespace lime::cli
