// `lime serve` as a process: its line when it is ready, its flags and files, signals.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/common/http/http_client.h"
#include "tests/integration/programs/lime_process.h"

namespace lime {
namespace {

using nlohmann::json;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string kModel = LIME_SOURCE_DIR "/models/lime-fables";

// A running server on a port that the system chooses.
class Served {
 public:
  explicit Served(std::vector<std::string> flags = {}) {
    std::vector<std::string> words = {"serve", "--model", kModel, "--port", "0", "--json"};
    words.insert(words.end(), flags.begin(), flags.end());
    lime_ = std::make_unique<Lime>(words);
    EXPECT_TRUE(lime_->AwaitOut("}\n")) << lime_->err();
    ready_ = json::parse(lime_->out(), nullptr, false);
    const std::string url = ready_.is_object() ? ready_.value("url", "") : "";
    if (!url.empty()) port_ = std::stoi(url.substr(url.rfind(':') + 1));
  }
  ~Served() {
    if (lime_ != nullptr) {
      Signal(SIGKILL);
      lime_->Wait();
    }
  }

  const json& ready() const { return ready_; }
  Lime& lime() { return *lime_; }
  void Signal(int signal) const { kill(lime_->pid(), signal); }
  Answer Wait() { return std::exchange(lime_, nullptr)->Wait(); }
  std::unique_ptr<HttpClient> Client() const { return std::make_unique<HttpClient>(port_); }
  static std::string Post(const std::string& path, const json& body) {
    const std::string text = body.dump();
    return absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: ", text.size(),
                        "\r\n\r\n", text);
  }
  json Ask(const std::string& path, const json& body) const {
    const auto client = Client();
    client->Send(Post(path, body));
    return json::parse(client->ReadAnswer().body, nullptr, false);
  }
  int StatusOfModels(const std::string& key) const {
    const auto client = Client();
    client->Send(absl::StrCat("GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ", key, "\r\n\r\n"));
    return client->ReadAnswer().status;
  }

