// What the commands of `lime` share: exit codes, errors, the model's flags.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/command_line.h"
#include "coordinator/cli/interrupt.h"
#include "coordinator/local/local_plan.h"
#include "nlohmann/json_fwd.hpp"
#include "planner/base/status.h"
#include "planner/plan/model_spec.h"

namespace lime::cli {

inline constexpr int kDone = 0;
inline constexpr int kFailed = 1;
inline constexpr int kWrongCall = 2;

// An error of the call rather than of the work: exit code 2.
absl::Status WrongCall(std::string message);

// Of a file or folder that the call names and the user wrote: what is wrong with it is a wrong call.
// A disk that fails, and a step that has to be done first (FailedPrecondition), are returned as they
// are.
absl::Status OfUser(absl::Status status);
template <typename T>
absl::StatusOr<T> OfUser(absl::StatusOr<T> result) {
  return result.ok() ? std::move(result) : absl::StatusOr<T>(OfUser(result.status()));
}

// A failure after which `json` (one object) still holds an answer: with --json it is printed, with
// "error" added. REQUIRES: !status.ok().
absl::Status WithAnswer(absl::Status status, const nlohmann::json& json);

// What is left to do once a command has its answer: print it where --json asks for it. Where there is a `problem`, it is the end, with
// the answer.
absl::Status Answered(const nlohmann::json& answer, bool as_json, const absl::Status& problem = absl::OkStatus());

// Refuses what --model (or what else `says` names) may not name: a model that was not downloaded, a single file.
absl::Status CheckModelFolder(const std::string& model, const std::string& says = "--model");

// One error of all that failed, with the code of the first and the sentences of all. OK where none did.
absl::Status AllOf(std::span<const absl::Status> statuses);

// The exit code of a command that ended with `status`. Where it failed, prints the one sentence to
// stderr, and with --json {"error": {"message", "kind", "exit_code"}} to stdout. After a signal it
// is kInterrupted, whatever error the signal led to.
int Finish(const absl::Status& status);

// Whether errors are printed as JSON too; main() says so before a command runs.
void AnswerInJson(bool json);

// Devices of a cluster that a command is to do without.
void AddWithoutFlag(const CommandFlags& command, std::vector<std::string>& without);

// Of --no-kv-spill, wherever it is one.
inline constexpr char kNoKvSpill[] = "Keep all KV in memory: none of it goes to disks";

// Flags of the commands that compute with a model.
struct ModelFlags {
  std::string model;
  std::string loader = "auto";
  std::string numerics = "auto";
  std::string kv = "reserve";
  std::string kv_dir;        // for KV that memory has no room for; empty: the folder of the model
  bool no_kv_spill = false;  // which stays in memory then
  // What stays in memory.
  std::string memory;
  std::string priority = "balanced";
  std::string placement = "auto";
  std::string pool;
  std::string resident;
  std::string profile;
  std::string cluster;
  int threads = 0;
  int64_t context = 0;
  int64_t chunk = 0;
  bool json = false;

  void AddTo(const CommandFlags& command);
  // Refuses values out of range.
  absl::Status Check(bool on_cluster = false) const;  // on_cluster: the command can run on the devices of a cluster
  // What stays in memory goes to `request`. Refuses what is out of range.
  absl::Status Apply(LocalPlanRequest& request) const;
  // How long a sequence may become: --context, or all that the model has.
  absl::StatusOr<int64_t> MostPositions(const ModelSpec& spec) const;
};

}  // namespace lime::cli
