// A server for tests, whose handler is a function.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/http/http_server.h"
#include "gtest/gtest.h"

namespace lime {

class TestHandler final : public HttpHandler {
 public:
  using Answer = std::function<void(HttpRequest, std::shared_ptr<HttpAnswer>)>;
  explicit TestHandler(Answer answer) : answer_(std::move(answer)) {}

  std::function<std::optional<HttpResponse>(const HttpRequest&)> head;

  std::optional<HttpResponse> OnHead(const HttpRequest& request) override { return head ? head(request) : std::nullopt; }
  void OnRequest(HttpRequest request, std::shared_ptr<HttpAnswer> answer) override { answer_(std::move(request), std::move(answer)); }
  HttpResponse OnRefusal(const HttpRefusal& refusal, const HttpRequest*) override {
    return {.status = refusal.status(), .headers = {{"Content-Type", "text/plain"}}, .body = refusal.what};
  }

 private:
  const Answer answer_;
};

inline std::unique_ptr<HttpServer> MakeServer(HttpHandler& handler, const HttpServer::Options& options = {}) {
  auto server = HttpServer::Create(options, handler);
  EXPECT_TRUE(server.ok()) << server.status();
  return server.ok() ? std::move(*server) : nullptr;
}

inline void AnswerWithPath(const HttpRequest& request, const std::shared_ptr<HttpAnswer>& answer) {
  answer->Send({.status = 200, .headers = {}, .body = request.path + request.body});
}

// The end of one request, for which a test waits.
class SeenEnd {
 public:
  std::function<void(HttpEnd)> Taker() {
    return [this](HttpEnd end) {
      end_ = end;
      over_.Notify();
    };
  }
  bool Waits() { return over_.WaitForNotificationWithTimeout(absl::Seconds(30)); }
  HttpEnd end() const { return end_; }

 private:
  HttpEnd end_ = HttpEnd::kSent;
  absl::Notification over_;
};

// One request that waits for its answer.
struct HeldAnswer {
  SeenEnd seen;
  std::shared_ptr<HttpAnswer> answer;
  absl::Notification asked;
  TestHandler handler{[this](const HttpRequest&, std::shared_ptr<HttpAnswer> given) {
    answer = std::move(given);
    answer->OnEnd(seen.Taker());
    asked.Notify();
  }};
};

}  // namespace lime
