#include "coordinator/cli/up_command.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/cli/child_daemons.h"
#include "coordinator/cli/cluster_file.h"
#include "coordinator/cli/command.h"
#include "coordinator/cli/device_checks.h"
#include "coordinator/cluster/remote_command.h"
#include "daemon/weights/files.h"

extern char** environ;

namespace lime::cli {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(10);  // for a daemon that listens to answer

struct UpFlags {
  std::string cluster;
  bool insecure = false;
};

// What a device's limed is called with: the same words on this machine and on another.
class LimedCall {
 public:
  static absl::StatusOr<LimedCall> For(const ClusterFile& file, const ClusterConfig::Device& device, bool insecure) {
    LimedCall call;
    call.device_ = device;
    call.where_ = absl::StrCat(file.path, " line ", device.line, ": device \"", device.name, "\"");
    if (!IsDeviceName(file.Name()) || file.Name().front() == '.')
      return absl::InvalidArgumentError(
          absl::StrCat(file.path, ": [cluster] name = \"", file.Name().substr(0, 80), "\" is not ", std::string(kDeviceNameRule)));
    call.id_ = {"--name", device.name, "--background", file.Name()};
    LIME_ASSIGN_OR_RETURN(call.keys_, call.KeysOf(file, insecure));
    if (!device.limed.empty()) {
      call.program_ = device.limed;
    } else if (!device.ssh.empty()) {
      call.program_ = "limed";
    } else {
      LIME_ASSIGN_OR_RETURN(call.program_, LimedPath());
    }
    return call;
  }

  std::vector<std::string> Start() const {
    std::vector<std::string> words = {program_};
    words.insert(words.end(), id_.begin(), id_.end());
    const auto add = [&](const char* flag, const std::string& value) {
      if (!value.empty()) words.push_back(flag), words.push_back(value);
    };
    add("--listen", device_.listen.empty() ? device_.address : device_.listen);
    add("--memory", device_.memory > 0 ? absl::StrCat(device_.memory) : "");
    add("--threads", device_.threads > 0 ? absl::StrCat(device_.threads) : "");
    add("--model", device_.weights);
    add("--store", device_.store);
    words.insert(words.end(), keys_.begin(), keys_.end());
    return Reach(words);
  }

  std::vector<std::string> Stop() const {
    std::vector<std::string> words = {program_};
    words.insert(words.end(), id_.begin(), id_.end());
    words.push_back("--stop");
    return Reach(words);
  }

  const std::string& name() const { return device_.name; }

 private:
  absl::StatusOr<std::vector<std::string>> KeysOf(const ClusterFile& file, bool insecure) const {
    if (!device_.tls.empty()) return std::vector<std::string>{"--tls", device_.tls};
    if (!file.config.tls.empty() && device_.ssh.empty()) return std::vector<std::string>{"--tls", file.Beside(file.config.tls)};
    if (!file.config.tls.empty())
      return absl::InvalidArgumentError(absl::StrCat(where_, " is on another machine: copy its keys there and add tls = \"FOLDER\" to it"));
    return insecure ? std::vector<std::string>{"--insecure"} : std::vector<std::string>{};
  }

  std::vector<std::string> Reach(const std::vector<std::string>& words) const {
    return device_.ssh.empty() ? words : OverSsh(device_.ssh, words);
  }

