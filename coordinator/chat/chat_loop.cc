#include "coordinator/chat/chat_loop.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/base/strings.h"

namespace lime::cli {
namespace {

void SayIfAny(ChatScreen& screen, const std::string& sentence) {
  if (!sentence.empty()) screen.Say(sentence);
}

void Answer(ChatBackend& backend, Conversation& conversation, ChatScreen& screen, std::string question) {
  const ChatPieces pieces{.on_reasoning = [&](std::string_view text) { screen.Reasoning(text); },
                          .on_content = [&](std::string_view text) { screen.Content(text); }};
  const absl::StatusOr<ChatReply> reply = backend.Ask(conversation.Ask(std::move(question)), pieces, screen.stopped());
  screen.EndAnswer();
  if (!reply.ok()) {
    conversation.TakeBack();
    const bool is_full = absl::IsResourceExhausted(reply.status()) && conversation.questions() > 0;
    screen.Say(absl::StrCat(reply.status().message(), is_full ? "; the context is full: /reset begins a new conversation" : ""));
    return;
  }
  conversation.Answer(*reply);
  SayIfAny(screen, CutSentence(*reply, backend.context()));
  SayIfAny(screen, FiguresSentence(*reply));
}

}  // namespace

void RunChat(ChatBackend& backend, Conversation& conversation, ChatScreen& screen) {
  std::string line;
  while (true) {
    const ChatScreen::Input input = screen.ReadLine(line);
    if (input == ChatScreen::Input::kEnd) return;
    if (input == ChatScreen::Input::kStopped) {
      screen.Say("a second Ctrl-C ends the chat, and so does /exit");
      continue;
    }
    screen.ContinueAfterStop();
    ChatInput read = ReadChatInput(line);
    switch (read.kind) {
      case ChatInput::Kind::kNothing:
        break;
      case ChatInput::Kind::kText:
        Answer(backend, conversation, screen, std::move(read.text));
        break;
      case ChatInput::Kind::kReset:
        conversation.Reset();
        break;
      case ChatInput::Kind::kSystem:
        conversation.SetSystem(std::move(read.text));
        break;
      case ChatInput::Kind::kHelp:
        screen.Say(kChatHelp);
        break;
      case ChatInput::Kind::kExit:
        return;
      case ChatInput::Kind::kUnknown:
        screen.Say(absl::StrCat(read.text, " is unknown; /help lists the words that begin with a slash"));
        break;
    }
  }
}

}  // namespace lime::cli
