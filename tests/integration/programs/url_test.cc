// `lime run`, `score` and `chat` over `lime serve` give what they give without it.

#include <poll.h>
#include <pty.h>
#include <signal.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/programs/lime_process.h"

namespace lime {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

const std::string kFables = LIME_SOURCE_DIR "/models/lime-fables";

// `lime serve` on a free port. It ends with this object.
class Server {
 public:
  explicit Server(const std::vector<std::string>& more = {}) : lime_(Words(more)) {
    EXPECT_TRUE(lime_.AwaitOut("\n")) << lime_.err();
    const json ready = json::parse(lime_.out(), nullptr, /*allow_exceptions=*/false);
    if (ready.is_object()) url_ = ready.value("url", "");
    EXPECT_NE(url_, "") << lime_.out() << lime_.err();
  }
  ~Server() {
    kill(lime_.pid(), SIGTERM);
    EXPECT_EQ(lime_.Wait().exit_code, 0) << lime_.err();
  }
  const std::string& url() const { return url_; }

 private:
  static std::vector<std::string> Words(const std::vector<std::string>& more) {
    std::vector<std::string> words = {"serve", "--model", kFables, "--port", "0", "--json", "--threads", "2"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  Lime lime_;
  std::string url_;
};

class UrlTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { server_ = std::make_unique<Server>(); }
  static void TearDownTestSuite() { server_.reset(); }

  static Answer Here(std::vector<std::string> words, const std::string& input = "") {
    words.insert(words.end(), {"--model", kFables});
    return Call(words, input);
  }
  static Answer There(std::vector<std::string> words, const std::string& input = "") {
    words.insert(words.end(), {"--url", server_->url()});
    return Call(words, input);
  }
  // Expects these fields to be the same without and with --url. Returns the answer with --url.
  static json ExpectSame(const std::vector<std::string>& words, const std::vector<std::string>& fields, const std::string& input = "") {
    const Answer here = Here(words, input), there = There(words, input);
    EXPECT_EQ(here.exit_code, 0) << here.err;
    EXPECT_EQ(there.exit_code, 0) << there.err;
    const json expected = here.Json();
    json answer = there.Json();
    for (const std::string& field : fields) {
      EXPECT_TRUE(expected.contains(field)) << field;
      EXPECT_EQ(answer.value(field, json()), expected.value(field, json())) << field;
    }
    return answer;
  }

  static std::unique_ptr<Server> server_;
};

std::unique_ptr<Server> UrlTest::server_;

const std::vector<std::string> kResultFields = {"text", "token_ids", "prompt_tokens", "completion_tokens", "finish_reason", "logits_xxh3"};

TEST_F(UrlTest, ARunGivesTheTextTheIdsAndTheHashOfALocalRun) {
  const json answer = ExpectSame({"run", "--prompt", "Once upon a time", "-n", "16", "--hash-logits", "--json"}, kResultFields);
  for (const char* const field : {"ttft_ms", "ms_per_token", "predicted_ms_per_token", "prediction", "interrupted"})
    EXPECT_TRUE(answer.contains(field)) << field;
  EXPECT_GT(answer.value("ms_per_token", 0.0), 0);
  ExpectSame({"run",
              "--prompt",
              "The fox",
              "-n",
              "16",
              "--temperature",
              "0.9",
              "--top-k",
              "20",
              "--top-p",
              "0.95",
              "--min-p",
              "0.01",
              "--repetition-penalty",
              "1.1",
              "--seed",
              "18446744073709551615",
              "--ignore-eos",
              "--hash-logits",
              "--json"},
             kResultFields);
}

TEST_F(UrlTest, AnEmptyPromptStartsFromBos) {
  ExpectSame({"run", "--prompt", "", "-n", "8", "--hash-logits", "--json"}, kResultFields);
}

TEST_F(UrlTest, ATextThatIsStoppedSaysSo) {
  const std::string text = Here({"run", "--prompt", "Once upon a time", "-n", "16", "--json"}).Json().value("text", "");
  ASSERT_GT(text.size(), 12u);
  const json answer = ExpectSame({"run", "--prompt", "Once upon a time", "-n", "16", "--stop", text.substr(6, 4), "--json"},
                                 {"text", "token_ids", "prompt_tokens", "completion_tokens", "finish_reason"});
  EXPECT_EQ(answer.value("finish_reason", ""), "stop");
}

TEST_F(UrlTest, SeveralPromptsDrawAsInALocalRun) {
  const std::vector<std::string> words = {"run", "--prompt",      "The fox", "--prompt", "The fox", "-n",
                                          "12",  "--temperature", "1",       "--seed",   "5",       "--json"};
  const json here = Here(words).Json(), there = There(words).Json();
  ASSERT_EQ(there["results"].size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    for (const char* const field : {"text", "token_ids", "prompt_tokens", "completion_tokens", "finish_reason"})
      EXPECT_EQ(there["results"][i][field], here["results"][i][field]) << i << field;
  }
  EXPECT_NE(there["results"][0]["text"], there["results"][1]["text"]);
}

TEST_F(UrlTest, TheScreenShowsTheSame) {
  const std::vector<std::string> words = {"run", "--prompt", "Once upon a time", "-n", "12", "--hash-logits"};
  EXPECT_EQ(There(words).out, Here(words).out);
  EXPECT_THAT(There(words).err, HasSubstr("(predicted "));
}

TEST_F(UrlTest, ScoresHaveAllBitsOfALocalCall) {
  const std::vector<std::string> fields = {"perplexity", "positions", "logits_xxh3"};
  ExpectSame({"score", "--ids", "1,5,9,200,7", "--json"}, fields);
  ExpectSame({"score", "--ids", "1", "--top", "2", "--json"}, fields);
  const std::string text = "A crow was thirsty, and found a pitcher with a little water in it. It could not reach the water.";
  ExpectSame({"score", "--text-file", "-", "--context", "8", "--json"}, fields, text);  // in several windows
  const json answer = ExpectSame({"score", "--text-file", "-", "--json"}, fields, text);
  EXPECT_EQ(answer["positions"][1]["top"].size(), 5u);
}

TEST_F(UrlTest, FlagsThatPlaceOrPlanAreRefusedByName) {
  const std::vector<std::vector<std::string>> refused = {{"--cluster", "c.toml"},   {"--threads", "2"},   {"--memory", "1GiB"},
                                                         {"--plan", "p.json"},      {"--without", "a"},   {"--push"},
                                                         {"--context", "64"},       {"--kv", "grow"},     {"--no-replan"},
                                                         {"--trace", "t.json"},     {"--insecure"},       {"--token-times"},
                                                         {"--profile", "p.json"},   {"--loader", "mmap"}, {"--chunk", "8"},
                                                         {"--batch-with", "b.txt"}, {"--patience", "3"},  {"--no-kv-spill"}};
  for (const std::vector<std::string>& flag : refused) {
    std::vector<std::string> words = {"run", "--prompt", "a"};
    words.insert(words.end(), flag.begin(), flag.end());
    ExpectRefused(There(words), 2,
                  absl::StrCat("run: ", flag.front(), " is for a call that computes itself, and changes nothing with --url"));
  }
  ExpectRefused(There({"score", "--ids", "1", "--memory", "1GiB"}), 2, "score: --memory is for a call that computes itself");
  ExpectRefused(There({"chat", "--context", "64"}), 2, "chat: --context is for a call that computes itself");
  ExpectRefused(Here({"run", "--prompt", "a", "--api-key", "k"}), 2, "--api-key is for a server, which is named by --url");
}

TEST_F(UrlTest, AWrongServerModelOrUrlIsNamed) {
  ExpectRefused(There({"run", "--prompt", "a", "--model", "big"}), 2, "does not serve --model big; it serves lime-fables");
  ExpectRefused(Call({"run", "--prompt", "a", "--url", "localhost:1"}), 2, "--url 'localhost:1' does not begin with http://");
  ExpectRefused(Call({"run", "--prompt", "a", "--url", "http://127.0.0.1:1"}), 1, "http://127.0.0.1:1 cannot be reached");
  ExpectRefused(There({"run", "--prompt", "a", "--prompt", "b", "-n", "1,2"}), 2, "--max-tokens has several numbers");
  ExpectRefused(There({"score", "--ids", "1,2", "--top", "6"}), 2, "--top 6 is more than the 5");
  ExpectRefused(There({"score", "--ids", "1,99999999"}), 2, "refused the request");
}

TEST_F(UrlTest, AServerWithAKeyWantsIt) {
  const Server locked({"--api-key", "secret-1"});
  ExpectRefused(Call({"run", "--prompt", "a", "-n", "1", "--url", locked.url()}), 2, "LIME_API_KEY");
  EXPECT_EQ(Call({"run", "--prompt", "a", "-n", "1", "--url", locked.url(), "--api-key", "secret-1"}).exit_code, 0);
}

TEST_F(UrlTest, AQuestionFromStdinIsAnsweredAlikeHereAndThere) {
  const std::vector<std::string> words = {"chat", "--seed", "7", "-n", "12", "--system", "Tell a fable.", "--json"};
  const json answer = ExpectSame(words, {"content", "finish_reason", "prompt_tokens", "completion_tokens", "seed", "model"}, "The fox\n");
  EXPECT_EQ(answer.value("seed", 0), 7);
  const std::vector<std::string> shown = {"chat", "--seed", "7", "-n", "12", "--system", "Tell a fable."};
  const Answer here = Here(shown, "The fox\n"), there = There(shown, "The fox\n");
  EXPECT_EQ(there.out, answer.value("content", "") + "\n");
  EXPECT_EQ(here.out, there.out);
  EXPECT_THAT(there.err, HasSubstr("ms a token, predicted "));
  ExpectRefused(There({"chat"}), 2, "stdin holds no message");
}

// `lime chat` on a terminal of its own.
class ChatOnTerminal {
 public:
  explicit ChatOnTerminal(const std::vector<std::string>& more) {
    pid_ = forkpty(&terminal_, nullptr, nullptr, nullptr);
    if (pid_ != 0) return;
    std::vector<std::string> words = {"lime", "chat"};
    words.insert(words.end(), more.begin(), more.end());
    std::vector<char*> argv;
    argv.reserve(words.size() + 1);
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    execv(LIME_BINARY, argv.data());
    _exit(127);
  }
  ~ChatOnTerminal() { close(terminal_); }

