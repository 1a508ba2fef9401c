// Shared parts of the commands of `lime`: exit codes, errors, flags of the model.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/input/command_line.h"
#include "coordinator/cli/interrupt.h"
#include "coordinator/local/local_plan.h"
#include "nlohmann/json_fwd.hpp"
#include "planner/base/status.h"
#include "planner/plan/model/model_spec.h"

namespace lime::cli {

inline constexpr int kDone = 0;
inline constexpr int kFailed = 1;
inline constexpr int kWrongCall = 2;

// An error in how the program was called, not in its work: exit code 2.
absl::Status WrongCall(const std::string& message);

// For errors of a file or folder that the user wrote and the call names: such an error becomes a
// wrong call. A disk failure, and a step that must be done first (FailedPrecondition), stay as they
// are.
absl::Status OfUser(absl::Status status);
template <typename T>
absl::StatusOr<T> OfUser(absl::StatusOr<T> result) {
  return result.ok() ? std::move(result) : absl::StatusOr<T>(OfUser(result.status()));
}

// A failure with an answer in `json` (one object): with --json it is printed, with "error" added.
// REQUIRES: !status.ok().
absl::Status WithAnswer(absl::Status status, const nlohmann::json& json);

// The end of a command that has an answer: prints it with --json. If there is a `problem`, returns
// it with the answer.
absl::Status Answered(const nlohmann::json& answer, bool as_json, const absl::Status& problem = absl::OkStatus());

// Refuses a model that was not downloaded, or a single file. `says`: the flag that names it.
absl::Status CheckModelFolder(const std::string& model, const std::string& says = "--model");

// Combines all errors: the code of the first, the sentences of all. OK if there is none.
absl::Status AllOf(std::span<const absl::Status> statuses);

// Returns the exit code of a command that ended with `status`. For an error, prints its sentence to
// stderr, and with --json {"error": {"message", "kind", "exit_code"}} to stdout. After a signal the
// code is kInterrupted for any error.
int Finish(const absl::Status& status);

// Whether errors are also printed as JSON. main() calls it before a command runs.
void AnswerInJson(bool json);

// The flag --without: devices that a command excludes.
void AddWithoutFlag(const CommandFlags& command, std::vector<std::string>& without);

// The sentence of --help about --no-kv-spill, the same in every command.
inline constexpr char kNoKvSpill[] = "Keep all KV in memory; write none of it to disks";

// The flags --experts and --read-ahead, and their values: nullopt for "auto". Refuse other words and
// values out of range.
void AddExpertsFlags(const CommandFlags& command, std::string& experts, std::string& read_ahead);
absl::StatusOr<std::optional<int64_t>> ParseExperts(const std::string& experts);
absl::StatusOr<std::optional<int32_t>> ParseReadAhead(const std::string& read_ahead);

// The flag --routes of the commands that plan: the file of `lime trace --routes`.
void AddRoutesFlag(const CommandFlags& command, std::string& routes);

// Flags of the commands that compute with a model.
struct ModelFlags {
  std::string model;
  std::string loader = "auto";
  std::string numerics = "auto";
  std::string kv = "reserve";
  std::string kv_dir;        // folder for KV beyond memory; empty: the folder of the model
  bool no_kv_spill = false;  // all KV stays in memory
  // The next flags decide what stays in memory.
  std::string memory;
  std::string priority = "balanced";
  std::string placement = "auto";
  std::string pool;
  std::string resident;
  std::string experts = "auto";
  std::string read_ahead = "auto";
  std::string routes;            // recorded, to plan with; a command adds its flag itself
  std::string sparsity = "off";  // auto, off, exact or predicted; auto if the command has the flag
  std::string neurons = "auto";
  std::string decider = "auto";  // auto, dense or certified
  int32_t window = kUsualWindowMasks;
  std::string profile;
  std::string cluster;
  int threads = 0;
  int64_t context = 0;
  int64_t chunk = 0;
  bool json = false;

  // `clusters`: the command also runs on a cluster. Without it there is no --cluster.
  void AddTo(const CommandFlags& command, bool clusters = true);
  // The flags --sparsity, --neurons, --decider and --window.
  void AddSparsityTo(const CommandFlags& command);
  // Refuses values out of range.
  absl::Status Check() const;
  // Writes the memory flags to `request`. Refuses values out of range.
  absl::Status Apply(LocalPlanRequest& request) const;
  // The maximum length of a sequence: --context, or the model's own.
  absl::StatusOr<int64_t> MostPositions(const ModelSpec& spec) const;

 private:
  absl::Status ApplySparsity(LocalPlanRequest& request) const;
};

}  // namespace lime::cli
