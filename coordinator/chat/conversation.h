// The messages of a chat, and the words with which its user directs it. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/api/api_request.h"
#include "coordinator/chat/chat_backend.h"

namespace lime::cli {

// A line of the user.
struct ChatInput {
  enum class Kind {
    kNothing,  // an empty line
    kText,     // for the model
    kReset,    // /reset
    kSystem,   // /system TEXT; without a text, no instructions
    kHelp,     // /help
    kExit,     // /exit
    kUnknown,  // another word that begins with a slash
  };
  Kind kind = Kind::kNothing;
  std::string text;  // kText, kSystem: the text; kUnknown: the word

  friend bool operator==(const ChatInput&, const ChatInput&) = default;
};
ChatInput ReadChatInput(std::string_view line);
inline constexpr std::string_view kChatHelp =
    "/reset        forget the conversation\n"
    "/system TEXT  instructions for the model from now on; without TEXT none\n"
    "/exit         end, like Ctrl-D\n"
    "/help         show this\n"
    "Ctrl-C stops an answer; a second Ctrl-C ends the chat. A line that ends with \\ goes on in the next\n"
    "line. Begin a message with a blank to send a slash first.\n";

// Invariant: without an open question, the messages are pairs of a question and its answer.
// Bounds: a question that leaves no room in the context is taken back, so the context bounds the
// messages.
class Conversation {
 public:
  // `defaults`: model, sampling and max_tokens of every request. `system`: instructions; may be empty.
  Conversation(ApiRequest defaults, std::string system) : defaults_(std::move(defaults)), system_(std::move(system)) {}

  // The request with all messages and this question, which is open then.
  ApiRequest Ask(std::string question);
  // The answer to the open question. One that was stopped before its first word takes the question
  // back.
  void Answer(const ChatReply& reply);
  // Forgets the open question.
  void TakeBack();

  void Reset() { turns_.clear(); }
  void SetSystem(std::string system) { system_ = std::move(system); }
  size_t questions() const { return turns_.size() / 2; }  // that have an answer

 private:
  const ApiRequest defaults_;
  std::string system_;
  std::vector<ChatMessage> turns_;
};

// What a user should know about the end of an answer: it was cut, and why. Empty: nothing.
// `context`: see ChatBackend.
std::string CutSentence(const ChatReply& reply, int64_t context);
// "24.51 ms a token, predicted 23.90; 128 tokens, the first after 210 ms"; empty if nothing is known.
std::string FiguresSentence(const ChatReply& reply);

}  // namespace lime::cli
