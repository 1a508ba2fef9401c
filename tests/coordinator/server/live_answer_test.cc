// Answers that are generated: streams, whole answers, clients that leave or are slow.
#include "coordinator/server/live_answer.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/cases.h"
#include "tests/coordinator/server/served.h"

namespace lime {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

constexpr std::string_view kStream = R"("stream":true)";

class LiveAnswerTest : public ServedTest {
 protected:
  // Steps until all is done.
  void Release() { devices_->Release(); }
  std::unique_ptr<HttpClient> Sent(std::string_view body) const {
    auto client = Client();
    client->Send(Request("POST", kChatPath, body));
    return client;
  }
};

TEST_F(LiveAnswerTest, AStreamHasTheTextOfAWholeAnswer) {
  Start();
  const HttpClient::Answer whole = Call("POST", kChatPath, Chat(40));
  ASSERT_EQ(whole.status, 200);
  const nlohmann::json answer = JsonOf(whole);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 40);
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(answer["lime"]["numerics_id"], "cpu-1");
  EXPECT_EQ(answer["lime"]["timings"]["predicted_ms_per_token"], 50);
  const HttpClient::Answer stream = Call("POST", kChatPath, Chat(40, R"("stream":true,"stream_options":{"include_usage":true})"));
  EXPECT_THAT(stream.head, HasSubstr("Content-Type: text/event-stream"));
  EXPECT_THAT(stream.head, HasSubstr("Cache-Control: no-cache"));
  EXPECT_THAT(stream.head, HasSubstr("X-Accel-Buffering: no"));
  EXPECT_THAT(stream.body, EndsWith("data: [DONE]\n\n"));
  EXPECT_EQ(StreamedContent(stream.body), ContentOf(answer));
  EXPECT_EQ(EventsOf(stream.body).back()["usage"]["completion_tokens"], 40);
}

TEST_F(LiveAnswerTest, TheHeadOfAStreamGoesOutBeforeItsTokens) {
  Start();
  devices_->Hold();
  const auto client = Sent(Chat(3, absl::StrCat(std::string(kStream), R"(,"return_token_ids":true)")));
  client->ReadUntil("\r\n\r\n");  // the head, before any step
  EXPECT_EQ(reports_.first_tokens(), 0);
  for (int i = 0; i < 3; ++i) devices_->Step();
  Release();
  EXPECT_THAT(client->ReadUntil("[DONE]"), EndsWith("[DONE]"));
  EXPECT_EQ(reports_.first_tokens(), 1);
  EXPECT_EQ(reports_.later_tokens(), 2);
}

TEST_F(LiveAnswerTest, ChoicesStandSideBySide) {
  Start();
  const nlohmann::json answer = JsonOf(Call("POST", kChatPath, Chat(8, R"("n":3)")));
  ASSERT_EQ(answer["choices"].size(), 3u);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 24);
  EXPECT_NE(answer["choices"][0]["message"]["content"], answer["choices"][1]["message"]["content"]);
  EXPECT_EQ(reports_.AwaitFinishes(3), std::vector(3, GenerationFinish::kLength));
}

