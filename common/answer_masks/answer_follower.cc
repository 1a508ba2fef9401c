#include "common/answer_masks/answer_follower.h"

#include <utility>

namespace lime::json_schema {
namespace {

constexpr std::string_view kThinkBegin = "<think>", kThinkEnd = "</think>";

bool IsBlank(char byte) {
  return byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t';
}

void AppendAtMost(size_t most, char byte, std::string& text) {
  if (text.size() == most) text.erase(0, 1);
  text.push_back(byte);
}

}  // namespace

AnswerFollower::AnswerFollower(AnswerFormatPtr format) : format_(std::move(format)) {
  if (format_->starts.empty()) {
    matcher_.emplace(format_->grammar);
    return;
  }
  seen_.reserve(kMaxStartBytes);
  state_ = format_->thinking == Thinking::kOff ? State::kContent : format_->thinking == Thinking::kOpen ? State::kStart : State::kThinking;
}

void AnswerFollower::Push(std::string_view token) {
  if (state_ == State::kAnswer) {
    if (!matcher_->Advance(token)) state_ = State::kLost;
    return;
  }
  for (size_t i = 0; i < token.size() && state_ < State::kAnswer; ++i) Read(token[i], token.substr(i + 1));
}

// `behind`: what follows in the same token.
void AnswerFollower::Read(char byte, std::string_view behind) {
  if (state_ == State::kStart) return ReadStart(byte, behind);
  if (state_ == State::kThinking) return ReadThinking(byte);
  ReadContent(byte, behind);
}

void AnswerFollower::ReadStart(char byte, std::string_view behind) {
  if (seen_.empty() && IsBlank(byte)) return;
  seen_.push_back(byte);
  if (seen_ == kThinkBegin) {
    state_ = State::kThinking;
    seen_.clear();
  }
  if (state_ == State::kThinking || kThinkBegin.starts_with(seen_)) return;
  state_ = State::kContent;
  const size_t count = seen_.size();
  const std::string content = std::exchange(seen_, {}) + std::string(behind);
  for (size_t i = 0; i < count && state_ == State::kContent; ++i) ReadContent(content[i], std::string_view(content).substr(i + 1));
}

void AnswerFollower::ReadThinking(char byte) {
  AppendAtMost(kThinkEnd.size(), byte, seen_);
  if (seen_ != kThinkEnd) return;
  state_ = State::kContent;
  seen_.clear();
}

void AnswerFollower::ReadContent(char byte, std::string_view behind) {
  AppendAtMost(kMaxStartBytes, byte, seen_);
  if (content_bytes_ > 0 || !IsBlank(byte)) ++content_bytes_;
  const bool counts = squeezed_.Push(byte);
  for (const AnswerStart& start : format_->starts) {
    const bool is_there = start.squeezed.empty() ? seen_.ends_with(start.text) && (!start.at_start || content_bytes_ == start.text.size())
                                                 : counts && squeezed_.text() == start.squeezed;
    if (is_there && Begin(start, behind)) return;
  }
}

bool AnswerFollower::Begin(const AnswerStart& start, std::string_view behind) {
  matcher_.emplace(format_->grammar);
  if (!matcher_->Advance(FrameOf(start)) || !matcher_->Advance(behind)) return false;
  state_ = State::kAnswer;
  return true;
}

}  // namespace lime::json_schema
