#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "daemon/pressure/pressure_monitor.h"
#include "tests/skips.h"
#include "tests/temp_dir.h"

namespace lime {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// ---- files of our own

class FakeKernelTest : public ::testing::Test {
 protected:
  FakeKernelTest() {
    fs::create_directories(dir_.file("proc/pressure"));
    fs::create_directories(dir_.file("v1"));
    fs::create_directories(dir_.file("v2"));
    SetMachine(8000, 3000);
  }
  void SetMachine(Bytes available_kib, Bytes free_kib) {
    dir_.Write("proc/meminfo.new", absl::StrCat("MemTotal: 9000 kB\nMemFree:  ", free_kib, " kB\nMemAvailable: ", available_kib, " kB\n"));
    fs::rename(dir_.file("proc/meminfo.new"), dir_.file("proc/meminfo"));
  }
  void SetStalls(const std::string& file, int64_t microseconds) {
    dir_.Write(file, absl::StrCat("some avg10=12.50 avg60=1.00 avg300=0.00 total=", microseconds,
                                  "\nfull avg10=99.00 avg60=0.00 avg300=0.00 total=77\n"));
  }
  MemorySampler Sampler() { return MemorySampler(dir_.file("proc"), {{dir_.file("v2/"), true}, {dir_.file("v1/"), false}}); }

  TempDir dir_;
};

TEST_F(FakeKernelTest, WithoutGroupsAndPsiTheMachineIsSampled) {
  MemorySampler sampler = Sampler();
  const MemorySample sample = sampler.Sample("poll");
  EXPECT_EQ(sample.available, 8000 * kKiB);
  EXPECT_EQ(sample.machine.free, 3000 * kKiB);
  EXPECT_EQ(sample.machine.stalled, absl::ZeroDuration());
  EXPECT_EQ(sample.group.free, INT64_MAX);
  EXPECT_EQ(sample.source, "poll");
}

TEST_F(FakeKernelTest, TheTightestLimitCountsAndPageCacheIsAvailableButNotFree) {
  dir_.Write("v2/memory.max", "5000000");
  dir_.Write("v2/memory.current", "4000000");
  dir_.Write("v2/memory.stat", "active_file 300000\ninactive_file 200000\n");
  dir_.Write("v1/memory.limit_in_bytes", "9223372036854771712");
  MemorySampler sampler = Sampler();
  EXPECT_EQ(sampler.Sample("poll").available, 1500000);
  EXPECT_EQ(sampler.Sample("poll").group.free, 1000000);
  dir_.Write("v1/memory.limit_in_bytes", "3000000");
  dir_.Write("v1/memory.usage_in_bytes", "2900000");
  EXPECT_EQ(sampler.Sample("poll").available, 100000);
  EXPECT_EQ(sampler.Sample("poll").group.free, 100000);
}

TEST_F(FakeKernelTest, StallsAreCountedFromOneSampleToTheNext) {
  SetStalls("proc/pressure/memory", 5'000'000);
  SetStalls("v2/memory.pressure", 1000);
  dir_.Write("v2/memory.current", "4000000");
  MemorySampler sampler = Sampler();
  EXPECT_EQ(sampler.Sample("poll").machine.stalled, absl::ZeroDuration()) << "what was before counts for nothing";
  SetStalls("proc/pressure/memory", 5'250'000);
  SetStalls("v2/memory.pressure", 11'000);
  const MemorySample sample = sampler.Sample("poll");
  EXPECT_EQ(sample.machine.stalled, absl::Milliseconds(250));
  EXPECT_EQ(sample.group.stalled, absl::Milliseconds(10));
  EXPECT_EQ(sampler.Sample("poll").machine.stalled, absl::ZeroDuration());
  EXPECT_EQ(sampler.Sample(kPsiSource).machine.stalled, absl::Milliseconds(100)) << "a trigger is faster than the totals";
  SetStalls("proc/pressure/memory", 5'370'000);
  EXPECT_EQ(sampler.Sample("poll").machine.stalled, absl::Milliseconds(20)) << "and counts once";
  EXPECT_EQ(sampler.Sample(kGroupPsiSource).machine.stalled, absl::ZeroDuration());
  for (const char* damaged : {"", "some", "some avg10=1 total=", "full avg10=0.00 total=9999999"}) {
    dir_.Write("proc/pressure/memory", damaged);
    EXPECT_EQ(sampler.Sample("poll").machine.stalled, absl::ZeroDuration()) << damaged;
  }
}

TEST_F(FakeKernelTest, StallsOfAGroupThatCountsNoMemoryAreTheMachines) {
  SetStalls("v2/memory.pressure", 1000);
  MemorySampler sampler = Sampler();
  SetStalls("v2/memory.pressure", 11'000);
  EXPECT_EQ(sampler.Sample("poll").group.stalled, absl::ZeroDuration());
}

TEST_F(FakeKernelTest, WithoutAnyEventItPollsAndSeesTheRoomGoAndCome) {
  absl::Mutex mutex;
  Bytes available = -1;
  const auto monitor = PressureMonitor::Start({.reserve = 1 * kMiB,
                                               .interval = absl::Milliseconds(20),
                                               .near_interval = absl::Milliseconds(5),
                                               .on_sample =
                                                   [&](const MemorySample& sample) {
                                                     absl::MutexLock lock(&mutex);
                                                     available = sample.available;
                                                   },
                                               .proc = dir_.file("proc"),
                                               .groups = {}});
  ASSERT_TRUE(monitor.ok()) << monitor.status();
  EXPECT_EQ((*monitor)->Describe(), "watches memory every 20ms");
  for (const Bytes kib : {8000, 500, 8000}) {
    SetMachine(kib, 0);
    const auto seen = [&] { return available == kib * kKiB; };
    absl::MutexLock lock(&mutex);
    EXPECT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&seen), absl::Seconds(10))) << available;
  }
}

