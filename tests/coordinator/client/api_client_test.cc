// Calls over loopback to a server in this process.
#include "coordinator/client/api_client.h"

#include <thread>

#include "absl/strings/str_cat.h"
#include "coordinator/client/http_caller.h"
#include "coordinator/cluster/key_maker.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/base/json_text.h"
#include "tests/common/http/test_handler.h"
#include "tests/temp_dir.h"

namespace lime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

HttpCaller::Options OptionsFor(const std::string& url) {
  HttpCaller::Options options;
  options.url = *ParseServerUrl(url);
  options.idle = options.connect = absl::Seconds(30);
  return options;
}

std::unique_ptr<HttpCaller> MakeCaller(HttpCaller::Options options) {
  absl::StatusOr<std::unique_ptr<HttpCaller>> caller = HttpCaller::Create(std::move(options));
  EXPECT_TRUE(caller.ok()) << caller.status();
  return *std::move(caller);
}

std::string UrlOf(const HttpServer& server) {
  return absl::StrCat("http://127.0.0.1:", server.port());
}

ApiClient ClientOf(const HttpServer& server) {
  return ApiClient(MakeCaller(OptionsFor(UrlOf(server))));
}

HttpResponse JsonResponse(std::string body, int status = 200) {
  return {.status = status, .headers = {{"Content-Type", "application/json"}}, .body = std::move(body)};
}

// Gives as many of its pieces as are allowed, and then waits or ends.
class Pieces final : public BodySource {
 public:
  Pieces(std::vector<std::string> pieces, const std::atomic<size_t>& allowed, bool ends)
      : pieces_(std::move(pieces)), allowed_(allowed), ends_(ends) {}
  bool Pull(std::string& out) override {
    while (next_ < std::min(allowed_.load(), pieces_.size())) out += pieces_[next_++];
    return ends_ && next_ == pieces_.size();
  }
  void OnSilence(std::string& out) override { out += ": keep-alive\n\n"; }

 private:
  const std::vector<std::string> pieces_;
  const std::atomic<size_t>& allowed_;
  const bool ends_;
  size_t next_ = 0;
};

const std::atomic<size_t> kAll = 1000;

void StreamPieces(HttpAnswer& answer, std::vector<std::string> pieces, bool ends = true, const std::atomic<size_t>& allowed = kAll) {
  answer.Stream({.status = 200, .headers = {{"Content-Type", "text/event-stream; charset=utf-8"}}, .body = ""}, absl::Seconds(10),
                std::make_unique<Pieces>(std::move(pieces), allowed, ends));
}

TEST(ApiClientTest, ModelsAreListedWithTheirContexts) {
  TestHandler handler([](const HttpRequest& request, const std::shared_ptr<HttpAnswer>& answer) {
    EXPECT_EQ(request.method, "GET");
    EXPECT_EQ(request.path, "/v1/models");
    answer->Send(JsonResponse(R"({"data": [{"id": "tiny", "max_model_len": 512}, {"id": "other/name"}]})"));
  });
  const auto server = MakeServer(handler);
  const ApiClient client = ClientOf(*server);
  const auto models = client.Models(nullptr);
  ASSERT_TRUE(models.ok()) << models.status();
  ASSERT_EQ(models->size(), 2u);
  EXPECT_EQ((*models)[0].id, "tiny");
  EXPECT_EQ((*models)[0].context, 512);
  EXPECT_EQ((*models)[1].context, 0);
  EXPECT_EQ(client.Model("", nullptr)->id, "tiny");
  EXPECT_EQ(client.Model("other/name", nullptr)->id, "other/name");
  const absl::Status missing = client.Model("big", nullptr).status();
  EXPECT_TRUE(absl::IsNotFound(missing));
  EXPECT_THAT(std::string(missing.message()), HasSubstr("does not serve --model big; it serves tiny, other/name"));
}

TEST(ApiClientTest, ARequestHasHostKeyAndBase) {
  HttpRequest seen;
  absl::Notification is_seen;
  TestHandler handler([&](HttpRequest request, const std::shared_ptr<HttpAnswer>& answer) {
    seen = std::move(request);
    is_seen.Notify();
    answer->Send(JsonResponse("{}"));
  });
  const auto server = MakeServer(handler);
  HttpCaller::Options options = OptionsFor(UrlOf(*server) + "/models/a/v1");
  options.api_key = "secret-1";
  const ApiClient client(MakeCaller(std::move(options)));
  ASSERT_TRUE(client.Post("/tokenize", {{"content", "\xE2\x82\xAC"}}, nullptr).ok());
  is_seen.WaitForNotification();
  EXPECT_EQ(seen.method, "POST");
  EXPECT_EQ(seen.path, "/models/a/tokenize");
  EXPECT_EQ(seen.host, absl::StrCat("127.0.0.1:", server->port()));
  EXPECT_EQ(seen.header("authorization"), "Bearer secret-1");
  EXPECT_EQ(seen.header("content-type"), "application/json");
  EXPECT_EQ(seen.body, "{\"content\":\"\xE2\x82\xAC\"}");
}

