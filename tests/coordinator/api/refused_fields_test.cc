// Every field with a wrong type or range: status, code and field of the error, and its sentence.
#include "absl/strings/str_cat.h"
#include "tests/coordinator/api/parse.h"

namespace lime {
namespace {

struct Case {
  const char* fields;  // of the body, behind those that the endpoint needs
  const char* param;
  const char* code;
};

void ExpectRefused(Endpoint endpoint, std::string_view needed, std::span<const Case> cases) {
  for (const Case& c : cases) {
    const std::string body = absl::StrCat("{", absl::string_view(needed.data(), needed.size()), c.fields, "}");
    SCOPED_TRACE(body);
    const ApiError error = Refused(endpoint, body);
    EXPECT_EQ(error.status, 400);
    EXPECT_EQ(error.type, "invalid_request_error");
    EXPECT_EQ(error.code, c.code) << error.message;
    EXPECT_EQ(error.param, c.param) << error.message;
    EXPECT_TRUE(IsSentence(error.message)) << error.message;
  }
}

constexpr std::string_view kMessages = R"("messages":[{"role":"user","content":"hi"}],)";

TEST(RefusedFieldsTest, SamplingFieldsHaveTypesAndRanges) {
  constexpr Case kCases[] = {
      {R"("temperature":"hot")", "temperature", "invalid_type"},
      {R"("temperature":-0.1)", "temperature", "invalid_value"},
      {R"("temperature":2.1)", "temperature", "invalid_value"},
      {R"("top_p":0)", "top_p", "invalid_value"},
      {R"("top_p":1.01)", "top_p", "invalid_value"},
      {R"("top_p":[1])", "top_p", "invalid_type"},
      {R"("top_k":-2)", "top_k", "invalid_value"},
      {R"("top_k":1.5)", "top_k", "invalid_type"},
      {R"("top_k":4294967296)", "top_k", "invalid_value"},
      {R"("min_p":-0.1)", "min_p", "invalid_value"},
      {R"("min_p":1.1)", "min_p", "invalid_value"},
      {R"("repetition_penalty":0)", "repetition_penalty", "invalid_value"},
      {R"("repetition_penalty":"1")", "repetition_penalty", "invalid_type"},
      {R"("frequency_penalty":2.5)", "frequency_penalty", "invalid_value"},
      {R"("presence_penalty":-2.5)", "presence_penalty", "invalid_value"},
      {R"("presence_penalty":true)", "presence_penalty", "invalid_type"},
      {R"("logit_bias":[])", "logit_bias", "invalid_type"},
      {R"("logit_bias":{"x":1})", "logit_bias", "invalid_value"},
      {R"("logit_bias":{"-1":1})", "logit_bias", "invalid_value"},
      {R"("logit_bias":{"05":1})", "logit_bias", "invalid_value"},
      {R"("logit_bias":{"1000":1})", "logit_bias", "invalid_value"},
      {R"("logit_bias":{"99999999999":1})", "logit_bias", "invalid_value"},
      {R"("logit_bias":{"5":100.5})", "logit_bias", "invalid_value"},
      {R"("logit_bias":{"5":"1"})", "logit_bias", "invalid_type"},
      {R"("logit_bias":{"5":null})", "logit_bias", "invalid_type"},
      {R"("seed":-1)", "seed", "invalid_value"},
      {R"("seed":1.5)", "seed", "invalid_type"},
      {R"("seed":18446744073709551616)", "seed", "invalid_value"},
      {R"("seed":-9223372036854775809)", "seed", "invalid_value"},
      {R"("seed":"7")", "seed", "invalid_type"},
      {R"("n":0)", "n", "invalid_value"},
      {R"("n":17)", "n", "invalid_value"},
      {R"("n":"2")", "n", "invalid_type"},
      {R"("stop":5)", "stop", "invalid_type"},
      {R"("stop":"")", "stop", "invalid_value"},
      {R"("stop":["a","b","c","d","e"])", "stop", "invalid_value"},
      {R"("stop":["a",7])", "stop[1]", "invalid_type"},
      {R"("stop":["a",""])", "stop[1]", "invalid_value"},
      {R"("ignore_eos":1)", "ignore_eos", "invalid_type"},
      {R"("hash_logits":"yes")", "hash_logits", "invalid_type"},
      {R"("return_token_ids":0)", "return_token_ids", "invalid_type"},
      {R"("cache_prompt":[])", "cache_prompt", "invalid_type"},
      {R"("stream":"true")", "stream", "invalid_type"},
      {R"("model":7)", "model", "invalid_type"},
  };
  ExpectRefused(Endpoint::kChat, kMessages, kCases);
}

TEST(RefusedFieldsTest, ChatFields) {
  constexpr Case kCases[] = {
      {R"("max_tokens":0)", "max_tokens", "invalid_value"},
      {R"("max_tokens":16.0)", "max_tokens", "invalid_type"},
      {R"("max_tokens":99999999999999999999)", "max_tokens", "invalid_value"},
      {R"("max_tokens":18446744073709551615)", "max_tokens", "invalid_value"},
      {R"("max_completion_tokens":-1)", "max_completion_tokens", "invalid_value"},
      {R"("max_completion_tokens":4,"max_tokens":0)", "max_tokens", "invalid_value"},
      {R"("logprobs":3)", "logprobs", "invalid_type"},
      {R"("top_logprobs":3)", "top_logprobs", "invalid_value"},
      {R"("top_logprobs":0)", "top_logprobs", "invalid_value"},
      {R"("logprobs":false,"top_logprobs":0)", "top_logprobs", "invalid_value"},
      {R"("logprobs":false,"top_logprobs":3)", "top_logprobs", "invalid_value"},
      {R"("logprobs":true,"top_logprobs":21)", "top_logprobs", "invalid_value"},
      {R"("logprobs":true,"top_logprobs":-1)", "top_logprobs", "invalid_value"},
      {R"("stream_options":{"include_usage":true})", "stream_options", "invalid_value"},
      {R"("stream":false,"stream_options":{})", "stream_options", "invalid_value"},
      {R"("stream":true,"stream_options":true)", "stream_options", "invalid_type"},
      {R"("stream":true,"stream_options":{"include_usage":1})", "stream_options.include_usage", "invalid_type"},
      {R"("response_format":"json")", "response_format", "invalid_type"},
      {R"("response_format":{})", "response_format.type", "missing_required_parameter"},
      {R"("response_format":{"type":"xml"})", "response_format.type", "invalid_value"},
      {R"("response_format":{"type":"json_schema"})", "response_format.json_schema", "missing_required_parameter"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"a"}})", "response_format.json_schema.schema",
       "missing_required_parameter"},
      {R"("response_format":{"type":"json_schema","json_schema":{"schema":[]}})", "response_format.json_schema.schema", "invalid_type"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":1,"schema":{}}})", "response_format.json_schema.name",
       "invalid_type"},
      {R"("reasoning_effort":"enormous")", "reasoning_effort", "invalid_value"},
      {R"("reasoning_effort":3)", "reasoning_effort", "invalid_type"},
      {R"("chat_template_kwargs":[])", "chat_template_kwargs", "invalid_type"},
      {R"("add_generation_prompt":"no")", "add_generation_prompt", "invalid_type"},
      {R"("continue_final_message":true,"add_generation_prompt":true)", "continue_final_message", "invalid_value"},
      {R"("parallel_tool_calls":"no")", "parallel_tool_calls", "invalid_type"},
      {R"("tools":{})", "tools", "invalid_type"},
      {R"("tools":[7])", "tools[0]", "invalid_type"},
      {R"("tools":[{"function":{"name":"f"}}])", "tools[0].type", "missing_required_parameter"},
      {R"("tools":[{"type":"web_search"}])", "tools[0].type", "invalid_value"},
      {R"("tools":[{"type":"function"}])", "tools[0].function", "missing_required_parameter"},
      {R"("tools":[{"type":"function","function":{}}])", "tools[0].function.name", "missing_required_parameter"},
      {R"("tools":[{"type":"function","function":{"name":"f","parameters":7}}])", "tools[0].function.parameters", "invalid_type"},
      {R"("tools":[{"type":"function","function":{"name":"f","strict":"yes"}}])", "tools[0].function.strict", "invalid_type"},
      {R"("tool_choice":"required")", "tool_choice", "invalid_value"},
      {R"("tool_choice":"sometimes")", "tool_choice", "invalid_value"},
      {R"("tool_choice":7)", "tool_choice", "invalid_type"},
      {R"("tool_choice":{"type":"function","function":{"name":"f"}})", "tool_choice", "invalid_value"},
      {R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":{"type":"function","function":{"name":"g"}})", "tool_choice",
       "invalid_value"},
      {R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":{"type":"custom"})", "tool_choice.type", "invalid_value"},
      {R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":{"type":"function"})", "tool_choice.function",
       "missing_required_parameter"},
  };
  ExpectRefused(Endpoint::kChat, kMessages, kCases);
}

