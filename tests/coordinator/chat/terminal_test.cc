// Lines out of bytes, and a terminal that is a pipe.
#include "coordinator/chat/terminal.h"

#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lime::cli {
namespace {

using Input = ChatScreen::Input;

std::vector<std::string> LinesRead(const std::string& bytes, size_t piece) {
  LineCutter cutter;
  std::vector<std::string> lines;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    cutter.Add(std::string_view(bytes).substr(at, piece));
    while (const std::optional<std::string> line = cutter.Next()) lines.push_back(*line);
  }
  if (const std::string rest = cutter.Rest(); !rest.empty()) lines.push_back(rest);
  return lines;
}

TEST(LineCutterTest, LinesComeFromPiecesOfEverySize) {
  const std::string bytes = "one\r\n\ntwo \\\nmore\\\n\nthree\\\nlast";
  for (size_t piece = 1; piece <= bytes.size(); ++piece)
    EXPECT_THAT(LinesRead(bytes, piece), ::testing::ElementsAre("one", "", "two \nmore\n", "three\nlast")) << piece;
}

TEST(LineCutterTest, AMessageThatGoesOnIsKnown) {
  LineCutter cutter;
  cutter.Add("one \\\n");
  EXPECT_EQ(cutter.Next(), std::nullopt);
  EXPECT_TRUE(cutter.goes_on());
  cutter.Add("two\n");
  EXPECT_EQ(cutter.Next(), "one \ntwo");
  EXPECT_FALSE(cutter.goes_on());
}

class TerminalTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(pipe(ends_.data()), 0); }
  void TearDown() override {
    close(ends_[0]);
    if (ends_[1] >= 0) close(ends_[1]);
  }
  void Type(const std::string& text) const { ASSERT_EQ(write(ends_[1], text.data(), text.size()), static_cast<ssize_t>(text.size())); }
  void HangUp() {
    close(ends_[1]);
    ends_[1] = -1;
  }

  std::array<int, 2> ends_ = {-1, -1};
};

TEST_F(TerminalTest, LinesComeInOrderAndTheLastNeedsNoEnd) {
  Terminal terminal(ends_[0], /*colours=*/false);
  Type("one\ntwo\nthree");
  HangUp();
  std::string line;
  for (const char* const expected : {"one", "two", "three"}) {
    EXPECT_EQ(terminal.ReadLine(line), Input::kLine);
    EXPECT_EQ(line, expected);
  }
  EXPECT_EQ(terminal.ReadLine(line), Input::kEnd);
}

TEST_F(TerminalTest, TheFirstCtrlCOnlySetsTheFlag) {
  HandleInterrupts();
  Terminal terminal(ends_[0], /*colours=*/false);
  EXPECT_FALSE(terminal.stopped());
  raise(SIGINT);  // while an answer runs
  EXPECT_TRUE(terminal.stopped());
  Type("next\n");
  std::string line;
  EXPECT_EQ(terminal.ReadLine(line), Input::kLine);
  terminal.ContinueAfterStop();
  EXPECT_FALSE(terminal.stopped());
}

TEST_F(TerminalTest, CtrlCWhileALineIsReadIsReported) {
  HandleInterrupts();
  Terminal terminal(ends_[0], /*colours=*/false);
  std::thread pressing([this] {
    Type("hal");
    // ReadLine has begun once it has read this.
    for (int waiting = 1; waiting > 0; std::this_thread::yield()) ASSERT_EQ(ioctl(ends_[0], FIONREAD, &waiting), 0);
    kill(getpid(), SIGINT);
  });
  std::string line;
  EXPECT_EQ(terminal.ReadLine(line), Input::kStopped);
  pressing.join();
  EXPECT_TRUE(terminal.stopped());
  Type("new\n");
  EXPECT_EQ(terminal.ReadLine(line), Input::kLine);
  EXPECT_EQ(line, "new") << "what was typed before is dropped";
  terminal.ContinueAfterStop();
}

TEST(AnswerStopTest, ASecondCtrlCEndsTheProcess) {
  EXPECT_EXIT(
      {
        HandleInterrupts();
        const AnswerStop stop;
        raise(SIGINT);
        raise(SIGINT);
      },
      ::testing::ExitedWithCode(kInterrupted), testing::HasSubstr("lime: interrupted"));
  EXPECT_EXIT(
      {
        HandleInterrupts();
        const AnswerStop stop;
        raise(SIGTERM);
      },
      ::testing::ExitedWithCode(kInterrupted), testing::HasSubstr("lime: interrupted"));
}

}  // namespace
}  // namespace lime::cli
