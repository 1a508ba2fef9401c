// What a person sees of one prompt: its progress while it is computed, then the prompt and its text as it comes.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "coordinator/cli/progress.h"

namespace lime::cli {

// Thread: the one that generates.
class TextOutput {
 public:
  // Progress is shown on a terminal, of prompts that take long.
  TextOutput(std::string prompt, size_t prompt_tokens);

  void Prompt(double share);         // computed so far
  void PromptDone();                 // takes its progress off the screen
  void Text(std::string_view text);  // the prompt before it, the first time
  void End();                        // ends the line

 private:
  void Begin();

  const std::string prompt_;
  std::optional<ProgressLine> progress_;
  bool begun_ = false;
};

}  // namespace lime::cli
