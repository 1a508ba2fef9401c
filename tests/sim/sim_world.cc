#include "tests/sim/sim_world.h"

#include <cinttypes>
#include <cstdio>

namespace lime {

const char* SimFaultName(SimFault fault) {
  constexpr std::array<const char*, kNumSimFaults> kNames = {
      "link stalls", "links lost", "news lost",    "slow disks",    "disk stalls", "disk errors",   "full disks",
      "crashes",     "gone",       "devices join", "refused plans", "pressure",    "rates changed", "requests stopped"};
  return kNames[static_cast<size_t>(fault)];
}

bool SimClock::Step() {
  if (events_.empty()) return false;
  Event event = events_.top();
  events_.pop();
  now_ms_ = event.at_ms;
  event.what();
  return true;
}

std::string SimWorld::Time() const {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f", clock.now_ms());
  return text;
}

void SimChannel::Send(int64_t bytes, std::function<void()> arrives) {
  const double now_ms = world_.clock.now_ms();
  free_at_ms_ = std::max(free_at_ms_, now_ms) + static_cast<double>(bytes) / bytes_per_ms_;
  last_ms_ = std::max(last_ms_, free_at_ms_ + latency_ms_ * world_.Between(0.5, 2));
  world_.clock.After(last_ms_ - now_ms, std::move(arrives));
}

void SimDisk::Transfer(int64_t bytes, std::function<void(bool)> done) {
  const double now_ms = world_.clock.now_ms();
  const double work_ms = (0.05 + static_cast<double>(bytes) / bytes_per_ms_) * (now_ms < slow_until_ms_ ? 30 : 1);
  free_at_ms_ = std::max(free_at_ms_, now_ms) + work_ms + std::exchange(stall_ms_, 0);
  const double end_ms = free_at_ms_ + work_ms * world_.Between(0, 1.5);
  world_.clock.After(end_ms - now_ms, [done = std::move(done), good = !std::exchange(fails_, false)] { done(good); });
}

}  // namespace lime
