#include "coordinator/chat/conversation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "planner/base/strings.h"

namespace lime::cli {
namespace {

using Kind = ChatInput::Kind;

ChatMessage MessageOf(ChatMessage::Role role, std::string text) {
  ChatMessage message;
  message.role = role;
  message.content = std::move(text);
  return message;
}

}  // namespace

ChatInput ReadChatInput(std::string_view line) {
  const absl::string_view trimmed = absl::StripAsciiWhitespace(Text(line));
  if (trimmed.empty()) return {};
  if (line.front() != '/') return {Kind::kText, std::string(trimmed)};
  const absl::string_view word = trimmed.substr(0, std::min(trimmed.find_first_of(" \t\n"), trimmed.size()));
  const std::string rest(absl::StripAsciiWhitespace(trimmed.substr(word.size())));
  if (word == "/system") return {Kind::kSystem, rest};
  if (word == "/reset" && rest.empty()) return {Kind::kReset, ""};
  if (word == "/help" && rest.empty()) return {Kind::kHelp, ""};
  if (word == "/exit" && rest.empty()) return {Kind::kExit, ""};
  return {Kind::kUnknown, std::string(word)};
}

ApiRequest Conversation::Ask(std::string question) {
  turns_.push_back(MessageOf(ChatMessage::Role::kUser, std::move(question)));
  ChatPrompt prompt;
  if (!system_.empty()) prompt.messages.push_back(MessageOf(ChatMessage::Role::kSystem, system_));
  prompt.messages.insert(prompt.messages.end(), turns_.begin(), turns_.end());
  ApiRequest request = defaults_;
  request.prompt = std::move(prompt);
  request.stream = request.include_usage = true;
  return request;
}

void Conversation::Answer(const ChatReply& reply) {
  if (reply.finish.empty() && reply.content.empty()) return TakeBack();
  turns_.push_back(MessageOf(ChatMessage::Role::kAssistant, reply.content));
}

void Conversation::TakeBack() {
  turns_.pop_back();
}

std::string CutSentence(const ChatReply& reply, int64_t context) {
  if (reply.finish != "length") return "";
  const int64_t used = reply.report.prompt_tokens + reply.report.completion_tokens;
  if (context > 0 && reply.has_counts && used >= context)
    return absl::StrCat("the answer was cut, because the context of ", context, " tokens is full; /reset begins a new conversation");
  return "the answer was cut at --max-tokens; ask to go on, or give more";
}

std::string FiguresSentence(const ChatReply& reply) {
  const AnswerReport& report = reply.report;
  if (!reply.has_counts) return "";
  std::string text;
  if (report.ms_per_token > 0) text = absl::StrFormat("%.2f ms a token", report.ms_per_token);
  if (report.predicted_ms_per_token > 0)
    absl::StrAppend(&text, text.empty() ? "" : ", ", absl::StrFormat("predicted %.2f", report.predicted_ms_per_token));
  absl::StrAppend(&text, text.empty() ? "" : "; ", report.completion_tokens, report.completion_tokens == 1 ? " token" : " tokens");
  if (report.ttft_ms > 0) absl::StrAppend(&text, absl::StrFormat(", the first after %.0f ms", report.ttft_ms));
  return text;
}

}  // namespace lime::cli
