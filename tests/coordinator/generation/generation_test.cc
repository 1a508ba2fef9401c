#include "coordinator/generation/generation.h"

#include <gmock/gmock.h>

#include "common/sampling/logits_hash.h"
#include "tests/coordinator/generation/made_model.h"

namespace lime {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

ApiRequest Completion(const ServedModel& model, std::string_view fields) {
  return RequestFor(model, Endpoint::kCompletions, absl::StrCat("{", std::string(fields), "}"));
}

TEST(GenerationTest, AnAnswerOfHarmonyBeginsWithAHeaderOrWithinTheFinalMessage) {
  const auto model = MadeModel{.source = MadeTemplate("<|channel|> <|message|>")}.Make();
  EXPECT_EQ(Prepared(*model, Endpoint::kChat, ChatFor(*model)).thinking, ThinkingStart::kHarmony);
  const auto opened = MadeModel{.source = MadeTemplate("<|channel|>", "<|channel|>final<|message|>")}.Make();
  EXPECT_EQ(Prepared(*opened, Endpoint::kChat, ChatFor(*opened)).thinking, ThinkingStart::kHarmonyContent);
}

TEST(GenerationTest, AChatIsOneRequest) {
  const auto model = MadeModel{.defaults = {.temperature = 0.5, .top_k = 3}}.Make();
  const Generation made = Prepared(*model, Endpoint::kChat, ChatFor(*model, R"("seed":7,"max_tokens":5,"hash_logits":true)"));
  ASSERT_EQ(made.requests.size(), 1u);
  const ServingRequest& request = made.requests[0];
  EXPECT_EQ(request.prompt, IdsOf(*model, "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"));
  EXPECT_EQ(request.max_new_tokens, 5);
  EXPECT_EQ(request.end_tokens, (std::vector<int32_t>{kEos, kImEndId}));
  EXPECT_TRUE(request.stop_strings.empty());
  EXPECT_TRUE(request.cache_prompt);
  EXPECT_EQ(request.sampling.params, (SamplingParams{.temperature = 0.5, .top_k = 3, .seed = 7}));
  EXPECT_EQ(request.sampling.choice, 0u);
  EXPECT_TRUE(request.sampling.hash_logits);
  EXPECT_FALSE(request.sampling.score_top || request.sampling.logprobs);
  EXPECT_EQ(request.sampling.format, "");
  EXPECT_EQ(made.thinking, ThinkingSplitter::Start::kOpen);
  EXPECT_FALSE(made.calls.reads);
  EXPECT_EQ(made.prompt_tokens(), std::ssize(request.prompt));
}

TEST(GenerationTest, TokensAreCutToWhatTheContextHasLeft) {
  const auto model = MadeModel{.context = 50}.Make();
  const Generation all = Prepared(*model, Endpoint::kChat, ChatFor(*model));
  const int64_t left = 50 - std::ssize(all.requests[0].prompt);
  EXPECT_EQ(all.requests[0].max_new_tokens, left);
  EXPECT_EQ(Prepared(*model, Endpoint::kChat, ChatFor(*model, R"("max_tokens":1000)")).requests[0].max_new_tokens, left);
}

// Of a model that computes sequences of up to so many positions in another way.
TEST(GenerationTest, AShortPromptStaysShortUnlessTheRequestStatesMore) {
  const auto tokens = [](const ServedModel& model, const char* fields = "") {
    return Prepared(model, Endpoint::kChat, ChatFor(model, fields)).requests[0].max_new_tokens;
  };
  const auto model = MadeModel{.context = 900, .short_positions = 60}.Make();
  const int64_t prompt = Prepared(*model, Endpoint::kChat, ChatFor(*model)).prompt_tokens();
  EXPECT_EQ(tokens(*model), 60 - prompt);
  EXPECT_EQ(tokens(*model, R"("max_tokens":500)"), 500);
  EXPECT_EQ(tokens(*MadeModel{.context = 900, .short_positions = prompt}.Make()), 900 - prompt);
  EXPECT_EQ(tokens(*MadeModel{.context = 50, .short_positions = 60}.Make()), 50 - prompt);
}

TEST(GenerationTest, APromptWithoutRoomForAnAnswerIsRefused) {
  const auto chat = [](int64_t context) { return MadeModel{.context = context}.Make(); };
  const int64_t prompt = Prepared(*chat(50), Endpoint::kChat, ChatFor(*chat(50))).prompt_tokens();
  EXPECT_EQ(Prepared(*chat(prompt + 1), Endpoint::kChat, ChatFor(*chat(50))).requests[0].max_new_tokens, 1);
  const ApiError error = RefusedBy(*chat(prompt), Endpoint::kChat, ChatFor(*chat(50)));
  EXPECT_EQ(error.code, "context_length_exceeded");
  EXPECT_EQ(error.param, "messages");
  EXPECT_THAT(error.message, HasSubstr(absl::StrCat("has ", prompt, " tokens and the context ", prompt)));
  const auto small = MadeModel{.context = 2}.Make();
  EXPECT_EQ(RefusedBy(*small, Endpoint::kCompletions, Completion(*small, R"("prompt":[1,2])")).param, "prompt");
  EXPECT_EQ(RefusedBy(*small, Endpoint::kResponses, RequestFor(*small, Endpoint::kResponses, R"({"input":"hello"})")).param, "input");
}

TEST(GenerationTest, ADrawnSeedIsOneThatJavaScriptReads) {
  const auto model = MadeModel().Make();
  const ApiResult<Generation> made =
      PrepareGeneration(*model, Endpoint::kChat, ChatFor(*model), {.now = kNow, .random = [] { return ~uint64_t{0}; }});
  EXPECT_EQ(made->seed, (uint64_t{1} << 53) - 1);
  EXPECT_EQ(made->requests[0].sampling.params.seed, made->seed);
  EXPECT_EQ(Prepared(*model, Endpoint::kChat, ChatFor(*model, R"("seed":18446744073709551615)")).seed, ~uint64_t{0});
}

TEST(GenerationTest, ChoicesCountPromptsFirst) {
  const auto model = MadeModel().Make();
  const Generation made = Prepared(*model, Endpoint::kCompletions, Completion(*model, R"("prompt":["a","b"],"n":2)"));
  ASSERT_EQ(made.requests.size(), 4u);
  EXPECT_EQ(made.prompts, 2);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(made.requests[i].prompt, (std::vector<int32_t>{kBos, i < 2 ? 'a' : 'b'}));
    EXPECT_EQ(made.requests[i].sampling.choice, i);
  }
  EXPECT_EQ(made.prompt_tokens(), 4);
}

