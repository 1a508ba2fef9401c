#include "daemon/pressure/pressure_events.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace lime {
namespace {

// Stall (at least kTriggerStall) and window, in microseconds. Without privileges the window must be
// a multiple of 2 s.
constexpr std::string_view kTriggers[] = {"some 100000 1000000", "some 200000 2000000"};

FileDescriptor Open(const std::string& path, int flags) {
  return FileDescriptor(::open(path.c_str(), flags | O_NONBLOCK | O_CLOEXEC));
}

bool WriteAll(const FileDescriptor& file, std::string_view text) {
  return ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

void AddTrigger(const std::string& path, std::string_view source, std::vector<PressureEvent>& events) {
  for (const std::string_view trigger : kTriggers) {
    FileDescriptor file = Open(path, O_RDWR);
    if (!file.valid()) return;
    // The terminating zero is part of the trigger.
    if (!WriteAll(file, {trigger.data(), trigger.size() + 1})) continue;
    events.push_back({PressureEvent::Kind::kTrigger, source, path, std::move(file), {}});
    return;
  }
}

void AddEventsFile(const MemoryGroup& group, std::vector<PressureEvent>& events) {
  const std::string path = group.folder + "memory.events";
  PressureEvent event{PressureEvent::Kind::kFile, "cgroup events", path, Open(path, O_RDONLY), {}};
  if (event.descriptor.valid() && event.Acknowledge(POLLPRI)) events.push_back(std::move(event));
}

// In cgroup v1 the kernel counts up an eventfd when `file` of the group reports `arguments`.
void AddCounter(const MemoryGroup& group, const std::string& file, std::string_view source, const std::string& arguments,
                std::vector<PressureEvent>& events) {
  const std::string path = group.folder + file;
  PressureEvent event{PressureEvent::Kind::kCounter, source, path, FileDescriptor(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
                      Open(path, O_RDONLY)};
  const FileDescriptor control = Open(group.folder + "cgroup.event_control", O_WRONLY);
  if (!event.descriptor.valid() || !event.watched.valid() || !control.valid()) return;
  if (WriteAll(control, absl::StrCat(event.descriptor.get(), " ", event.watched.get(), " ", arguments))) events.push_back(std::move(event));
}

}  // namespace

short PressureEvent::poll_events() const {
  return kind == Kind::kCounter ? POLLIN : POLLPRI;
}

bool PressureEvent::Acknowledge(short revents) const {
  switch (kind) {
    case Kind::kTrigger:
      return (revents & POLLERR) == 0;
    case Kind::kFile: {
      char text[4096];
      return ::pread(descriptor.get(), text, sizeof text, 0) > 0;
    }
    case Kind::kCounter: {
      uint64_t count = 0;
      return ::read(descriptor.get(), &count, sizeof count) == static_cast<ssize_t>(sizeof count);
    }
  }
  return false;
}

bool HasStallsOfItsOwn(const MemoryGroup& group) {
  return group.v2 && FileExists(group.folder + "memory.current") && FileExists(group.folder + "memory.pressure");
}

std::vector<PressureEvent> OpenPressureEvents(const std::string& proc, const std::vector<MemoryGroup>& groups, Bytes reserve) {
  std::vector<PressureEvent> events;
  AddTrigger(proc + "/pressure/memory", kPsiSource, events);
  for (const MemoryGroup& group : groups) {
    const Bytes limit = ReadGroupMemory(group).limit;
    if (group.v2) {
      if (HasStallsOfItsOwn(group)) AddTrigger(group.folder + "memory.pressure", kGroupPsiSource, events);
      AddEventsFile(group, events);
    } else if (limit != INT64_MAX) {
      AddCounter(group, "memory.pressure_level", "cgroup pressure level", "low", events);
      for (const Bytes free : {reserve, 4 * reserve}) {
        if (free < limit) AddCounter(group, "memory.usage_in_bytes", "cgroup threshold", absl::StrCat(limit - free), events);
      }
    }
  }
  return events;
}

}  // namespace lime