TEST_F(FakeKernelTest, ItStopsAtOnceWhateverTheInterval) {
  absl::Notification sampled;
  const absl::Time begin = absl::Now();
  {
    const auto monitor = PressureMonitor::Start({.interval = absl::Hours(1), .on_sample = [&](const MemorySample&) {
                                                   if (!sampled.HasBeenNotified()) sampled.Notify();
                                                 }});
    ASSERT_TRUE(monitor.ok()) << monitor.status();
    sampled.WaitForNotification();
  }
  EXPECT_LT(absl::Now() - begin, absl::Seconds(5));
}

TEST(PressureMonitorTest, PsiOfTheMachineIsUsedWhereTheKernelHasIt) {
  LIME_SKIP_WITHOUT(::access("/proc/pressure/memory", W_OK) == 0, "a writable /proc/pressure/memory");
  const auto monitor = PressureMonitor::Start({.on_sample = [](const MemorySample&) {}});
  ASSERT_TRUE(monitor.ok()) << monitor.status();
  EXPECT_THAT((*monitor)->Describe(), HasSubstr("/proc/pressure/memory (psi)"));
}

// ---- a real memory cgroup

constexpr Bytes kLimit = 128 * kMiB, kReserve = 16 * kMiB;

struct Seen {
  absl::Duration at;  // absl::Now() as a duration since the epoch
  Bytes available = 0;
  char source[32] = {};
};

// Writes to so much memory, tells through `done`, and keeps it.
void TouchForever(Bytes bytes, int done) {
  void* const memory = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) ::_exit(1);
  std::memset(memory, 1, static_cast<size_t>(bytes));
  const Seen grabbed{absl::Now() - absl::UnixEpoch(), 0, "grabbed"};
  if (::write(done, &grabbed, sizeof grabbed) < 0) ::_exit(1);
  for (;;) ::pause();
}

