// A sink that records everything it receives, for tests that wait for it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "coordinator/serving/serving.h"

namespace lime {

class RecordedAnswer final : public RequestSink {
 public:
  void OnPrompt(double share) override {
    absl::MutexLock lock(&mutex_);
    shares_.push_back(share);
  }
  void OnToken(const ServedToken& token) override {
    absl::MutexLock lock(&mutex_);
    tokens_.push_back(token.token);
    text_ += token.text;
    hash_ = token.logits_hash;
    scores_.push_back(token.score == nullptr ? std::nullopt : std::optional(*token.score));
  }
  void OnEnd(const RequestEnd& end) override {
    if (at_end) at_end();
    absl::MutexLock lock(&mutex_);
    ++ends_;
    end_ = end;
    text_ += end.text;
  }

  // Waits for the end of the request and returns it.
  RequestEnd Wait() const {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](const int* ends) { return *ends > 0; }, &ends_));
    return end_;
  }
  void AwaitTokens(size_t count) const {
    absl::MutexLock lock(&mutex_);
    const auto are_there = [this, count]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return tokens_.size() >= count; };
    mutex_.Await(absl::Condition(&are_there));
  }
  int ends() const {
    absl::MutexLock lock(&mutex_);
    return ends_;
  }
  std::vector<int32_t> tokens() const {
    absl::MutexLock lock(&mutex_);
    return tokens_;
  }
  std::vector<double> shares() const {
    absl::MutexLock lock(&mutex_);
    return shares_;
  }
  std::string text() const {
    absl::MutexLock lock(&mutex_);
    return text_;
  }
  // By token.
  std::vector<std::optional<cpu::RowScore>> scores() const {
    absl::MutexLock lock(&mutex_);
    return scores_;
  }
  uint64_t hash() const {
    absl::MutexLock lock(&mutex_);
    return hash_;
  }

  std::function<void()> at_end;  // called at the end; set it before the request is sent

 private:
  mutable absl::Mutex mutex_;
  std::vector<int32_t> tokens_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::optional<cpu::RowScore>> scores_ ABSL_GUARDED_BY(mutex_);
  std::vector<double> shares_ ABSL_GUARDED_BY(mutex_);
  std::string text_ ABSL_GUARDED_BY(mutex_);
  uint64_t hash_ ABSL_GUARDED_BY(mutex_) = 0;
  RequestEnd end_ ABSL_GUARDED_BY(mutex_);
  int ends_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace lime
