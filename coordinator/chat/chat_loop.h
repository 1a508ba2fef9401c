// The conversation of a user with a model: lines in, answers out.
#pragma once

#include <atomic>
#include <string>
#include <string_view>

#include "coordinator/chat/chat_backend.h"
#include "coordinator/chat/conversation.h"

namespace lime::cli {

// Where the user sits.
class ChatScreen {
 public:
  virtual ~ChatScreen() = default;

  enum class Input {
    kLine,     // a message, or a word for the chat; may have line feeds
    kEnd,      // the user has left
    kStopped,  // Ctrl-C while no answer ran
  };
  virtual Input ReadLine(std::string& line) = 0;

  virtual void Reasoning(std::string_view text) = 0;
  virtual void Content(std::string_view text) = 0;
  virtual void EndAnswer() = 0;
  // A sentence of the program, or several lines, beside the answers.
  virtual void Say(std::string_view text) = 0;

  // Set by Ctrl-C: the running answer ends. Until ContinueAfterStop, a further Ctrl-C ends the
  // program.
  virtual const std::atomic<bool>& stopped() const = 0;
  virtual void ContinueAfterStop() = 0;
};

// Answers line after line until the user leaves. A question that could not be answered is taken back,
// and the chat goes on.
void RunChat(ChatBackend& backend, Conversation& conversation, ChatScreen& screen);

}  // namespace lime::cli
