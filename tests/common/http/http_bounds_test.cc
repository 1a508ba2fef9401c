// Nothing is kept of requests and connections that have ended: this program counts the bytes that
// its allocations hold, and its descriptors.

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <new>

#include "absl/strings/str_cat.h"
#include "common/http/http_server.h"
#include "gtest/gtest.h"
#include "tests/common/http/http_client.h"
#include "tests/common/http/test_handler.h"

namespace {
std::atomic<int64_t> held{0}, allocations{0};

void* Take(size_t size) {
  void* const memory = std::malloc(size);
  if (memory == nullptr) std::abort();
  held.fetch_add(static_cast<int64_t>(malloc_usable_size(memory)), std::memory_order_relaxed);
  allocations.fetch_add(1, std::memory_order_relaxed);
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

constexpr int64_t kSlack = 64 * 1024;  // buffers that have grown to the largest answer

size_t Descriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

class OneTurn final : public BodySource {
 public:
  explicit OneTurn(std::shared_ptr<HttpAnswer> answer) : answer_(std::move(answer)) {}
  bool Pull(std::string& out) override {
    out += "data";
    answer_->Wake();
    return ++turns_ > 2;
  }
  void OnSilence(std::string&) override {}

 private:
  const std::shared_ptr<HttpAnswer> answer_;  // of its own stream
  int turns_ = 0;
};

void AnswerInOneOfAllWays(const HttpRequest& request, const std::shared_ptr<HttpAnswer>& answer) {
  answer->OnEnd([](HttpEnd) {});
  if (request.path == "/stream") return answer->Stream({}, absl::Seconds(1), std::make_unique<OneTurn>(answer));
  if (request.path == "/slow") answer->Delay({}, absl::Seconds(1), nullptr);
  if (request.path != "/dropped") answer->Send({.status = 200, .headers = {{"X", "y"}}, .body = std::string(1000, 'x')});
}

// Requests of every kind, over `connections` connections, each of which sends `requests` of a kind.
void Load(int port, int connections, int requests) {
  for (int i = 0; i < connections; ++i) {
    HttpClient client(port);
    if (i % 10 == 0) {
      client.Send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nno more");
      continue;  // and leaves
    }
    if (i % 10 == 1) {
      client.Send("nonsense\r\n\r\n");
      EXPECT_EQ(client.ReadAnswer().status, 400);
      continue;
    }
    if (i % 10 == 2) {
      EXPECT_EQ(client.Get("/dropped").status, 500);
      continue;
    }
    for (int j = 0; j < requests; ++j) EXPECT_EQ(client.Get(i % 3 == 0 ? "/stream" : i % 3 == 1 ? "/slow" : "/").status, 200);
  }
}

TEST(HttpBoundsTest, RequestsThatHaveEndedHoldNothing) {
  TestHandler handler(AnswerInOneOfAllWays);
  const auto server = MakeServer(handler);
  const auto settle = [&] {  // until the server has seen that all clients have left
    HttpClient last(server->port());
    while (server->connections() > 1) EXPECT_EQ(last.Get("/").status, 200);
  };
  Load(server->port(), 100, 10);
  settle();
  const int64_t held_before = held;
  const size_t descriptors_before = Descriptors();
  Load(server->port(), 400, 10);
  settle();
  EXPECT_LE(held - held_before, kSlack);
  EXPECT_LE(Descriptors(), descriptors_before + 1);
}

TEST(HttpBoundsTest, AWakeAllocatesNothing) {
  class Silent final : public BodySource {
   public:
    bool Pull(std::string&) override {
      ++pulls;
      return false;
    }
    void OnSilence(std::string&) override {}
    std::atomic<int64_t> pulls = 0;
  };
  Silent* source = nullptr;
  std::shared_ptr<HttpAnswer> answer;
  absl::Notification asked;
  TestHandler handler([&](const HttpRequest&, std::shared_ptr<HttpAnswer> given) {
    auto made = std::make_unique<Silent>();
    source = made.get();
    given->Stream({}, absl::InfiniteDuration(), std::move(made));
    answer = std::move(given);
    asked.Notify();
  });
  const auto server = MakeServer(handler);
  HttpClient client(server->port());
  client.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
  client.ReadUntil("\r\n\r\n");
  asked.WaitForNotification();
  int64_t before = 0;
  for (int i = 0; i < 1000; ++i) {
    if (i == 100) before = allocations;
    const int64_t pulls = source->pulls;
    answer->Wake();
    while (source->pulls == pulls) std::this_thread::yield();
  }
  EXPECT_EQ(allocations - before, 0);
  server->Stop(absl::InfinitePast());
}

}  // namespace
}  // namespace lime