// A group with a limit, of version 1 or 2, whichever counts memory here, and processes in it.
class MemoryGroupTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string name = absl::StrCat("/lime_pressure_test_", ::getpid());
    for (const auto& [root, limit] : {std::pair("/sys/fs/cgroup/memory", "/memory.limit_in_bytes"), {"/sys/fs/cgroup", "/memory.max"}}) {
      if (!fs::exists(std::string(root) + "/cgroup.procs")) continue;
      std::error_code ignored;
      group_ = root + name;
      if (!fs::create_directory(group_, ignored)) continue;
      std::ofstream(group_ + limit) << kLimit;
      Bytes set = 0;
      if (std::ifstream(group_ + limit) >> set && set == kLimit) return;
      fs::remove(group_, ignored);
    }
    group_.clear();
    LIME_SKIP_WITHOUT(false, "the right to make a memory cgroup");
  }

  void TearDown() override {
    while (!processes_.empty()) End(processes_.back());
    for (int i = 0; i < 100 && !group_.empty() && ::rmdir(group_.c_str()) != 0; ++i) absl::SleepFor(absl::Milliseconds(10));
    for (const int fd : pipe_) {
      if (fd >= 0) ::close(fd);
    }
  }

  template <typename Work>
  pid_t StartInGroup(const Work& work) {
    const pid_t process = ::fork();
    if (process == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      std::ofstream(group_ + "/cgroup.procs") << ::getpid() << std::flush;
      work();
      ::_exit(0);
    }
    processes_.push_back(process);
    return process;
  }
  void End(pid_t process) {
    ::kill(process, SIGKILL);
    ::waitpid(process, nullptr, 0);
    std::erase(processes_, process);
  }

  void StartWatcher(const PressureMonitor::Options& options) {
    ASSERT_EQ(::pipe(pipe_), 0);
    StartInGroup([&] {
      PressureMonitor::Options mine = options;
      mine.groups = MemoryGroups();
      mine.on_sample = [this](const MemorySample& sample) {
        Seen seen{absl::Now() - absl::UnixEpoch(), sample.available};
        sample.source.copy(seen.source, sizeof seen.source - 1);
        if (::write(pipe_[1], &seen, sizeof seen) < 0) ::_exit(1);
      };
      const auto monitor = PressureMonitor::Start(mine);
      for (;;) ::pause();
    });
  }
  // What was reported next of which `wanted` holds, within half a minute: machines are busy.
  template <typename Wanted>
  bool Await(const Wanted& wanted, Seen& seen) const {
    const absl::Time end = absl::Now() + absl::Seconds(30);
    for (;;) {
      pollfd input{pipe_[0], POLLIN, 0};
      const absl::Duration remaining = end - absl::Now();
      if (remaining <= absl::ZeroDuration() || ::poll(&input, 1, static_cast<int>(absl::ToInt64Milliseconds(remaining))) <= 0) return false;
      if (::read(pipe_[0], &seen, sizeof seen) == sizeof seen && wanted(seen)) return true;
    }
  }

  std::string group_;
  std::vector<pid_t> processes_;
  int pipe_[2] = {-1, -1};
};

class PressureInGroupTest : public MemoryGroupTest, public ::testing::WithParamInterface<bool> {};

