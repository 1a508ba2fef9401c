#include "coordinator/generation/choice_reader.h"

#include <gmock/gmock.h>

#include <random>

#include "tests/coordinator/generation/made_model.h"

namespace lime {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;

// One line for each run of events of a kind.
class Lines {
 public:
  void Add(const ChoiceEvent& event) {
    if (const auto* piece = std::get_if<ContentPiece>(&event)) Append("content ", piece->text);
    if (const auto* piece = std::get_if<ReasoningPiece>(&event)) Append("reasoning ", piece->text);
    if (const auto* call = std::get_if<CallBegin>(&event)) Append("call ", call->name + " ", /*is_new=*/true);
    if (const auto* piece = std::get_if<CallArguments>(&event)) lines_.back() += piece->text;
    if (std::get_if<CallEnd>(&event) != nullptr) lines_.back() += ".";
    if (const auto* score = std::get_if<TokenScore>(&event)) next.push_back(score->next);
    if (const auto* score = std::get_if<TokenScore>(&event)) Append("scores ", "[" + score->token + (score->is_in_text ? "]" : "!]"));
    if (const auto* id = std::get_if<TokenId>(&event)) ids.push_back(id->id);
    if (const auto* end = std::get_if<ChoiceEnd>(&event)) {
      constexpr const char* kNames[] = {"stop", "length", "tool_calls"};
      Append(absl::StrCat("end ", kNames[static_cast<int>(end->finish)]), "", /*is_new=*/true);
      hash = end->logits_hash;
    }
  }
  const std::vector<std::string>& all() const { return lines_; }

  std::vector<int32_t> ids;
  std::vector<std::vector<std::pair<int32_t, float>>> next;  // of the scores
  uint64_t hash = 0;

 private:
  void Append(std::string_view kind, const std::string& text, bool is_new = false) {
    if (is_new || lines_.empty() || !lines_.back().starts_with(kind)) lines_.emplace_back(kind);
    lines_.back() += text;
  }

  std::vector<std::string> lines_;
};

// A choice of a request, and what its tokens become.
struct MadeAnswer {
  MadeAnswer(const MadeModel& made, Endpoint endpoint, std::string_view body) : model(made.Make()) {
    generation = Prepared(*model, endpoint, RequestFor(*model, endpoint, body));
    Begin();
  }
  // Of a chat with one message, as a stream.
  MadeAnswer(const MadeModel& made, std::string_view fields) : model(made.Make()) {
    ApiRequest request = ChatFor(*model, fields);
    request.stream = true;
    generation = Prepared(*model, Endpoint::kChat, request);
    Begin();
  }
  // The same as one answer.
  static MadeAnswer Whole(const MadeModel& made, std::string_view fields) {
    return MadeAnswer(made, Endpoint::kChat,
                      absl::StrCat(R"({"messages":[{"role":"user","content":"hi"}])", fields.empty() ? "" : ",", std::string(fields), "}"));
  }

  void Begin() {
    reader = std::make_unique<ChoiceReader>(*model, generation, 0, CountedBits(), [this](const ChoiceEvent& event) { lines.Add(event); });
  }

  // Special tokens are written out; each byte is a token, unless the tokenizer joins some.
  bool Say(std::string_view text) { return SayIds(IdsOf(*model, text)); }
  bool SayIds(const std::vector<int32_t>& ids) {
    for (const int32_t id : ids) {
      if (!reader->OnToken(tokens.Next(id))) return false;
    }
    return true;
  }
  const std::vector<std::string>& End(FinishReason reason = FinishReason::kEndToken) {
    if (reason == FinishReason::kEndToken) reader->OnToken(tokens.Next(kImEndId));
    reader->OnEnd(reason);
    return lines.all();
  }

