// Answers are read as the server's writers write them, and as other servers do.
#include "coordinator/client/answer_chunk.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "coordinator/api/answers/answer_json.h"
#include "coordinator/api/answers/answer_writer.h"
#include "coordinator/client/sse_reader.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/base/json_text.h"
#include "tests/coordinator/api/answer_scenes.h"

namespace lime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

AnswerChunk ChunkOf(std::string_view json) {
  absl::StatusOr<AnswerChunk> chunk = ReadAnswerChunk(json);
  EXPECT_TRUE(chunk.ok()) << chunk.status() << json;
  return chunk.ok() ? *std::move(chunk) : AnswerChunk();
}

// The body of the answer to these events.
std::string WrittenAnswer(Endpoint endpoint, const ApiRequest& request, const std::vector<std::pair<int64_t, ChoiceEvent>>& events) {
  const std::unique_ptr<AnswerWriter> writer = MakeAnswerWriter(endpoint, request, SmallHead("id-1"));
  std::string body;
  for (const auto& [choice, event] : events) {
    writer->Add(choice, event);
    writer->Write(body);
  }
  writer->Finish(SmallReport());
  writer->Write(body);
  return body;
}

// What a whole answer says, whatever chunks it came in.
struct Whole {
  std::map<int64_t, ChoicePart> choices;
  std::optional<AnswerReport> report;
  bool done = false;
};

void Add(const AnswerChunk& chunk, Whole& whole) {
  if (chunk.has_usage && chunk.has_lime) whole.report = chunk.report;
  for (const ChoicePart& part : chunk.choices) {
    ChoicePart& all = whole.choices[part.index];
    all.content += part.content;
    all.reasoning += part.reasoning;
    all.finish += part.finish;
    all.logits_xxh3 += part.logits_xxh3;
    all.token_ids.insert(all.token_ids.end(), part.token_ids.begin(), part.token_ids.end());
    all.token_logprobs.insert(all.token_logprobs.end(), part.token_logprobs.begin(), part.token_logprobs.end());
    for (const CallPart& call : part.calls) {
      if (!call.id.empty()) all.calls.push_back({.index = call.index, .id = call.id, .name = call.name, .arguments = ""});
      ASSERT_LT(call.index, std::ssize(all.calls));
      all.calls[static_cast<size_t>(call.index)].arguments += call.arguments;
    }
  }
}

Whole FromStream(std::string_view body, size_t piece) {
  SseReader reader;
  std::vector<SseReader::Event> events;
  for (size_t at = 0; at < body.size(); at += piece) EXPECT_TRUE(reader.Read(body.substr(at, piece), events).ok());
  Whole whole;
  for (const SseReader::Event& event : events) {
    EXPECT_FALSE(whole.done);
    whole.done = event.data == "[DONE]";
    if (!whole.done) Add(ChunkOf(event.data), whole);
  }
  return whole;
}

ApiRequest ChatRequestOf(bool streams) {
  ApiRequest request;
  request.prompt = ChatPrompt();
  request.stream = request.include_usage = streams;
  request.n = 2;
  request.hash_logits = request.return_token_ids = true;
  return request;
}

const std::vector<std::pair<int64_t, ChoiceEvent>> kChatEvents = {
    {0, ReasoningPiece{"Hm. "}},
    {1, ContentPiece{"\xE2\x82"}},
    {0, ReasoningPiece{"So."}},
    {0, TokenId{5}},
    {1, ContentPiece{"\xAC\n"}},
    {0, ContentPiece{"Let me see."}},
    {0, CallBegin{"call_1", "f"}},
    {0, CallArguments{"{\"x\""}},
    {0, CallArguments{":1}"}},
    {0, CallEnd{}},
    {0, CallBegin{"call_2", "g"}},
    {0, CallArguments{"{}"}},
    {1, TokenId{6}},
    {1, TokenId{2}},
    {1, ChoiceEnd{AnswerFinish::kStop, 0xAB}},
    {0, CallEnd{}},
    {0, ChoiceEnd{AnswerFinish::kToolCalls, 0xCD}},
};