TEST(RefusedFieldsTest, Messages) {
  constexpr Case kCases[] = {
      {R"("model":"m")", "messages", "missing_required_parameter"},
      {R"("messages":null)", "messages", "missing_required_parameter"},
      {R"("messages":"hi")", "messages", "invalid_type"},
      {R"("messages":[])", "messages", "invalid_value"},
      {R"("messages":["hi"])", "messages[0]", "invalid_type"},
      {R"("messages":[{"content":"hi"}])", "messages[0].role", "missing_required_parameter"},
      {R"("messages":[{"role":"robot","content":"hi"}])", "messages[0].role", "invalid_value"},
      {R"("messages":[{"role":"user"}])", "messages[0].content", "missing_required_parameter"},
      {R"("messages":[{"role":"assistant","content":null}])", "messages[0].content", "missing_required_parameter"},
      {R"("messages":[{"role":"user","content":7}])", "messages[0].content", "invalid_type"},
      {R"("messages":[{"role":"user","content":{"type":"text"}}])", "messages[0].content", "invalid_type"},
      {R"("messages":[{"role":"user","content":["hi"]}])", "messages[0].content[0]", "invalid_type"},
      {R"("messages":[{"role":"user","content":[{"text":"hi"}]}])", "messages[0].content[0].type", "missing_required_parameter"},
      {R"("messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}])", "messages[0].content[0].type",
       "unsupported_content"},
      {R"("messages":[{"role":"user","content":"a"},{"role":"user","content":[{"type":"text","text":"a"},{"type":"text"}]}])",
       "messages[1].content[1].text", "missing_required_parameter"},
      {R"("messages":[{"role":"user","content":"a","name":7}])", "messages[0].name", "invalid_type"},
      {R"("messages":[{"role":"tool","content":"a"}])", "messages[0].tool_call_id", "missing_required_parameter"},
      {R"("messages":[{"role":"assistant","tool_calls":{}}])", "messages[0].tool_calls", "invalid_type"},
      {R"("messages":[{"role":"assistant","tool_calls":[{"type":"function","function":{"name":"f","arguments":"{}"}}]}])",
       "messages[0].tool_calls[0].id", "missing_required_parameter"},
      {R"("messages":[{"role":"assistant","tool_calls":[{"id":"c","type":"custom","function":{}}]}])", "messages[0].tool_calls[0].type",
       "invalid_value"},
      {R"("messages":[{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"f"}}]}])",
       "messages[0].tool_calls[0].function.arguments", "missing_required_parameter"},
      {R"("messages":[{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"f","arguments":7}}]}])",
       "messages[0].tool_calls[0].function.arguments", "invalid_type"},
  };
  ExpectRefused(Endpoint::kChat, "", kCases);
  ExpectRefused(Endpoint::kApplyTemplate, "", kCases);
}

