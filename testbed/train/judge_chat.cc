#include "testbed/train/judge_chat.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "testbed/train/evaluate.h"

namespace lime::train {
namespace {

using Json = nlohmann::ordered_json;
using Role = DialogueMessage::Role;
using Check = DialogueMessage::Check;

constexpr int kMaxAnswerTokens = 250;

const std::string kKinds[] = {"stories_asked_for", "other_stories", "answers_about_a_story", "tool_calls", "answers_from_a_tool",
                              "refusals",          "small_talk"};

// The name of an answer's figures: one of kKinds.
std::string KindOf(const JudgedAnswer& answer) {
  switch (answer.message->check) {
    case Check::kStory:
      return answer.message->keys.empty() ? "other_stories" : "stories_asked_for";
    case Check::kAnswer:
      return answer.after_result ? "answers_from_a_tool" : "answers_about_a_story";
    case Check::kRefusal:
      return "refusals";
    case Check::kCall:
      return "tool_calls";
    case Check::kNone:
      break;
  }
  return "small_talk";
}

}  // namespace

bool IsRight(const DialogueMessage& message, const std::string& text) {
  if (message.check == Check::kCall) return text == message.text;
  return !absl::StrContains(text, "<tool_call>") && HoldsAll(text, message.keys);
}

std::vector<JudgedAnswer> JudgeAnswers(const Llama& model, const ByteBpe& tokenizer, const Dialogue& dialogue) {
  std::vector<JudgedAnswer> answers;
  for (size_t i = 0; i < dialogue.messages.size(); ++i) {
    const DialogueMessage& message = dialogue.messages[i];
    if (message.role != Role::kAssistant) continue;
    JudgedAnswer answer{&message};
    answer.text = GreedyText(model, tokenizer, DialoguePrompt(dialogue, i), kMaxAnswerTokens);
    answer.after_result = i > 0 && dialogue.messages[i - 1].role == Role::kTool;
    answer.right = IsRight(message, answer.text);
    answers.push_back(std::move(answer));
  }
  return answers;
}

Json ChatFigures(const std::vector<JudgedAnswer>& answers) {
  Json figures;
  for (const std::string& kind : kKinds) {
    int asked = 0, right = 0;
    for (const JudgedAnswer& answer : answers) {
      if (KindOf(answer) != kind) continue;
      ++asked;
      right += answer.right ? 1 : 0;
    }
    figures[kind + "_count"] = asked;
    if (asked > 0) figures[kind + "_right_share"] = static_cast<double>(right) / asked;
  }
  return figures;
}

}  // namespace lime::train
