#include "coordinator/text/tools/thinking.h"

#include <utility>

#include "planner/base/strings.h"

namespace lime {
namespace {

constexpr std::string_view kBlanks = " \n\r\t";

std::string_view WithoutBlanksAtEnd(std::string_view text) {
  const size_t last = text.find_last_not_of(kBlanks);
  return last == std::string_view::npos ? std::string_view() : text.substr(0, last + 1);
}

}  // namespace

absl::StatusOr<bool> ParseReasoning(std::string_view value) {
  if (value == "auto" || value == "off") return value == "auto";
  return Invalid("--reasoning is \"", Text(value), "\"; it can be auto or off");
}

bool HasThinkEnd(std::string_view text) {
  return text.find(kThinkEndTag) != std::string_view::npos;
}

bool OpensThinking(std::string_view prompt) {
  return WithoutBlanksAtEnd(prompt).ends_with(kThinkTag);
}

bool EndsThinking(std::string_view prompt) {
  return WithoutBlanksAtEnd(prompt).ends_with(kThinkEndTag);
}

ThinkingSplitter::ThinkingSplitter(Start start)
    : begins_inside_(start == Start::kInside), opened_(begins_inside_), state_(start == Start::kOff ? State::kContent : State::kStart) {}

void ThinkingSplitter::ReadStart(char c, std::string& reasoning, std::string& content) {
  if (tag_.empty() && kBlanks.find(c) != std::string_view::npos) {
    blanks_ += c;
    return;
  }
  tag_ += c;
  if (kThinkTag.starts_with(tag_)) {
    if (tag_ != kThinkTag) return;
    blanks_.clear();
    tag_.clear();
    opened_ = true;
    state_ = State::kBeforeReasoning;
    return;
  }
  state_ = begins_inside_ ? State::kBeforeReasoning : State::kContent;
  const std::string text = std::exchange(blanks_, {}) + std::exchange(tag_, {});
  for (const char again : text) Read(again, reasoning, content);
}

// Line feeds wait, because they may stand in front of </think>.
void ThinkingSplitter::ReadReasoning(char c, std::string& reasoning) {
  if (tag_.empty() && c == '\n') {
    blanks_ += c;
    return;
  }
  tag_ += c;
  if (tag_ == kThinkEndTag) {
    blanks_.clear();
    tag_.clear();
    state_ = State::kBeforeContent;
    return;
  }
  if (kThinkEndTag.starts_with(tag_)) return;
  tag_.pop_back();
  reasoning += std::exchange(blanks_, {});
  if (tag_.empty()) {
    reasoning += c;
    return;
  }
  reasoning += std::exchange(tag_, {});
  ReadReasoning(c, reasoning);  // it may begin the tag, or a line
}

void ThinkingSplitter::Read(char c, std::string& reasoning, std::string& content) {
  if (state_ == State::kStart) return ReadStart(c, reasoning, content);
  if (state_ == State::kReasoning) return ReadReasoning(c, reasoning);
  if (state_ == State::kContent) {
    content += c;
    return;
  }
  if (c == '\n') return;
  state_ = state_ == State::kBeforeReasoning ? State::kReasoning : State::kContent;
  Read(c, reasoning, content);
}

void ThinkingSplitter::Push(std::string_view text, std::string& reasoning, std::string& content) {
  for (const char c : text) Read(c, reasoning, content);
}

void ThinkingSplitter::Finish(std::string& reasoning, std::string& content) {
  const bool is_content = state_ == State::kStart && !begins_inside_;
  std::string& rest = is_content ? content : reasoning;
  rest += std::exchange(blanks_, {});
  rest += std::exchange(tag_, {});
}

}  // namespace lime
