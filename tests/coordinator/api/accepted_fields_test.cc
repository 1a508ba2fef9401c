// What the fields of a body become.
#include <gmock/gmock.h>

#include "tests/coordinator/api/parse.h"

namespace lime {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;
using Role = ChatMessage::Role;

ApiRequest ReadChat(std::string_view fields) {
  return Parsed(Endpoint::kChat, absl::StrCat(R"({"messages":[{"role":"user","content":"hi"}])", fields.empty() ? "" : ",",
                                              absl::string_view(fields.data(), fields.size()), "}"));
}

TEST(AcceptedFieldsTest, AbsentFieldsLeaveTheDefaults) {
  for (const std::string_view fields :
       {"", R"("temperature":null,"top_p":null,"top_k":null,"min_p":null,"seed":null,"n":null,"stop":null,"max_tokens":null,
                "max_completion_tokens":null,"logprobs":null,"top_logprobs":null,"stream":null,"stream_options":null,"logit_bias":null,
                "response_format":null,"tools":null,"tool_choice":null,"parallel_tool_calls":null,"reasoning_effort":null,
                "chat_template_kwargs":null,"cache_prompt":null,"repetition_penalty":null,"frequency_penalty":null,"model":null)",
        R"("unheard_of":{"a":[1]},"user":7,"store":"x","functions":[7])"}) {
    const ApiRequest request = ReadChat(fields);
    EXPECT_EQ(request.model, "");
    EXPECT_FALSE(request.sampling.temperature || request.sampling.top_p || request.sampling.top_k || request.sampling.min_p);
    EXPECT_FALSE(request.sampling.seed || request.sampling.repetition_penalty || request.max_tokens || request.top_logprobs);
    EXPECT_EQ(request.sampling.frequency_penalty, 0);
    EXPECT_TRUE(request.stop.empty() && request.sampling.logit_bias.empty() && request.chat()->tools.empty());
    EXPECT_EQ(request.n, 1);
    EXPECT_EQ(request.choices(), 1);
    EXPECT_EQ(request.tool_choice, ToolChoice());
    EXPECT_EQ(request.format, AnswerFormat());
    EXPECT_TRUE(request.parallel_tool_calls && request.cache_prompt && request.chat()->add_generation_prompt);
    EXPECT_FALSE(request.stream || request.include_usage || request.ignore_eos || request.hash_logits || request.return_token_ids);
    EXPECT_FALSE(request.chat()->continue_final_message || request.add_special);
  }
}

TEST(AcceptedFieldsTest, FieldsOfChatAreRead) {
  const ApiRequest request = ReadChat(
      R"("temperature":2,"top_p":1,"top_k":-1,"min_p":0.5,"repetition_penalty":1.5,"frequency_penalty":-2,"presence_penalty":2,
         "logit_bias":{"5":-100,"0":0.5},"seed":18446744073709551615,"n":16,"stop":["a","b"],"max_tokens":3,"max_completion_tokens":4,
         "logprobs":true,"top_logprobs":20,"stream":true,"stream_options":{"include_usage":true},"ignore_eos":true,"hash_logits":true,
         "return_token_ids":true,"cache_prompt":false,"response_format":{"type":"json_object"},"parallel_tool_calls":false)");
  EXPECT_EQ(request.sampling.temperature, 2);
  EXPECT_EQ(request.sampling.top_p, 1);
  EXPECT_EQ(request.sampling.top_k, 0);
  EXPECT_EQ(request.sampling.min_p, 0.5);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.5);
  EXPECT_EQ(request.sampling.frequency_penalty, -2);
  EXPECT_EQ(request.sampling.presence_penalty, 2);
  EXPECT_THAT(request.sampling.logit_bias, ElementsAre(Pair(5, -100), Pair(0, 0.5)));
  EXPECT_EQ(request.sampling.seed, 18446744073709551615u);
  EXPECT_EQ(request.n, 16);
  EXPECT_EQ(request.choices(), 16);
  EXPECT_THAT(request.stop, ElementsAre("a", "b"));
  EXPECT_EQ(request.max_tokens, 4);
  EXPECT_EQ(request.top_logprobs, 20);
  EXPECT_TRUE(request.stream && request.include_usage && request.ignore_eos && request.hash_logits && request.return_token_ids);
  EXPECT_FALSE(request.cache_prompt || request.parallel_tool_calls);
  EXPECT_EQ(request.format.kind, AnswerFormat::Kind::kObject);
}

