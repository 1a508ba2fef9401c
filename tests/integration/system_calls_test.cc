// Between two tokens of a resident model only threads are woken, and text is written: `lime run`,
// and the stages of a cluster, are traced system call by system call.

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "coordinator/sessions/generate.h"
#include "coordinator/text/tokenizer.h"
#include "gtest/gtest.h"
#include "tests/integration/loopback_cluster.h"
#include "tests/skips.h"

namespace lime {
namespace {

struct SystemCall {
  pid_t thread = 0;
  uint64_t number = 0;
  uint64_t first_argument = 0;
  std::string path;  // of an openat
  bool writes_text() const { return number == SYS_write && first_argument == STDOUT_FILENO; }
  // A wait with a timeout that tracing has interrupted goes on as a call of its own.
  bool wakes_or_waits() const { return number == SYS_futex || number == SYS_restart_syscall; }
};

// How else a thread waits where several share a lock: one that expects its peer's message within
// moments gives its core away, and so does Abseil's Mutex before it sleeps, which also asks for the
// thread's priority once a second, and sleeps once to know its clock.
const std::set<uint64_t> kWaitsOfStages = {SYS_sched_yield, SYS_clock_nanosleep, SYS_sched_getparam, SYS_sched_getscheduler};

const char* const kModel = LIME_SOURCE_DIR "/models/lime-fables";

void RunLime() {
  execl(LIME_BINARY, "lime", "run", "--model", kModel, "--prompt", "Once", "--max-tokens", "64", "--ignore-eos", nullptr);
}

// Two stages of one plan with links in memory, which write a text for each token as `lime run`
// does.
void RunStages() {
  const auto tokenizer = Tokenizer::Load(kModel);
  const auto checkpoint = Checkpoint::Open(kModel);
  const auto plan = SplitPlan(*checkpoint->BuildModelSpec(), {});
  LoopbackCluster cluster(kModel, MakeEngineStages({.num_threads = 1}));
  if (!cluster.Install(*plan, {}).ok()) _exit(1);
  cli::GenerateOptions options;
  options.max_new_tokens = {64};
  options.on_text = [](size_t, std::string_view text) {
    if (write(STDOUT_FILENO, text.data(), text.size()) < 0) _exit(1);
  };
  cli::Generator generator(cluster, {}, **tokenizer, options, /*expected_prompt_seconds=*/std::nullopt);
  generator.Add({1, 2, 3});
  _exit(generator.Run().ok() ? 0 : 1);
}

// The thread that watches the machine's memory is none of those that compute.
bool WatchesMemory(pid_t thread) {
  std::ifstream name("/proc/" + std::to_string(thread) + "/comm");
  std::string text;
  return std::getline(name, text) && text == "lime-pressure";
}

std::string ReadPath(pid_t thread, uint64_t address) {
  char text[64] = {};
  void* const path = reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr): of another process
  const iovec here = {text, sizeof(text) - 1}, there = {path, sizeof(text) - 1};
  return process_vm_readv(thread, &here, 1, &there, 1, 0) > 0 ? text : "";
}

// The first lock of the process that is contended asks how many cores there are, for how long it
// pays to spin, and how fast a clock is: an openat, a read, a close of each file that is there.
void Exclude(const char* path, std::vector<SystemCall>& calls) {
  const auto asks = std::ranges::find(calls, path, &SystemCall::path);
  if (asks == calls.end()) return;
  const pid_t thread = asks->thread;
  int remaining = 3;
  calls.erase(std::remove_if(asks, calls.end(),
                             [&](const SystemCall& call) {
                               const uint64_t expected = remaining == 3 ? SYS_openat : remaining == 2 ? SYS_read : SYS_close;
                               return remaining > 0 && call.thread == thread && call.number == expected && remaining-- > 0;
                             }),
              calls.end());
}

// Lets a stopped thread go on to its next system call, and notes the one that it begins, and
// whether it turns out to watch memory.
void GoOn(pid_t thread, int status, std::vector<SystemCall>& calls, std::set<pid_t>& watchers) {
  constexpr int kSystemCallStop = SIGTRAP | 0x80;  // by PTRACE_O_TRACESYSGOOD
  const int signal = WSTOPSIG(status);
  if (signal == kSystemCallStop) {
    struct __ptrace_syscall_info info = {};
    ptrace(PTRACE_GET_SYSCALL_INFO, thread, sizeof(info), &info);
    if (WatchesMemory(thread)) watchers.insert(thread);
    if (info.op == PTRACE_SYSCALL_INFO_ENTRY) {
      calls.push_back({thread, info.entry.nr, info.entry.args[0], {}});
      if (info.entry.nr == SYS_openat) calls.back().path = ReadPath(thread, info.entry.args[1]);
    }
  }
  const bool for_the_program = signal != kSystemCallStop && signal != SIGTRAP && signal != SIGSTOP;
  ptrace(PTRACE_SYSCALL, thread, 0, for_the_program ? signal : 0);
}

// System calls that `run` makes in a process of its own, of all threads that compute or print, in
// the order in which they began; `exit_code` is 126 where tracing is not allowed.
std::vector<SystemCall> Trace(void (*run)(), int& exit_code) {
  std::vector<SystemCall> calls;
  std::set<pid_t> watchers;  // a thread names itself some calls after it began, which is late where cores are busy
  const pid_t child = fork();
  if (child == 0) {
    dup2(open("/dev/null", O_WRONLY), STDOUT_FILENO);
    dup2(STDOUT_FILENO, STDERR_FILENO);
    if (ptrace(PTRACE_TRACEME, 0, 0, 0) != 0) _exit(126);
    raise(SIGSTOP);
    run();
    _exit(127);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSTOPPED(status)) {
    ptrace(PTRACE_SETOPTIONS, child, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL);
    ptrace(PTRACE_SYSCALL, child, 0, 0);
    for (pid_t thread = 0; (thread = waitpid(-1, &status, __WALL)) > 0;) {
      if (WIFSTOPPED(status)) GoOn(thread, status, calls, watchers);
      if (thread == child && !WIFSTOPPED(status)) break;
    }
  }
  exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  std::erase_if(calls, [&](const SystemCall& call) { return watchers.contains(call.thread); });
  return calls;
}

// Makes one system call fail with `error` from now on, as container runtimes do.
void Deny(const std::vector<int>& numbers, int error) {
  std::vector<sock_filter> program = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
  for (size_t i = 0; i < numbers.size(); ++i) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(numbers[i]), static_cast<uint8_t>(numbers.size() - i), 0));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(error)));
  const struct sock_fprog filter = {.len = static_cast<unsigned short>(program.size()), .filter = program.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) _exit(126);
}