TEST(GenerationTest, CompletionsHaveTheTextOfARun) {
  const auto model = MadeModel().Make();
  const Generation made = Prepared(*model, Endpoint::kCompletions, Completion(*model, R"("prompt":"","stop":"x")"));
  EXPECT_EQ(made.requests[0].prompt, std::vector<int32_t>{kBos});
  EXPECT_EQ(made.requests[0].max_new_tokens, 16);
  EXPECT_EQ(made.thinking, ThinkingSplitter::Start::kOff);
  EXPECT_FALSE(made.shows_think_tags);
  EXPECT_EQ(made.stop, std::vector<std::string>{"x"});
}

TEST(GenerationTest, IdsAreAPromptAsTheyAre) {
  const auto model = MadeModel().Make();
  const Generation made = Prepared(*model, Endpoint::kCompletions, Completion(*model, R"("prompt":[97,98],"echo":true)"));
  EXPECT_EQ(made.requests[0].prompt, (std::vector<int32_t>{97, 98}));
  EXPECT_EQ(made.echoed, std::vector<std::string>{"ab"});
}

TEST(GenerationTest, APromptIsScoredWhereItIsAskedFor) {
  const auto model = MadeModel{.context = 4}.Make();
  const auto sampling = [&](std::string_view fields) {
    return Prepared(*model, Endpoint::kCompletions, Completion(*model, fields)).requests[0];
  };
  const ServingRequest only = sampling(R"("prompt":"xyz","echo":true,"logprobs":2,"max_tokens":0)");
  EXPECT_EQ(only.max_new_tokens, 0);
  EXPECT_EQ(only.sampling.score_top, 2);
  EXPECT_FALSE(only.sampling.logprobs.has_value());
  const ServingRequest both = sampling(R"("prompt":"xy","echo":true,"logprobs":2,"max_tokens":1)");
  EXPECT_EQ(both.max_new_tokens, 1);
  EXPECT_EQ(both.sampling.score_top, 2);
  EXPECT_EQ(both.sampling.logprobs, 2);
  const ServingRequest answer = sampling(R"("prompt":"xy","logprobs":2)");
  EXPECT_FALSE(answer.sampling.score_top.has_value());
  EXPECT_EQ(answer.sampling.logprobs, 2);
  const ServingRequest echo = sampling(R"("prompt":"xy","echo":true,"max_tokens":0)");
  EXPECT_EQ(echo.sampling.score_top, 0);
}

