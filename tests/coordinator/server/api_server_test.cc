// Which requests the server answers, and when: loading, ready, draining.
#include "coordinator/server/api_server.h"

#include <thread>

#include "gmock/gmock.h"
#include "tests/coordinator/server/served.h"

namespace lime {
namespace {

using ::testing::Contains;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

using ApiServerTest = ServedTest;

TEST_F(ApiServerTest, WhileTheModelLoadsHealthAndThePageAnswer) {
  Listen();
  server_->SetProgress(0.25);
  HttpClient::Answer health = Call("GET", "/health");
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(JsonOf(health)["status"], "loading");
  EXPECT_EQ(JsonOf(health)["progress"], 0.25);
  EXPECT_EQ(Call("GET", "/").status, 200);
  EXPECT_EQ(Call("GET", "/api/version").status, 200);
  EXPECT_EQ(CodeOf(Call("GET", "/v1/models")), "loading");
  EXPECT_EQ(CodeOf(Call("POST", kChatPath, Chat(4))), "loading");
  Load();
  health = Call("GET", "/health");
  EXPECT_EQ(health.status, 200);
  EXPECT_EQ(health.body, R"({"status":"ok"})");
  EXPECT_EQ(Call("POST", kChatPath, Chat(4)).status, 200);
}

TEST_F(ApiServerTest, EveryRouteAnswers) {
  Start();
  EXPECT_EQ(JsonOf(Call("GET", "/v1/models"))["data"][0]["id"], "tiny");
  EXPECT_EQ(JsonOf(Call("GET", "/v1/models/small"))["max_model_len"], 256);
  EXPECT_EQ(CodeOf(Call("GET", "/v1/models/large")), "model_not_found");
  EXPECT_EQ(Call("POST", "/v1/completions", R"({"prompt":"hi","max_tokens":3})").status, 200);
  EXPECT_EQ(Call("POST", "/v1/responses", R"({"input":"hi","max_output_tokens":3})").status, 200);
  EXPECT_EQ(JsonOf(Call("POST", "/tokenize", R"({"content":"hi"})"))["count"], 2);
  EXPECT_EQ(JsonOf(Call("POST", "/detokenize", R"({"tokens":[104,105]})"))["content"], "hi");
  EXPECT_THAT(JsonOf(Call("POST", "/apply-template", R"({"messages":[{"role":"user","content":"hi"}]})"))["prompt"], HasSubstr("hi"));
  EXPECT_EQ(JsonOf(Call("GET", "/api/tags"))["models"][0]["name"], "tiny");
  EXPECT_EQ(JsonOf(Call("GET", "/api/ps"))["models"][0]["context_length"], 256);
  EXPECT_TRUE(JsonOf(Call("POST", "/api/show", R"({"model":"small"})")).contains("model_info"));
  const std::string chat = R"({"model":"tiny","messages":[{"role":"user","content":"hi"}],"options":{"num_predict":3}})";
  EXPECT_THAT(Call("POST", "/api/chat", chat).body, HasSubstr(R"("done":true)"));
  EXPECT_THAT(Call("POST", "/api/generate", R"({"model":"tiny","prompt":"hi","options":{"num_predict":3}})").body,
              HasSubstr(R"("done":true)"));
  EXPECT_TRUE(JsonOf(Call("POST", "/api/generate", R"({"model":"tiny"})"))["done"]);
}

TEST_F(ApiServerTest, WhatIsNoRequestOfOursIsRefused) {
  Setting setting;
  setting.api.keys = {"secret"};
  setting.api.http.limits.request.body_bytes = 1000;
  Start(std::move(setting));
  constexpr std::string_view kKey = "Authorization: Bearer secret\r\n";
  HttpClient::Answer answer = Call("GET", "/v1/models");
  EXPECT_EQ(answer.status, 401);
  EXPECT_THAT(answer.head, HasSubstr("WWW-Authenticate: Bearer"));
  EXPECT_EQ(Call("GET", "/v1/models", "", kKey).status, 200);
  EXPECT_EQ(Call("GET", "/health").status, 200);
  EXPECT_EQ(Call("POST", kChatPath, Chat(4), "Authorization: Bearer other\r\n").status, 401);
  EXPECT_EQ(Call("POST", kChatPath, Chat(4), absl::StrCat(std::string(kKey), "Origin: https://evil.example.org\r\n")).status, 403);
  EXPECT_EQ(Call("GET", "/v1/embeddings", "", kKey).status, 404);
  answer = Call("GET", kChatPath, "", kKey);
  EXPECT_EQ(answer.status, 405);
  EXPECT_THAT(answer.head, HasSubstr("Allow: POST, OPTIONS"));
  const auto client = Client();
  client->Send(absl::StrCat("POST /tokenize HTTP/1.1\r\nHost: localhost\r\n", std::string(kKey), "Content-Length: 2\r\n\r\n{}"));
  EXPECT_EQ(client->ReadAnswer().status, 415);
  EXPECT_EQ(Call("POST", "/tokenize", std::string(1001, ' '), kKey).status, 413);
  const auto stranger = Client();
  stranger->Send("GET /health HTTP/1.1\r\nHost: rebound.example.org\r\n\r\n");
  EXPECT_EQ(CodeOf(stranger->ReadAnswer()), "host_not_allowed");
  EXPECT_TRUE(JsonOf(Call("POST", "/api/pull", "{}", kKey))["error"].is_string()) << "clients of Ollama read a text";
  EXPECT_TRUE(JsonOf(Call("POST", "/api/tags", "{}", kKey))["error"].is_string());
  EXPECT_EQ(reports_.rejected(Rejection::kAuth), 2);
  server_->SetKeys({"next"});
  EXPECT_EQ(Call("GET", "/v1/models", "", kKey).status, 401);
  EXPECT_EQ(Call("GET", "/v1/models", "", "Authorization: Bearer next\r\n").status, 200);
}

TEST_F(ApiServerTest, HeadAndOptionsHaveNoBody) {
  Start();
  const HttpClient::Answer head = Call("HEAD", "/health");
  EXPECT_EQ(head.status, 200);
  EXPECT_THAT(head.head, HasSubstr("Content-Length: 15"));
  const HttpClient::Answer options = Call("OPTIONS", kChatPath, "",
                                          "Origin: http://localhost:3000\r\nAccess-Control-Request-Method: POST\r\n"
                                          "Access-Control-Request-Headers: authorization\r\n");
  EXPECT_EQ(options.status, 204);
  EXPECT_THAT(options.head, HasSubstr("Access-Control-Allow-Origin: http://localhost:3000"));
  EXPECT_THAT(options.head, HasSubstr("Access-Control-Allow-Headers: authorization"));
  EXPECT_THAT(Call("OPTIONS", "/health").head, HasSubstr("Allow: GET, HEAD, OPTIONS"));
}

TEST_F(ApiServerTest, AnUnchangedFileOfThePageIsNotSentAgain) {
  Listen();
  const HttpClient::Answer page = Call("GET", "/");
  EXPECT_THAT(page.head, HasSubstr("Content-Security-Policy"));
  const size_t at = page.head.find("ETag: ") + 6;
  const std::string tag = page.head.substr(at, page.head.find('\r', at) - at);
  const HttpClient::Answer again = Call("GET", "/", "", absl::StrCat("If-None-Match: ", tag, "\r\n"));
  EXPECT_EQ(again.status, 304);
  EXPECT_EQ(again.body, "");
}

TEST_F(ApiServerTest, EveryAnswerHasItsIdWhichIsInTheLog) {
  Setting setting;
  setting.api.http.limits.request.head_bytes = 1000;
  Start(std::move(setting));
  EXPECT_THAT(Call("GET", "/health", "", "x-request-id: mine-1\r\n").head, HasSubstr("x-request-id: mine-1\r\n"));
  EXPECT_THAT(Call("POST", kChatPath, Chat(4), "x-request-id: mine-2\r\n").head, HasSubstr("x-request-id: mine-2\r\n"));
  EXPECT_THAT(Call("POST", kChatPath, "{", "x-request-id: mine-3\r\n").head, HasSubstr("x-request-id: mine-3\r\n"));
  EXPECT_THAT(Call("GET", "/health", "", absl::StrCat("x: ", std::string(2000, 'x'), "\r\n")).head, HasSubstr("x-request-id: req_"));
  const std::vector<std::string> log = AwaitLog(4);
  EXPECT_THAT(log, Contains(HasSubstr(" mine-1 GET /health 200 ")));
  EXPECT_THAT(log, Contains(HasSubstr(" mine-2 POST /v1/chat/completions 200 prompt ")));
  EXPECT_THAT(log, Contains(HasSubstr(" mine-3 POST /v1/chat/completions 400 invalid_json ")));
  EXPECT_THAT(log, Contains(HasSubstr(" other unknown 431 headers_too_large ")));
  EXPECT_THAT(reports_.AwaitExchanges(4), Contains("POST /v1/chat/completions 400"));
}

TEST_F(ApiServerTest, BodiesAreLoggedOnlyIfAskedFor) {
  Start();
  Call("POST", kChatPath, Chat(1));
  EXPECT_THAT(AwaitLog(1).front(), Not(HasSubstr("messages")));
  End();
  Setting setting;
  setting.api.log_bodies = true;
  Start(std::move(setting));
  Call("POST", kChatPath, Chat(1));
  EXPECT_THAT(AwaitLog(2).back(), HasSubstr("messages"));
}

TEST_F(ApiServerTest, PipelinedRequestsAreAnsweredInOrder) {
  Start();
  const auto client = Client();
  client->Send(absl::StrCat(Request("POST", kChatPath, Chat(8)), Request("POST", "/tokenize", R"({"content":"hi"})"),
                            Request("GET", "/health"), Request("POST", kChatPath, Chat(2, R"("stream":true)"))));
  EXPECT_THAT(client->ReadAnswer().body, HasSubstr("chat.completion"));
  EXPECT_THAT(client->ReadAnswer().body, HasSubstr("\"count\":2"));
  EXPECT_THAT(client->ReadAnswer().body, HasSubstr("ok"));
  EXPECT_THAT(client->ReadAnswer().body, EndsWith("data: [DONE]\n\n"));
}

// ---- The end

TEST_F(ApiServerTest, DrainingLetsRunningAnswersEnd) {
  Setting setting;
  setting.slots = 1;
  Start(std::move(setting));
  devices_->Hold();
  const auto running = Client(), waiting = Client(), plain = Client();
  running->Send(Request("POST", kChatPath, Chat(20, R"("stream":true)")));
  reports_.AwaitAccepted(1);
  waiting->Send(Request("POST", kChatPath, Chat(20, R"("stream":true)")));
  plain->Send(Request("POST", kChatPath, Chat(20)));
  reports_.AwaitAccepted(3);
  devices_->Step();
  server_->BeginDrain();
  EXPECT_EQ(Call("GET", "/health").status, 503);
  EXPECT_EQ(JsonOf(Call("GET", "/health"))["status"], "draining");
  EXPECT_EQ(CodeOf(Call("POST", kChatPath, Chat(1))), "draining");
  EXPECT_EQ(reports_.rejected(Rejection::kDraining), 1);
  std::thread drain([&] { EXPECT_TRUE(serving_->Drain(absl::InfiniteFuture()).ok()); });
  EXPECT_THAT(waiting->ReadAnswer().body, HasSubstr(R"("code":"draining")"));
  EXPECT_EQ(plain->ReadAnswer().status, 503);
  devices_->Release();
  const HttpClient::Answer answer = running->ReadAnswer();
  EXPECT_THAT(answer.body, EndsWith("data: [DONE]\n\n"));
  EXPECT_THAT(answer.body, HasSubstr(R"("finish_reason":"length")"));
  drain.join();
  server_->Stop(absl::InfiniteFuture());
}

TEST_F(ApiServerTest, AtTheDeadlineRunningAnswersEndWithAnError) {
  Start();
  devices_->Hold();
  const auto running = Client();
  running->Send(Request("POST", kChatPath, Chat(20, R"("stream":true)")));
  reports_.AwaitAccepted(1);
  devices_->Step();  // it has a slot
  server_->BeginDrain();
  EXPECT_EQ(serving_->Drain(absl::InfinitePast()).code(), absl::StatusCode::kDeadlineExceeded);
  const HttpClient::Answer answer = running->ReadAnswer();
  EXPECT_TRUE(answer.complete);
  EXPECT_THAT(answer.body, HasSubstr(R"("code":"draining")"));
}

// ---- Views that others answer

class MadeViews final : public ServerViews {
 public:
  std::string Metrics() override { return "# HELP lime_up 1\n"; }
  std::string ClusterJson() override { return "{}"; }
  std::unique_ptr<BodySource> ClusterEvents(std::shared_ptr<HttpAnswer>) override { return std::make_unique<Endless>(); }