TEST_F(LiveAnswerTest, AStopStringFreesTheSlot) {
  Start();
  const std::string whole = ContentOf(JsonOf(Call("POST", kChatPath, Chat(200))));
  const auto letter = std::ranges::find_if(whole, [](char c) { return absl::ascii_isalpha(static_cast<unsigned char>(c)); });
  ASSERT_NE(letter, whole.end());
  const std::string stop(1, *letter);
  const HttpClient::Answer stopped = Call("POST", kChatPath, Chat(200, absl::StrCat(R"("stop":")", stop, "\"")));
  EXPECT_EQ(ContentOf(JsonOf(stopped)), whole.substr(0, whole.find(stop)));
  EXPECT_EQ(JsonOf(stopped)["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(reports_.AwaitFinishes(2).back(), GenerationFinish::kStop);
}

// ---- Refusals

TEST_F(LiveAnswerTest, AFullQueueSaysWhenToComeAgain) {
  Setting setting;
  setting.slots = 1;
  setting.queue = 0;
  Start(std::move(setting));
  devices_->Hold();
  const auto running = Sent(Chat(100, kStream));
  reports_.AwaitAccepted(1);
  const HttpClient::Answer refused = Call("POST", kChatPath, Chat(1));
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(CodeOf(refused), "rate_limit_exceeded");
  EXPECT_THAT(refused.head, HasSubstr("Retry-After: 5\r\n"));  // 100 tokens of 50 ms
  EXPECT_EQ(reports_.rejected(Rejection::kQueueFull), 1);
  Release();
  EXPECT_THAT(running->ReadAnswer().body, EndsWith("[DONE]\n\n"));
}

// A schema of 50 KiB, which needs more than a MiB compiled.
std::string LargeSchema(int number) {
  nlohmann::json properties = nlohmann::json::object();
  for (int i = 0; i < 50; ++i) {
    properties[absl::StrCat(number, "_", i, "_", std::string(1000, static_cast<char>('a' + i % 26)))] = nlohmann::json::object();
  }
  const nlohmann::json schema = {{"type", "object"}, {"properties", properties}};
  return absl::StrCat("\"response_format\":",
                      nlohmann::json{{"type", "json_schema"}, {"json_schema", {{"name", "large"}, {"schema", schema}}}}.dump());
}

TEST_F(LiveAnswerTest, FullMemoryForSchemasIsNoFullQueue) {
  Start();
  devices_->Hold();
  std::vector<std::unique_ptr<HttpClient>> clients;
  std::string head;
  for (int i = 0; i < 20 && !absl::StrContains(head, " 429 "); ++i) {
    clients.push_back(Sent(Chat(100, absl::StrCat(std::string(kStream), ",", LargeSchema(i)))));
    head = clients.back()->ReadUntil("\r\n\r\n");
  }
  EXPECT_THAT(head, HasSubstr(" 429 "));
  EXPECT_THAT(head, HasSubstr("Retry-After: "));
  EXPECT_THAT(clients.back()->ReadUntil("}}"), HasSubstr("the schemas of all requests need more than 8 MiB together"));
  EXPECT_EQ(reports_.rejected(Rejection::kQueueFull), 0);
  Release();
}

TEST_F(LiveAnswerTest, AListLongerThanTheQueueIsComputedBitByBit) {
  Setting setting;
  setting.queue = 1;
  Start(std::move(setting));
  nlohmann::json body = {{"prompt", nlohmann::json::array()}, {"max_tokens", 2}};
  for (int i = 0; i < 40; ++i) body["prompt"].push_back("hi");
  devices_->Hold();
  const auto list = Client();
  list->Send(Request("POST", "/v1/completions", body.dump()));
  reports_.AwaitAccepted(1);
  devices_->Step();
  const HttpClient::Answer refused = Call("POST", kChatPath, Chat(1));
  EXPECT_EQ(refused.status, 429);
  EXPECT_THAT(refused.head, HasSubstr("Retry-After: 2\r\n"));  // 38 of 40 have to end, of about 2 tokens and 50 ms, two at once
  Release();
  const nlohmann::json answer = JsonOf(list->ReadAnswer());
  ASSERT_EQ(answer["choices"].size(), 40u);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 80);
  EXPECT_EQ(Call("POST", kChatPath, Chat(1)).status, 200);
}

TEST_F(LiveAnswerTest, AListOfMorePositionsThanMayWaitIsAMistake) {
  Setting setting;
  setting.queue = 1;
  Start(std::move(setting));
  const HttpClient::Answer refused = Call("POST", kChatPath, Chat(240, R"("n":4)"));  // 3 contexts of 256 may run and wait
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(CodeOf(refused), "invalid_value");
  EXPECT_EQ(JsonOf(refused)["error"]["param"], "n");
  const HttpClient::Answer list = Call("POST", "/v1/completions", R"({"prompt":["a","b","c","d"],"max_tokens":240})");
  EXPECT_EQ(list.status, 400);
  EXPECT_EQ(JsonOf(list)["error"]["param"], "prompt");
  EXPECT_EQ(Call("POST", kChatPath, Chat(100, R"("n":4)")).status, 200);
}