TEST_P(PressureInGroupTest, ANeighbourThatGrabsMemoryIsSeenWithinASecond) {
#ifdef LIME_SANITIZED
  GTEST_SKIP() << "the sanitizer's own memory does not fit into the group";
#endif
  const bool by_events = GetParam();
  PressureMonitor::Options options{.reserve = kReserve, .use_events = by_events};
  if (by_events) options.interval = absl::Hours(1);  // looks only when told, and then for as long as room is near its end
  StartWatcher(options);
  Seen seen;
  ASSERT_TRUE(Await([](const Seen&) { return true; }, seen)) << "no first sample";
  ASSERT_GT(seen.available, 4 * kReserve) << "the group is full before anybody grabs";
  const pid_t neighbour = StartInGroup([&] { TouchForever(kLimit - kReserve, pipe_[1]); });
  absl::Duration grabbed = absl::InfiniteDuration(), below = absl::InfiniteDuration();
  bool reported = false;
  ASSERT_TRUE(Await(
      [&](const Seen& s) {
        const bool sample = std::string_view(s.source) != "grabbed";
        if (!sample) grabbed = s.at;
        reported |= sample && std::string_view(s.source) != "poll";
        if (sample && s.available < kReserve) below = std::min(below, s.at);
        return std::max(grabbed, below) < absl::InfiniteDuration();
      },
      seen))
      << "last: " << seen.source << " " << seen.available;
  EXPECT_LT(below - grabbed, absl::Seconds(1));
  RecordProperty("seen_after_ms", static_cast<int>(absl::ToInt64Milliseconds(below - grabbed)));
  EXPECT_EQ(reported, by_events);
  const absl::Duration end = absl::Now() - absl::UnixEpoch();
  End(neighbour);
  ASSERT_TRUE(Await([](const Seen& s) { return s.available > 4 * kReserve; }, seen)) << "its end is not seen";
  EXPECT_LT(seen.at - end, absl::Seconds(1));
}

INSTANTIATE_TEST_SUITE_P(Ways, PressureInGroupTest, ::testing::Bool(),
                         [](const auto& info) { return std::string(info.param ? "ByEvents" : "ByPolling"); });

// Reads the file for ever, which has more bytes than the group may hold.
void ReadForever(const std::string& path) {
  std::vector<char> buffer(1 << 20);
  const FileDescriptor file(::open(path.c_str(), O_RDONLY));
  for (int64_t offset = 0;; offset += 1 << 20) {
    if (::pread(file.get(), buffer.data(), buffer.size(), offset) <= 0) offset = -(1 << 20);
  }
}

TEST_F(MemoryGroupTest, TasksThatStallForMemoryAreReportedByThePsiTrigger) {
  LIME_SKIP_WITHOUT(::access("/proc/pressure/memory", W_OK) == 0, "a writable /proc/pressure/memory");
  const TempDir dir;
  {
    std::ofstream out(dir.file("large"), std::ios::binary);
    const std::string chunk(1 << 20, 'x');
    for (Bytes written = 0; written < 3 * kLimit; written += kMiB) out << chunk;
  }
  const FileDescriptor file(::open(dir.file("large").c_str(), O_RDWR));
  ::fdatasync(file.get());  // page cache belongs to the group that brings it
  ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  const auto before = ReadMemoryStalls("/proc/pressure/memory");
  ASSERT_TRUE(before.has_value());
  for (int i = 0; i < 4; ++i) StartInGroup([&] { ReadForever(dir.file("large")); });
  std::atomic<int> reported = 0;
  std::atomic<int64_t> stalled_ms = 0;
  const auto monitor = PressureMonitor::Start({.interval = absl::Hours(1),
                                               .on_sample =
                                                   [&](const MemorySample& sample) {
                                                     stalled_ms += absl::ToInt64Milliseconds(sample.machine.stalled);
                                                     reported += sample.source == "psi";
                                                   },
                                               .groups = {}});
  ASSERT_TRUE(monitor.ok()) << monitor.status();
  const absl::Time end = absl::Now() + absl::Seconds(10);
  while (reported == 0 && absl::Now() < end) absl::SleepFor(absl::Milliseconds(10));
  const auto after = ReadMemoryStalls("/proc/pressure/memory");
  if (reported == 0 && *after - *before < absl::Seconds(3)) GTEST_SKIP() << "four readers did not stall this machine";
  EXPECT_GT(reported, 0) << "stalled for " << *after - *before;
  EXPECT_GE(stalled_ms, 100);
}

}  // namespace
}  // namespace lime