TEST(RefusedFieldsTest, AnIntegerOfMoreThan64BitsIsOutsideTheRange) {
  const auto message = [](std::string_view field) {
    return Refused(Endpoint::kChat, absl::StrCat("{", std::string(kMessages), std::string(field), "}")).message;
  };
  EXPECT_EQ(message(R"("top_k":-100000000000000000000)"),
            "Invalid value for 'top_k': expected an integer from -1 to 2147483647, but got -1e+20.");
  EXPECT_EQ(message(R"("seed":100000000000000000000)"), "Invalid value for 'seed': expected an integer from 0 to 2^64 - 1, but got 1e+20.");
}

TEST(RefusedFieldsTest, Completions) {
  constexpr Case kCases[] = {
      {R"("model":"m")", "prompt", "missing_required_parameter"},
      {R"("prompt":7)", "prompt", "invalid_type"},
      {R"("prompt":{})", "prompt", "invalid_type"},
      {R"("prompt":[])", "prompt", "invalid_value"},
      {R"("prompt":[1,"a"])", "prompt[1]", "invalid_type"},
      {R"("prompt":[1,1000])", "prompt[1]", "invalid_value"},
      {R"("prompt":[1,-1])", "prompt[1]", "invalid_value"},
      {R"("prompt":[1,1.5])", "prompt[1]", "invalid_type"},
      {R"("prompt":[1,99999999999999999999])", "prompt[1]", "invalid_value"},
      {R"("prompt":["a",7])", "prompt[1]", "invalid_type"},
      {R"("prompt":["a",[]])", "prompt[1]", "invalid_value"},
      {R"("prompt":[[1],[2,5000]])", "prompt[1][1]", "invalid_value"},
      {R"("prompt":"a","max_tokens":0)", "max_tokens", "invalid_value"},
      {R"("prompt":"a","max_tokens":-1,"echo":true)", "max_tokens", "invalid_value"},
      {R"("prompt":"a","logprobs":6)", "logprobs", "invalid_value"},
      {R"("prompt":"a","logprobs":true)", "logprobs", "invalid_type"},
      {R"("prompt":"a","echo":1)", "echo", "invalid_type"},
      {R"("prompt":"a","suffix":"b")", "suffix", "unsupported_parameter"},
      {R"("prompt":"a","suffix":7)", "suffix", "invalid_type"},
      {R"("prompt":"a","best_of":2)", "best_of", "unsupported_parameter"},
      {R"("prompt":"a","n":3,"best_of":2)", "best_of", "invalid_value"},
      {R"("prompt":"a","stream_options":{"include_usage":true})", "stream_options", "invalid_value"},
      {R"("prompt":"a","temperature":3)", "temperature", "invalid_value"},
      {R"("prompt":"a","lime":1)", "lime", "invalid_type"},
      {R"("prompt":"a","lime":{"hash_state":1})", "lime.hash_state", "invalid_type"},
      {R"("prompt":"a","echo":true,"max_tokens":0,"hash_logits":true,"lime":{"hash_state":"*"})", "lime.hash_state", "invalid_value"},
      {R"("prompt":"a","echo":true,"max_tokens":0,"lime":{"hash_state":""})", "lime.hash_state", "invalid_value"},
      {R"("prompt":"a","echo":true,"max_tokens":1,"hash_logits":true,"lime":{"hash_state":""})", "lime.hash_state", "invalid_value"},
      {R"("prompt":"a","echo":true,"max_tokens":0,"n":2,"hash_logits":true,"lime":{"hash_state":""})", "lime.hash_state", "invalid_value"},
      {R"("prompt":["a","b"],"echo":true,"max_tokens":0,"hash_logits":true,"lime":{"hash_state":""})", "lime.hash_state", "invalid_value"},
  };
  ExpectRefused(Endpoint::kCompletions, "", kCases);
}

