// Nothing is kept of answers that have ended, and a token on its way to the server's thread allocates
// nothing: this program counts its allocations and the bytes that they hold.

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "coordinator/server/token_buffer.h"
#include "tests/coordinator/server/served.h"

namespace {
std::atomic<int64_t> held{0}, allocations{0};

void* Take(size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  void* const memory = std::malloc(size);
  if (memory == nullptr) std::abort();
  held.fetch_add(static_cast<int64_t>(malloc_usable_size(memory)), std::memory_order_relaxed);
  return memory;
}
void Give(void* memory) {
  if (memory != nullptr) held.fetch_sub(static_cast<int64_t>(malloc_usable_size(memory)), std::memory_order_relaxed);
  std::free(memory);
}
}  // namespace

void* operator new(size_t size) {
  return Take(size);
}
void operator delete(void* memory) noexcept {
  Give(memory);
}
void operator delete(void* memory, size_t) noexcept {
  Give(memory);
}

namespace lime {
namespace {

constexpr int64_t kSlack = 128 * 1024;  // buffers that have grown to the largest answer

class ServerBoundsTest : public ServedTest {
 protected:
  // Answers of every kind, and clients that leave.
  void Load(int requests) {
    for (int i = 0; i < requests; ++i) {
      const auto client = Client();
      switch (i % 6) {
        case 0:
          client->Send(Request("POST", kChatPath, Chat(20)));
          EXPECT_EQ(client->ReadAnswer().status, 200);
          break;
        case 1:
          client->Send(Request("POST", kChatPath, Chat(20, R"("stream":true,"n":2)")));
          EXPECT_EQ(client->ReadAnswer().status, 200);
          break;
        case 2:
          client->Send(Request("POST", kChatPath, Chat(200, R"("stream":true)")));
          client->ReadUntil("data: ");
          break;  // and leaves
        case 3:
          client->Send(Request("POST", kChatPath, Chat(200)));
          break;  // and leaves, perhaps before it is tokenized
        case 4:
          client->Send(Request("POST", kChatPath, "{"));
          EXPECT_EQ(client->ReadAnswer().status, 400);
          break;
        default:
          client->Send(Request("POST", "/tokenize", R"({"content":"some text"})"));
          EXPECT_EQ(client->ReadAnswer().status, 200);
      }
    }
  }
  // Until all clients and their requests have gone.
  void Settle() {
    const auto last = Client();
    const auto is_busy = [&] { return server_->connections() > 1 || serving_->load().running + serving_->load().waiting > 0; };
    while (is_busy()) EXPECT_EQ(last->Get("/health").status, 200);
    last->Send(Request("POST", kChatPath, Chat(1)));  // behind all that waited for the tokenizer
    EXPECT_EQ(last->ReadAnswer().status, 200);
    while (is_busy()) EXPECT_EQ(last->Get("/health").status, 200);
  }
};

TEST_F(ServerBoundsTest, AnswersThatHaveEndedHoldNothing) {
  Setting setting;
  setting.records = false;
  Start(std::move(setting));
  Load(120);
  Settle();
  const int64_t before = held;
  Load(600);
  Settle();
  EXPECT_LE(held - before, kSlack);
}

TEST(TokenBufferBoundsTest, ATokenWithItsScoresAllocatesNothing) {
  constexpr int64_t kTokens = 1000;
  ServingRequest request{.prompt = std::vector<int32_t>(20, 1), .max_new_tokens = kTokens};
  request.sampling.logprobs = kMostLogprobs;
  request.sampling.score_top = kMostLogprobs;
  TokenBuffer buffer(request);
  cpu::RowScore score{.logprob = -1, .log_sum = 1, .top = {}};
  score.top.resize(kMostLogprobs);
  const int64_t before = allocations;
  for (int64_t i = 0; i < kTokens + 20; ++i) buffer.Push({.token = 1, .known = i < 20, .text = {}, .score = &score, .at = {}});
  EXPECT_EQ(allocations - before, 0);
  TokenBuffer::Batch batch;
  buffer.Take(batch);
  EXPECT_EQ(batch.scores.size(), 1020u);
}

}  // namespace
}  // namespace lime