TEST(AcceptedFieldsTest, LogprobsOfTheTokenAlone) {
  EXPECT_EQ(ReadChat(R"("logprobs":true)").top_logprobs, 0);
  EXPECT_EQ(ReadChat(R"("logprobs":false,"top_logprobs":null)").top_logprobs, std::nullopt);
  EXPECT_EQ(ReadChat(R"("stop":"x")").stop, std::vector<std::string>{"x"});
}

TEST(AcceptedFieldsTest, ASchemaKeepsTheOrderOfItsKeys) {
  const ApiRequest request = ReadChat(
      R"("response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":{"type":"object","b":1,"a":2}}})");
  EXPECT_EQ(request.format.kind, AnswerFormat::Kind::kSchema);
  EXPECT_EQ(request.format.schema, R"({"type":"object","b":1,"a":2})");
  const std::string padding(kMaxSchemaBytes, 'x');
  const std::string body = absl::StrCat(R"({"messages":[{"role":"user","content":"a"}],"response_format":{"type":"json_schema",)",
                                        R"("json_schema":{"schema":{"title":")", padding, R"("}}}})");
  EXPECT_EQ(Refused(Endpoint::kChat, body).code, "invalid_json_schema");
}

TEST(AcceptedFieldsTest, MessagesBecomeVariablesOfTheTemplate) {
  const ApiRequest request = Parsed(Endpoint::kApplyTemplate, R"({"messages":[
      {"role":"developer","content":"Be short."},
      {"role":"user","name":"Ann","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
      {"role":"assistant","content":null,"reasoning_content":"Hm.","tool_calls":[
        {"id":"c1","type":"function","function":{"name":"f","arguments":"{\"b\": 1, \"a\": 2}"}},
        {"id":"c2","function":{"name":"g","arguments":"not json"}},
        {"id":"c3","function":{"name":"h","arguments":""}},
        {"id":"c4","function":{"name":"i","arguments":{"x":1}}}]},
      {"role":"tool","tool_call_id":"c1","content":"3"}],
    "tools":[{"type":"function","function":{"name":"f"},"z":1}],"chat_template_kwargs":{"k":[1],"messages":"hidden"},
    "add_generation_prompt":false})");
  EXPECT_EQ(Variables(request),
            R"({"k":[1],"messages":[{"role":"system","content":"Be short."},{"role":"user","content":"ab","name":"Ann"},)"
            R"({"role":"assistant","content":null,"reasoning_content":"Hm.","tool_calls":[)"
            R"({"id":"c1","type":"function","function":{"name":"f","arguments":{"b":1,"a":2}}},)"
            R"({"id":"c2","type":"function","function":{"name":"g","arguments":"not json"}},)"
            R"({"id":"c3","type":"function","function":{"name":"h","arguments":{}}},)"
            R"({"id":"c4","type":"function","function":{"name":"i","arguments":{"x":1}}}]},)"
            R"({"role":"tool","content":"3","tool_call_id":"c1"}],)"
            R"("tools":[{"type":"function","function":{"name":"f"},"z":1}],"add_generation_prompt":false})");
}

TEST(AcceptedFieldsTest, EffortReachesTheTemplate) {
  EXPECT_EQ(TemplateVariables(*ReadChat(R"("reasoning_effort":"none")").chat())["enable_thinking"], false);
  EXPECT_EQ(TemplateVariables(*ReadChat(R"("reasoning_effort":"high")").chat())["reasoning_effort"], "high");
  EXPECT_EQ(TemplateVariables(
                *ReadChat(R"("reasoning_effort":"none","chat_template_kwargs":{"enable_thinking":true})").chat())["enable_thinking"],
            true);
  EXPECT_FALSE(TemplateVariables(*ReadChat("").chat()).contains("tools"));
}