  void Type(const std::string& text) const { EXPECT_EQ(write(terminal_, text.data(), text.size()), static_cast<ssize_t>(text.size())); }
  // Waits until the screen shows the words behind those of the last call; half a minute at most.
  bool Await(const std::string& words) {
    std::array<char, 1024> bytes;
    for (pollfd waits{.fd = terminal_, .events = POLLIN, .revents = 0};;) {
      if (const size_t found = screen_.find(words, seen_); found != std::string::npos) {
        seen_ = found + words.size();
        return true;
      }
      if (poll(&waits, 1, 30'000) <= 0) return false;
      const ssize_t count = read(terminal_, bytes.data(), bytes.size());
      if (count <= 0) return false;
      screen_.append(bytes.data(), static_cast<size_t>(count));
    }
  }
  int ExitCode() {
    while (Await("\n")) {  // a terminal whose output nobody reads may hold a process
    }
    int status = 0;
    waitpid(pid_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  const std::string& screen() const { return screen_; }

 private:
  int terminal_ = -1;
  pid_t pid_ = 0;
  std::string screen_;
  size_t seen_ = 0;
};

constexpr char kCtrlC[] = "\x03", kCtrlD[] = "\x04";

void ExpectAConversation(const std::vector<std::string>& words) {
  ChatOnTerminal chat(words);
  ASSERT_TRUE(chat.Await("/help lists what you can type")) << chat.screen();
  ASSERT_TRUE(chat.Await("> "));
  chat.Type("/help\n");
  ASSERT_TRUE(chat.Await("/reset  "));
  ASSERT_TRUE(chat.Await("> "));
  chat.Type("The fox\n");
  ASSERT_TRUE(chat.Await("ms a token, predicted ")) << chat.screen();
  ASSERT_TRUE(chat.Await("> "));
  chat.Type(kCtrlD);
  EXPECT_EQ(chat.ExitCode(), 0) << chat.screen();
}

TEST_F(UrlTest, AConversationGoesOnUntilItsEnd) {
  ExpectAConversation({"-n", "6", "--url", server_->url()});
  ExpectAConversation({"-n", "6", "--model", kFables});
}

// An answer that takes seconds.
class SlowChatTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { server_ = std::make_unique<Server>(std::vector<std::string>{"--pace", "100"}); }
  static void TearDownTestSuite() { server_.reset(); }
  static std::unique_ptr<Server> server_;
};
std::unique_ptr<Server> SlowChatTest::server_;

TEST_F(SlowChatTest, CtrlCStopsTheAnswerAndTheChatGoesOn) {
  ChatOnTerminal chat({"--url", server_->url(), "--temperature", "0", "-n", "200"});
  ASSERT_TRUE(chat.Await("> ")) << chat.screen();
  chat.Type("The fox\n");
  ASSERT_TRUE(chat.Await("The fox"));  // the terminal's echo
  ASSERT_TRUE(chat.Await(" ")) << chat.screen();
  chat.Type(kCtrlC);
  ASSERT_TRUE(chat.Await("> ")) << chat.screen();
  chat.Type("/exit\n");
  EXPECT_EQ(chat.ExitCode(), 0) << chat.screen();
}

TEST_F(SlowChatTest, ASecondCtrlCEndsTheChat) {
  ChatOnTerminal chat({"--url", server_->url(), "--temperature", "0", "-n", "200"});
  ASSERT_TRUE(chat.Await("> ")) << chat.screen();
  chat.Type(kCtrlC);
  ASSERT_TRUE(chat.Await("a second Ctrl-C ends the chat")) << chat.screen();
  ASSERT_TRUE(chat.Await("> "));
  chat.Type(kCtrlC);
  EXPECT_EQ(chat.ExitCode(), 130) << chat.screen();
}

TEST_F(SlowChatTest, AnInterruptedRunShowsItsTextSoFar) {
  Lime run({"run", "--prompt", "The fox", "-n", "200", "--url", server_->url()});
  ASSERT_TRUE(run.AwaitOut("The fox")) << run.err();
  kill(run.pid(), SIGINT);
  const Answer answer = run.Wait();
  EXPECT_EQ(answer.exit_code, 130);
  EXPECT_THAT(answer.out, HasSubstr("The fox"));
  EXPECT_THAT(answer.err, HasSubstr("lime: interrupted"));
}

}  // namespace
}  // namespace lime
