#include "coordinator/cli/text_output.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/cli/screen.h"

namespace lime::cli {

TextOutput::TextOutput(std::string prompt, size_t prompt_tokens) : prompt_(std::move(prompt)) {
  progress_.emplace(absl::StrCat("Prompt of ", prompt_tokens, " tokens"), std::chrono::milliseconds(500));
}

void TextOutput::Prompt(double share) {
  if (progress_) progress_->UpdateShare(share);
}

void TextOutput::PromptDone() {
  progress_.reset();
}

void TextOutput::Begin() {
  if (begun_) return;
  begun_ = true;
  PromptDone();
  Screen::Text(prompt_);
}

void TextOutput::Text(std::string_view text) {
  Begin();
  Screen::Text(text);
}

void TextOutput::End() {
  Begin();
  Screen::Text("\n");
}

}  // namespace lime::cli
