// `lime` as a process of its own: its answer, its stderr and its exit code. LIME_BINARY is its
// path.
#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/temp_dir.h"

namespace lime {

struct Answer {
  int exit_code = -1;
  std::string out, err;
  bool json_asked = false;  // by --json
  nlohmann::json Json() const { return nlohmann::json::parse(out, nullptr, /*allow_exceptions=*/false); }
};

inline std::string Slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// Waits until the file has the words, half a minute at most. Reads the file every few milliseconds,
// because another process writes it.
inline bool AwaitWords(const std::string& path, const std::string& words) {
  for (int i = 0; i < 6000 && Slurp(path).find(words) == std::string::npos; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return Slurp(path).find(words) != std::string::npos;
}

// A running `lime`. Its stdin, stdout and stderr are files of a folder.
class Lime {
 public:
  explicit Lime(const std::vector<std::string>& arguments, const std::string& input = "", const char* program = LIME_BINARY)
      : json_asked_(std::ranges::find(arguments, "--json") != arguments.end()) {
    WriteFile(dir_ / "in", input);
    pid_ = fork();
    if (pid_ != 0) return;
    const int in = open((dir_ / "in").c_str(), O_RDONLY), out = open((dir_ / "out").c_str(), O_CREAT | O_WRONLY, 0600),
              err = open((dir_ / "err").c_str(), O_CREAT | O_WRONLY, 0600);
    dup2(in, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    std::vector<char*> argv = {const_cast<char*>("lime")};
    for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    execv(program, argv.data());
    _exit(127);
  }

  pid_t pid() const { return pid_; }
  std::string out() const { return Slurp(dir_ / "out"); }
  std::string err() const { return Slurp(dir_ / "err"); }

  // Waits until stdout, or stderr, has the words, half a minute at most.
  bool AwaitOut(const std::string& words) const { return AwaitWords(dir_ / "out", words); }
  bool AwaitErr(const std::string& words) const { return AwaitWords(dir_ / "err", words); }

  // Waits until it has used so much processor time, half a minute at most.
  bool AwaitWork(double seconds) const {
    for (int i = 0; i < 12000 && WorkSeconds() < seconds; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return WorkSeconds() >= seconds;
  }

  Answer Wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), out(), err(), json_asked_};
  }

 private:
  // Processor time that all threads of the process used.
  double WorkSeconds() const {
    std::ifstream stat(absl::StrCat("/proc/", pid_, "/stat"));
    std::string word;
    for (int field = 1; field < 14; ++field) stat >> word;  // its name is one word
    double user = 0, system = 0;
    stat >> user >> system;
    return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
  }

  TempDir dir_;
  const bool json_asked_;
  pid_t pid_ = 0;
};

// Whether `lime` handles the signal by now: while a program is loaded, it ends as any other does.
inline bool Handles(pid_t pid, int signal) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("SigCgt:")) return (std::stoull(line.substr(7), nullptr, 16) >> (signal - 1) & 1) != 0;
  }
  return false;
}

// Waits until then, ten seconds at most.
inline void AwaitHandler(const Lime& lime, int signal) {
  for (int i = 0; i < 10'000 && !Handles(lime.pid(), signal); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

inline Answer Call(const std::vector<std::string>& arguments, const std::string& input = "") {
  return Lime(arguments, input).Wait();
}

// Another program, in the same way.
inline Answer CallProgram(const char* program, const std::vector<std::string>& arguments) {
  return Lime(arguments, "", program).Wait();
}

// Expects one sentence on stderr, and nothing on stdout except, with --json, the object of that
// error.
inline void ExpectRefused(const Answer& answer, int exit_code, const std::string& words) {
  EXPECT_EQ(answer.exit_code, exit_code) << answer.err;
  if (answer.json_asked) {
    const nlohmann::json root = answer.Json(),
                         error = root.is_object() ? root.value("error", nlohmann::json::object()) : nlohmann::json::object();
    EXPECT_EQ(absl::StrCat("lime: ", error.value("message", ""), "\n"), answer.err);
    EXPECT_EQ(error.value("exit_code", -1), exit_code) << answer.out;
  } else {
    EXPECT_EQ(answer.out, "");
  }
  EXPECT_THAT(answer.err, ::testing::HasSubstr(words));
  EXPECT_EQ(std::ranges::count(answer.err, '\n'), 1) << answer.err;
}

}  // namespace lime
