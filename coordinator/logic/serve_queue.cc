#include "coordinator/logic/serve_queue.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/base/check.h"

namespace lime {

absl::Status ServeQueue::Arrive(RequestId first, absl::Time now, int64_t count) {
  if (state_ == State::kClosed) return why_;
  if (state_ == State::kDraining) return absl::UnavailableError("no more requests are accepted: the running requests are the last");
  const int64_t most = slots_ + options_.most_waiting;
  const bool has_room = std::ssize(requests_) + count <= most;
  const bool has_the_queue_alone = count > most && count <= options_.most_together && waiting() == 0;
  if (!has_room && !has_the_queue_alone) {
    return absl::ResourceExhaustedError(absl::StrCat(waiting(), " requests wait and ", running(), " run, but only ", options_.most_waiting,
                                                     " may wait beside ", slots_, " that run; try again later, or allow more to wait"));
  }
  for (RequestId request = first; request < first + count; ++request) {
    const bool is_new = requests_.emplace(request, Waiter{.until = now + options_.most_wait, .group = first}).second;
    LIME_CHECK(is_new) << "request " << request;
  }
  return absl::OkStatus();
}

void ServeQueue::Start(RequestId request) {
  Waiter& waiter = requests_.at(request);
  if (!std::exchange(waiter.started, true)) ++running_;
  if (waiter.has_begun) return;
  const RequestId group = waiter.group;
  for (auto other = requests_.lower_bound(group); other != requests_.end() && other->second.group == group; ++other)
    other->second.has_begun = true;
}

void ServeQueue::Cancel(RequestId request) {
  if (const auto found = requests_.find(request); found != requests_.end()) found->second.cancelled = true;
}

void ServeQueue::End(RequestId request) {
  const auto found = requests_.find(request);
  if (found == requests_.end()) return;
  if (found->second.started) --running_;
  requests_.erase(found);
}

void ServeQueue::Drain() {
  if (state_ == State::kOpen) state_ = State::kDraining;
}

void ServeQueue::Close(absl::Status why) {
  state_ = State::kClosed;
  why_ = std::move(why);
}

absl::Status ServeQueue::WhyEnd(const Waiter& waiter, absl::Time now) const {
  if (waiter.cancelled) return absl::CancelledError("cancelled");
  if (waiter.has_begun) return absl::OkStatus();
  if (state_ != State::kOpen) return absl::UnavailableError("the queue was closed before this request had a slot; send it again later");
  if (now < waiter.until) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("waited ", absl::FormatDuration(options_.most_wait), " for a slot, which is the limit; try again later"));
}

std::vector<ServeQueue::Ending> ServeQueue::Due(absl::Time now) {
  std::vector<Ending> due;
  for (auto& [request, waiter] : requests_) {
    if (waiter.returned) continue;
    absl::Status why = WhyEnd(waiter, now);
    if (why.ok()) continue;
    waiter.returned = true;
    due.push_back({request, std::move(why)});
  }
  return due;
}

absl::Time ServeQueue::NextDue() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [request, waiter] : requests_) {
    if (!waiter.has_begun && !waiter.returned) next = std::min(next, waiter.until);
  }
  return next;
}

}  // namespace lime
