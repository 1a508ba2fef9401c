#include "daemon/pressure/pressure_monitor.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

constexpr std::string_view kPoll = "poll";

int PollMilliseconds(absl::Duration time) {
  return static_cast<int>(std::clamp<int64_t>(absl::ToInt64Milliseconds(time), 0, 1 << 30));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PressureMonitor>> PressureMonitor::Start(Options options) {
  FileDescriptor stop(::eventfd(0, EFD_CLOEXEC));
  if (!stop.valid()) return ErrnoStatus(errno, "memory pressure", "make an eventfd");
  std::vector<PressureEvent> events;
  if (options.use_events) events = OpenPressureEvents(options.proc, options.groups, options.reserve);
  std::unique_ptr<PressureMonitor> monitor(new PressureMonitor(std::move(options), std::move(stop), std::move(events)));
  monitor->thread_ = std::thread([raw = monitor.get()] { raw->Run(); });
  return monitor;
}

PressureMonitor::PressureMonitor(Options options, FileDescriptor stop, std::vector<PressureEvent> events)
    : options_(std::move(options)), stop_(std::move(stop)), events_(std::move(events)), sampler_(options_.proc, options_.groups) {
  std::vector<std::string> sources;
  for (const PressureEvent& event : events_) sources.push_back(absl::StrCat(event.path, " (", Text(event.source), ")"));
  std::ranges::sort(sources);
  sources.erase(std::unique(sources.begin(), sources.end()), sources.end());
  description_ = absl::StrCat("watches memory ", sources.empty() ? "" : "through ", absl::StrJoin(sources, ", "),
                              sources.empty() ? "" : " and ", "every ", absl::FormatDuration(options_.interval));
}

PressureMonitor::~PressureMonitor() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof one);
  if (thread_.joinable()) thread_.join();
}

void PressureMonitor::Run() {
#ifdef __linux__
  ::pthread_setname_np(::pthread_self(), "lime-pressure");
#endif
  for (std::string_view source = kPoll; !source.empty();) {
    const MemorySample sample = sampler_.Sample(source);
    options_.on_sample(sample);
    if (source != kPoll && StopWithin(options_.event_interval)) return;
    source = Wait(sample.available < 4 * options_.reserve ? options_.near_interval : options_.interval);
  }
}

bool PressureMonitor::StopWithin(absl::Duration time) const {
  pollfd stop{stop_.get(), POLLIN, 0};
  return ::poll(&stop, 1, PollMilliseconds(time)) > 0;
}

std::string_view PressureMonitor::Wait(absl::Duration longest) {
  std::vector<pollfd> polled = {{stop_.get(), POLLIN, 0}};
  for (const PressureEvent& event : events_) polled.push_back({event.descriptor.get(), event.poll_events(), 0});
  // An interrupted wait is a sample too many, which does no harm.
  if (::poll(polled.data(), polled.size(), PollMilliseconds(longest)) <= 0) return kPoll;
  if (polled[0].revents != 0) return "";
  std::string_view source = kPoll;
  std::vector<PressureEvent> remaining;
  for (size_t i = 0; i < events_.size(); ++i) {
    const short revents = polled[i + 1].revents;
    if (revents != 0) source = events_[i].source;
    if (revents == 0 || events_[i].Acknowledge(revents)) remaining.push_back(std::move(events_[i]));
  }
  events_ = std::move(remaining);
  return source;
}

}  // namespace lime
