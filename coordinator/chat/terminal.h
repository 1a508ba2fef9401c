// The terminal as the screen of a chat: lines from stdin, answers to stdout, all else to stderr.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "coordinator/chat/chat_loop.h"
#include "coordinator/cli/interrupt.h"

namespace lime::cli {

// Cuts lines out of the bytes of a terminal. A line that ends with a backslash goes on in the next
// one, behind a line feed. Pure.
class LineCutter {
 public:
  void Add(std::string_view bytes) { waiting_.append(bytes); }
  // The next message, if it is complete.
  std::optional<std::string> Next();
  // The end of the input: what has no line feed yet; empty: nothing.
  std::string Rest();
  bool goes_on() const { return !begun_.empty(); }  // a message waits for its next line

 private:
  std::string waiting_;
  std::string begun_;  // earlier lines of a message
};

// Thread: one.   While it exists, Ctrl-C stops answers (AnswerStop).
class Terminal final : public ChatScreen {
 public:
  // Reads the file `input`. `colours`: reasoning is shown dim.
  Terminal(int input, bool colours) : input_(input), colours_(colours) {}

  Input ReadLine(std::string& line) override;
  void Reasoning(std::string_view text) override;
  void Content(std::string_view text) override;
  void EndAnswer() override;
  void Say(std::string_view text) override;
  const std::atomic<bool>& stopped() const override { return AnswerStop::stopped(); }
  void ContinueAfterStop() override { AnswerStop::Clear(); }

 private:
  enum class Showing { kNothing, kReasoning, kContent };
  void Show(Showing what);

  const AnswerStop stop_;
  const int input_;
  const bool colours_;
  LineCutter lines_;
  Showing showing_ = Showing::kNothing;
};

}  // namespace lime::cli