TEST(RefusedFieldsTest, Responses) {
  constexpr Case kCases[] = {
      {R"("model":"m")", "input", "missing_required_parameter"},
      {R"("input":7)", "input", "invalid_type"},
      {R"("input":[])", "input", "invalid_value"},
      {R"("input":["a"])", "input[0]", "invalid_type"},
      {R"("input":[{"type":"reasoning"}])", "input", "invalid_value"},
      {R"("input":[{"role":"user"}])", "input[0].content", "missing_required_parameter"},
      {R"("input":[{"role":"tool","content":"a"}])", "input[0].role", "invalid_value"},
      {R"("input":[{"content":"a"}])", "input[0].role", "missing_required_parameter"},
      {R"("input":[{"type":"item_reference","id":"msg_1"}])", "input[0].type", "unsupported_content"},
      {R"("input":[{"type":"item_reference"}])", "input[0].id", "missing_required_parameter"},
      {R"("input":[{"type":"item_reference","id":"rs_1"}])", "input", "invalid_value"},
      {R"("input":[{"type":"web_search_call"}])", "input[0].type", "unsupported_content"},
      {R"("input":[{"role":"user","content":[{"type":"input_image"}]}])", "input[0].content[0].type", "unsupported_content"},
      {R"("input":[{"type":"function_call","name":"f","arguments":"{}"}])", "input[0].call_id", "missing_required_parameter"},
      {R"("input":[{"type":"function_call_output","call_id":"c"}])", "input[0].output", "missing_required_parameter"},
      {R"("input":[{"type":"custom_tool_call","call_id":"c","name":"f"}])", "input[0].input", "missing_required_parameter"},
      {R"("input":"a","instructions":7)", "instructions", "invalid_type"},
      {R"("input":"a","max_output_tokens":0)", "max_output_tokens", "invalid_value"},
      {R"("input":"a","previous_response_id":"resp_1")", "previous_response_id", "unsupported_parameter"},
      {R"("input":"a","conversation":"conv_1")", "conversation", "unsupported_parameter"},
      {R"("input":"a","background":true)", "background", "unsupported_parameter"},
      {R"("input":"a","text":{"format":{"type":"json_schema","name":"a"}})", "text.format.schema", "missing_required_parameter"},
      {R"("input":"a","text":{"format":{"type":"grammar"}})", "text.format.type", "invalid_value"},
      {R"("input":"a","reasoning":{"effort":"enormous"})", "reasoning.effort", "invalid_value"},
      {R"("input":"a","reasoning":"low")", "reasoning", "invalid_type"},
      {R"("input":"a","metadata":{"k":7})", "metadata", "invalid_type"},
      {R"("input":"a","tools":[{"type":"function"}])", "tools[0].name", "missing_required_parameter"},
      {R"("input":"a","tools":[{"type":"custom","name":"f","strict":1}])", "tools[0].strict", "invalid_type"},
      {R"("input":"a","tools":[{"name":"f"}])", "tools[0].type", "missing_required_parameter"},
      {R"("input":"a","tools":[{"type":"web_search"}],"tool_choice":"required")", "tool_choice", "invalid_value"},
      {R"("input":"a","tool_choice":{"type":"web_search"})", "tool_choice.type", "invalid_value"},
      {R"("input":"a","temperature":-1)", "temperature", "invalid_value"},
      {R"("input":"a","top_logprobs":21)", "top_logprobs", "invalid_value"},
  };
  ExpectRefused(Endpoint::kResponses, "", kCases);
}

