// Bodies become the requests that they were made of, by the parser of the server.
#include "coordinator/client/request_body.h"

#include "gtest/gtest.h"
#include "tests/coordinator/api/parse.h"

namespace lime {
namespace {

ApiRequest FullRequest() {
  ApiRequest request;
  request.model = "tiny";
  request.sampling.temperature = 0.7;
  request.sampling.top_p = 0.9;
  request.sampling.min_p = 0.05;
  request.sampling.repetition_penalty = 1.1;
  request.sampling.top_k = 40;
  request.sampling.frequency_penalty = 0.5;
  request.sampling.presence_penalty = -0.5;
  request.sampling.logit_bias = {{7, -100}, {9, 2.5}};
  request.sampling.seed = 18446744073709551615u;
  request.max_tokens = 12;
  request.stop = {"\n\n", "\xE2\x82\xAC"};
  request.n = 3;
  request.stream = request.include_usage = request.ignore_eos = request.hash_logits = request.return_token_ids = true;
  request.cache_prompt = false;
  return request;
}

void ExpectSameSettings(const ApiRequest& read, const ApiRequest& request) {
  EXPECT_EQ(read.model, request.model);
  EXPECT_EQ(read.sampling.temperature, request.sampling.temperature);
  EXPECT_EQ(read.sampling.top_p, request.sampling.top_p);
  EXPECT_EQ(read.sampling.min_p, request.sampling.min_p);
  EXPECT_EQ(read.sampling.repetition_penalty, request.sampling.repetition_penalty);
  EXPECT_EQ(read.sampling.top_k, request.sampling.top_k);
  EXPECT_EQ(read.sampling.frequency_penalty, request.sampling.frequency_penalty);
  EXPECT_EQ(read.sampling.presence_penalty, request.sampling.presence_penalty);
  EXPECT_EQ(read.sampling.logit_bias, request.sampling.logit_bias);
  EXPECT_EQ(read.sampling.seed, request.sampling.seed);
  EXPECT_EQ(read.max_tokens, request.max_tokens);
  EXPECT_EQ(read.stop, request.stop);
  EXPECT_EQ(read.n, request.n);
  EXPECT_EQ(read.stream, request.stream);
  EXPECT_EQ(read.include_usage, request.include_usage);
  EXPECT_EQ(read.ignore_eos, request.ignore_eos);
  EXPECT_EQ(read.hash_logits, request.hash_logits);
  EXPECT_EQ(read.return_token_ids, request.return_token_ids);
  EXPECT_EQ(read.cache_prompt, request.cache_prompt);
}

ChatMessage Message(ChatMessage::Role role, std::string text) {
  ChatMessage message;
  message.role = role;
  message.content = std::move(text);
  return message;
}

TEST(RequestBodyTest, AChatIsReadAsItWasWritten) {
  ApiRequest request = FullRequest();
  ChatPrompt prompt;
  prompt.messages = {Message(ChatMessage::Role::kSystem, "Be brief."), Message(ChatMessage::Role::kUser, "\"Hi\"\n"),
                     Message(ChatMessage::Role::kAssistant, ""), Message(ChatMessage::Role::kUser, "\xF0\x9F\x98\x80?")};
  request.prompt = prompt;
  const ApiRequest read = Parsed(Endpoint::kChat, ChatBody(request));
  ExpectSameSettings(read, request);
  ASSERT_NE(read.chat(), nullptr);
  EXPECT_EQ(read.chat()->messages, prompt.messages);
}

TEST(RequestBodyTest, TheStateOfAHashIsReadAsItWasWritten) {
  for (const std::string& state : {std::string(), std::string("\0\xFF state", 8)}) {
    ApiRequest request;
    request.prompt = TextPrompts{std::vector<int32_t>{1, 7}};
    request.max_tokens = 0;
    request.echo = request.hash_logits = true;
    request.hash_state = state;
    EXPECT_EQ(Parsed(Endpoint::kCompletions, CompletionBody(request)).hash_state, state);
    request.hash_state.reset();
    EXPECT_EQ(Parsed(Endpoint::kCompletions, CompletionBody(request)).hash_state, std::nullopt);
  }
}

TEST(RequestBodyTest, WhatIsNotSetIsLeftToTheServer) {
  ApiRequest request;
  ChatPrompt prompt;
  prompt.messages = {Message(ChatMessage::Role::kUser, "Hi")};
  request.prompt = prompt;
  EXPECT_EQ(ChatBody(request), R"({"messages":[{"role":"user","content":"Hi"}]})");
}

TEST(RequestBodyTest, CompletionsOfTextsAndIdsAreReadAsTheyWereWritten) {
  ApiRequest request = FullRequest();
  request.prompt = TextPrompts{std::string("Once"), std::string("")};
  request.top_logprobs = 5;
  ApiRequest read = Parsed(Endpoint::kCompletions, CompletionBody(request));
  ExpectSameSettings(read, request);
  EXPECT_EQ(std::get<TextPrompts>(read.prompt), std::get<TextPrompts>(request.prompt));
  EXPECT_EQ(read.top_logprobs, 5);
  EXPECT_FALSE(read.echo);

  request.n = 1;
  request.stream = request.include_usage = false;
  request.prompt = TextPrompts{std::vector<int32_t>{1, 2, 999}};
  request.max_tokens = 0;
  request.echo = true;
  read = Parsed(Endpoint::kCompletions, CompletionBody(request));
  ExpectSameSettings(read, request);
  EXPECT_EQ(std::get<TextPrompts>(read.prompt), std::get<TextPrompts>(request.prompt));
  EXPECT_TRUE(read.echo);
}

}  // namespace
}  // namespace lime