  ClusterConfig::Device device_;
  std::string where_, program_;
  std::vector<std::string> id_, keys_;
};

// Runs a program to its end: what it says, on either stream; an error, with that, where it fails.
absl::StatusOr<std::string> RunToEnd(std::vector<std::string> words) {
  const FileDescriptor said(memfd_create("lime", MFD_CLOEXEC));
  if (!said.valid()) return ErrnoStatus(errno, words.front(), "listen to");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, said.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, said.get(), STDERR_FILENO);
  pid_t child = 0;
  const int error = posix_spawnp(&child, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return ErrnoStatus(error, words.front(), "start");
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  std::string text(4096, 0);
  text.resize(static_cast<size_t>(std::max<ssize_t>(0, pread(said.get(), text.data(), text.size(), 0))));
  text.resize(text.find_last_not_of("\n\r ") + 1);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return text;
  text = text.substr(text.rfind('\n') + 1);
  return absl::UnavailableError(text.empty() ? absl::StrCat(words.front(), " has failed without a word") : text);
}

absl::StatusOr<std::vector<LimedCall>> CallsOf(const ClusterFile& file, bool insecure) {
  std::vector<LimedCall> calls;
  for (const ClusterConfig::Device& device : file.config.devices) {
    LIME_ASSIGN_OR_RETURN(LimedCall call, LimedCall::For(file, device, insecure));
    calls.push_back(std::move(call));
  }
  return calls;
}

// The same for every device at once; prints what each says, in order. The first error, in order, is the answer.
template <typename Do>
absl::Status ForAll(size_t count, Do what) {
  std::vector<absl::StatusOr<std::string>> said(count);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < count; ++i) threads.emplace_back([&, i] { said[i] = what(i); });
  for (std::thread& thread : threads) thread.join();
  absl::Status first;
  for (const absl::StatusOr<std::string>& sentence : said) {
    if (sentence.ok()) std::cout << *sentence << "\n";
    first.Update(sentence.status());
  }
  std::cout << std::flush;
  return first;
}

absl::StatusOr<std::string> StartOne(const LimedCall& call, const DeviceClient& client) {
  const absl::StatusOr<std::string> said = RunToEnd(call.Start());
  if (!said.ok()) return absl::UnavailableError(absl::StrCat("device \"", call.name(), "\" is not up: ", said.status().message()));
  const absl::StatusOr<DeviceHealth> health = client.Health(kPatience);
  if (!health.ok()) return absl::UnavailableError(absl::StrCat(health.status().message(), ". It said: ", *said));
  std::string notices;
  for (const std::string& notice : ExpiryNotices({}, {{call.name(), &*health}}, std::time(nullptr)))
    absl::StrAppend(&notices, "\n", notice);
  return absl::StrCat(*said, notices);
}

absl::Status Up(const UpFlags& flags) {
  LIME_ASSIGN_OR_RETURN(const ClusterFile file, ClusterFile::Open(flags.cluster, flags.insecure));
  LIME_ASSIGN_OR_RETURN(const std::vector<LimedCall> calls, CallsOf(file, flags.insecure));
  const auto clients = file.Clients();
  for (const std::string& notice : ExpiryNotices(file.keys, {}, std::time(nullptr))) std::cout << notice << "\n";
  return ForAll(calls.size(), [&](size_t i) { return StartOne(calls[i], *clients[i]); });
}

absl::Status Down(const UpFlags& flags) {
  LIME_ASSIGN_OR_RETURN(const ClusterFile file, ClusterFile::Open(flags.cluster, /*insecure=*/true));
  LIME_ASSIGN_OR_RETURN(const std::vector<LimedCall> calls, CallsOf(file, /*insecure=*/true));
  return ForAll(calls.size(), [&](size_t i) -> absl::StatusOr<std::string> {
    absl::StatusOr<std::string> said = RunToEnd(calls[i].Stop());
    if (said.ok()) return said;
    return absl::UnavailableError(absl::StrCat("device \"", calls[i].name(), "\" is not down: ", said.status().message()));
  });
}

}  // namespace

void AddUpCommand(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<UpFlags>();
  CLI::App* command = app.add_subcommand("up", "Start limed on every device of a cluster, here and over ssh");
  command->footer(
      "Example: lime up --cluster shelf.toml\n"
      "A device with ssh = \"USER@HOST\" in the file is started there, by limed on its PATH or where limed = \"PATH\" says; the others on "
      "this\n"
      "machine. What runs already stays. Log and process number of each are in ~/.local/state/lime/CLUSTER on its machine.");
  command->add_option("--cluster,-c", flags->cluster, "cluster.toml")->required();
  command->add_flag("--insecure", flags->insecure, "Let anyone who reaches the devices use them, where the file names no keys");
  command->callback([flags, &exit_code] { exit_code = Finish(Up(*flags)); });
}

void AddDownCommand(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<UpFlags>();
  CLI::App* command = app.add_subcommand("down", "End what `lime up` has started, and nothing else");
  command->footer("Example: lime down --cluster shelf.toml");
  command->add_option("--cluster,-c", flags->cluster, "cluster.toml")->required();
  command->callback([flags, &exit_code] { exit_code = Finish(Down(*flags)); });
}

}  // namespace lime::cli
