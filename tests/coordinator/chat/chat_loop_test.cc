#include "coordinator/chat/chat_loop.h"

#include <deque>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lime::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Types these lines, and then leaves. "^C" is Ctrl-C.
class ScriptedScreen final : public ChatScreen {
 public:
  explicit ScriptedScreen(std::vector<std::string> lines) : lines_(lines.begin(), lines.end()) {}

  Input ReadLine(std::string& line) override {
    if (lines_.empty()) return Input::kEnd;
    line = lines_.front();
    lines_.pop_front();
    return line == "^C" ? Input::kStopped : Input::kLine;
  }
  void Reasoning(std::string_view text) override { shown += absl::StrCat("(", std::string(text), ")"); }
  void Content(std::string_view text) override { shown += text; }
  void EndAnswer() override { shown += "\n"; }
  void Say(std::string_view text) override { said.push_back(std::string(text)); }
  const std::atomic<bool>& stopped() const override { return stop; }
  void ContinueAfterStop() override { stop = false; }

  std::string shown;
  std::vector<std::string> said;
  std::atomic<bool> stop = false;

 private:
  std::deque<std::string> lines_;
};

// Repeats the last question, in two pieces, and notes how many messages came.
class Parrot final : public ChatBackend {
 public:
  absl::StatusOr<ChatReply> Ask(const ApiRequest& request, const ChatPieces& pieces, const std::atomic<bool>& stop) override {
    messages.push_back(request.chat()->messages.size());
    const std::string question = *request.chat()->messages.back().content;
    if (question == "fail") return absl::UnavailableError("the device b is lost");
    if (question == "too long") return absl::ResourceExhaustedError("300 tokens do not fit");
    ChatReply reply;
    if (question == "think") pieces.on_reasoning("Hm");
    for (const std::string& piece : {std::string("You said "), question}) {
      pieces.on_content(piece);
      reply.content += piece;
      if (question == "stop") press_stop();
      if (stop) return reply;
    }
    reply.finish = "stop";
    return reply;
  }
  const std::string& model() const override { return model_; }
  int64_t context() const override { return 512; }

  std::vector<size_t> messages;
  std::function<void()> press_stop;

 private:
  const std::string model_ = "parrot";
};

TEST(ChatLoopTest, EachLineIsAnsweredWithAllLinesBefore) {
  Parrot parrot;
  Conversation conversation({}, "");
  ScriptedScreen screen({"one", "", "think"});
  RunChat(parrot, conversation, screen);
  EXPECT_EQ(screen.shown, "You said one\n(Hm)You said think\n");
  EXPECT_THAT(parrot.messages, ElementsAre(1, 3));
  EXPECT_THAT(screen.said, IsEmpty());
}

TEST(ChatLoopTest, WordsWithASlashReachNoModel) {
  Parrot parrot;
  Conversation conversation({}, "");
  ScriptedScreen screen({"one", "/reset", "two", "/system Be brief.", "three", "/help", "/what", "/exit", "four"});
  RunChat(parrot, conversation, screen);
  EXPECT_THAT(parrot.messages, ElementsAre(1, 1, 4));
  EXPECT_THAT(screen.said, ElementsAre(std::string(kChatHelp), HasSubstr("/what is unknown")));
}

TEST(ChatLoopTest, AStoppedAnswerStaysAndTheChatGoesOn) {
  Parrot parrot;
  Conversation conversation({}, "");
  ScriptedScreen screen({"stop", "two"});
  parrot.press_stop = [&] { screen.stop = true; };
  RunChat(parrot, conversation, screen);
  EXPECT_EQ(screen.shown, "You said \nYou said two\n");
  EXPECT_THAT(parrot.messages, ElementsAre(1, 3));
}

TEST(ChatLoopTest, CtrlCWithoutAnAnswerSaysHowToLeave) {
  Parrot parrot;
  Conversation conversation({}, "");
  ScriptedScreen screen({"^C", "one"});
  RunChat(parrot, conversation, screen);
  EXPECT_THAT(screen.said, ElementsAre(HasSubstr("second Ctrl-C")));
  EXPECT_EQ(screen.shown, "You said one\n");
}

TEST(ChatLoopTest, AFailureIsSaidAndItsQuestionIsTakenBack) {
  Parrot parrot;
  Conversation conversation({}, "");
  ScriptedScreen screen({"fail", "one", "fail", "two"});
  RunChat(parrot, conversation, screen);
  EXPECT_THAT(parrot.messages, ElementsAre(1, 1, 3, 3));
  EXPECT_THAT(screen.said, ElementsAre("the device b is lost", "the device b is lost"));
}

TEST(ChatLoopTest, AFullContextIsSaid) {
  Parrot parrot;
  Conversation conversation({}, "");
  ScriptedScreen screen({"too long", "one", "too long", "two"});
  RunChat(parrot, conversation, screen);
  ASSERT_EQ(screen.said.size(), 2u);
  EXPECT_EQ(screen.said[0], "300 tokens do not fit");  // alone: a new conversation would not help
  EXPECT_THAT(screen.said[1], HasSubstr("the context is full: /reset"));
  EXPECT_THAT(parrot.messages, ElementsAre(1, 1, 3, 3));
}

}  // namespace
}  // namespace lime::cli