TEST(RefusedFieldsTest, AReferenceSaysHowToSendTheItem) {
  const ApiError error = Refused(Endpoint::kResponses, R"({"input":[{"type":"item_reference","id":"msg_1"}]})");
  EXPECT_EQ(
      error.message,
      "Unsupported content in 'input[0].type': the server keeps no items, so it does not know 'msg_1'; send the item itself, as clients do "
      "if 'store' is false (AI SDK: providerOptions.openai.store).");
}

TEST(RefusedFieldsTest, TokenizeAndDetokenize) {
  constexpr Case kTokenize[] = {
      {R"("model":"m")", "content", "missing_required_parameter"},
      {R"("content":7)", "content", "invalid_type"},
      {R"("prompt":["a"])", "prompt", "invalid_type"},
      {R"("content":"a","add_special":1)", "add_special", "invalid_type"},
      {R"("prompt":"a","add_special_tokens":1)", "add_special_tokens", "invalid_type"},
      {R"("content":"a","with_pieces":1)", "with_pieces", "invalid_type"},
      {R"("messages":[])", "messages", "invalid_value"},
  };
  ExpectRefused(Endpoint::kTokenize, "", kTokenize);
  constexpr Case kDetokenize[] = {
      {R"("model":"m")", "tokens", "missing_required_parameter"},
      {R"("tokens":7)", "tokens", "invalid_type"},
      {R"("tokens":[1000])", "tokens[0]", "invalid_value"},
      {R"("tokens":["a"])", "tokens[0]", "invalid_type"},
  };
  ExpectRefused(Endpoint::kDetokenize, "", kDetokenize);
}