TEST(ApiClientTest, AKeyThatWouldChangeTheRequestIsRefused) {
  HttpCaller::Options options = OptionsFor("http://127.0.0.1:1");
  options.api_key = "a\r\nX: y";
  EXPECT_TRUE(absl::IsInvalidArgument(HttpCaller::Create(std::move(options)).status()));
}

TEST(ApiClientTest, AStreamIsReadAsItComes) {
  std::atomic<size_t> allowed = 1;
  absl::Notification begun;
  std::shared_ptr<HttpAnswer> held;
  TestHandler handler([&](const HttpRequest& request, std::shared_ptr<HttpAnswer> answer) {
    EXPECT_EQ(request.path, "/v1/chat/completions");
    held = std::move(answer);
    StreamPieces(*held,
                 {"data: {\"choices\": [{\"delta\": {\"content\": \"one\"}}]}\n\n: x\n\nda",
                  "ta: {\"choices\": [{\"delta\": {\"content\": \"two\"}}]}\n\ndata: [DONE]\n\n"},
                 /*ends=*/true, allowed);
    begun.Notify();
  });
  const auto server = MakeServer(handler);
  std::vector<std::string> seen;
  const auto take = [&](const AnswerChunk& chunk) {
    for (const ChoicePart& part : chunk.choices) seen.push_back(part.content);
    begun.WaitForNotification();
    allowed = 2;  // the second piece comes only now
    held->Wake();
    return absl::OkStatus();
  };
  const absl::Status status = ClientOf(*server).Generate("/v1/chat/completions", "{}", take, nullptr);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(seen, ElementsAre("one", "two"));
}

TEST(ApiClientTest, AServerThatDoesNotStreamGivesOneChunk) {
  TestHandler handler([](const HttpRequest&, const std::shared_ptr<HttpAnswer>& answer) {
    answer->Send(JsonResponse(R"(   {"choices": [{"message": {"content": "all"}, "finish_reason": "stop"}]})"));
  });
  const auto server = MakeServer(handler);
  std::vector<std::string> seen;
  const auto take = [&](const AnswerChunk& chunk) {
    seen.push_back(chunk.choices.at(0).content);
    return absl::OkStatus();
  };
  EXPECT_TRUE(ClientOf(*server).Generate("/v1/chat/completions", "{}", take, nullptr).ok());
  EXPECT_THAT(seen, ElementsAre("all"));
}

TEST(ApiClientTest, AnErrorOfTheReaderEndsTheCallAndTheConnection) {
  SeenEnd end;
  std::shared_ptr<HttpAnswer> held;  // a stream without it ends
  TestHandler handler([&](const HttpRequest&, const std::shared_ptr<HttpAnswer>& answer) {
    held = answer;
    answer->OnEnd(end.Taker());
    StreamPieces(*answer, {"data: {}\n\n"}, /*ends=*/false);
  });
  const auto server = MakeServer(handler);
  const absl::Status status = ClientOf(*server).Generate(
      "/v1/completions", "{}", [](const AnswerChunk&) { return absl::DataLossError("enough"); }, nullptr);
  EXPECT_EQ(status, absl::DataLossError("enough"));
  ASSERT_TRUE(end.Waits());
  EXPECT_EQ(end.end(), HttpEnd::kGone);
}

// The error of a call that the server answers so.
absl::Status ErrorFor(const HttpResponse& response) {
  TestHandler handler([&](const HttpRequest&, const std::shared_ptr<HttpAnswer>& answer) { answer->Send(response); });
  const auto server = MakeServer(handler);
  absl::Status status = ClientOf(*server).Generate(
      "/v1/completions", "{}", [](const AnswerChunk&) { return absl::OkStatus(); }, nullptr);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr(UrlOf(*server)));
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("\n")));
  return status;
}

HttpResponse ErrorAnswer(const ApiError& error) {
  return JsonResponse(OpenAiErrorJson(error), error.status);
}

