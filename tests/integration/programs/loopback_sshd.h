// An OpenSSH server on a free port of loopback, with its own keys and configuration in a folder. It
// leaves /run/sshd on a machine without one.
#pragma once

#include <arpa/inet.h>
#include <pwd.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/integration/programs/free_port.h"
#include "tests/temp_dir.h"

namespace lime {

class LoopbackSshd {
 public:
  // `environment`: NAME=VALUE for the programs that are run over it.
  explicit LoopbackSshd(const std::string& environment) {
    for (const char* key : {"host", "id"}) System(absl::StrCat("ssh-keygen -q -t ed25519 -N '' -f ", dir_ / key));
    std::filesystem::copy_file(dir_ / "id.pub", dir_ / "authorized");
    dir_.Write("known", absl::StrCat("[127.0.0.1]:", port_, " ", dir_.Read("host.pub")));
    dir_.Write("sshd_config",
               absl::StrCat("ListenAddress 127.0.0.1:", port_, "\nHostKey ", dir_ / "host", "\nAuthorizedKeysFile ", dir_ / "authorized",
                            "\nPidFile none\nUsePAM no\nStrictModes no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n",
                            "PermitRootLogin prohibit-password\nSetEnv ", environment, "\n"));
    dir_.Write("ssh_config", absl::StrCat("Host *\n  UserKnownHostsFile ", dir_ / "known", "\n  StrictHostKeyChecking yes\n"));
    pid_ = fork();
    if (pid_ == 0) Become();
    for (int i = 0; i < 500 && !Answers(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  ~LoopbackSshd() {
    if (pid_ <= 0) return;
    kill(pid_, SIGTERM);
    waitpid(pid_, nullptr, 0);
  }
  LoopbackSshd(const LoopbackSshd&) = delete;

  static bool Installed() { return access(kProgram, X_OK) == 0 && std::system("command -v ssh ssh-keygen >/dev/null") == 0; }
  bool Answers() const { return std::system((Ssh() + " true 2>/dev/null").c_str()) == 0; }

  // The value of `ssh` in cluster.toml.
  std::string Way() const { return absl::StrCat(UserName(), "@127.0.0.1 -p ", port_, " -i ", dir_ / "id", " -F ", dir_ / "ssh_config"); }

 private:
  static constexpr char kProgram[] = "/usr/sbin/sshd";

  static void System(const std::string& call) { LIME_CHECK(std::system(call.c_str()) == 0) << call; }
  static std::string UserName() {
    const struct passwd* const user = getpwuid(geteuid());
    return user == nullptr ? "root" : user->pw_name;
  }
  std::string Ssh() const {
    return absl::StrCat("ssh -F ", dir_ / "ssh_config", " -o BatchMode=yes -p ", port_, " -i ", dir_ / "id ", UserName(), "@127.0.0.1");
  }

  // sshd of root needs an empty /run/sshd, which a machine without a running one lacks. It stays:
  // the servers of other tests use it at the same time.
  [[noreturn]] void Become() const {
    if (geteuid() == 0) ::mkdir("/run/sshd", 0755);  // there is one already, or sshd says what is wrong
    const std::string config = dir_ / "sshd_config", log = dir_ / "log";
    execl(kProgram, kProgram, "-D", "-f", config.c_str(), "-E", log.c_str(), nullptr);
    _exit(127);
  }

  TempDir dir_;
  const int port_ = FreePort();
  pid_t pid_ = 0;
};

}  // namespace lime
