// What the commands of `lime` share: exit codes, the model's flags, Ctrl-C.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "coordinator/cli/residency_flags.h"
#include "planner/base/status.h"

namespace lime::cli {

inline constexpr int kDone = 0;
inline constexpr int kFailed = 1;
inline constexpr int kWrongCall = 2;

// An error of the call rather than of the work: exit code 2.
absl::Status WrongCall(std::string message);

// Refuses, before the work is done, a file of a flag that could not be written after it; an empty path is no file.
absl::Status CheckOutputFile(const std::string& flag, const std::string& path);

// The exit code of a command that ended with `status`; prints the one sentence to stderr when it failed.
int Finish(const absl::Status& status);

// Set by the first Ctrl-C (the second ends the process at once). Installs the handler when first called.
const std::atomic<bool>& Interrupted();

// Devices of a cluster that a command is to do without.
void AddWithoutFlag(CLI::App& app, std::vector<std::string>& without);

// Flags of the commands that compute with a model.
struct ModelFlags {
  std::string model;
  std::string loader = "auto";
  std::string numerics = "auto";
  std::string kv = "reserve";
  ResidencyFlags residency;
  std::string profile;
  std::string cluster;
  int threads = 0;
  int64_t context = 0;
  int64_t chunk = 0;
  bool json = false;

  void AddTo(CLI::App& app);
  // Refuses values out of range, and flags of parts that are not built yet.
  absl::Status Check(bool on_cluster = false) const;  // on_cluster: the command can run on the devices of a cluster
};

}  // namespace lime::cli
