#include "daemon/limed/background.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string_view>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/input/device_name.h"
#include "daemon/machine/service_manager.h"

namespace lime {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr Clock::duration kGraceful = 10s, kLook = 20ms;
constexpr int kStartMs = 60'000;
constexpr int kWrongCall = 2;  // exit code
constexpr std::string_view kSpeaker = "limed: ";

struct flock WholeFile(short type) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return lock;
}

// The file stays open, and so the lock is held, as long as the process lives.
absl::Status LockFile(const std::string& path) {
  FileDescriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!file.valid()) return ErrnoStatus(errno, path, "open");
  struct flock lock = WholeFile(F_WRLCK);
  if (fcntl(file.get(), F_SETLK, &lock) != 0)
    return absl::AlreadyExistsError(absl::StrCat(path, " is in use by another limed; end it first"));
  const std::string text = absl::StrCat(getpid(), "\n");
  if (ftruncate(file.get(), 0) != 0) return ErrnoStatus(errno, path, "write");
  LIME_RETURN_IF_ERROR(WriteExactly(file, path, 0, std::as_bytes(std::span(text))));
  (void)file.Release();
  return absl::OkStatus();
}

// The file has three lines. A daemon of an earlier release has not written it.
absl::StatusOr<Origin> ReadOrigin(const std::string& path) {
  LIME_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMiB));
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  if (lines.size() != 4) return Invalid(path, " was not written by limed");
  return Origin{.file = lines[0], .listen = lines[1], .tls = lines[2]};
}

absl::Status WriteOrigin(const std::string& path, const Origin& origin) {
  const FileDescriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file.valid()) return ErrnoStatus(errno, path, "open");
  const std::string text = absl::StrCat(origin.file, "\n", origin.listen, "\n", origin.tls, "\n");
  return WriteExactly(file, path, 0, std::as_bytes(std::span(text)));
}

absl::Status SpeakToLog(const std::string& path) {
  std::error_code ignored;
  fs::rename(path, path + ".old", ignored);
  const FileDescriptor null(open("/dev/null", O_RDONLY | O_CLOEXEC)),
      log(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!null.valid() || !log.valid()) return ErrnoStatus(errno, path, "open");
  dup2(null.get(), STDIN_FILENO);
  dup2(log.get(), STDOUT_FILENO);
  dup2(log.get(), STDERR_FILENO);
  return absl::OkStatus();
}

bool AwaitEnd(const std::string& path, Clock::duration patience) {
  for (const Clock::time_point begin = Clock::now(); HolderOf(path) != 0; std::this_thread::sleep_for(kLook)) {
    if (Clock::now() - begin > patience) return false;
  }
  return true;
}

// The parent's part: exits once the daemon listens.
absl::Status AwaitReady(pid_t child, const FileDescriptor& ready, const StateFiles& files, const std::string& device) {
  struct pollfd event = {.fd = ready.get(), .events = POLLIN, .revents = 0};
  char port[16] = {};
  const bool in_time = poll(&event, 1, kStartMs) > 0;
  if (in_time && read(ready.get(), port, sizeof(port) - 1) > 0) {
    std::printf("device %s listens on port %d; process %d, log %s\n", device.c_str(), std::atoi(port), static_cast<int>(child),
                files.log.c_str());
    std::fflush(stdout);
    _exit(0);
  }
  if (!in_time) kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  std::string words = "it printed nothing";
  if (const absl::StatusOr<std::string> log = ReadTextFile(files.log, kMiB); log.ok() && !log->empty()) {
    words = log->substr(0, log->find_last_not_of('\n') + 1);
    words = words.substr(words.rfind('\n') + 1);
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == kWrongCall)
    return absl::InvalidArgumentError(words.starts_with(kSpeaker) ? words.substr(kSpeaker.size()) : words);
  return absl::UnavailableError(absl::StrCat("device \"", device, "\" has not started: ", words, " (log ", files.log, ")"));
}

// Empty if no variable names a folder.
fs::path StateFolder() {
  const char* const state = std::getenv("XDG_STATE_HOME");
  if (state != nullptr && *state == '/') return fs::path(state) / "lime";
  const char* const home = std::getenv("HOME");
  return home != nullptr && *home == '/' ? fs::path(home) / ".local/state/lime" : fs::path();
}

StateFiles FilesIn(const fs::path& folder, const std::string& device) {
  return {.device = device,
          .pid = (folder / (device + ".pid")).string(),
          .log = (folder / (device + ".log")).string(),
          .origin = (folder / (device + ".origin")).string()};
}

}  // namespace

