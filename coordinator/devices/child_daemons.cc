#include "coordinator/devices/child_daemons.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/cli/command.h"

namespace lime::cli {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr Clock::duration kStart = 90s, kEnd = 3s, kLook = 20ms;

// Runs between fork and exec, so it may only do what a signal handler may. If the parent has ended
// before prctl, getppid() names another process.
[[noreturn]] void Become(pid_t parent, int log, int ready, char* const* argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  setpgid(0, 0);  // only the parent gets Ctrl-C
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  fcntl(ready, F_SETFD, 0);
  execv(argv[0], argv);
  _exit(127);
}

std::string TextOf(const FileDescriptor& file, Bytes most) {
  std::string text(static_cast<size_t>(most), 0);
  const ssize_t read = pread(file.get(), text.data(), text.size(), 0);
  text.resize(static_cast<size_t>(std::max<ssize_t>(0, read)));
  return text;
}

std::string LastLine(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

bool HasEnded(pid_t pid) {
  return waitpid(pid, nullptr, WNOHANG) != 0;
}

}  // namespace

absl::StatusOr<std::string> LimedPath() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string path = (program.parent_path() / "limed").string();
  if (error || access(path.c_str(), X_OK) != 0)
    return absl::NotFoundError(absl::StrCat(path, " is not there; build the target limed, or install it beside lime"));
  return path;
}

absl::StatusOr<std::unique_ptr<ChildDaemons>> ChildDaemons::Start(const std::vector<Daemon>& daemons) {
  LIME_ASSIGN_OR_RETURN(const std::string program, LimedPath());
  std::unique_ptr<ChildDaemons> started(new ChildDaemons);
  for (const Daemon& daemon : daemons) LIME_RETURN_IF_ERROR(started->Spawn(program, daemon));
  for (Child& child : started->children_) LIME_RETURN_IF_ERROR(AwaitPort(child));
  return started;
}

absl::Status ChildDaemons::Spawn(const std::string& program, const Daemon& daemon) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "limed", "make a pipe for");
  Child child{.name = daemon.name, .log = FileDescriptor(memfd_create("limed", MFD_CLOEXEC)), .ready = FileDescriptor(ends[0])};
  const FileDescriptor ready(ends[1]);
  if (!child.log.valid()) return ErrnoStatus(errno, "limed", "make a log for");
  std::vector<std::string> words = {program, "--name", daemon.name, "--listen", "127.0.0.1:0", "--ready-fd", absl::StrCat(ready.get())};
  words.insert(words.end(), daemon.arguments.begin(), daemon.arguments.end());
  std::vector<char*> argv(words.size() + 1);  // the last is null
  for (size_t i = 0; i < words.size(); ++i) argv[i] = words[i].data();
  const pid_t parent = getpid();
  child.pid = fork();
  if (child.pid < 0) return ErrnoStatus(errno, program, "start");
  if (child.pid == 0) Become(parent, child.log.get(), ready.get(), argv.data());
  children_.push_back(std::move(child));
  return absl::OkStatus();
}

absl::Status ChildDaemons::AwaitPort(Child& child) {
  const Clock::time_point begin = Clock::now();
  while (!Interrupted()) {
    struct pollfd ready = {.fd = child.ready.get(), .events = POLLIN, .revents = 0};
    char text[16] = {};
    const bool says = poll(&ready, 1, 100) > 0;
    if (says && read(child.ready.get(), text, sizeof(text) - 1) > 0) {
      child.port = std::atoi(text);
      return absl::OkStatus();
    }
    if (says || Clock::now() - begin > kStart) {
      const std::string words = LastLine(TextOf(child.log, 64 * kKiB));
      return absl::UnavailableError(
          absl::StrCat("the daemon \"", child.name, "\" has not started: ", words.empty() ? "it printed nothing" : words));
    }
  }
  return absl::CancelledError("interrupted");
}

ChildDaemons::~ChildDaemons() {
  std::vector<pid_t> alive;
  for (const Child& child : children_) {
    kill(child.pid, SIGTERM);
    alive.push_back(child.pid);
  }
  const Clock::time_point begin = Clock::now();
  while (std::erase_if(alive, HasEnded), !alive.empty() && Clock::now() - begin < kEnd) std::this_thread::sleep_for(kLook);
  for (const pid_t pid : alive) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
}

std::string ChildDaemons::address(size_t daemon) const {
  return absl::StrCat("127.0.0.1:", children_[daemon].port);
}

}  // namespace lime::cli