TEST(ApiClientTest, ErrorsOfTheServerHaveTheCodeThatSaysWhatToDo) {
  EXPECT_TRUE(absl::IsPermissionDenied(ErrorFor(ErrorAnswer(InvalidApiKey(false)))));
  EXPECT_THAT(std::string(ErrorFor(ErrorAnswer(InvalidApiKey(true))).message()), HasSubstr("LIME_API_KEY"));
  EXPECT_TRUE(absl::IsPermissionDenied(ErrorFor(ErrorAnswer(HostNotAllowed("a")))));
  EXPECT_TRUE(absl::IsNotFound(ErrorFor(ErrorAnswer(ModelNotFound("a")))));
  EXPECT_TRUE(absl::IsInvalidArgument(ErrorFor(ErrorAnswer(InvalidValue("n", "is wrong")))));
  EXPECT_TRUE(absl::IsResourceExhausted(ErrorFor(ErrorAnswer(ContextLengthExceeded("messages", 100, 50)))));
  EXPECT_TRUE(absl::IsUnavailable(ErrorFor(ErrorAnswer(QueueFull(64, 10)))));
  EXPECT_TRUE(absl::IsUnavailable(ErrorFor(ErrorAnswer(Loading()))));
  EXPECT_TRUE(absl::IsUnavailable(ErrorFor({.status = 502, .headers = {}, .body = "<html>\n</html>"})));
  EXPECT_THAT(std::string(ErrorFor({.status = 308, .headers = {{"Location", "https://a/"}}, .body = ""}).message()),
              HasSubstr("refused the request with status 308: without a word; give --url the address"));
  EXPECT_FALSE(absl::IsUnavailable(ErrorFor(JsonResponse("[]"))));
  EXPECT_FALSE(absl::IsUnavailable(ErrorFor(JsonResponse(R"({"choices": 1})"))));
  EXPECT_TRUE(absl::IsUnavailable(ErrorFor(JsonResponse(R"({"error": {"message": "late", "type": "server_error"}})"))));
}

TEST(ApiClientTest, AStreamThatFailsOrBreaksOffIsAnError) {
  for (const std::string end : {"data: {\"error\": {\"message\": \"device b is lost\"}}\n\ndata: [DONE]\n\n", "", "data: nonsense\n\n"}) {
    TestHandler handler(
        [&](const HttpRequest&, const std::shared_ptr<HttpAnswer>& answer) { StreamPieces(*answer, {"data: {}\n\n" + end}); });
    const auto server = MakeServer(handler);
    const absl::Status status = ClientOf(*server).Generate(
        "/v1/completions", "{}", [](const AnswerChunk&) { return absl::OkStatus(); }, nullptr);
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(UrlOf(*server)));
  }
}

TEST(ApiClientTest, AnAbortedStreamIsAnError) {
  TestHandler handler([&](const HttpRequest&, const std::shared_ptr<HttpAnswer>& answer) {
    StreamPieces(*answer, {"data: {}\n\n"}, /*ends=*/false);
    answer->Abort();
  });
  const auto server = MakeServer(handler);
  const absl::Status status = ClientOf(*server).Generate(
      "/v1/completions", "{}", [](const AnswerChunk&) { return absl::OkStatus(); }, nullptr);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
}

TEST(ApiClientTest, AFlagEndsACallAndItsConnection) {
  SeenEnd end;
  std::atomic<bool> cancel = false;
  std::shared_ptr<HttpAnswer> held;  // a stream without it ends
  TestHandler handler([&](const HttpRequest&, const std::shared_ptr<HttpAnswer>& answer) {
    held = answer;
    answer->OnEnd(end.Taker());
    StreamPieces(*answer, {"data: {}\n\n"}, /*ends=*/false);
  });
  const auto server = MakeServer(handler);
  const auto take = [&](const AnswerChunk&) {
    cancel = true;
    return absl::OkStatus();
  };
  EXPECT_TRUE(absl::IsCancelled(ClientOf(*server).Generate("/v1/completions", "{}", take, &cancel)));
  ASSERT_TRUE(end.Waits());
  EXPECT_EQ(end.end(), HttpEnd::kGone);
}

TEST(ApiClientTest, AFlagOfAnotherThreadEndsACallThatWaitsForAnAnswer) {
  SeenEnd end;
  std::atomic<bool> cancel = false;
  absl::Notification arrived;
  std::shared_ptr<HttpAnswer> held;
  TestHandler handler([&](const HttpRequest&, std::shared_ptr<HttpAnswer> answer) {
    answer->OnEnd(end.Taker());
    held = std::move(answer);
    arrived.Notify();
  });
  const auto server = MakeServer(handler);
  std::thread stopping([&] {
    arrived.WaitForNotification();
    cancel = true;
  });
  EXPECT_TRUE(absl::IsCancelled(ClientOf(*server).Models(&cancel).status()));
  stopping.join();
  ASSERT_TRUE(end.Waits());
  EXPECT_EQ(end.end(), HttpEnd::kGone);
}

TEST(ApiClientTest, ASilentServerIsGivenUp) {
  std::shared_ptr<HttpAnswer> held;
  TestHandler handler([&](const HttpRequest&, std::shared_ptr<HttpAnswer> answer) { held = std::move(answer); });
  const auto server = MakeServer(handler);
  HttpCaller::Options options = OptionsFor(UrlOf(*server));
  options.idle = absl::Milliseconds(100);
  const absl::Status status = ApiClient(MakeCaller(std::move(options))).Models(nullptr).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("silent"));
}

