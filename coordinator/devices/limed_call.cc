#include "coordinator/devices/limed_call.h"

#include <fcntl.h>
#include <netdb.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/input/device_name.h"
#include "common/input/host_port.h"
#include "coordinator/cli/command.h"
#include "coordinator/devices/child_daemons.h"
#include "coordinator/rpc/device_client.h"
#include "daemon/machine/files.h"
#include "planner/plan/device/backend_names.h"

namespace lime::cli {
namespace {

// The status of the child once it has ended. It is told to end once `cancel` is set, which may be null.
int StatusAtEnd(pid_t child, const std::atomic<bool>* cancel) {
  constexpr absl::Duration kLook = absl::Milliseconds(20);
  int status = 0;
  for (;;) {
    const pid_t ended = waitpid(child, &status, cancel == nullptr ? 0 : WNOHANG);
    if (ended == child || (ended < 0 && errno != EINTR)) return status;
    if (ended != 0) continue;
    if (cancel->load()) kill(child, SIGTERM);
    absl::SleepFor(kLook);
  }
}

}  // namespace
absl::StatusOr<LimedCall> LimedCall::For(const ClusterFile& file, const ClusterConfig::Device& device, bool insecure) {
  LimedCall call;
  call.device_ = device;
  call.file_ = file.path;
  call.where_ = absl::StrCat(file.path, " line ", device.line, ": device \"", device.name, "\"");
  call.cluster_ = file.Name();
  if (!IsDeviceName(call.cluster_))
    return WrongCall(absl::StrCat(file.path, ": the name of the file cannot be the name of a cluster: it is not ",
                                  std::string(kDeviceNameRule), "; add name = \"NAME\" under [cluster]"));
  call.from_ = device.ssh.empty() ? file.FullPath() : absl::StrCat(NewCoordinator().host, ":", file.FullPath());
  call.id_ = {"--name", device.name, "--background", call.cluster_, "--cluster-file", call.from_};
  LIME_ASSIGN_OR_RETURN(call.keys_, call.KeysOf(file, insecure));
  call.id_.insert(call.id_.end(), {"--listen", call.listen()});
  call.id_.insert(call.id_.end(), call.keys_.begin(), call.keys_.end());
  if (!device.ssh.empty()) {
    LIME_ASSIGN_OR_RETURN(call.ssh_, ParseSshWay(device.ssh));
    for (std::string* const named : {&call.ssh_.identity, &call.ssh_.config}) {
      if (!named->empty()) *named = file.Beside(*named);
    }
  }
  if (!device.limed.empty()) {
    call.program_ = device.limed;
  } else if (!device.ssh.empty()) {
    call.program_ = "limed";
  } else {
    LIME_ASSIGN_OR_RETURN(call.program_, LimedPath());
  }
  return call;
}

std::vector<std::string> LimedCall::Start() const {
  std::vector<std::string> words = {program_};
  words.insert(words.end(), id_.begin(), id_.end());
  const auto add = [&](const char* flag, const std::string& value) {
    if (!value.empty()) words.push_back(flag), words.push_back(value);
  };
  add("--memory", device_.memory > 0 ? absl::StrCat(device_.memory) : "");
  add("--memory-mode", device_.memory_mode);
  add("--threads", device_.threads > 0 ? absl::StrCat(device_.threads) : "");
  add("--backend", device_.backend == kCpuBackend ? "" : device_.backend);
  add("--loader", device_.loader == kDaemonLoader ? "" : device_.loader);
  add("--model", device_.weights);
  add("--store", device_.store);
  add("--kv-dir", device_.kv_dir);
  if (device_.follow_memory) words.emplace_back("--follow-memory");
  return Reach(words);
}

std::vector<std::string> LimedCall::Stop() const {
  std::vector<std::string> words = {program_};
  words.insert(words.end(), id_.begin(), id_.end());
  words.push_back("--stop");
  return Reach(words);
}

std::vector<std::string> LimedCall::StopAll() const {
  return Reach({program_, "--cluster-file", from_, "--stop-all"});
}

absl::Status LimedCall::InFile(std::string_view sentence) const {
  static constexpr std::pair<const char*, const char*> kFieldOf[] = {
      {"--memory-mode", "memory-mode"}, {"--memory", "memory"}, {"--threads", "threads"},
      {"--model", "weights"},           {"--store", "store"},   {"--kv-dir", "kv-dir"}};
  for (const auto& [flag, field] : kFieldOf) {
    const auto written = device_.written.find(field);
    if (!sentence.starts_with(flag) || written == device_.written.end()) continue;
    // After the flag comes its value, as limed received it.
    std::string_view problem = sentence.substr(std::string_view(flag).size());
    for (const std::string& value : {absl::StrCat(device_.memory), absl::StrCat(device_.threads), device_.weights, device_.store,
                                     device_.kv_dir, device_.memory_mode}) {
      if (!value.empty() && problem.starts_with(absl::StrCat(" ", value))) problem.remove_prefix(value.size() + 1);
    }
    return WrongCall(absl::StrCat(file_, " line ", written->second.line, ": device \"", name(), "\": ", field, " = ", written->second.text,
                                  std::string(problem)));
  }
  return WrongCall(absl::StrCat(where_, ": ", std::string(sentence)));
}

ClusterConfig::Device LimedCall::Wanted() const {
  ClusterConfig::Device wanted = device_;
  wanted.cluster = cluster_;
  wanted.listen = listen();
  wanted.tls = keys_.size() == 2 ? keys_[1] : "";
  return wanted;
}

absl::StatusOr<std::vector<std::string>> LimedCall::KeysOf(const ClusterFile& file, bool insecure) const {
  if (!device_.tls.empty()) return std::vector<std::string>{"--tls", device_.tls};
  if (!file.config.tls.empty() && device_.ssh.empty()) return std::vector<std::string>{"--tls", file.Beside(file.config.tls)};
  if (!file.config.tls.empty())
    return WrongCall(absl::StrCat(where_, " is on another machine: copy its keys there and add tls = \"FOLDER\" to it"));
  return insecure ? std::vector<std::string>{"--insecure"} : std::vector<std::string>{};
}

std::vector<std::string> LimedCall::Reach(const std::vector<std::string>& words) const {
  return device_.ssh.empty() ? words : OverSsh(ssh_, words);
}

absl::StatusOr<std::string> RunToEnd(std::vector<std::string> words, const std::atomic<bool>* cancel) {
  const FileDescriptor said(memfd_create("lime", MFD_CLOEXEC));
  if (!said.valid()) return ErrnoStatus(errno, words.front(), "listen to");
  std::vector<char*> argv(words.size() + 1);  // the last is null
  for (size_t i = 0; i < words.size(); ++i) argv[i] = words[i].data();
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, said.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, said.get(), STDERR_FILENO);
  pid_t child = 0;
  const int error = posix_spawnp(&child, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return ErrnoStatus(error, words.front(), "start");
  const int status = StatusAtEnd(child, cancel);
  if (cancel != nullptr && cancel->load()) return absl::CancelledError("interrupted");
  std::string text(4096, 0);
  text.resize(static_cast<size_t>(std::max<ssize_t>(0, pread(said.get(), text.data(), text.size(), 0))));
  text.resize(text.find_last_not_of("\n\r ") + 1);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return text;
  text = text.substr(text.rfind('\n') + 1);
  if (text.empty()) return absl::UnavailableError(absl::StrCat(words.front(), " failed without a message"));
  return WIFEXITED(status) && WEXITSTATUS(status) == kWrongCall ? absl::InvalidArgumentError(text) : absl::UnavailableError(text);
}

bool IsOfThisMachine(const std::string& address) {
  const absl::StatusOr<HostPort> parsed = ParseAddress(address);
  if (!parsed.ok()) return true;
  const struct addrinfo hints = {.ai_flags = AI_PASSIVE, .ai_socktype = SOCK_STREAM};
  struct addrinfo* found = nullptr;
  if (getaddrinfo(parsed->host.c_str(), "0", &hints, &found) != 0) return true;
  const std::unique_ptr<struct addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  for (const struct addrinfo* each = found; each != nullptr; each = each->ai_next) {
    const FileDescriptor probe(::socket(each->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!probe.valid()) continue;
    if (::bind(probe.get(), each->ai_addr, each->ai_addrlen) == 0 || errno != EADDRNOTAVAIL) return true;
  }
  return false;
}

}  // namespace lime::cli