  std::unique_ptr<ServedModel> model;
  Generation generation;
  std::unique_ptr<ChoiceReader> reader;
  MadeTokens tokens;
  Lines lines;
};

const std::string kTool =
    R"("tools":[{"type":"function","function":{"name":"add","parameters":{"type":"object","properties":{"a":{"type":"integer"}}}}}])";

TEST(ChoiceReaderTest, TextIsContent) {
  MadeAnswer answer(MadeModel(), "");
  answer.Say("Hello");
  EXPECT_THAT(answer.End(), ElementsAre("content Hello", "end stop"));
  EXPECT_EQ(answer.reader->completion_tokens(), 6);  // with the end token
  EXPECT_EQ(answer.reader->reasoning_tokens(), 0);
  EXPECT_EQ(answer.lines.hash, 6u);
}

TEST(ChoiceReaderTest, AnAnswerOfAllItsTokensEndsByLength) {
  MadeAnswer answer(MadeModel(), R"("max_tokens":2,"return_token_ids":true)");
  answer.Say("Hi");
  EXPECT_THAT(answer.End(FinishReason::kLength), ElementsAre("content Hi", "end length"));
  EXPECT_THAT(answer.lines.ids, ElementsAre('H', 'i'));
}

TEST(ChoiceReaderTest, ThinkingIsReasoning) {
  MadeAnswer answer(MadeModel(), "");
  answer.Say("<think>\nWell.\n</think>\n\nYes");
  EXPECT_THAT(answer.End(), ElementsAre("reasoning Well.", "content Yes", "end stop"));
  EXPECT_EQ(answer.reader->reasoning_tokens(), 9);  // both tags, two line feeds, five letters
}

TEST(ChoiceReaderTest, ThinkingThatThePromptHasOpenedGoesOn) {
  MadeAnswer answer(MadeModel{.source = MadeTemplate("", "<think>\n")}, "");
  answer.Say("Well.</think>Yes");
  EXPECT_THAT(answer.End(), ElementsAre("reasoning Well.", "content Yes", "end stop"));
  EXPECT_EQ(answer.reader->reasoning_tokens(), 6);
}

TEST(ChoiceReaderTest, ThinkingThatIsCutIsAllReasoning) {
  MadeAnswer answer(MadeModel(), "");
  answer.Say("<think>Well");
  EXPECT_THAT(answer.End(FinishReason::kLength), ElementsAre("reasoning Well", "end length"));
  EXPECT_EQ(answer.reader->reasoning_tokens(), 5);
}

// No stream: nothing has been sent when </think> comes.
TEST(ChoiceReaderTest, ThinkingThatNobodyHasOpenedIsReasoningInAWholeAnswer) {
  for (const char* text : {"Well.\n</think>\n\nYes", "\n\nWell.</think>Yes"}) {
    MadeAnswer answer = MadeAnswer::Whole(MadeModel(), "");
    answer.Say(text);
    EXPECT_THAT(answer.lines.all(), ElementsAre("reasoning Well.", "content Yes")) << text;
    EXPECT_THAT(answer.End(), ElementsAre("reasoning Well.", "content Yes", "end stop")) << text;
    EXPECT_EQ(answer.reader->reasoning_tokens(), text[0] == 'W' ? 7 : 8);
  }
  MadeAnswer bytes = MadeAnswer::Whole(MadeModel(), R"("n":1)");
  for (const char c : std::string("a</think></think>b")) bytes.SayIds({static_cast<unsigned char>(c)});
  EXPECT_THAT(bytes.End(), ElementsAre("reasoning a", "content </think>b", "end stop"));
  MadeAnswer stream(MadeModel(), "");
  stream.Say("Well.</think>Yes");
  EXPECT_THAT(stream.End(), ElementsAre("content Well.</think>Yes", "end stop")) << "it is sent before";
}

TEST(ChoiceReaderTest, ALateEndOfThinkingTakesNothingThatIsCertain) {
  struct Case {
    MadeModel model;
    std::string fields, text;
    std::vector<std::string> lines;
  };
  const MadeModel hermes{.syntax = ToolSyntax::kHermes};
  const std::string call = R"(<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>)";
  for (const Case& of : std::vector<Case>{
           {{}, "", "<think>a</think>b</think>c", {"reasoning a", "content b</think>c", "end stop"}},
           {{}, "", "<think></think>b</think>c", {"content b</think>c", "end stop"}},
           {{}, "", "It is </thin", {"content It is </thin", "end stop"}},
           {{.divides_thinking = false}, "", "a</think>b", {"content a</think>b", "end stop"}},
           {{.source = MadeTemplate("", "<think>\n\n</think>\n\n")}, "", "a</think>b", {"content a</think>b", "end stop"}},
           {{}, R"("stop":"END")", "aEND</think>b", {"content a", "end stop"}},
           {{}, R"("stop":"END")", "a</think>bENDc", {"reasoning a", "content b", "end stop"}},
           {{}, R"("response_format":{"type":"json_object"})", R"({"a": "</think>"})", {R"(content {"a": "</think>"})", "end stop"}}}) {
    MadeAnswer answer = MadeAnswer::Whole(of.model, of.fields);
    answer.Say(of.text);
    EXPECT_THAT(answer.End(), ElementsAreArray(of.lines)) << of.text;
  }
  MadeAnswer behind = MadeAnswer::Whole(hermes, kTool);
  behind.Say("Well.</think>\n\nI add." + call);
  const std::vector<std::string> lines = behind.End();
  ASSERT_GT(lines.size(), 3u);
  EXPECT_EQ(lines[0], "reasoning Well.");
  EXPECT_EQ(lines[1], "content I add.");
  EXPECT_EQ(lines.back(), "end tool_calls");
  MadeAnswer before = MadeAnswer::Whole(hermes, kTool);
  before.Say("Well." + call + "</think>b");
  EXPECT_EQ(before.End().front(), "content Well.") << "what stands in front of a call is content";
}

TEST(ChoiceReaderTest, WithReasoningOffItStaysInTheContent) {
  MadeAnswer answer(MadeModel{.divides_thinking = false}, "");
  answer.Say("<think>Well</think>Yes");
  EXPECT_THAT(answer.End(), ElementsAre("content <think>Well</think>Yes", "end stop"));
}

TEST(ChoiceReaderTest, AStopStringEndsTheContentWhereverItIsCut) {
  MadeAnswer answer(MadeModel(), R"("stop":["END"],"return_token_ids":true)");
  EXPECT_TRUE(answer.Say("Hi EN"));
  EXPECT_THAT(answer.lines.all(), ElementsAre("content Hi "));
  EXPECT_FALSE(answer.Say("Dx"));
  EXPECT_TRUE(answer.reader->has_ended());
  EXPECT_THAT(answer.lines.all(), ElementsAre("content Hi ", "end stop"));
  EXPECT_EQ(answer.reader->completion_tokens(), 6);
  EXPECT_EQ(answer.lines.ids.size(), 6u);
  EXPECT_EQ(answer.lines.hash, 6u);
  EXPECT_FALSE(answer.SayIds({'a'}));
  EXPECT_THAT(answer.End(), ElementsAre("content Hi ", "end stop"));
}

TEST(ChoiceReaderTest, TextThatIsNoStopStringAfterAllComesOut) {
  MadeAnswer answer(MadeModel(), R"("stop":["END"])");
  answer.Say("EN");
  EXPECT_THAT(answer.lines.all(), ElementsAre());
  EXPECT_THAT(answer.End(), ElementsAre("content EN", "end stop"));
}

TEST(ChoiceReaderTest, StopStringsBeginBehindTheThinking) {
  MadeAnswer answer(MadeModel(), R"("stop":["x"])");
  EXPECT_TRUE(answer.Say("<think>x</think>a"));
  EXPECT_FALSE(answer.Say("x"));
  EXPECT_THAT(answer.lines.all(), ElementsAre("reasoning x", "content a", "end stop"));
}

const std::vector<std::pair<ToolSyntax, std::string>>& CallTexts() {
  static const std::vector<std::pair<ToolSyntax, std::string>> texts = {
      {ToolSyntax::kHermes, "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>"},
      {ToolSyntax::kQwen3Coder, "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"},
      {ToolSyntax::kLlama3, "<|python_tag|>{\"name\": \"add\", \"parameters\": {\"a\": 1}}"},
      {ToolSyntax::kMistral, "[TOOL_CALLS][{\"name\": \"add\", \"arguments\": {\"a\": 1}}]"},
      {ToolSyntax::kGlm, "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"},
      {ToolSyntax::kMiniMax,
       "<minimax:tool_call>\n<invoke name=\"add\">\n<parameter name=\"a\">1</parameter>\n</invoke>\n</minimax:tool_call>"},
  };
  return texts;
}

TEST(ChoiceReaderTest, CallsOfEverySyntaxAreCalls) {
  for (const auto& [syntax, text] : CallTexts()) {
    MadeAnswer answer(MadeModel{.syntax = syntax}, kTool);
    answer.Say("<think>One.</think>" + text);
    EXPECT_THAT(answer.End(), ElementsAre("reasoning One.", "call add {\"a\": 1}.", "end tool_calls")) << text;
  }
}

TEST(ChoiceReaderTest, StopStringsAreNotThoseOfCalls) {
  for (const auto& [syntax, text] : CallTexts()) {
    MadeAnswer answer(MadeModel{.syntax = syntax}, kTool + R"(,"stop":["\n","add","a","{"])");
    EXPECT_TRUE(answer.Say(text)) << text;
    EXPECT_EQ(answer.End().back(), "end tool_calls") << text;
    EXPECT_THAT(answer.lines.all(), testing::Contains("call add {\"a\": 1}.")) << text;
  }
}

TEST(ChoiceReaderTest, AStopStringInTheContentOfAnAnswerWithToolsEndsIt) {
  const std::string call = "<tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>";
  MadeAnswer before(MadeModel{.syntax = ToolSyntax::kHermes}, kTool + R"(,"stop":"END")");
  EXPECT_FALSE(
      before.Say("I look.EN"
                 "Dx" +
                 call));
  EXPECT_THAT(before.End(), ElementsAre("content I look.", "end stop"));
  MadeAnswer behind(MadeModel{.syntax = ToolSyntax::kHermes}, kTool + R"(,"stop":"END")");
  EXPECT_FALSE(behind.Say(call + "So.END" + call));
  EXPECT_THAT(behind.End(), ElementsAre("call add {}.", "content So.", "end tool_calls"));
}

TEST(ChoiceReaderTest, ACallDividesTheContentThatStopStringsAreSearchedIn) {
  MadeAnswer answer(MadeModel{.syntax = ToolSyntax::kHermes}, kTool + R"(,"stop":"END")");
  answer.Say("EN<tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>D");
  EXPECT_THAT(answer.End(), ElementsAre("content EN", "call add {}.", "content D", "end tool_calls"));
}

TEST(ChoiceReaderTest, ScoresOfCallsDoNotWaitForStopStrings) {
  MadeAnswer answer(MadeModel{.syntax = ToolSyntax::kLlama3}, kTool + R"(,"stop":"xyz","logprobs":true)");
  answer.Say("{\"name\": \"add\", \"parameters\": {");
  std::string scores;
  for (const std::string& line : answer.lines.all()) scores += line.starts_with("scores") ? line : "";
  EXPECT_THAT(scores, HasSubstr("[{]"));
  EXPECT_THAT(scores, HasSubstr("[:]"));
}

TEST(ChoiceReaderTest, AnEndTokenBehindACallEndsTheAnswerAlsoWithIgnoreEos) {
  const std::string call = "<tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>";
  MadeAnswer answer(MadeModel{.syntax = ToolSyntax::kHermes}, kTool + R"(,"ignore_eos":true,"return_token_ids":true)");
  EXPECT_TRUE(answer.Say("I<|im_end|> look." + call + "\n"));
  EXPECT_FALSE(answer.Say("<|im_end|>"));
  EXPECT_THAT(answer.End(FinishReason::kLength), ElementsAre("content I look.", "call add {}.", "end tool_calls"));
  EXPECT_EQ(answer.lines.ids.back(), kImEndId);
}

constexpr const char* kHarmonyMarks = "<|channel|> <|message|>";

TEST(ChoiceReaderTest, ChannelsOfHarmonyAreReasoningContentAndCalls) {
  MadeAnswer answer(MadeModel{.source = MadeTemplate(kHarmonyMarks)}, kTool);
  answer.Say("<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>");
  EXPECT_THAT(answer.lines.all(), ElementsAre("reasoning One.", "content I look."));
  answer.Say("<|start|>assistant<|channel|>commentary to=functions.add <|constrain|>json<|message|>{\"a\": 1}");
  answer.SayIds({kHarmonyCallId});
  EXPECT_THAT(answer.End(), ElementsAre("reasoning One.", "content I look.", "call add {\"a\": 1}.", "end tool_calls"));
}

TEST(ChoiceReaderTest, WithoutToolsAnAnswerOfHarmonyHasNoMarks) {
  MadeAnswer answer(MadeModel{.source = MadeTemplate(kHarmonyMarks)}, R"("stop":["END"])");
  answer.Say("<|channel|>analysis<|message|>END<|end|><|start|>assistant<|channel|>final<|message|>Yes");
  EXPECT_THAT(answer.End(), ElementsAre("reasoning END", "content Yes", "end stop"));
  EXPECT_GT(answer.reader->reasoning_tokens(), 3);
}

TEST(ChoiceReaderTest, WithReasoningOffHarmonysAnalysisIsContent) {
  MadeAnswer answer(MadeModel{.source = MadeTemplate(kHarmonyMarks), .divides_thinking = false}, "");
  answer.Say("<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>final<|message|>Yes");
  EXPECT_THAT(answer.End(), ElementsAre("content One.\n\nYes", "end stop"));
  EXPECT_EQ(answer.reader->reasoning_tokens(), 0);
}

TEST(ChoiceReaderTest, ContentStandsBeforeACall) {
  MadeAnswer answer(MadeModel{.syntax = ToolSyntax::kHermes}, kTool);
  answer.Say(
      "I look.\n<tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>\n"
      "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 2}}</tool_call>");
  EXPECT_THAT(answer.End(), ElementsAre("content I look.", "call add {}.", "call add {\"a\": 2}.", "end tool_calls"));
}

TEST(ChoiceReaderTest, WithoutParallelTheAnswerEndsAfterOneCall) {
  MadeAnswer answer(MadeModel{.syntax = ToolSyntax::kHermes}, kTool + R"(,"parallel_tool_calls":false)");
  EXPECT_FALSE(answer.Say("<tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>\n<tool_call>{\"name"));
  EXPECT_TRUE(answer.reader->has_ended());
  EXPECT_THAT(answer.lines.all(), ElementsAre("call add {}.", "end tool_calls"));
}

TEST(ChoiceReaderTest, ACallThatIsCutIsNone) {
  MadeAnswer answer(MadeModel{.syntax = ToolSyntax::kHermes}, kTool);
  answer.Say("<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": ");
  EXPECT_THAT(answer.End(FinishReason::kLength), ElementsAre("call add {\"a\": .", "end length"));
  MadeAnswer broken(MadeModel{.syntax = ToolSyntax::kHermes}, kTool);
  broken.Say("<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": ");
  EXPECT_EQ(broken.End().back(), "end stop");
}

TEST(ChoiceReaderTest, WithoutToolsACallIsContent) {
  MadeAnswer answer(MadeModel{.syntax = ToolSyntax::kHermes}, "");
  answer.Say("{\"name\": \"add\", \"arguments\": {}}");
  EXPECT_THAT(answer.End(), ElementsAre("content {\"name\": \"add\", \"arguments\": {}}", "end stop"));
}

TEST(ChoiceReaderTest, SpecialTokensThatAreNoMarkupGiveNoText) {
  MadeAnswer answer(MadeModel(), "");
  answer.Say("a<|im_start|>[TOOL_CALLS]b");
  EXPECT_THAT(answer.End(), ElementsAre("content ab", "end stop"));
  MadeAnswer completion(MadeModel(), Endpoint::kCompletions, R"({"prompt":"x"})");
  completion.Say("a<think>b</think>c");
  EXPECT_THAT(completion.End(), ElementsAre("content abc", "end stop"));
}

TEST(ChoiceReaderTest, ScoresComeWithTheirText) {
  MadeAnswer answer(MadeModel(), R"("logprobs":true,"top_logprobs":2)");
  answer.Say("Hi");
  EXPECT_THAT(answer.End(), ElementsAre("scores [H]", "content H", "scores [i]", "content i", "end stop"));  // none of the end token
}

TEST(ChoiceReaderTest, ScoresAreLogProbabilities) {
  MadeAnswer answer(MadeModel(), R"("logprobs":true,"top_logprobs":2)");
  std::vector<TokenScore> scores;
  ChoiceReader reader(*answer.model, answer.generation, 0, CountedBits(), [&](ChoiceEvent event) {
    if (const auto* score = std::get_if<TokenScore>(&event)) scores.push_back(*score);
  });
  reader.OnToken(answer.tokens.Next('H'));
  ASSERT_EQ(scores.size(), 1u);
  EXPECT_EQ(scores[0].logprob, -1);
  EXPECT_THAT(scores[0].top, ElementsAre(std::pair("H", -1.0), std::pair("z", -1.5)));
}

TEST(ChoiceReaderTest, ScoresOfAStopStringAreNotReported) {
  MadeAnswer answer(MadeModel(), R"("logprobs":true,"stop":"xyz")");
  answer.Say("ax");
  EXPECT_THAT(answer.lines.all(), ElementsAre("scores [a]", "content a"));
  answer.Say("b");
  EXPECT_THAT(answer.lines.all(), ElementsAre("scores [a]", "content a", "scores [x][b]", "content xb"));
  answer.Say("xyz");
  EXPECT_THAT(answer.lines.all(), ElementsAre("scores [a]", "content a", "scores [x][b]", "content xb", "end stop"));
}

TEST(ChoiceReaderTest, ScoresOfThinkingDoNotWait) {
  MadeAnswer answer(MadeModel(), R"("logprobs":true,"stop":"x")");
  answer.Say("<think>W");
  EXPECT_THAT(answer.lines.all(), ElementsAre("scores [<think>][W]", "reasoning W"));
}

TEST(ChoiceReaderTest, ACharacterOfSeveralTokensComesWhole) {
  MadeAnswer answer(MadeModel(), R"("logprobs":true)");
  answer.SayIds({0xC3});
  EXPECT_THAT(answer.lines.all(), ElementsAre("scores [\xC3]"));
  answer.SayIds({0xA9});
  EXPECT_THAT(answer.End(), ElementsAre("scores [\xC3][\xA9]", "content \xC3\xA9", "end stop"));
}

TEST(ChoiceReaderTest, EchoPutsThePromptBeforeTheAnswer) {
  MadeAnswer answer(MadeModel(), Endpoint::kCompletions, R"({"prompt":"Hi ","echo":true})");
  answer.Say("you");
  EXPECT_THAT(answer.End(), ElementsAre("content Hi you", "end stop"));
}

TEST(ChoiceReaderTest, AScoredPromptHasAnEntryForEachToken) {
  MadeAnswer answer(MadeModel(), Endpoint::kCompletions, R"({"prompt":"xy","echo":true,"logprobs":1,"max_tokens":0})");
  EXPECT_THAT(answer.lines.all(), ElementsAre("scores [<s>!]"));
  EXPECT_TRUE(answer.reader->OnToken(answer.tokens.Next('x', /*known=*/true)));
  EXPECT_TRUE(answer.reader->OnToken(answer.tokens.Next('y', /*known=*/true)));
  answer.reader->OnToken(answer.tokens.Next('q'));  // sampled from the last row
  EXPECT_THAT(answer.End(FinishReason::kLength), ElementsAre("scores [<s>!][x][y]", "content xy", "end length"));
  EXPECT_EQ(answer.reader->completion_tokens(), 0);
  EXPECT_EQ(answer.lines.hash, 3u);
}

TEST(ChoiceReaderTest, WithIdsAScoredTokenHasTheLikeliestIdsBehindIt) {
  MadeAnswer answer(MadeModel(), Endpoint::kCompletions,
                    R"({"prompt":"xy","echo":true,"logprobs":2,"max_tokens":0,"return_token_ids":true})");
  answer.reader->OnToken(answer.tokens.Next('x', /*known=*/true));
  answer.reader->OnToken(answer.tokens.Next('y', /*known=*/true));
  answer.reader->OnToken(answer.tokens.Next('q'));  // sampled from the last row
  EXPECT_THAT(answer.End(FinishReason::kLength), ElementsAre("scores [<s>!][x][y]", "content xy", "end length"));
  const auto top = [](int32_t first) { return ElementsAre(std::pair(first, 1.0F), std::pair<int32_t, float>('z', 0.5F)); };
  EXPECT_THAT(answer.lines.next, ElementsAre(top('x'), top('y'), top('q')));
}

TEST(ChoiceReaderTest, AScoredPromptIsAnsweredAsWell) {
  MadeAnswer answer(MadeModel(), Endpoint::kCompletions, R"({"prompt":"xy","echo":true,"logprobs":1,"max_tokens":1})");
  answer.reader->OnToken(answer.tokens.Next('x', /*known=*/true));
  answer.reader->OnToken(answer.tokens.Next('y', /*known=*/true));
  answer.reader->OnToken(answer.tokens.Next('y', /*known=*/true));  // a recovery has computed it again
  answer.Say("q");
  EXPECT_THAT(answer.End(FinishReason::kLength), ElementsAre("scores [<s>!][x][y]", "content xy", "scores [q]", "content q", "end length"));
}

// As lm-evaluation-harness counts them: an entry for each token of the prompt, and one for that of
// the answer.
TEST(ChoiceReaderTest, InACompletionAnEndTokenHasAScore) {
  MadeAnswer scored(MadeModel(), Endpoint::kCompletions, R"({"prompt":"xy","echo":true,"logprobs":1,"max_tokens":1})");
  scored.reader->OnToken(scored.tokens.Next('x', /*known=*/true));
  scored.reader->OnToken(scored.tokens.Next('y', /*known=*/true));
  EXPECT_THAT(scored.End(), ElementsAre("scores [<s>!][x][y]", "content xy", "scores [<|im_end|>!]", "end stop"));
  MadeAnswer waiting(MadeModel(), Endpoint::kCompletions, R"({"prompt":"xy","logprobs":1,"stop":"END"})");
  waiting.Say("E");
  EXPECT_THAT(waiting.End(), ElementsAre("scores [E]", "content E", "scores [<|im_end|>!]", "end stop"));
}

// The joined text does not depend on where tokens cut it.
TEST(ChoiceReaderTest, RandomTextsAreDividedAsTheirPartsSay) {
  std::mt19937 random(5);
  const std::vector<std::string> parts = {
      "<think>", "</think>", "<tool_call>", "</tool_call>", "{\"name\": \"add\", \"arguments\": {}}", "a", "é", "\n",
      " ",       "{",        "EN",          "END"};
  for (int i = 0; i < 300; ++i) {
    std::string text;
    for (int n = static_cast<int>(random() % 8); n > 0; --n) text += parts[random() % parts.size()];
    const auto joined = [&](bool by_bytes, bool whole) {
      const MadeModel hermes{.syntax = ToolSyntax::kHermes};
      const std::string fields = kTool + R"(,"stop":"END")";
      MadeAnswer answer = whole ? MadeAnswer::Whole(hermes, fields) : MadeAnswer(hermes, fields);
      if (by_bytes) {
        std::vector<int32_t> bytes;
        for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
        answer.SayIds(bytes);
      } else {
        answer.Say(text);
      }
      answer.End(FinishReason::kLength);
      return answer.lines.all();
    };
    for (const bool whole : {false, true}) EXPECT_EQ(joined(true, whole), joined(false, whole)) << text;
  }
}

}  // namespace
}  // namespace lime