TEST(AcceptedFieldsTest, AnOpenMessageGetsNoGenerationPrompt) {
  const ApiRequest request = ReadChat(R"("continue_final_message":true)");
  EXPECT_TRUE(request.chat()->continue_final_message);
  EXPECT_FALSE(request.chat()->add_generation_prompt);
}

TEST(AcceptedFieldsTest, ToolChoices) {
  const std::string tools = R"("tools":[{"type":"function","function":{"name":"f","parameters":{}}}])";
  EXPECT_EQ(ReadChat(tools).tool_choice.mode, ToolChoice::Mode::kAuto);
  EXPECT_EQ(ReadChat(tools + R"(,"tool_choice":"none")").tool_choice.mode, ToolChoice::Mode::kNone);
  EXPECT_EQ(ReadChat(tools + R"(,"tool_choice":"required")").tool_choice.mode, ToolChoice::Mode::kRequired);
  const ToolChoice function = ReadChat(tools + R"(,"tool_choice":{"type":"function","function":{"name":"f"}})").tool_choice;
  EXPECT_EQ(function, (ToolChoice{ToolChoice::Mode::kFunction, "f"}));
  EXPECT_EQ(ReadChat(R"("tools":[],"tool_choice":"auto")").tool_choice.mode, ToolChoice::Mode::kNone);
}

TEST(AcceptedFieldsTest, PromptsOfCompletions) {
  const auto prompts = [](std::string_view prompt) {
    const ApiRequest request =
        Parsed(Endpoint::kCompletions, absl::StrCat(R"({"n":2,"prompt":)", absl::string_view(prompt.data(), prompt.size()), "}"));
    EXPECT_EQ(request.max_tokens, 16);
    EXPECT_TRUE(request.add_special);
    TextPrompts read = std::get<TextPrompts>(request.prompt);
    EXPECT_EQ(request.choices(), 2 * static_cast<int64_t>(read.size()));
    return read;
  };
  EXPECT_THAT(prompts(R"("a")"), ElementsAre(TextPrompt("a")));
  EXPECT_THAT(prompts(R"("")"), ElementsAre(TextPrompt("")));
  EXPECT_THAT(prompts("[1,999]"), ElementsAre(TextPrompt(std::vector<int32_t>{1, 999})));
  EXPECT_THAT(prompts(R"(["a","b"])"), ElementsAre(TextPrompt("a"), TextPrompt("b")));
  EXPECT_THAT(prompts(R"([[1],[2,3]])"), ElementsAre(TextPrompt(std::vector<int32_t>{1}), TextPrompt(std::vector<int32_t>{2, 3})));
  EXPECT_THAT(prompts(R"([[1],"b"])"), ElementsAre(TextPrompt(std::vector<int32_t>{1}), TextPrompt("b")));
}

TEST(AcceptedFieldsTest, ScoringACompletion) {
  const ApiRequest request =
      Parsed(Endpoint::kCompletions, R"({"prompt":"a","echo":true,"max_tokens":0,"logprobs":0,"best_of":1,"suffix":""})");
  EXPECT_TRUE(request.echo);
  EXPECT_EQ(request.max_tokens, 0);
  EXPECT_EQ(request.top_logprobs, 0);
}

TEST(AcceptedFieldsTest, TooManyAnswersAreRefused) {
  std::string prompts = "\"a\"";
  for (int i = 1; i < 200; ++i) prompts += ",\"a\"";
  EXPECT_EQ(Parsed(Endpoint::kCompletions, absl::StrCat("{\"n\":10,\"prompt\":[", prompts, "]}")).choices(), 2000);
  EXPECT_EQ(Refused(Endpoint::kCompletions, absl::StrCat("{\"n\":11,\"prompt\":[", prompts, "]}")).param, "prompt");
}