TEST_F(LiveAnswerTest, FunctionsThatAreTooLargeTogetherAreAMistakeOfTheTools) {
  if (!ManyCases()) GTEST_SKIP() << "under a sanitizer it takes more than a minute, in scripts/soak asan";
  Setting setting;
  setting.source = MadeTemplate("<tool_call>");
  Start(std::move(setting));
  nlohmann::json error;
  nlohmann::json body = nlohmann::json::parse(Chat(1));
  while (error.empty() && body["tools"].size() < 256) {
    const std::string number = absl::StrCat(body["tools"].size());
    const nlohmann::json text = {{"type", "string"}, {"pattern", absl::StrCat("^(a|b)*a(a|b){11}", number, "$")}};  // thousands of states
    body["tools"].push_back(
        {{"type", "function"},
         {"function", {{"name", absl::StrCat("f", number)}, {"parameters", {{"type", "object"}, {"properties", {{"a", text}}}}}}}});
    error = JsonOf(Call("POST", kChatPath, body.dump())).value("error", nlohmann::json());
  }
  ASSERT_TRUE(error.is_object());
  EXPECT_EQ(error.value("code", ""), "invalid_value") << error;
  EXPECT_EQ(error.value("param", ""), "tools") << error;
  EXPECT_THAT(error.value("message", ""), HasSubstr("too many states"));
}

TEST_F(LiveAnswerTest, ALongPromptIsCounted) {
  Start();
  const std::string body = absl::StrCat(R"({"messages":[{"role":"user","content":")", std::string(400, 'x'), R"("}]})");
  EXPECT_EQ(CodeOf(Call("POST", kChatPath, body)), "context_length_exceeded");
  EXPECT_EQ(reports_.rejected(Rejection::kTooLong), 1);
  EXPECT_EQ(reports_.accepted(), 0);
}

TEST_F(LiveAnswerTest, ARequestThatWaitsTooLongEndsWithAnError) {
  Setting setting;
  setting.slots = 1;
  setting.max_wait = absl::Milliseconds(30);
  Start(std::move(setting));
  devices_->Hold();
  const auto running = Sent(Chat(10, kStream));
  reports_.AwaitAccepted(1);
  const HttpClient::Answer whole = Call("POST", kChatPath, Chat(1));
  EXPECT_EQ(whole.status, 503);
  EXPECT_EQ(CodeOf(whole), "queue_timeout");
  const HttpClient::Answer stream = Call("POST", kChatPath, Chat(1, kStream));
  EXPECT_EQ(stream.status, 200);
  EXPECT_EQ(EventsOf(stream.body).back()["error"]["code"], "queue_timeout");
  EXPECT_THAT(stream.body, EndsWith("data: [DONE]\n\n"));
  Release();
}

// ---- Slow answers

TEST_F(LiveAnswerTest, ASlowWholeAnswerBeginsWithBlanks) {
  Setting setting;
  setting.keep_alive = absl::Milliseconds(20);
  Start(std::move(setting));
  devices_->Hold();
  const auto client = Sent(Chat(5));
  EXPECT_THAT(client->ReadUntil("\r\n\r\n"), HasSubstr("200 OK"));
  EXPECT_EQ(client->ReadUntil("1\r\n \r\n1\r\n \r\n"), "1\r\n \r\n1\r\n \r\n");
  Release();
  const std::string rest = client->ReadUntil("0\r\n\r\n");
  const size_t begin = rest.find('{');
  ASSERT_NE(begin, std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(rest.substr(begin, rest.rfind('}') + 1 - begin))["usage"]["completion_tokens"], 5);
}

TEST_F(LiveAnswerTest, ASilentStreamHasComments) {
  Setting setting;
  setting.keep_alive = absl::Milliseconds(20);
  Start(std::move(setting));
  devices_->Hold();
  const auto client = Sent(Chat(5, kStream));
  EXPECT_THAT(client->ReadUntil(": keep-alive\n\n"), HasSubstr("200 OK"));
  Release();
  EXPECT_THAT(client->ReadUntil("[DONE]"), EndsWith("[DONE]"));
}

// ---- Clients

TEST_F(LiveAnswerTest, AClientThatLeavesFreesItsSlot) {
  for (const bool is_stream : {true, false}) {
    SCOPED_TRACE(is_stream);
    Setting setting;
    setting.slots = 1;
    Start(std::move(setting));
    devices_->Hold();
    auto leaver = Sent(Chat(200, is_stream ? kStream : R"("stream":false)"));
    reports_.AwaitAccepted(is_stream ? 1 : 3);
    devices_->AwaitStep();
    const auto next = Sent(Chat(3));
    reports_.AwaitAccepted(is_stream ? 2 : 4);
    leaver->Close();
    devices_->AwaitRetired(1);  // at the next border, with no step carried out
    Release();
    EXPECT_EQ(JsonOf(next->ReadAnswer())["usage"]["completion_tokens"], 3);
    EXPECT_EQ(std::ranges::count(reports_.AwaitFinishes(is_stream ? 2 : 4), GenerationFinish::kCancelled), is_stream ? 1 : 2);
    End();
  }
}

