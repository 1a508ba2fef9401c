// `limed` as a process of its own on a port of loopback. It ends with this object. LIMED_BINARY is
// its path.
#pragma once

#include <signal.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/programs/lime_process.h"

namespace lime {

class Limed {
 public:
  struct Options {
    int port = 0;                   // 0: a free one
    std::vector<std::string> more;  // flags
    int64_t clock_shift = 0;        // error of its clock in seconds (library LIME_SHIFTED_CLOCK)
  };
  // On a free port, or on the port of an earlier daemon.
  explicit Limed(const std::string& name, int port = 0) : Limed(name, Options{.port = port}) {}
  Limed(const std::string& name, const Options& options) : log_(dir_ / "log") {
    const std::string listen = absl::StrCat("127.0.0.1:", options.port);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(open(log_.c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600), STDERR_FILENO);
      dup2(STDERR_FILENO, STDOUT_FILENO);  // or a daemon that a killed test leaves would hold the pipe that ctest reads
      std::vector<std::string> words = {"limed", "--name", name, "--listen", listen, "--threads", "1"};
      words.insert(words.end(), options.more.begin(), options.more.end());
      std::vector<char*> argv;
      argv.reserve(words.size() + 1);
      for (std::string& word : words) argv.push_back(word.data());
      argv.push_back(nullptr);
#ifdef LIME_SHIFTED_CLOCK
      if (options.clock_shift != 0) {
        setenv("LD_PRELOAD", LIME_SHIFTED_CLOCK, 1);
        setenv("LIME_TEST_CLOCK_SHIFT", std::to_string(options.clock_shift).c_str(), 1);
      }
#endif
      execv(LIMED_BINARY, argv.data());
      _exit(127);
    }
    const std::string words = "listens on port ";
    EXPECT_TRUE(AwaitLog(words)) << log();
    if (const size_t at = log().find(words); at != std::string::npos) port_ = std::atoi(log().c_str() + at + words.size());
  }
  Limed(const Limed&) = delete;
  ~Limed() {
    Signal(SIGCONT);
    End(SIGTERM);
  }

  // Its exit status, as waitpid gives it.
  int End(int signal) {
    int status = 0;
    if (pid_ <= 0) return status;
    kill(pid_, signal);
    waitpid(pid_, &status, 0);
    pid_ = 0;
    return status;
  }
  void Signal(int signal) const {
    if (pid_ > 0) kill(pid_, signal);
  }

  // Waits until the log has the words, half a minute at most.
  bool AwaitLog(const std::string& words) const {
    return AwaitWords(log_, words);
  }
  int64_t ResidentBytes() const {
    int64_t pages = 0, resident = 0;
    std::ifstream(absl::StrCat("/proc/", pid_, "/statm")) >> pages >> resident;
    return resident * sysconf(_SC_PAGESIZE);
  }

  std::string log() const {
    return Slurp(log_);
  }
  int port() const {
    return port_;
  }
  pid_t pid() const {
    return pid_;
  }

 private:
  TempDir dir_;
  const std::string log_;
  pid_t pid_ = 0;
  int port_ = 0;
};

}  // namespace lime
