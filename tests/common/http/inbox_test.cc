#include "common/http/inbox.h"

#include <poll.h>

#include <thread>

#include "gtest/gtest.h"

namespace lime {
namespace {

bool IsReadable(int event) {
  pollfd asked{.fd = event, .events = POLLIN, .revents = 0};
  return ::poll(&asked, 1, 0) == 1;
}

TEST(HttpInboxTest, TheEventIsReadableExactlyWhileCallsWait) {
  HttpInbox inbox;
  ASSERT_TRUE(inbox.Open().ok());
  const auto exchange = std::make_shared<HttpExchange>(1);
  std::vector<std::thread> threads;
  threads.reserve(4);
  std::atomic<int> running = 4;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 5000; ++j) inbox.Post(exchange, [](HttpExchange&, HttpConnection*, absl::Time) {});
      --running;
    });
  }
  size_t taken = 0;
  std::vector<HttpInbox::Call> calls;
  while (running > 0 || IsReadable(inbox.event())) {
    inbox.Take(calls);
    taken += calls.size();
    calls.clear();
  }
  EXPECT_EQ(taken, 20000u);
  EXPECT_FALSE(IsReadable(inbox.event()));
  for (std::thread& thread : threads) thread.join();
}

TEST(HttpInboxTest, AnExchangeWaitsWithOneWake) {
  HttpInbox inbox;
  ASSERT_TRUE(inbox.Open().ok());
  const auto exchange = std::make_shared<HttpExchange>(1);
  for (int i = 0; i < 10; ++i) inbox.PostWake(exchange);
  std::vector<HttpInbox::Call> calls;
  inbox.Take(calls);
  EXPECT_EQ(calls.size(), 1u);
}

TEST(HttpInboxTest, AClosedInboxGivesItsLastCallsAndTakesNoMore) {
  HttpInbox inbox;
  ASSERT_TRUE(inbox.Open().ok());
  const auto exchange = std::make_shared<HttpExchange>(1);
  EXPECT_TRUE(inbox.Post(exchange, [](HttpExchange&, HttpConnection*, absl::Time) {}));
  std::vector<HttpInbox::Call> calls;
  inbox.Close(calls);
  EXPECT_EQ(calls.size(), 1u);
  calls.clear();
  EXPECT_FALSE(inbox.Post(exchange, [](HttpExchange&, HttpConnection*, absl::Time) {}));
  inbox.Take(calls);
  EXPECT_TRUE(calls.empty());
}

}  // namespace
}  // namespace lime