TEST_F(LiveAnswerTest, AClientThatLeavesTheQueueIsForgotten) {
  Setting setting;
  setting.slots = 1;
  setting.queue = 1;
  Start(std::move(setting));
  devices_->Hold();
  const auto running = Sent(Chat(3));
  reports_.AwaitAccepted(1);
  auto leaver = Sent(Chat(3, kStream));
  reports_.AwaitAccepted(2);
  EXPECT_EQ(Call("POST", kChatPath, Chat(1)).status, 429);
  leaver->Close();
  EXPECT_THAT(reports_.AwaitFinishes(1), ::testing::ElementsAre(GenerationFinish::kCancelled));
  Release();
  EXPECT_EQ(running->ReadAnswer().status, 200);
  EXPECT_EQ(Call("POST", kChatPath, Chat(1)).status, 200);
}

TEST_F(LiveAnswerTest, AClientThatReadsSlowlySlowsNobody) {
  Setting setting;
  setting.api.http.send_buffer_bytes = 4096;
  Start(std::move(setting));
  const std::string whole = ContentOf(JsonOf(Call("POST", kChatPath, Chat(200, R"("seed":1)"))));
  const auto slow = Client(4096);
  slow->Send(Request("POST", kChatPath, Chat(200, R"("seed":1,"stream":true)")));
  for (int i = 0; i < 20; ++i) EXPECT_EQ(Call("POST", kChatPath, Chat(50)).status, 200);
  const HttpClient::Answer answer = slow->ReadAnswer();
  EXPECT_EQ(StreamedContent(answer.body), whole);
  EXPECT_THAT(answer.body, EndsWith("data: [DONE]\n\n"));
}

TEST_F(LiveAnswerTest, AFailureIsAnErrorOfTheStream) {
  Start();
  devices_->Hold();
  const auto stream = Sent(Chat(10, kStream));
  reports_.AwaitAccepted(1);
  const auto whole = Sent(Chat(10));
  reports_.AwaitAccepted(2);
  devices_->AwaitStep();  // or nobody would hear of it
  devices_->Fail(absl::InternalError("the disk is gone"));
  EXPECT_THAT(stream->ReadAnswer().body, HasSubstr("the disk is gone"));
  const HttpClient::Answer answer = whole->ReadAnswer();
  EXPECT_EQ(answer.status, 500);
  EXPECT_EQ(CodeOf(answer), "server_error");
}

TEST_F(LiveAnswerTest, AFailureBehindTheHeadIsLoggedWithTheStatusThatWentOut) {
  Setting setting;
  setting.keep_alive = absl::Milliseconds(20);
  Start(std::move(setting));
  devices_->Hold();
  const auto whole = Sent(Chat(10));
  whole->ReadUntil("1\r\n \r\n");  // behind the head
  const auto stream = Sent(Chat(10, kStream));
  stream->ReadUntil("\r\n\r\n");
  devices_->AwaitStep();
  devices_->Fail(absl::InternalError("the disk is gone"));
  EXPECT_THAT(whole->ReadUntil("0\r\n\r\n"), HasSubstr("the disk is gone"));
  EXPECT_THAT(stream->ReadUntil("[DONE]"), HasSubstr("the disk is gone"));
  for (const std::string& line : AwaitLog(2)) {
    EXPECT_THAT(line, HasSubstr(" 200 server_error "));
    EXPECT_THAT(line, EndsWith(", error"));
  }
}

TEST_F(LiveAnswerTest, AMissingDeviceIsNamed) {
  Start();
  devices_->Hold();
  const auto stream = Sent(Chat(10, kStream));
  reports_.AwaitAccepted(1);
  const auto whole = Sent(Chat(10));
  reports_.AwaitAccepted(2);
  devices_->AwaitStep();
  devices_->Fail(absl::UnavailableError("connection lost"));
  EXPECT_EQ(EventsOf(stream->ReadAnswer().body).back()["error"]["code"], "cluster_unavailable");
  const HttpClient::Answer answer = whole->ReadAnswer();
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(CodeOf(answer), "cluster_unavailable");
  EXPECT_THAT(answer.body, HasSubstr("The device 'a' is missing"));
}

}  // namespace
}  // namespace lime