// A device gives up the plan of every request at a state with which it cannot continue.
TEST(GenerationTest, AHashContinuesOnlyFromAStateThatOneCanHave) {
  const auto model = MadeModel().Make();
  ApiRequest request = Completion(*model, R"("prompt":"xyz","echo":true,"max_tokens":0,"hash_logits":true)");
  EXPECT_FALSE(Prepared(*model, Endpoint::kCompletions, request).has_hash_state);
  request.hash_state = "";
  EXPECT_TRUE(Prepared(*model, Endpoint::kCompletions, request).has_hash_state);
  LogitsHash hash;
  hash.Add(std::vector<float>(1000, 2));
  const std::string state = hash.State();
  request.hash_state = state;
  EXPECT_EQ(Prepared(*model, Endpoint::kCompletions, request).requests[0].sampling.hash_state, state);
  for (const std::string& wrong :
       {state + "x", state.substr(1), std::string("x"), std::string(state.size(), '\0'), std::string(state.size(), '\xFF')}) {
    request.hash_state = wrong;
    const ApiError error = RefusedBy(*model, Endpoint::kCompletions, request);
    EXPECT_EQ(error.status, 400);
    EXPECT_EQ(error.param, "lime.hash_state");
  }
}

TEST(GenerationTest, EndTokensAreIgnoredWhereItIsAskedFor) {
  const auto model = MadeModel().Make();
  EXPECT_TRUE(Prepared(*model, Endpoint::kChat, ChatFor(*model, R"("ignore_eos":true)")).requests[0].end_tokens.empty());
  const std::string tools = R"("ignore_eos":true,"tools":[{"type":"function","function":{"name":"add"}}])";
  EXPECT_TRUE(Prepared(*model, Endpoint::kChat, ChatFor(*model, tools)).requests[0].end_tokens.empty());
  for (const char* held : {R"(,"tool_choice":"required")", R"(,"response_format":{"type":"json_object"})"}) {
    EXPECT_EQ(Prepared(*model, Endpoint::kChat, ChatFor(*model, tools + held)).requests[0].end_tokens, model->end_tokens()) << held;
  }
}

TEST(GenerationTest, CallsThatNoMaskHoldsAreKnown) {
  const auto model = MadeModel{.context = 200'000}.Make();
  const auto unmasked = [&](int functions, const std::string& choice) {
    nlohmann::json parameters = {{"type", "object"}, {"properties", nlohmann::json::object()}};
    for (int i = 0; i < 40; ++i) parameters["properties"][absl::StrCat(i, std::string(1000, 'a'))] = nlohmann::json::object();
    nlohmann::json tools = nlohmann::json::array();
    for (int i = 0; i < functions; ++i) {
      const nlohmann::json function = {{"name", absl::StrCat("add_", i)}, {"parameters", parameters}};
      tools.push_back({{"type", "function"}, {"function", function}});
    }
    return Prepared(*model, Endpoint::kChat, ChatFor(*model, "\"tools\":" + tools.dump() + choice)).calls.unmasked;
  };
  EXPECT_TRUE(unmasked(2, ""));
  EXPECT_FALSE(unmasked(2, R"(,"tool_choice":"none")"));
  EXPECT_FALSE(unmasked(1, ""));
}

TEST(GenerationTest, ThePromptCacheIsLeftOutWhereItIsAskedFor) {
  const auto model = MadeModel().Make();
  EXPECT_FALSE(Prepared(*model, Endpoint::kChat, ChatFor(*model, R"("cache_prompt":false)")).requests[0].cache_prompt);
}

TEST(GenerationTest, ThinkingBeginsInsideWhereThePromptOpensIt) {
  const auto model = MadeModel{.source = MadeTemplate("", "<think>\n")}.Make();
  EXPECT_EQ(Prepared(*model, Endpoint::kChat, ChatFor(*model)).thinking, ThinkingSplitter::Start::kInside);
  const auto off = MadeModel{.source = MadeTemplate("", "<think>\n"), .divides_thinking = false}.Make();
  const Generation made = Prepared(*off, Endpoint::kChat, ChatFor(*off));
  EXPECT_EQ(made.thinking, ThinkingSplitter::Start::kOff);
  EXPECT_TRUE(made.shows_think_tags);
}

TEST(GenerationTest, AnAnswerDoesNotThinkWhereThePromptEndsThinking) {
  const auto model = MadeModel{.source = MadeTemplate("", "<think>\n\n</think>\n\n")}.Make();
  EXPECT_EQ(Prepared(*model, Endpoint::kChat, ChatFor(*model)).thinking, ThinkingSplitter::Start::kOff);
}

TEST(GenerationTest, AContinuedMessageIsInsideItsThinking) {
  const auto model = MadeModel().Make();
  const auto thinking = [&](std::string_view content) {
    const std::string body = absl::StrCat(R"({"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":")",
                                          std::string(content), R"("}],"continue_final_message":true})");
    return Prepared(*model, Endpoint::kChat, RequestFor(*model, Endpoint::kChat, body)).thinking;
  };
  EXPECT_EQ(thinking("<think>so"), ThinkingSplitter::Start::kInside);
  EXPECT_EQ(thinking("<think>so</think>Yes"), ThinkingSplitter::Start::kOff);
  EXPECT_EQ(thinking("Yes"), ThinkingSplitter::Start::kOff);
}