 private:
  class Endless final : public BodySource {
   public:
    bool Pull(std::string& out) override {
      if (!std::exchange(said_, true)) out += "event: cluster\n\n";
      return false;
    }
    void OnSilence(std::string&) override {}

   private:
    bool said_ = false;
  };
};

TEST_F(ApiServerTest, ViewsAnswerFromTheStartAndEndWithTheServer) {
  MadeViews views;
  Setting setting;
  setting.api.views = &views;
  Listen(std::move(setting));
  EXPECT_THAT(Call("GET", "/metrics").head, HasSubstr("text/plain; version=0.0.4"));
  EXPECT_EQ(Call("GET", "/lime/cluster").body, "{}");
  const auto client = Client();
  client->Send(Request("GET", "/lime/events"));
  client->ReadUntil("event: cluster\n\n");
  server_->Stop(absl::InfiniteFuture());  // returns, since the stream ends
  EXPECT_THAT(client->ReadToEnd(), EndsWith("0\r\n\r\n"));
}

TEST_F(ApiServerTest, WithoutViewsTheirPathsAreUnknown) {
  Start();
  EXPECT_EQ(CodeOf(Call("GET", "/metrics")), "unknown_url");
  EXPECT_EQ(CodeOf(Call("GET", "/lime/events")), "unknown_url");
}

}  // namespace
}  // namespace lime