TEST(AcceptedFieldsTest, ItemsOfResponsesBecomeMessages) {
  const ApiRequest request = Parsed(Endpoint::kResponses, R"({"instructions":"Be short.","input":[
      {"type":"message","role":"developer","content":[{"type":"input_text","text":"And kind."}]},
      {"role":"user","content":"a"},
      {"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"hidden"}]},
      {"type":"item_reference","id":"rs_1"},
      {"type":"message","role":"assistant","content":[{"type":"output_text","text":"b","annotations":[]}]},
      {"type":"function_call","call_id":"c1","name":"f","arguments":"{\"x\":1}"},
      {"type":"custom_tool_call","call_id":"c2","name":"g","input":"say \"x\""},
      {"type":"function_call_output","call_id":"c1","output":[{"type":"input_text","text":"1"},{"type":"input_text","text":"2"}]},
      {"type":"custom_tool_call_output","call_id":"c2","output":"3"},
      {"role":"system","content":"later"}]})");
  EXPECT_EQ(Variables(request), R"({"messages":[{"role":"system","content":"Be short.\n\nAnd kind."},{"role":"user","content":"a"},)"
                                R"({"role":"assistant","content":"b","tool_calls":[)"
                                R"({"id":"c1","type":"function","function":{"name":"f","arguments":{"x":1}}},)"
                                R"({"id":"c2","type":"function","function":{"name":"g","arguments":{"input":"say \"x\""}}}]},)"
                                R"({"role":"tool","content":"12","tool_call_id":"c1"},{"role":"tool","content":"3","tool_call_id":"c2"},)"
                                R"({"role":"system","content":"later"}],"add_generation_prompt":true})");
}

TEST(AcceptedFieldsTest, FieldsOfResponses) {
  const ApiRequest request = Parsed(Endpoint::kResponses, R"({"input":"a","max_output_tokens":9,"temperature":0.5,"top_p":0.5,"stream":true,
      "stream_options":{"include_obfuscation":false},"store":true,"truncation":"auto","background":false,"previous_response_id":null,"n":3,
      "include":["reasoning.encrypted_content","message.output_text.logprobs"],"top_logprobs":2,"metadata":{"k":"v"},
      "reasoning":{"effort":"none","summary":"auto"},"text":{"verbosity":"low","format":{"type":"json_schema","name":"n","schema":{"b":1,"a":2}}},
      "tools":[{"type":"web_search"},{"type":"function","name":"f","description":"d","parameters":{"type":"object"},"strict":true},
               {"type":"custom","name":"g","format":{"type":"text"}},{"type":"function","name":"h","parameters":null}],
      "tool_choice":{"type":"function","name":"h"},"hash_logits":true,"top_k":5})");
  EXPECT_EQ(request.max_tokens, 9);
  EXPECT_EQ(request.n, 1);
  EXPECT_EQ(request.top_logprobs, 2);
  EXPECT_TRUE(request.stream && request.hash_logits);
  EXPECT_EQ(request.sampling.top_k, 5);
  EXPECT_EQ(request.format.schema, R"({"b":1,"a":2})");
  EXPECT_EQ(request.chat()->reasoning_effort, "none");
  EXPECT_THAT(request.skipped_tools, ElementsAre("web_search"));
  EXPECT_EQ(request.tool_choice, (ToolChoice{ToolChoice::Mode::kFunction, "h"}));
  EXPECT_EQ(JsonText(request.chat()->tools),
            R"([{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"}}},)"
            R"({"type":"function","function":{"name":"g","parameters":{"type":"object","properties":{"input":{"type":"string"}},)"
            R"("required":["input"],"additionalProperties":false}}},)"
            R"({"type":"function","function":{"name":"h","parameters":{"type":"object","properties":{}}}}])");
  EXPECT_EQ(JsonText(request.repeated["metadata"]), R"({"k":"v"})");
  EXPECT_EQ(request.repeated["tools"].size(), 4u);
}

