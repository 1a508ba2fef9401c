// Random answers by seed: what a client puts together from a stream is what the events said, however
// the writes cut it, and what the answer without a stream says.
#include <map>
#include <random>

#include "absl/strings/str_split.h"
#include "coordinator/text/unicode/utf8.h"
#include "tests/coordinator/api/answer_scenes.h"
#include "tests/coordinator/api/parse.h"

namespace lime {
namespace {

constexpr int kSeeds = 300;

// What a choice says, put together.
struct Told {
  std::string content, reasoning;
  std::vector<std::pair<std::string, std::string>> calls;  // name, arguments
  std::string finish;
  size_t scores = 0;
  std::vector<int32_t> ids;

  friend bool operator==(const Told&, const Told&) = default;
};

std::ostream& operator<<(std::ostream& out, const Told& told) {
  out << told.content << " / " << told.reasoning << " / " << told.finish << " / " << told.scores << " scores, " << told.ids.size()
      << " ids";
  for (const auto& [name, arguments] : told.calls) out << " / " << name << ": " << arguments;
  return out;
}

struct RandomAnswer {
  std::vector<std::pair<int64_t, ChoiceEvent>> events;
  std::vector<Told> told;
};

// Letters, quotes, line ends, and pieces of characters of two to four bytes.
std::string RandomText(std::mt19937& random) {
  static constexpr std::string_view kBytes[] = {"a",        "\"",       "\n",   "\r\n", "data: ", "\xE2", "\x82",         "\xAC",
                                                "\xF0\x9F", "\x98\x80", "\xC3", "\xB6", "\xFF",   "\\",   "\xE2\x80\xA8", ""};
  std::string text;
  for (int i = std::uniform_int_distribution(0, 6)(random); i > 0; --i)
    text += kBytes[std::uniform_int_distribution<size_t>(0, std::size(kBytes) - 1)(random)];
  return text;
}

// Runs of one kind are one text, whose characters may lie across pieces.
void AppendRun(std::string& run, std::string& to) {
  AppendLossyUtf8(run, to);
  run.clear();
}

Told RandomChoice(std::mt19937& random, int64_t choice, bool has_tools, RandomAnswer& answer) {
  Told told;
  const auto add = [&](ChoiceEvent event) { answer.events.emplace_back(choice, std::move(event)); };
  std::string run;
  int kind = 0;  // of the run: 1 content, 2 reasoning, 3 arguments
  const auto end_run = [&] {
    if (kind == 1) AppendRun(run, told.content);
    if (kind == 2) AppendRun(run, told.reasoning);
    if (kind == 3) AppendRun(run, told.calls.back().second);
    kind = 0;
  };
  const int pieces = std::uniform_int_distribution(0, 30)(random);
  for (int i = 0; i < pieces; ++i) {
    const int next = std::uniform_int_distribution(0, has_tools ? 9 : 3)(random);
    if (next == 0) add(Score("x", -1)), ++told.scores;
    if (next == 1) add(TokenId{i}), told.ids.push_back(i);
    if (next == 4 && kind == 3) add(CallEnd{}), end_run();
    if (next == 5 || (next == 6 && kind != 3)) {
      end_run();
      told.calls.emplace_back(absl::StrCat("f", i), "");
      add(CallBegin{absl::StrCat("call_", choice, "_", i), told.calls.back().first});
      kind = 3;
    }
    const int text_kind = next == 2 || next == 3 ? 1 : next == 7 ? 2 : next >= 8 && kind == 3 ? 3 : 0;
    if (text_kind == 0) continue;
    std::string text = RandomText(random);
    if (!text.empty() && text_kind != kind) end_run(), kind = text_kind;
    run += text;
    if (text_kind == 1) add(ContentPiece{text});
    if (text_kind == 2) add(ReasoningPiece{text});
    if (text_kind == 3) add(CallArguments{text});
  }
  end_run();
  told.finish = !told.calls.empty() ? "tool_calls" : pieces % 2 == 0 ? "stop" : "length";
  add(ChoiceEnd{told.finish == "tool_calls" ? AnswerFinish::kToolCalls
                : told.finish == "stop"     ? AnswerFinish::kStop
                                            : AnswerFinish::kLength});
  return told;
}

// The events of several choices in a random order.
RandomAnswer MakeRandom(std::mt19937& random, int64_t choices, bool has_tools) {
  RandomAnswer answer;
  for (int64_t i = 0; i < choices; ++i) answer.told.push_back(RandomChoice(random, i, has_tools, answer));
  std::vector<std::vector<ChoiceEvent>> waiting(static_cast<size_t>(choices));
  for (auto& [choice, event] : answer.events) waiting[static_cast<size_t>(choice)].push_back(std::move(event));
  std::vector<size_t> next(waiting.size());
  std::vector<std::pair<int64_t, ChoiceEvent>> mixed;
  while (mixed.size() < answer.events.size()) {
    const size_t choice = std::uniform_int_distribution<size_t>(0, waiting.size() - 1)(random);
    if (next[choice] < waiting[choice].size()) mixed.emplace_back(choice, std::move(waiting[choice][next[choice]++]));
  }
  answer.events = std::move(mixed);
  return answer;
}

// All bytes, with writes at random.
std::string WrittenAtRandom(std::mt19937& random, Endpoint endpoint, const ApiRequest& request, std::string id,
                            const RandomAnswer& answer) {
  const std::unique_ptr<AnswerWriter> writer = MakeAnswerWriter(endpoint, request, SmallHead(std::move(id)));
  std::string out;
  const int every = std::uniform_int_distribution(1, 12)(random);
  for (const auto& [choice, event] : answer.events) {
    writer->Add(choice, event);
    if (std::uniform_int_distribution(1, every)(random) == 1) writer->Write(out);
    if (std::uniform_int_distribution(1, 10)(random) == 1) out += writer->KeepAlive();
  }
  writer->Finish(SmallReport());
  EXPECT_FALSE(writer->done());
  writer->Write(out);
  EXPECT_TRUE(writer->done());
  writer->Write(out);
  return out;
}

// The data of an SSE stream; of each event its type comes with it.
std::vector<Json> SseData(const std::string& stream, bool ends_with_done) {
  std::vector<Json> all;
  EXPECT_TRUE(stream.ends_with("\n\n"));
  EXPECT_EQ(stream.find('\r'), std::string::npos);
  std::vector<std::string> events = absl::StrSplit(stream, "\n\n");
  events.pop_back();
  if (ends_with_done && !events.empty()) {
    EXPECT_EQ(events.back(), "data: [DONE]");
    events.pop_back();
  }
  for (const std::string& event : events) {
    EXPECT_TRUE(IsUtf8(event));
    std::string type;
    const std::vector<std::string> lines = absl::StrSplit(event, '\n');
    for (const std::string& line : lines) {
      if (line.starts_with("event: ")) {
        type = line.substr(7);
      } else if (line.starts_with("data: ")) {
        all.push_back(Json::parse(line.substr(6)));
        if (!type.empty()) EXPECT_EQ(all.back()["type"], type);
      } else {
        EXPECT_EQ(line, ": keep-alive");
      }
    }
  }
  return all;
}

void AddCalls(const Json& calls, Told& told) {
  for (const Json& call : calls) {
    if (call.contains("id")) {
      EXPECT_EQ(call["index"], told.calls.size());
      EXPECT_EQ(call["function"]["arguments"], "");
      told.calls.emplace_back(call["function"]["name"], "");
    } else {
      EXPECT_EQ(call["index"], told.calls.size() - 1);
      told.calls.back().second += call["function"]["arguments"].get<std::string>();
    }
  }
}

std::vector<Told> FromChunks(const std::vector<Json>& chunks, size_t choices, bool is_chat, bool has_usage) {
  std::vector<Told> told(choices);
  std::vector<bool> begun(choices);
  for (size_t i = 0; i < chunks.size(); ++i) {
    const Json& chunk = chunks[i];
    const bool is_last = i + 1 == chunks.size();
    EXPECT_EQ(chunk["id"], "x_1");
    EXPECT_EQ(chunk["created"], 1721986200);
    EXPECT_EQ(chunk.contains("usage"), has_usage);
    EXPECT_EQ(chunk.contains("lime"), is_last);
    EXPECT_EQ(chunk["choices"].size(), has_usage && is_last ? 0u : 1u);
    for (const Json& choice : chunk["choices"]) {
      const size_t index = choice["index"];
      Told& to = told.at(index);
      EXPECT_TRUE(to.finish.empty()) << "a chunk after the last of its choice";
      if (is_chat && !begun[index]) EXPECT_EQ(choice["delta"].dump(), R"({"role":"assistant","content":""})");
      if (is_chat && begun[index]) EXPECT_FALSE(choice["delta"].contains("role"));
      begun[index] = true;
      to.content += is_chat ? choice["delta"].value("content", "") : choice["text"].get<std::string>();
      if (is_chat) to.reasoning += choice["delta"].value("reasoning_content", "");
      if (is_chat && choice["delta"].contains("tool_calls")) AddCalls(choice["delta"]["tool_calls"], to);
      if (!choice["logprobs"].is_null()) to.scores += choice["logprobs"][is_chat ? "content" : "tokens"].size();
      if (!choice["finish_reason"].is_null()) {
        to.finish = choice["finish_reason"];
        to.ids = choice["token_ids"].get<std::vector<int32_t>>();
        if (is_chat) EXPECT_TRUE(choice["delta"].empty());
      }
    }
  }
  return told;
}

Told FromMessage(const Json& choice) {
  Told told = {.reasoning = choice["message"].value("reasoning_content", ""), .finish = choice["finish_reason"]};
  if (choice["message"]["content"].is_string()) told.content = choice["message"]["content"];
  if (choice["message"].contains("tool_calls")) {
    for (const Json& call : choice["message"]["tool_calls"])
      told.calls.emplace_back(call["function"]["name"], call["function"]["arguments"]);
  }
  told.scores = choice["logprobs"]["content"].size();
  told.ids = choice["token_ids"].get<std::vector<int32_t>>();
  return told;
}

TEST(AnswerStreamsTest, ChunksOfChatSayWhatTheEventsSaid) {
  for (int seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 random(static_cast<uint32_t>(seed));
    ApiRequest request = {.n = 1 + seed % 3, .top_logprobs = 2, .stream = true, .include_usage = seed % 2 == 0, .return_token_ids = true};
    const RandomAnswer answer = MakeRandom(random, request.n, /*has_tools=*/true);
    const std::vector<Json> chunks = SseData(WrittenAtRandom(random, Endpoint::kChat, request, "x_1", answer), true);
    EXPECT_EQ(FromChunks(chunks, answer.told.size(), /*is_chat=*/true, request.include_usage), answer.told);
    request.stream = false;
    const Json plain = Json::parse(WrittenAtRandom(random, Endpoint::kChat, request, "x_1", answer));
    for (size_t i = 0; i < answer.told.size(); ++i) EXPECT_EQ(FromMessage(plain["choices"][i]), answer.told[i]);
  }
}

TEST(AnswerStreamsTest, ChunksOfCompletionsSayWhatTheEventsSaid) {
  for (int seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 random(static_cast<uint32_t>(seed));
    ApiRequest request = {.prompt = TextPrompts(static_cast<size_t>(1 + seed % 2), "a"),
                          .n = 1 + seed % 3,
                          .top_logprobs = 2,
                          .stream = true,
                          .include_usage = seed % 2 == 0,
                          .return_token_ids = true};
    const RandomAnswer answer = MakeRandom(random, request.choices(), /*has_tools=*/false);
    const std::vector<Json> chunks = SseData(WrittenAtRandom(random, Endpoint::kCompletions, request, "x_1", answer), true);
    EXPECT_EQ(FromChunks(chunks, answer.told.size(), /*is_chat=*/false, request.include_usage), answer.told);
    request.stream = false;
    const Json plain = Json::parse(WrittenAtRandom(random, Endpoint::kCompletions, request, "x_1", answer));
    for (size_t i = 0; i < answer.told.size(); ++i) {
      EXPECT_EQ(plain["choices"][i]["text"], answer.told[i].content);
      EXPECT_EQ(plain["choices"][i]["finish_reason"], answer.told[i].finish);
      EXPECT_EQ(plain["choices"][i]["logprobs"]["tokens"].size(), answer.told[i].scores);
    }
  }
}

// As the openai package puts a response together: an item is added, gets its parts and deltas, and is
// done; the last event has the same items.
Told FromItems(const std::vector<Json>& events) {
  Told told;
  std::vector<Json> items;
  for (size_t i = 0; i < events.size(); ++i) {
    const Json& event = events[i];
    const std::string type = event["type"];
    EXPECT_EQ(event["sequence_number"], i);
    if (i < 2) {
      EXPECT_EQ(type, i == 0 ? "response.created" : "response.in_progress");
      EXPECT_TRUE(event["response"]["output"].empty());
      continue;
    }
    if (event.contains("response")) {
      EXPECT_EQ(i + 1, events.size());
      EXPECT_EQ(event["response"]["output"], Json(items));
      EXPECT_EQ(event["response"]["status"], type.substr(9));
      told.finish = type == "response.incomplete" ? "length" : "stop";
      told.ids = event["response"]["token_ids"].get<std::vector<int32_t>>();
      continue;
    }
    const size_t index = event["output_index"];
    if (type == "response.output_item.added") {
      EXPECT_EQ(index, items.size());
      items.push_back(event["item"]);
      EXPECT_EQ(items.back()["status"], "in_progress");
      continue;
    }
    EXPECT_EQ(index + 1, items.size()) << "of an item that is closed";
    Json& item = items.back();
    if (type == "response.output_item.done") {
      item["status"] = event["item"]["status"];
      EXPECT_EQ(item, event["item"]);
      continue;
    }
    EXPECT_EQ(event["item_id"], item["id"]);
    if (type == "response.content_part.added") {
      item["content"].push_back(event["part"]);
    } else if (type == "response.content_part.done") {
      EXPECT_EQ(item["content"][0], event["part"]);
    } else if (type.ends_with(".delta")) {
      Json& text = item["type"] == "function_call" ? item["arguments"] : item["content"][0]["text"];
      text = text.get<std::string>() + event["delta"].get<std::string>();
    } else {
      EXPECT_TRUE(type.ends_with(".done")) << type;
      EXPECT_EQ(item["type"] == "function_call" ? event["arguments"] : event["text"],
                item["type"] == "function_call" ? item["arguments"] : item["content"][0]["text"]);
      if (item["type"] == "message") item["content"][0]["logprobs"] = event["logprobs"];
    }
  }
  for (const Json& item : items) {
    if (item["type"] == "function_call") told.calls.emplace_back(item["name"], item["arguments"]);
    if (item["type"] == "message") told.content += item["content"][0]["text"].get<std::string>();
    if (item["type"] == "reasoning") told.reasoning += item["content"][0]["text"].get<std::string>();
  }
  return told;
}

TEST(AnswerStreamsTest, EventsOfResponsesSayWhatTheEventsSaid) {
  for (int seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 random(static_cast<uint32_t>(seed));
    ApiRequest request = {.top_logprobs = 2, .stream = true, .return_token_ids = true};
    const RandomAnswer answer = MakeRandom(random, 1, /*has_tools=*/true);
    Told expected = answer.told[0];
    if (expected.finish == "tool_calls") expected.finish = "stop";
    expected.scores = 0;
    const std::vector<Json> events = SseData(WrittenAtRandom(random, Endpoint::kResponses, request, "resp_1", answer), false);
    EXPECT_EQ(FromItems(events), expected);
    request.stream = false;
    Json plain = Json::parse(WrittenAtRandom(random, Endpoint::kResponses, request, "resp_1", answer)), last = events.back()["response"];
    // Which text a score goes with depends on what waited.
    for (Json* response : {&plain, &last}) {
      for (Json& item : (*response)["output"]) {
        if (item["type"] == "message") item["content"][0].erase("logprobs");
      }
    }
    EXPECT_EQ(plain, last);
  }
}

TEST(AnswerStreamsTest, LinesOfOllamaSayWhatTheEventsSaid) {
  for (int seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 random(static_cast<uint32_t>(seed));
    const ApiRequest request = {.stream = true};
    const RandomAnswer answer = MakeRandom(random, 1, /*has_tools=*/true);
    const std::string text = WrittenAtRandom(random, Endpoint::kOllamaChat, request, "x", answer);
    ASSERT_TRUE(text.ends_with('\n'));
    const std::vector<std::string> lines = absl::StrSplit(text.substr(0, text.size() - 1), '\n');
    Told told;
    for (size_t i = 0; i < lines.size(); ++i) {
      EXPECT_TRUE(IsUtf8(lines[i]));
      const Json line = Json::parse(lines[i]);
      EXPECT_EQ(line["done"], i + 1 == lines.size());
      told.content += line["message"]["content"].get<std::string>();
      told.reasoning += line["message"].value("thinking", "");
      if (line["message"].contains("tool_calls")) {
        for (const Json& call : line["message"]["tool_calls"]) told.calls.emplace_back(call["function"]["name"], "");
      }
    }
    EXPECT_EQ(told.content, answer.told[0].content);
    EXPECT_EQ(told.reasoning, answer.told[0].reasoning);
    EXPECT_EQ(told.calls.size(), answer.told[0].calls.size());
  }
}

TEST(AnswerStreamsTest, PiecesThatWaitedAreOneEvent) {
  const ApiRequest request = {.stream = true};
  const std::unique_ptr<AnswerWriter> writer = MakeAnswerWriter(Endpoint::kChat, request, SmallHead("x_1"));
  for (int i = 0; i < 1000; ++i) writer->Add(0, ContentPiece{"a"});
  std::string out;
  writer->Write(out);
  EXPECT_EQ(SseData(out, false).size(), 2u);
  EXPECT_EQ(SseData(out, false)[1]["choices"][0]["delta"]["content"], std::string(1000, 'a'));
}

TEST(AnswerStreamsTest, AnErrorEndsAStream) {
  for (const Endpoint endpoint : {Endpoint::kChat, Endpoint::kCompletions}) {
    ApiRequest request = {.stream = true};
    if (endpoint == Endpoint::kCompletions) request.prompt = TextPrompts{"a"};
    const std::unique_ptr<AnswerWriter> writer = MakeAnswerWriter(endpoint, request, SmallHead("x_1"));
    writer->Add(0, ContentPiece{"a\xE2"});
    writer->Fail(ClusterUnavailable("mini"));
    writer->Add(0, ContentPiece{"too late"});
    writer->Fail(Draining());
    std::string out;
    writer->Write(out);
    EXPECT_TRUE(writer->done());
    EXPECT_TRUE(IsUtf8(out));
    EXPECT_EQ(SseData(out, true).back()["error"]["code"], "cluster_unavailable");
    EXPECT_EQ(out.find("too late"), std::string::npos);
  }
}

}  // namespace
}  // namespace lime
