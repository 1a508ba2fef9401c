// Divides an answer into reasoning, which stands in <think> tags, and the content behind it.
#pragma once

#include <string>
#include <string_view>

#include "coordinator/text/tools/answer_splitter.h"
#include "planner/base/status.h"

namespace lime {

// The value of --reasoning: true for "auto", false for "off".
absl::StatusOr<bool> ParseReasoning(std::string_view value);

inline constexpr std::string_view kThinkTag = "<think>", kThinkEndTag = "</think>";
inline bool IsThinkTag(std::string_view text) {
  return text == kThinkTag || text == kThinkEndTag;
}

// Whether a chat template, or the text of a vocabulary's token, is that of a model that thinks.
bool HasThinkEnd(std::string_view text);

// Whether a rendered prompt ends with <think> and blanks, so that the answer begins inside.
bool OpensThinking(std::string_view prompt);
// The same for </think>: the answer does not think.
bool EndsThinking(std::string_view prompt);

// Text in, cut anywhere. Line feeds directly inside the tags and behind </think> are dropped. An
// answer that neither begins inside nor with <think> is all content. Tags behind </think> are
// content.
// Owner: one answer.
class ThinkingSplitter final : public AnswerSplitter {
 public:
  using Start = ThinkingStart;
  // REQUIRES: !IsHarmony(start)
  explicit ThinkingSplitter(Start start);

  void Push(std::string_view text, std::string& reasoning, std::string& content) override;
  void Finish(std::string& reasoning, std::string& content) override;
  bool is_over() const override { return state_ >= State::kBeforeContent; }
  bool has_opened() const override { return opened_; }

 private:
  enum class State {
    kStart,            // blanks, or the beginning of <think>
    kBeforeReasoning,  // line feeds behind <think>
    kReasoning,
    kBeforeContent,  // line feeds behind </think>
    kContent,
  };

  void Read(char c, std::string& reasoning, std::string& content);
  void ReadStart(char c, std::string& reasoning, std::string& content);
  void ReadReasoning(char c, std::string& reasoning);

  const bool begins_inside_;
  bool opened_;
  State state_;
  std::string blanks_;  // these wait in front of tag_
  std::string tag_;     // the beginning of a tag
};

}  // namespace lime