TEST(AcceptedFieldsTest, Tokenize) {
  const ApiRequest content = Parsed(Endpoint::kTokenize, R"({"content":"a","with_pieces":true})");
  EXPECT_EQ(std::get<TextPrompts>(content.prompt), TextPrompts{"a"});
  EXPECT_TRUE(content.with_pieces);
  EXPECT_FALSE(content.add_special);
  EXPECT_TRUE(Parsed(Endpoint::kTokenize, R"({"content":"a","add_special":true})").add_special);
  EXPECT_TRUE(Parsed(Endpoint::kTokenize, R"({"prompt":"a"})").add_special);
  EXPECT_FALSE(Parsed(Endpoint::kTokenize, R"({"prompt":"a","add_special_tokens":false})").add_special);
  EXPECT_NE(Parsed(Endpoint::kTokenize, R"({"messages":[{"role":"user","content":"a"}]})").chat(), nullptr);
  EXPECT_EQ(std::get<TextPrompts>(Parsed(Endpoint::kDetokenize, R"({"tokens":[1,2]})").prompt), (TextPrompts{std::vector<int32_t>{1, 2}}));
  EXPECT_EQ(std::get<TextPrompts>(Parsed(Endpoint::kDetokenize, R"({"tokens":[]})").prompt), (TextPrompts{std::vector<int32_t>{}}));
}

TEST(AcceptedFieldsTest, Ollama) {
  const ApiRequest chat = Parsed(Endpoint::kOllamaChat, R"({"messages":[{"role":"user","content":"a"},
      {"role":"assistant","content":"","thinking":"Hm.","tool_calls":[{"function":{"name":"f","arguments":{"x":1}}}]},
      {"role":"tool","content":"3","tool_name":"f"}],"think":false,"format":"json",
      "options":{"temperature":0,"top_k":40,"top_p":0.9,"min_p":0.1,"seed":-1,"num_predict":-1,"stop":["a","b","c","d","e"],"num_ctx":2048}})");
  EXPECT_TRUE(chat.stream);
  EXPECT_FALSE(chat.only_loads);
  EXPECT_EQ(chat.sampling.temperature, 0);
  EXPECT_EQ(chat.sampling.top_k, 40);
  EXPECT_EQ(chat.sampling.seed, std::nullopt);
  EXPECT_EQ(chat.max_tokens, std::nullopt);
  EXPECT_EQ(chat.stop.size(), 5u);
  EXPECT_EQ(chat.format.kind, AnswerFormat::Kind::kObject);
  EXPECT_EQ(Variables(chat), R"({"enable_thinking":false,"messages":[{"role":"user","content":"a"},)"
                             R"({"role":"assistant","content":"","reasoning_content":"Hm.","tool_calls":[)"
                             R"({"id":"","type":"function","function":{"name":"f","arguments":{"x":1}}}]},)"
                             R"({"role":"tool","content":"3","name":"f"}],"add_generation_prompt":true})");

  const ApiRequest generate = Parsed(Endpoint::kOllamaGenerate, R"({"prompt":"a","system":"s","stream":false,"format":{"type":"object"},
      "options":{"seed":7,"num_predict":5}})");
  EXPECT_FALSE(generate.stream);
  EXPECT_EQ(generate.sampling.seed, 7u);
  EXPECT_EQ(generate.max_tokens, 5);
  EXPECT_EQ(generate.format.schema, R"({"type":"object"})");
  EXPECT_EQ(generate.chat()->messages.size(), 2u);
  EXPECT_EQ(generate.chat()->messages[0].role, Role::kSystem);

  EXPECT_EQ(std::get<TextPrompts>(Parsed(Endpoint::kOllamaGenerate, R"({"prompt":"a","raw":true})").prompt), TextPrompts{"a"});
  EXPECT_TRUE(Parsed(Endpoint::kOllamaGenerate, "{}").only_loads);
  EXPECT_TRUE(Parsed(Endpoint::kOllamaChat, R"({"messages":[],"keep_alive":0})").only_loads);
  EXPECT_EQ(Parsed(Endpoint::kOllamaShow, R"({"model":"m","verbose":true})").model, "m");
  EXPECT_EQ(Parsed(Endpoint::kOllamaShow, R"({"name":"m"})").model, "m");
}

}  // namespace
}  // namespace lime