 private:
  std::unique_ptr<Lime> lime_;
  json ready_;
  int port_ = 0;
};

json Story(int tokens) {
  return {{"prompt", "Once upon a time"}, {"max_tokens", tokens}, {"ignore_eos", true}};
}

TEST(ServeTest, AnAnswerHasTheTextAndTheBitsOfARun) {
  const Answer run = Call({"run", "--model", kModel, "--prompt", "Once upon a time", "--max-tokens", "24", "--temperature", "0.8", "--seed",
                           "7", "--ignore-eos", "--hash-logits", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  Served served;
  EXPECT_THAT(served.ready().value("url", ""), StartsWith("http://127.0.0.1:"));
  EXPECT_EQ(served.ready()["model"], "lime-fables");
  EXPECT_GT(served.ready()["predicted_ms_per_token"], 0);
  json body = Story(24);
  body.update({{"temperature", 0.8}, {"seed", 7}, {"hash_logits", true}});
  const json answer = served.Ask("/v1/completions", body);
  EXPECT_EQ(answer["choices"][0]["text"], run.Json()["text"]);
  EXPECT_EQ(answer["choices"][0]["logits_xxh3"], run.Json()["logits_xxh3"]);
  EXPECT_GT(answer["lime"]["timings"]["ms_per_token"], 0);
  served.Signal(SIGTERM);
  const Answer end = served.Wait();
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_TRUE(end.Json().is_object()) << end.out;
}

TEST(ServeTest, SigtermLetsARunningAnswerEnd) {
  Served served({"--pace", "20"});
  const auto client = served.Client();
  json body = Story(20);
  body["stream"] = true;
  client->Send(Served::Post("/v1/completions", body));
  client->ReadUntil("data: ");
  served.Signal(SIGTERM);
  EXPECT_THAT(client->ReadUntil("[DONE]"), EndsWith("[DONE]"));
  const Answer end = served.Wait();
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.err, HasSubstr("ends; requests that run: 1"));
}

// The head of a stream goes out while its request still waits for a slot.
void AwaitRunningRequest(HttpClient& client) {
  while (client.Get("/metrics").body.find("\nlime_requests_running 1\n") == std::string::npos) {
  }
}

TEST(ServeTest, ASecondSignalEndsAtOnce) {
  Served served({"--pace", "10000"});
  const auto client = served.Client();
  json body = Story(20);
  body["stream"] = true;
  client->Send(Served::Post("/v1/completions", body));
  AwaitRunningRequest(*served.Client());
  served.Signal(SIGTERM);
  EXPECT_TRUE(served.lime().AwaitErr("ends; requests that run: 1")) << served.lime().err();
  served.Signal(SIGINT);
  EXPECT_EQ(served.Wait().exit_code, 130);
}

// Waits until the process has opened the file, half a minute at most.
bool AwaitOpen(pid_t pid, const std::string& path) {
  const auto has_opened = [&] {
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/fd"), ignored)) {
      if (std::filesystem::read_symlink(entry.path(), ignored) == path) return true;
    }
    return false;
  };
  for (int i = 0; i < 6000 && !has_opened(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return has_opened();
}

// While it waits for its template, from a pipe into which nobody writes.
TEST(ServeTest, ASignalWhileTheModelLoadsEndsItWithoutAnError) {
  for (const int signal : {SIGTERM, SIGINT}) {
    const TempDir dir;
    const std::string pipe = dir / "template";
    ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
    const int writer = open(pipe.c_str(), O_RDWR | O_CLOEXEC);  // does not wait for a reader, as O_WRONLY does
    ASSERT_GE(writer, 0);
    Lime lime({"serve", "--model", kModel, "--port", "0", "--json", "--chat-template", pipe});
    AwaitHandler(lime, signal);  // the process is lime now, not this test's copy with `writer`
    ASSERT_TRUE(AwaitOpen(lime.pid(), pipe)) << lime.err();
    kill(lime.pid(), signal);
    const Answer end = lime.Wait();
    close(writer);
    EXPECT_EQ(end.exit_code, 0) << signal << end.err;
    EXPECT_EQ(end.out, "");
    EXPECT_THAT(end.err, HasSubstr("interrupted"));
  }
}

TEST(ServeTest, KeysAreReadAgainOnSighup) {
  const TempDir dir;
  WriteFile(dir / "keys", "first\n");
  Served served({"--api-key-file", dir / "keys"});
  EXPECT_EQ(served.StatusOfModels("first"), 200);
  WriteFile(dir / "keys", "second\n\n");
  served.Signal(SIGHUP);
  EXPECT_TRUE(served.lime().AwaitErr("read keys and certificates again")) << served.lime().err();
  EXPECT_EQ(served.StatusOfModels("first"), 401);
  EXPECT_EQ(served.StatusOfModels("second"), 200);
  WriteFile(dir / "keys", "\n");
  served.Signal(SIGHUP);
  EXPECT_TRUE(served.lime().AwaitErr("the ones before stay in use")) << served.lime().err();
  EXPECT_EQ(served.StatusOfModels("second"), 200);
}

TEST(ServeTest, AFileGivesFlags) {
  const TempDir dir;
  WriteFile(dir / "serve.toml",
            absl::StrCat("name = \"fables\"\nalias = [\"a\", \"b\"]\nparallel = 2\nkeep-alive = 0.5\nlog-json = true\n"));
  Served served({"--config", dir / "serve.toml", "--name", "called"});
  EXPECT_EQ(served.ready()["model"], "called");
  EXPECT_EQ(served.ready()["parallel"], 2);
  EXPECT_EQ(served.Ask("/v1/completions", {{"model", "b"}, {"prompt", "x"}, {"max_tokens", 1}})["object"], "text_completion");
  EXPECT_TRUE(served.lime().AwaitErr("\"route\":\"/v1/completions\"")) << served.lime().err();
  for (const auto& [text, words] :
       {std::pair("parallel = 2\nparalel = 3\n", "serve.toml line 2: field \"paralel\" is unknown"),
        std::pair("port = \"80\"\n", "line 1: field \"port\" is not a number"),
        std::pair("json = 1\n", "field \"json\" is not true or false"), std::pair("parallel = 99\n", "--parallel 99 is outside 1 to 16"),
        std::pair("config = \"x\"\n", "field \"config\" is unknown"), std::pair("x = \n", "line 1: is not valid TOML")}) {
    SCOPED_TRACE(text);
    WriteFile(dir / "serve.toml", text);
    ExpectRefused(Call({"serve", "--model", kModel, "--config", dir / "serve.toml"}), 2, words);
  }
  ExpectRefused(Call({"serve", "--model", kModel, "--config", dir / "none.toml"}), 2, "none.toml");
  WriteFile(dir / "serve.toml", "chat-template = \"none.jinja\"\nport = 0\n");
  ExpectRefused(Call({"serve", "--model", kModel, "--config", dir / "serve.toml"}), 2, dir / "none.jinja");
}

TEST(ServeTest, TheExampleOfTheServiceHasKnownFields) {
  const TempDir dir;
  WriteFile(dir / "keys", "key\n");
  ExpectRefused(Call({"serve", "--config", std::string(LIME_SOURCE_DIR) + "/packaging/lime-serve.toml", "--host", "127.0.0.1", "--port",
                      "0", "--api-key-file", dir / "keys", "--model", dir / "none"}),
                2, "is not a folder");
}

TEST(ServeTest, WrongFlagsAreRefused) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--port", "70000"}, "--port 70000 is outside 0 to 65535"},
      {{"--host", "0.0.0.0"}, "--api-key-file"},
      {{"--host", "0.0.0.0"}, "--no-auth"},
      {{"--no-auth", "--api-key", "x"}, "leave one of them out"},
      {{"--api-key", "two words"}, "visible characters"},
      {{"--api-key-file", "/none"}, "/none"},
      {{"--tls-cert", "c.pem"}, "without --tls-key"},
      {{"--tls-cert", "/none.pem", "--tls-key", "/none.key"}, "/none"},
      {{"--cors-origin", "example.org"}, "is no origin"},
      {{"--hostname", "a:80"}, "is no name of a host"},
      {{"--parallel", "0"}, "--parallel 0 is outside 1 to 16"},
      {{"--queue", "70000"}, "--queue 70000 is outside"},
      {{"--max-wait", "-1"}, "--max-wait -1 is outside"},
      {{"--max-body", "1"}, "--max-body 1 is outside"},
      {{"--max-connections", "0"}, "--max-connections 0 is outside"},
      {{"--keep-alive", "0"}, "--keep-alive 0 is outside"},
      {{"--drain", "100000"}, "--drain 100000 is outside"},
      {{"--pace", "-1"}, "--pace -1 is outside"},
      {{"--prompt-cache", "some"}, "neither on, off nor a size"},
      {{"--tool-format", "x"}, "--tool-format"},
      {{"--reasoning", "x"}, "--reasoning"},
      {{"--chat-template", "/none"}, "--chat-template"},
      {{"--patience", "3"}, "--patience is for --cluster"},
      {{"--context", "1"}, "--context must be at least 2"},
  };
  for (const auto& [flags, words] : cases) {
    std::vector<std::string> call = {"serve", "--model", kModel};
    if (flags.front() != "--port") call.insert(call.end(), {"--port", "0"});
    call.insert(call.end(), flags.begin(), flags.end());
    SCOPED_TRACE(words);
    ExpectRefused(Call(call), 2, words);
  }
  ExpectRefused(Call({"serve", "--json"}), 2, "--model is required");
}

TEST(ServeTest, AnAddressThatIsTakenIsAWrongCall) {
  Served served;
  const std::string url = served.ready().value("url", "");
  ExpectRefused(Call({"serve", "--model", kModel, "--port", url.substr(url.rfind(':') + 1)}), 2, url.substr(url.rfind(':') + 1));
}

}  // namespace
}  // namespace lime