TEST(RefusedFieldsTest, Ollama) {
  constexpr Case kChat[] = {
      {R"("messages":7)", "messages", "invalid_type"},
      {R"("messages":[{"content":"a"}])", "messages[0].role", "missing_required_parameter"},
      {R"("messages":[{"role":"user","content":"a","images":["x"]}])", "messages[0].images", "unsupported_content"},
      {R"("messages":[{"role":"user","content":["a"]}])", "messages[0].content", "invalid_type"},
      {R"("messages":[{"role":"assistant","tool_calls":[{"function":{}}]}])", "messages[0].tool_calls[0].function.name",
       "missing_required_parameter"},
      {R"("options":7)", "options", "invalid_type"},
      {R"("options":{"temperature":3})", "options.temperature", "invalid_value"},
      {R"("options":{"seed":"a"})", "options.seed", "invalid_type"},
      {R"("options":{"num_predict":1.5})", "options.num_predict", "invalid_type"},
      {R"("options":{"stop":[1]})", "options.stop[0]", "invalid_type"},
      {R"("format":"xml")", "format", "invalid_value"},
      {R"("format":7)", "format", "invalid_type"},
      {R"("think":7)", "think", "invalid_type"},
      {R"("think":"enormous")", "think", "invalid_value"},
  };
  ExpectRefused(Endpoint::kOllamaChat, "", kChat);
  constexpr Case kGenerate[] = {
      {R"("prompt":7)", "prompt", "invalid_type"},
      {R"("prompt":"a","images":["x"])", "images", "unsupported_content"},
      {R"("prompt":"a","suffix":"b")", "suffix", "unsupported_parameter"},
      {R"("prompt":"a","raw":1)", "raw", "invalid_type"},
  };
  ExpectRefused(Endpoint::kOllamaGenerate, "", kGenerate);
}

TEST(RefusedFieldsTest, AnUnknownModelIsNotFound) {
  const ParseOptions options = {.models = {"tiny", "alias"}};
  for (const Endpoint endpoint : {Endpoint::kChat, Endpoint::kOllamaChat}) {
    const ApiError error = Refused(endpoint, R"({"model":"huge","messages":[{"role":"user","content":"a"}]})", options);
    EXPECT_EQ(error.status, 404);
    EXPECT_EQ(error.code, "model_not_found");
    EXPECT_EQ(error.param, "model");
    EXPECT_TRUE(IsSentence(error.message)) << error.message;
  }
  EXPECT_EQ(Parsed(Endpoint::kChat, R"({"model":"alias","messages":[{"role":"user","content":"a"}]})", options).model, "alias");
  EXPECT_EQ(Parsed(Endpoint::kOllamaChat, R"({"model":"tiny:latest"})", options).model, "tiny");
  EXPECT_EQ(Parsed(Endpoint::kChat, R"({"messages":[{"role":"user","content":"a"}]})", options).model, "");
}

TEST(RefusedFieldsTest, FaultsOfToolsAndSchemasNameTheirPlace) {
  ParseOptions options;
  options.check_tools = [](const Json& tools) -> std::optional<ToolFault> {
    for (size_t i = 0; i < tools.size(); ++i) {
      if (tools[i]["function"]["name"] == "bad name") return ToolFault{.tool = i, .field = "function.name", .message = "it has a blank"};
    }
    return std::nullopt;
  };
  options.check_schema = [](std::string_view schema) {
    return schema == R"({"type":"x","a":1})" ? Invalid("the type of # is unknown") : absl::OkStatus();
  };
  const ApiError chat = Refused(
      Endpoint::kChat,
      R"({"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"bad name"}}]})",
      options);
  EXPECT_EQ(chat.param, "tools[1].function.name");
  EXPECT_EQ(chat.message, "Invalid value for 'tools[1].function.name': it has a blank.");
  const ApiError responses =
      Refused(Endpoint::kResponses, R"({"input":"a","tools":[{"type":"web_search"},{"type":"function","name":"bad name"}]})", options);
  EXPECT_EQ(responses.param, "tools[1].name");
  const ApiError schema = Refused(
      Endpoint::kChat,
      R"({"messages":[{"role":"user","content":"a"}],"response_format":{"type":"json_schema","json_schema":{"schema":{"type":"x","a":1}}}})",
      options);
  EXPECT_EQ(schema.code, "invalid_json_schema");
  EXPECT_EQ(schema.param, "response_format.json_schema.schema");
  EXPECT_EQ(schema.message, "Invalid schema in 'response_format.json_schema.schema': the type of # is unknown.");
}

}  // namespace
}  // namespace lime