void ExpectChat(const Whole& whole) {
  ASSERT_EQ(whole.choices.size(), 2u);
  const ChoicePart &first = whole.choices.at(0), &second = whole.choices.at(1);
  EXPECT_EQ(first.reasoning, "Hm. So.");
  EXPECT_EQ(first.content, "Let me see.");
  EXPECT_THAT(first.calls, ElementsAre(CallPart{0, "call_1", "f", "{\"x\":1}"}, CallPart{1, "call_2", "g", "{}"}));
  EXPECT_EQ(first.finish, "tool_calls");
  EXPECT_THAT(first.token_ids, ElementsAre(5));
  EXPECT_EQ(first.logits_xxh3, "00000000000000cd");
  EXPECT_EQ(second.content, "\xE2\x82\xAC\n");
  EXPECT_EQ(second.finish, "stop");
  EXPECT_THAT(second.token_ids, ElementsAre(6, 2));
  ASSERT_TRUE(whole.report);
  const AnswerReport report = SmallReport();
  EXPECT_EQ(whole.report->prompt_tokens, report.prompt_tokens);
  EXPECT_EQ(whole.report->cached_tokens, report.cached_tokens);
  EXPECT_EQ(whole.report->completion_tokens, report.completion_tokens);
  EXPECT_EQ(whole.report->reasoning_tokens, report.reasoning_tokens);
  EXPECT_EQ(whole.report->seed, report.seed);
  EXPECT_EQ(whole.report->numerics_id, report.numerics_id);
  EXPECT_EQ(whole.report->plan_epoch, report.plan_epoch);
  EXPECT_EQ(whole.report->recoveries, report.recoveries);
  EXPECT_EQ(whole.report->plan_changes, report.plan_changes);
  EXPECT_NEAR(whole.report->prompt_ms, report.prompt_ms, 0.001);
  EXPECT_EQ(whole.report->ms_per_token, report.ms_per_token);
  EXPECT_EQ(whole.report->predicted_ms_per_token, report.predicted_ms_per_token);
}

TEST(AnswerChunkTest, AStreamSaysTheSameFromEveryCut) {
  const std::string body = WrittenAnswer(Endpoint::kChat, ChatRequestOf(/*streams=*/true), kChatEvents);
  for (size_t piece = 1; piece <= body.size(); piece += piece < 100 ? 1 : 97) {
    const Whole whole = FromStream(body, piece);
    EXPECT_TRUE(whole.done) << piece;
    ExpectChat(whole);
  }
}

TEST(AnswerChunkTest, AWholeAnswerSaysTheSameAsItsStream) {
  Whole whole;
  Add(ChunkOf(WrittenAnswer(Endpoint::kChat, ChatRequestOf(/*streams=*/false), kChatEvents)), whole);
  ExpectChat(whole);
}

TEST(AnswerChunkTest, AScoredPromptHasLogprobsAndTheLikeliestIdsBehindEachToken) {
  ApiRequest request;
  request.prompt = TextPrompts{std::vector<int32_t>{1, 7}};
  request.max_tokens = 0;
  request.echo = request.hash_logits = true;
  request.top_logprobs = 2;
  const AnswerChunk chunk = ChunkOf(WrittenAnswer(
      Endpoint::kCompletions, request,
      {{0, TokenScore{.token = "<s>", .logprob = std::nullopt, .top = {}, .is_in_text = false, .next = {{7, 1.5F}, {9, 0.1F}}}},
       {0, TokenScore{.token = "a", .logprob = -0.25, .top = {{"a", -0.25}}, .is_in_text = true, .next = {{3, -2}}}},
       {0, ChoiceEnd{AnswerFinish::kLength, 1}}}));
  ASSERT_EQ(chunk.choices.size(), 1u);
  EXPECT_THAT(chunk.choices[0].token_logprobs, ElementsAre(std::nullopt, -0.25));
  ASSERT_EQ(chunk.choices[0].top_logits.size(), 2u);
  EXPECT_THAT(chunk.choices[0].top_logits[0], ElementsAre(std::pair(7, 1.5F), std::pair(9, 0.1F)));
  EXPECT_THAT(chunk.choices[0].top_logits[1], ElementsAre(std::pair(3, -2.0F)));
}

TEST(AnswerChunkTest, TheStateOfAHashIsBase64) {
  AnswerReport report;
  report.hash_state = std::string("\0\xFF state", 8);
  Json answer = Json::object();
  answer["lime"] = LimeJson(report);
  const AnswerChunk chunk = ChunkOf(JsonText(answer));
  EXPECT_TRUE(chunk.has_lime);
  EXPECT_EQ(chunk.report.hash_state, report.hash_state);
  EXPECT_FALSE(LimeJson(AnswerReport()).contains("hash_state"));
  const absl::Status wrong = ReadAnswerChunk(R"({"lime": {"hash_state": "*"}})").status();
  EXPECT_TRUE(absl::IsInvalidArgument(wrong));
  EXPECT_THAT(std::string(wrong.message()), HasSubstr("lime.hash_state is not base64"));
}

