#include "coordinator/server/token_buffer.h"

#include "gtest/gtest.h"

namespace lime {
namespace {

ServingRequest Ask(int64_t tokens) {
  ServingRequest request;
  request.prompt = {1, 2, 3};
  request.max_new_tokens = tokens;
  return request;
}

std::vector<std::string> TokensOf(const TokenBuffer::Batch& batch) {
  std::vector<std::string> tokens;
  batch.ForEach([&](const ServedToken& token) {
    tokens.push_back(std::to_string(token.token) + (token.score != nullptr ? ":" + std::to_string(token.score->top.size()) : ""));
  });
  return tokens;
}

TEST(TokenBufferTest, TokensComeInTheirOrderAndOnce) {
  TokenBuffer buffer(Ask(10));
  TokenBuffer::Batch batch;
  buffer.Take(batch);
  EXPECT_TRUE(batch.tokens.empty());
  buffer.Push({.token = 7});
  buffer.Push({.token = 8});
  buffer.Take(batch);
  EXPECT_EQ(TokensOf(batch), (std::vector<std::string>{"7", "8"}));
  EXPECT_FALSE(batch.end.has_value());
  buffer.Push({.token = 9});
  buffer.End({.reason = FinishReason::kLength, .text = "held back"});
  buffer.Take(batch);
  EXPECT_EQ(TokensOf(batch), (std::vector<std::string>{"9"}));
  ASSERT_TRUE(batch.end.has_value());
  EXPECT_EQ(batch.end->reason, FinishReason::kLength);
  EXPECT_TRUE(batch.end->text.empty());
  buffer.Take(batch);
  EXPECT_FALSE(batch.end.has_value());
}

TEST(TokenBufferTest, ScoresStayWithTheirTokens) {
  ServingRequest request = Ask(10);
  request.sampling.logprobs = 2;
  TokenBuffer buffer(request);
  cpu::RowScore one, two;
  one.top = {{5, 0.5F}};
  two.top = {{5, 0.5F}, {6, 0.25F}};
  buffer.Push({.token = 1, .score = &one});
  buffer.Push({.token = 2});
  buffer.Push({.token = 3, .score = &two});
  one.top.clear();
  TokenBuffer::Batch batch;
  buffer.Take(batch);
  EXPECT_EQ(TokensOf(batch), (std::vector<std::string>{"1:1", "2", "3:2"}));
}

}  // namespace
}  // namespace lime