TEST(ApiClientTest, AnAddressWhereNobodyListensIsNamed) {
  int port = 0;
  {
    TestHandler handler(AnswerWithPath);
    port = MakeServer(handler)->port();
  }
  const ApiClient client(MakeCaller(OptionsFor(absl::StrCat("http://127.0.0.1:", port))));
  const absl::Status status = client.Models(nullptr).status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("http://127.0.0.1:", port, " cannot be reached")));
  EXPECT_THAT(std::string(status.message()), HasSubstr("lime serve"));
}

TEST(ApiClientTest, ABodyBeyondTheLimitIsRefused) {
  TestHandler handler(
      [](const HttpRequest&, const std::shared_ptr<HttpAnswer>& answer) { answer->Send(JsonResponse(std::string(100'000, ' ') + "{}")); });
  const auto server = MakeServer(handler);
  HttpCaller::Options options = OptionsFor(UrlOf(*server));
  options.max_body = 50'000;
  EXPECT_TRUE(absl::IsResourceExhausted(ApiClient(MakeCaller(std::move(options))).Post("/tokenize", {}, nullptr).status()));
}

TEST(ApiClientTest, ALongBodyThatIsRefusedEarlyStillShowsTheAnswer) {
  TestHandler handler(AnswerWithPath);
  handler.head = [](const HttpRequest&) { return JsonResponse(OpenAiErrorJson(RequestTooLarge(10)), 413); };
  const auto server = MakeServer(handler);
  const absl::Status status = ClientOf(*server).Post("/tokenize", {{"content", std::string(8'000'000, 'x')}}, nullptr).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("refused the request"));
}

class ApiClientTlsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const Validity validity = ValidityOfNewKeys(absl::ToTimeT(absl::Now()));
    const auto authority = MakeAuthority(validity);
    ASSERT_TRUE(authority.ok());
    const auto keys = MakeDeviceKeys(*authority, "localhost", validity);
    ASSERT_TRUE(keys.ok());
    folder_.Write("ca.pem", authority->certificate);
    folder_.Write("cert.pem", keys->certificate + authority->certificate);
    folder_.Write("key.pem", keys->key);
    HttpServer::Options options;
    options.tls = TlsFiles{.certificate = folder_ / "cert.pem", .key = folder_ / "key.pem"};
    server_ = MakeServer(handler_, options);
    ASSERT_NE(server_, nullptr);
  }
  absl::Status Call(const std::string& host, const std::string& authorities) const {
    HttpCaller::Options options = OptionsFor(absl::StrCat(host, ":", server_->port()));
    options.authorities = authorities;
    absl::StatusOr<std::unique_ptr<HttpCaller>> caller = HttpCaller::Create(std::move(options));
    return caller.ok() ? ApiClient(*std::move(caller)).Post("/x", {}, nullptr).status() : caller.status();
  }

  const TempDir folder_;
  TestHandler handler_{[](const HttpRequest&, const std::shared_ptr<HttpAnswer>& answer) { answer->Send(JsonResponse("{}")); }};
  std::unique_ptr<HttpServer> server_;
};

TEST_F(ApiClientTlsTest, AServerOfATrustedAuthorityAnswers) {
  EXPECT_TRUE(Call("https://localhost", folder_ / "ca.pem").ok()) << Call("https://localhost", folder_ / "ca.pem");
}

TEST_F(ApiClientTlsTest, AnUnknownAuthorityIsNotTrusted) {
  const absl::Status status = Call("https://localhost", "");
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("--tls-ca"));
}

TEST_F(ApiClientTlsTest, ACertificateOfAnotherNameIsNotTrusted) {
  const absl::Status status = Call("https://127.0.0.1", folder_ / "ca.pem");
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("is for another name"));
}

TEST_F(ApiClientTlsTest, TheWrongSchemeIsSaid) {
  EXPECT_TRUE(absl::IsUnavailable(Call("http://localhost", "")));
  TestHandler plain(AnswerWithPath);
  server_ = MakeServer(plain);
  const absl::Status status = Call("https://localhost", folder_ / "ca.pem");
  EXPECT_THAT(std::string(status.message()), HasSubstr("write http:// in --url"));
  server_ = nullptr;
}

TEST_F(ApiClientTlsTest, AFileThatIsNoCertificateIsNamed) {
  folder_.Write("bad.pem", "hello");
  EXPECT_THAT(std::string(Call("https://localhost", folder_ / "bad.pem").message()), HasSubstr("bad.pem"));
}

}  // namespace
}  // namespace lime
