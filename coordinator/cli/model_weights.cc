#include "coordinator/cli/model_weights.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/cli/command.h"
#include "daemon/machine/files.h"
#include "daemon/stores/weights_digest.h"
#include "daemon/weights/checkpoint.h"
#include "planner/base/json_fields.h"
#include "planner/base/json_text.h"
#include "planner/plan/cluster_plan_json.h"
#include "planner/plan/device/device_profile.h"
#include "planner/plan/device/limits.h"

namespace lime::cli {
namespace {

constexpr size_t kMaxName = 128;
constexpr char kField[] = "weights_xxh3";

// The name of the folder, for any form of its path.
std::string FolderName(const std::string& folder) {
  std::error_code ignored;
  const std::filesystem::path path = std::filesystem::absolute(folder, ignored).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string().substr(0, kMaxName);
}

std::string HashOf(const ModelWeights& weights) {
  return absl::StrFormat("%016x", WeightsXxh3(weights.digest));
}

}  // namespace

absl::StatusOr<ModelWeights> LookAtWeights(const std::string& model) {
  LIME_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(model));
  ModelWeights weights{.folder = model};
  LIME_ASSIGN_OR_RETURN(weights.spec, checkpoint.BuildModelSpec());
  LIME_ASSIGN_OR_RETURN(weights.digest, DigestWeights(checkpoint, weights.spec, FolderName(model)));
  return weights;
}

void SayWhatItBelongsTo(const ModelWeights& weights, nlohmann::ordered_json& plan) {
  plan[kField] = HashOf(weights);
}

absl::StatusOr<Plan> ReadPlanOf(const ModelWeights& weights, const std::string& path) {
  LIME_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxPlanBytes));
  LIME_ASSIGN_OR_RETURN(const nlohmann::json root, ParseJsonObject(text, path, kMaxPlanBytes));
  LIME_ASSIGN_OR_RETURN(Plan plan, PlanFromJson(root, path));
  JsonFields fields(root, path);
  const std::string made_for = fields.StringOr(kField, "");
  LIME_RETURN_IF_ERROR(fields.status());
  const bool same_shape = plan.model_key == ModelKey(weights.spec);
  if (same_shape && (made_for.empty() || made_for == HashOf(weights))) return plan;
  return WrongCall(absl::StrCat("--plan ", path, " was made for \"", plan.model_name, "\", but --model ", weights.folder, " has other ",
                                same_shape ? "weights" : "tensors",
                                "; give the model of the plan, or make a plan for this one with `lime plan`"));
}

}  // namespace lime::cli