// What `lime run` prints where everything streams; "skip" where calls cannot be denied, and nothing
// where it does not end in two minutes.
std::string TextWithout(const std::vector<int>& numbers, int error) {
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDOUT_FILENO);
    dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    if (!numbers.empty()) Deny(numbers, error);
    alarm(120);
    execl(LIME_BINARY, "lime", "run", "--model", LIME_SOURCE_DIR "/models/lime-fables", "--prompt", "Once", "--max-tokens", "4",
          "--resident", "0%", "--loader", "read", nullptr);
    _exit(127);
  }
  close(ends[1]);
  std::string text(65536, '\0');
  size_t length = 0;
  for (ssize_t got; (got = read(ends[0], text.data() + length, text.size() - length)) > 0;) length += static_cast<size_t>(got);
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 126) return "skip";
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? text.substr(0, length) : "";
}

TEST(SystemCallsTest, WhicheverPartOfIoUringIsDeniedWeightsAreReadOtherwise) {
  const std::string text = TextWithout({}, 0);
  ASSERT_NE(text, "");
  const std::vector<std::vector<int>> parts = {
      {SYS_io_uring_enter}, {SYS_io_uring_register}, {SYS_io_uring_setup}, {SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register}};
  for (const std::vector<int>& denied : parts) {
    for (const int error : {EPERM, ENOSYS}) {
      const std::string without = TextWithout(denied, error);
      LIME_SKIP_WITHOUT(without != "skip", "the right to deny oneself system calls");
      EXPECT_EQ(without, text) << denied.size() << " calls from " << denied.front() << " on, error " << error;
    }
  }
}

void ExpectNothingBetweenTokens(void (*run)(), const std::set<uint64_t>& waits = {}) {
  int exit_code = 0;
  std::vector<SystemCall> calls = Trace(run, exit_code);
  LIME_SKIP_WITHOUT(exit_code != 126, "the right to trace a child");
  ASSERT_EQ(exit_code, 0);
  Exclude("/sys/devices/system/cpu/online", calls);
  Exclude("/sys/devices/system/cpu/cpu0/tsc_freq_khz", calls);
  std::vector<size_t> texts;
  for (size_t i = 0; i < calls.size(); ++i) {
    if (calls[i].writes_text()) texts.push_back(i);
  }
  ASSERT_GT(texts.size(), 40u) << "a write for nearly each of the 64 tokens";
  // The first texts are the prompt and the first token, the last one is the end of the line.
  for (size_t i = texts[3]; i < texts[texts.size() - 3]; ++i) {
    EXPECT_TRUE(calls[i].wakes_or_waits() || calls[i].writes_text() || waits.contains(calls[i].number))
        << "system call " << calls[i].number << " " << calls[i].path << ", " << i - texts[3] << " calls behind the third text";
  }
}

TEST(SystemCallsTest, BetweenTokensThreadsAreWokenAndTextIsWrittenAndNothingElse) {
  ExpectNothingBetweenTokens(RunLime);
}

TEST(SystemCallsTest, SoItIsInTheStagesOfACluster) {
  ExpectNothingBetweenTokens(RunStages, kWaitsOfStages);
}

}  // namespace
}  // namespace lime
