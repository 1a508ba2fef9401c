// Dialogues of the chat model: a script of the grammar, what it means, and the text that the model
// reads.
//
// A line of a script is a mark, a space and a text:
//   : system message      > user message       < the assistant's answer
//   $ NAME PARAMETER...   a tool that the request declares
//   * NAME KEY=VALUE      the assistant calls a tool, with one argument at most
//   @ TEXT                the result of the call; "KEY=VALUE; KEY=VALUE" stands for a JSON object
//   = KEY,KEY             the answer above is a story that holds these words
//   & KEY,KEY             the answer above is right if it holds these words
//   - KEY,KEY             the answer above declines, in these words
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace lime::train {

struct DialogueTool {
  std::string name;
  std::vector<std::string> parameters;
};

struct DialogueMessage {
  enum class Role { kSystem, kUser, kAssistant, kTool };
  // What an answer is judged by.
  enum class Check {
    kNone,
    kStory,    // it holds what was asked for
    kAnswer,   // it holds the answer to a question, or what a tool said
    kRefusal,  // it declines
    kCall,     // it is this call, to the byte
  };

  Role role = Role::kUser;
  std::string text;             // of a call: as the model writes it
  nlohmann::ordered_json call;  // {"name", "arguments"}; null in a message that calls nothing
  Check check = Check::kNone;
  std::vector<std::string> keys;
};

struct Dialogue {
  std::vector<DialogueTool> tools;
  std::vector<DialogueMessage> messages;
};

absl::StatusOr<Dialogue> ParseDialogue(absl::string_view script);

// What kChatTemplate makes of the dialogue, without BOS.
std::string DialogueText(const Dialogue& dialogue);
// The same for the messages before message `index` and the beginning of an answer.
std::string DialoguePrompt(const Dialogue& dialogue, size_t index);
// The variables of the template: {"messages", "tools"}, as a request to a server has them.
nlohmann::ordered_json DialogueRequest(const Dialogue& dialogue);

// Whether `text` holds all of `keys` as whole words, in any case.
bool HoldsAll(absl::string_view text, const std::vector<std::string>& keys);

// Tokens of the template that the vocabulary has whole.
inline constexpr absl::string_view kMessageBegin = "<|im_start|>", kMessageEnd = "<|im_end|>";
struct ChatToken {
  absl::string_view content;
  bool special = false;  // never part of a text
};
inline constexpr ChatToken kChatTokens[] = {{kMessageBegin, true},   {kMessageEnd, true},        {"<tool_call>", false},
                                            {"</tool_call>", false}, {"<tool_response>", false}, {"</tool_response>", false}};
inline constexpr absl::string_view kAnswerBegin = "assistant\n";  // behind kMessageBegin

// chat_template.jinja of the chat model. Of a tool it shows the names alone, so that the context has
// room for stories.
extern const absl::string_view kChatTemplate;

}  // namespace lime::train
