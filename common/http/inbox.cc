#include "common/http/inbox.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lime {
namespace {

class PostedAnswer final : public HttpAnswer {
 public:
  PostedAnswer(std::shared_ptr<HttpInbox> inbox, std::shared_ptr<HttpExchange> exchange)
      : inbox_(std::move(inbox)), exchange_(std::move(exchange)) {}
  ~PostedAnswer() override {
    if (sent_) return;
    Post([](HttpConnection& connection, absl::Time now) { connection.Drop(now); });
  }

  void Send(HttpResponse response) override {
    sent_ = true;
    Post([response = std::move(response)](HttpConnection& connection, absl::Time now) { connection.Send(response, now); });
  }
  void Delay(HttpResponse head, absl::Duration silence, std::function<void()> head_sent) override {
    Post([head = std::move(head), silence, head_sent = std::move(head_sent)](HttpConnection& connection, absl::Time now) mutable {
      connection.Delay(std::move(head), silence, std::move(head_sent), now);
    });
  }
  void Stream(HttpResponse head, absl::Duration silence, std::unique_ptr<BodySource> source) override {
    Post([head = std::move(head), silence, source = std::move(source)](HttpConnection& connection, absl::Time now) mutable {
      connection.Stream(head, silence, std::move(source), now);
    });
  }
  void Wake() override { inbox_->PostWake(exchange_); }
  void OnWake(std::function<void()> woken) override {
    inbox_->Post(exchange_, [woken = std::move(woken)](HttpExchange& exchange, HttpConnection*, absl::Time) mutable {
      if (exchange.end) return;
      exchange.on_wake = std::move(woken);
      if (std::exchange(exchange.has_early_wake, false)) exchange.on_wake();
    });
  }
  void Abort() override {
    Post([](HttpConnection& connection, absl::Time now) { connection.Abort(now); });
  }
  void OnEnd(std::function<void(HttpEnd)> ended) override {
    const auto set = [](HttpExchange& exchange, std::function<void(HttpEnd)> what) {
      if (exchange.end) return what(*exchange.end);
      exchange.ended = std::move(what);
    };
    if (!inbox_->Post(exchange_, [set, ended](HttpExchange& exchange, HttpConnection*, absl::Time) mutable { set(exchange, ended); }))
      ended(HttpEnd::kStopped);
  }

 private:
  template <typename Act>
  void Post(Act act) {
    inbox_->Post(exchange_, [act = std::move(act)](HttpExchange&, HttpConnection* connection, absl::Time now) mutable {
      if (connection != nullptr) act(*connection, now);
    });
  }

  const std::shared_ptr<HttpInbox> inbox_;
  const std::shared_ptr<HttpExchange> exchange_;
  std::atomic<bool> sent_ = false;
};

}  // namespace

HttpInbox::~HttpInbox() {
  if (event_ >= 0) ::close(event_);
}

absl::Status HttpInbox::Open() {
  event_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (event_ < 0) return absl::ResourceExhaustedError(absl::StrCat("cannot make an eventfd: ", std::strerror(errno)));
  return absl::OkStatus();
}

bool HttpInbox::Add(Call call) {
  const absl::MutexLock lock(&mutex_);
  if (closed_) return false;
  calls_.push_back(std::move(call));
  if (calls_.size() > 1) return true;
  const uint64_t one = 1;
  (void)!::write(event_, &one, sizeof(one));  // 0 becomes 1
  return true;
}

bool HttpInbox::Post(std::shared_ptr<HttpExchange> exchange, Act act) {
  return Add({.exchange = std::move(exchange), .act = std::move(act)});
}

void HttpInbox::PostWake(const std::shared_ptr<HttpExchange>& exchange) {
  if (!exchange->woken.exchange(true)) (void)Add({.exchange = exchange, .act = {}});
}

void HttpInbox::Take(std::vector<Call>& calls) {
  const absl::MutexLock lock(&mutex_);
  calls.swap(calls_);
  if (calls.empty()) return;
  uint64_t count = 0;
  (void)!::read(event_, &count, sizeof(count));
}

void HttpInbox::Close(std::vector<Call>& calls) {
  const absl::MutexLock lock(&mutex_);
  closed_ = true;
  calls.swap(calls_);
}

std::shared_ptr<HttpAnswer> MakePostedAnswer(std::shared_ptr<HttpInbox> inbox, std::shared_ptr<HttpExchange> exchange) {
  return std::make_shared<PostedAnswer>(std::move(inbox), std::move(exchange));
}

}  // namespace lime
