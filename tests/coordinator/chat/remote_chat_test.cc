// A chat over loopback with a server in this process.
#include "coordinator/chat/remote_chat.h"

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/api/answers/answer_writer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/http/test_handler.h"
#include "tests/coordinator/api/answer_scenes.h"
#include "tests/coordinator/api/parse.h"

namespace lime::cli {
namespace {

using ::testing::HasSubstr;

constexpr char kModels[] = R"({"object": "list", "data": [{"id": "tiny", "max_model_len": 512}]})";

// Gives its text once and then waits or ends.
class OnePiece final : public BodySource {
 public:
  OnePiece(std::string text, bool ends) : text_(std::move(text)), ends_(ends) {}
  bool Pull(std::string& out) override {
    out += std::exchange(text_, {});
    return ends_;
  }
  void OnSilence(std::string&) override {}

 private:
  std::string text_;
  const bool ends_;
};

class RemoteChatTest : public ::testing::Test {
 protected:
  void SetUp() override {
    server_ = MakeServer(handler_);
    ASSERT_NE(server_, nullptr);
    HttpCaller::Options options;
    options.url = *ParseServerUrl(absl::StrCat("http://127.0.0.1:", server_->port()));
    absl::StatusOr<std::unique_ptr<HttpCaller>> caller = HttpCaller::Create(std::move(options));
    ASSERT_TRUE(caller.ok());
    absl::StatusOr<std::unique_ptr<ChatBackend>> chat =
        RemoteChat::Open(std::make_unique<ApiClient>(*std::move(caller)), "", /*cancel=*/nullptr);
    ASSERT_TRUE(chat.ok()) << chat.status();
    chat_ = *std::move(chat);
  }

  absl::StatusOr<ChatReply> Ask() {
    { const absl::MutexLock lock(&mutex_); }  // the server's thread sees what the test has set
    ChatMessage message;
    message.content = "Hi";
    ApiRequest request;
    request.prompt = ChatPrompt{.messages = {message}};
    request.stream = request.include_usage = true;
    request.sampling.seed = 7;
    return chat_->Ask(request,
                      {.on_reasoning = [this](std::string_view text) { absl::StrAppend(&shown_, "(", std::string(text), ")"); },
                       .on_content =
                           [this](std::string_view text) {
                             shown_ += text;
                             if (stops_) stop_ = true;
                           }},
                      stop_);
  }

  static void Stream(HttpAnswer& answer, std::string text, bool ends) {
    answer.Stream({.status = 200, .headers = {{"Content-Type", "text/event-stream"}}, .body = ""}, absl::Seconds(10),
                  std::make_unique<OnePiece>(std::move(text), ends));
  }

  // What the server writes for these events, complete or not.
  static std::string Written(const ApiRequest& request, const std::vector<ChoiceEvent>& events, bool ends) {
    const std::unique_ptr<AnswerWriter> writer = MakeAnswerWriter(Endpoint::kChat, request, SmallHead("chatcmpl-1"));
    for (const ChoiceEvent& event : events) writer->Add(0, event);
    if (ends) writer->Finish(SmallReport());
    std::string text;
    writer->Write(text);
    return text;
  }

  absl::Mutex mutex_;
  std::shared_ptr<HttpAnswer> held_;
  std::function<void(const HttpRequest&, const std::shared_ptr<HttpAnswer>&)> answer_chat_;
  std::string shown_;
  std::atomic<bool> stop_ = false;
  bool stops_ = false;
  TestHandler handler_{[this](const HttpRequest& request, const std::shared_ptr<HttpAnswer>& answer) {
    if (request.path == "/v1/models") return answer->Send({.status = 200, .headers = {}, .body = kModels});
    const absl::MutexLock lock(&mutex_);
    held_ = answer;  // a stream without it ends
    answer_chat_(request, answer);
  }};
  std::unique_ptr<HttpServer> server_;
  std::unique_ptr<ChatBackend> chat_;
};

TEST_F(RemoteChatTest, TheServersModelIsAskedAndItsAnswerShown) {
  answer_chat_ = [](const HttpRequest& http, const std::shared_ptr<HttpAnswer>& answer) {
    EXPECT_EQ(http.path, "/v1/chat/completions");
    const ApiRequest request = Parsed(Endpoint::kChat, http.body);
    EXPECT_EQ(request.model, "tiny");
    EXPECT_EQ(request.sampling.seed, 7u);
    EXPECT_EQ(request.chat()->messages.at(0).content, "Hi");
    Stream(*answer, Written(request, {ReasoningPiece{"Hm"}, ContentPiece{"Hello."}, ChoiceEnd{AnswerFinish::kStop}}, true), true);
  };
  EXPECT_EQ(chat_->model(), "tiny");
  EXPECT_EQ(chat_->context(), 512);
  const absl::StatusOr<ChatReply> reply = Ask();
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(shown_, "(Hm)Hello.");
  EXPECT_EQ(reply->content, "Hello.");
  EXPECT_EQ(reply->reasoning, "Hm");
  EXPECT_EQ(reply->finish, "stop");
  ASSERT_TRUE(reply->has_counts);
  EXPECT_EQ(reply->report.ms_per_token, SmallReport().ms_per_token);
  EXPECT_EQ(reply->report.predicted_ms_per_token, SmallReport().predicted_ms_per_token);
}

TEST_F(RemoteChatTest, AStoppedAnswerIsReturnedAsFarAsItCameAndTheServerSeesTheEnd) {
  SeenEnd end;
  answer_chat_ = [&](const HttpRequest& http, const std::shared_ptr<HttpAnswer>& answer) {
    answer->OnEnd(end.Taker());
    Stream(*answer, Written(Parsed(Endpoint::kChat, http.body), {ContentPiece{"Once upon"}}, false), false);
  };
  stops_ = true;
  const absl::StatusOr<ChatReply> reply = Ask();
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->content, "Once upon");
  EXPECT_EQ(reply->finish, "");
  EXPECT_FALSE(reply->has_counts);
  ASSERT_TRUE(end.Waits());
  EXPECT_EQ(end.end(), HttpEnd::kGone);
}

TEST_F(RemoteChatTest, AFullContextHasTheCodeOfALocalChat) {
  answer_chat_ = [](const HttpRequest&, const std::shared_ptr<HttpAnswer>& answer) {
    answer->Send({.status = 400, .headers = {}, .body = OpenAiErrorJson(ContextLengthExceeded("messages", 600, 512))});
  };
  const absl::Status status = Ask().status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("512"));
}

}  // namespace
}  // namespace lime::cli