TEST(GenerationTest, CallsAreReadUnlessThereIsNone) {
  const auto model = MadeModel{.source = MadeTemplate("[TOOL_CALLS]")}.Make();
  const std::string tools = R"("tools":[{"type":"function","function":{"name":"f"}}])";
  const Generation made = Prepared(*model, Endpoint::kChat, ChatFor(*model, tools + R"(,"parallel_tool_calls":false)"));
  EXPECT_TRUE(made.calls.reads);
  EXPECT_FALSE(made.calls.parallel);
  EXPECT_EQ(made.calls.format.syntax, ToolSyntax::kMistral);
  EXPECT_NE(FindFunction(made.calls.functions, "f"), nullptr);
  EXPECT_THAT(made.requests[0].sampling.format, HasSubstr("\"starts\""));
  EXPECT_FALSE(Prepared(*model, Endpoint::kChat, ChatFor(*model, tools + R"(,"tool_choice":"none")")).calls.reads);
}

TEST(GenerationTest, OffsetsOfACompletionBeginBehindItsPrompt) {
  const auto model = MadeModel().Make();
  const auto offsets = [&](std::string_view fields) {
    return Prepared(*model, Endpoint::kCompletions, Completion(*model, fields)).first_offsets;
  };
  EXPECT_EQ(offsets(R"("prompt":["é","abc"],"n":2,"logprobs":0)"), (std::vector<int64_t>{1, 1, 3, 3}));
  EXPECT_EQ(offsets(R"("prompt":[97,98],"logprobs":0)"), std::vector<int64_t>{2});
  EXPECT_EQ(offsets(R"("prompt":"abc","logprobs":0,"echo":true)"), std::vector<int64_t>{0});
}

TEST(GenerationTest, TheHeadHasTheNameThatWasAskedFor) {
  const auto model = MadeModel().Make();
  const ApiRequest request = ChatFor(*model, R"("model":"small")");
  const AnswerHead head = HeadOf(*model, Endpoint::kChat, request, Prepared(*model, Endpoint::kChat, request), 5, CountedBits());
  EXPECT_EQ(head.model, "small");
  EXPECT_EQ(head.created, 5);
  EXPECT_EQ(head.fingerprint, model->fingerprint());
  EXPECT_EQ(head.id, "chatcmpl-00000000000008000000000000001000");
  const auto id = [&](Endpoint endpoint) { return HeadOf(*model, endpoint, request, {}, 5, CountedBits()).id; };
  EXPECT_THAT(id(Endpoint::kCompletions), StartsWith("cmpl-"));
  EXPECT_THAT(id(Endpoint::kResponses), StartsWith("resp_"));
}

}  // namespace
}  // namespace lime