absl::StatusOr<StateFiles> StateFilesOf(const std::string& cluster, const std::string& device) {
  for (const std::string& name : {cluster, device}) {
    if (!IsDeviceName(name))
      return Invalid("\"", name.substr(0, 80), "\" is not usable in file names; a name is ", std::string(kDeviceNameRule));
  }
  const fs::path base = StateFolder();
  if (base.empty())
    return absl::FailedPreconditionError("the log has no folder: neither HOME nor XDG_STATE_HOME is an absolute path; set one of them");
  const fs::path folder = base / cluster;
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return absl::UnavailableError(absl::StrCat(folder.string(), " cannot be made: ", error.message()));
  (void)chmod(folder.c_str(), 0700);
  return FilesIn(folder, device);
}

std::vector<StateFiles> StartedFrom(const std::string& cluster_file) {
  std::vector<StateFiles> started;
  std::error_code ignored;
  for (fs::recursive_directory_iterator at(StateFolder(), ignored), end; !ignored && at != end; at.increment(ignored)) {
    if (at->path().extension() != ".origin") continue;
    const absl::StatusOr<Origin> origin = ReadOrigin(at->path().string());
    const StateFiles files = FilesIn(at->path().parent_path(), at->path().stem().string());
    if (origin.ok() && origin->file == cluster_file && HolderOf(files.pid) > 0) started.push_back(files);
  }
  return started;
}

std::string OtherOrigin(const StateFiles& files, const Origin& origin) {
  if (HolderOf(files.pid) == 0) return "";
  const absl::StatusOr<Origin> other = ReadOrigin(files.origin);
  if (!other.ok() || (!origin.file.empty() && other->file == origin.file)) return "";
  if (other->listen == origin.listen && other->tls == origin.tls) return "";
  return absl::StrCat("started ", other->file.empty() ? "by hand" : absl::StrCat("from ", other->file), " at ", other->listen, ", process ",
                      HolderOf(files.pid));
}

pid_t HolderOf(const std::string& pid_path) {
  const FileDescriptor file(open(pid_path.c_str(), O_RDWR | O_CLOEXEC));
  struct flock lock = WholeFile(F_WRLCK);
  if (!file.valid() || fcntl(file.get(), F_GETLK, &lock) != 0 || lock.l_type == F_UNLCK) return 0;
  return lock.l_pid;
}

absl::StatusOr<pid_t> EndHolder(const std::string& pid_path) {
  const pid_t holder = HolderOf(pid_path);
  if (holder <= 0) return 0;
  if (kill(holder, SIGTERM) != 0 && errno != ESRCH) return ErrnoStatus(errno, absl::StrCat("process ", holder), "end");
  if (AwaitEnd(pid_path, kGraceful)) return holder;
  if (HolderOf(pid_path) == holder) kill(holder, SIGKILL);
  if (AwaitEnd(pid_path, kGraceful)) return holder;
  return absl::UnavailableError(absl::StrCat("process ", holder, " does not end; run `kill -9 ", holder, "`"));
}

absl::StatusOr<int> GoOnInBackground(const StateFiles& files, const std::string& device, const Origin& origin) {
  if (const std::string other = OtherOrigin(files, origin); !other.empty())
    return absl::AlreadyExistsError(absl::StrCat("device \"", device, "\" of a cluster of this name runs already, ", other,
                                                 "; give this cluster a name of its own (name = \"NAME\" under [cluster]), or end that one "
                                                 "first"));
  if (const pid_t holder = HolderOf(files.pid); holder > 0) {
    std::printf("device %s runs already; process %d, log %s\n", device.c_str(), static_cast<int>(holder), files.log.c_str());
    return -1;
  }
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, files.log, "make a pipe beside");
  FileDescriptor ready(ends[0]), report(ends[1]);
  const pid_t child = fork();
  if (child < 0) return ErrnoStatus(errno, "limed", "fork");
  if (child > 0) {
    report = FileDescriptor();
    return AwaitReady(child, ready, files, device);
  }
  setsid();
  LIME_RETURN_IF_ERROR(SpeakToLog(files.log));
  LIME_RETURN_IF_ERROR(LockFile(files.pid));
  LIME_RETURN_IF_ERROR(WriteOrigin(files.origin, origin));
  return report.Release();
}

void ReportReady(int port, int fd) {
  if (fd >= 0) {
    const std::string line = std::to_string(port) + "\n";
    [[maybe_unused]] const ssize_t written = write(fd, line.data(), line.size());
    close(fd);
  }
  NotifyManager("READY=1");
}

void ReportStopping() {
  NotifyManager("STOPPING=1");
}

}  // namespace lime