TEST(AnswerChunkTest, AbsentAndNullFieldsOfOtherServersAreLeftAsTheyAre) {
  AnswerChunk chunk =
      ChunkOf(R"({"choices": [{"delta": {"content": null, "reasoning": "Hm"}, "finish_reason": null, "logprobs": null}], "usage": null})");
  ASSERT_EQ(chunk.choices.size(), 1u);
  EXPECT_EQ(chunk.choices[0].reasoning, "Hm");
  EXPECT_FALSE(chunk.has_usage);
  EXPECT_FALSE(chunk.has_lime);
  EXPECT_THAT(ChunkOf(R"({"object": "x", "new": {"deep": [1]}})").choices, IsEmpty());
  chunk = ChunkOf(R"({"choices": [{"text": "a"}], "usage": {"prompt_tokens": 3}, "lime": {"timings": {"ms_per_token": null}}})");
  EXPECT_TRUE(chunk.has_usage);
  EXPECT_EQ(chunk.report.prompt_tokens, 3);
  EXPECT_EQ(chunk.report.ms_per_token, 0);
}

TEST(AnswerChunkTest, AFieldOfAWrongTypeIsNamed) {
  const std::pair<const char*, const char*> wrong[] = {
      {R"({"choices": {}})", "choices"},
      {R"({"choices": [1]})", "choices[0]"},
      {R"({"choices": [{"index": -1}]})", "choices[0].index"},
      {R"({"choices": [{"text": 1}]})", "choices[0].text"},
      {R"({"choices": [{"delta": {"content": []}}]})", "choices[0].delta.content"},
      {R"({"choices": [{"delta": {"tool_calls": [{"function": {"name": 1}}]}}]})", "choices[0].delta.tool_calls[0].function.name"},
      {R"({"choices": [{"token_ids": [1.5]}]})", "choices[0].token_ids"},
      {R"({"choices": [{"token_ids": [4294967296]}]})", "choices[0].token_ids"},
      {R"({"choices": [{"logprobs": {"token_logprobs": ["a"]}}]})", "choices[0].logprobs.token_logprobs[0]"},
      {R"({"choices": [{"logprobs": {"top_logits": [[[1]]]}}]})", "choices[0].logprobs.top_logits"},
      {R"({"usage": {"prompt_tokens": "3"}})", "usage.prompt_tokens"},
      {R"({"lime": {"timings": {"ttft_ms": "3"}}})", "lime.timings.ttft_ms"},
  };
  for (const auto& [json, place] : wrong) {
    const absl::Status status = ReadAnswerChunk(json).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << json;
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(place, " is not "))) << json;
  }
  for (const char* const text : {"", "[]", "nothing", "{", "{\"choices\": [", "\xFF"}) EXPECT_FALSE(ReadAnswerChunk(text).ok()) << text;
  EXPECT_FALSE(ReadAnswerChunk("{\"a\": \"" + std::string(100, 'x') + "\"}", /*max_bytes=*/50).ok());
}

TEST(AnswerChunkTest, AnErrorInAStreamIsRead) {
  const AnswerChunk chunk = ChunkOf(OpenAiErrorJson(ServerError("the device b is lost")));
  ASSERT_TRUE(chunk.error);
  EXPECT_THAT(chunk.error->message, HasSubstr("device b is lost"));
  EXPECT_EQ(chunk.error->code, ServerError("x").code);
}

TEST(AnswerChunkTest, ErrorsOfAllServersBecomeASentence) {
  ApiError error = ReadApiError(404, OpenAiErrorJson(ModelNotFound("big")));
  EXPECT_EQ(error.status, 404);
  EXPECT_EQ(error.code, "model_not_found");
  EXPECT_EQ(error.param, "model");
  EXPECT_EQ(error.message, ModelNotFound("big").message);
  EXPECT_EQ(ReadApiError(500, R"({"error": "no memory"})").message, "no memory");
  EXPECT_EQ(ReadApiError(400, R"({"error": {"message": "bad", "code": 400, "param": null}})").code, "400");
  EXPECT_EQ(ReadApiError(502, "<html>Bad\nGateway</html>").message, "'<html>Bad Gateway</html>'");
  EXPECT_EQ(ReadApiError(502, "").message, "without a word");
  EXPECT_EQ(ReadApiError(502, R"({"error": {}})").message, R"('{"error": {}}')");
  EXPECT_LT(ReadApiError(502, std::string(100'000, 'x')).message.size(), 500u);
}

}  // namespace
}  // namespace lime
