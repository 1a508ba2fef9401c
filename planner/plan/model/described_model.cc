#include "planner/plan/model/described_model.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/base/json_fields.h"
#include "planner/base/json_text.h"
#include "planner/base/strings.h"
#include "planner/plan/model/config_parts.h"
#include "planner/plan/model/family.h"
#include "planner/plan/model/model_config.h"

namespace lime {
namespace {

absl::StatusOr<DType> ParseWorkingDType(std::string_view config_json, std::string name, const Family& family) {
  LIME_ASSIGN_OR_RETURN(nlohmann::json whole, ParsePythonJsonObject(config_json, name));
  LIME_ASSIGN_OR_RETURN(const nlohmann::json root, config::TextConfig(std::move(whole), name));
  JsonFields fields(root, name);
  const std::string spelled = fields.StringOr("dtype", fields.StringOr("torch_dtype", ""));
  LIME_RETURN_IF_ERROR(fields.status());
  if (spelled == "bfloat16") return DType::kBF16;
  if (spelled == "float16") return DType::kF16;
  if (spelled == "float32") return DType::kF32;
  if (spelled.empty() && family.working_dtype) return *family.working_dtype;
  if (spelled.empty()) {
    return Invalid(name,
                   ": names no dtype, and there are no weights to read it from; add \"dtype\": \"bfloat16\", \"float16\" or \"float32\"");
  }
  return absl::UnimplementedError(
      absl::StrCat(name, ": dtype \"", spelled.substr(0, 80), "\" is not supported; bfloat16, float16 and float32 are supported"));
}

}  // namespace

absl::StatusOr<ModelSpec> DescribeModel(std::string_view config_json, std::string_view name) {
  LIME_ASSIGN_OR_RETURN(const ModelConfig config, ParseModelConfig(config_json, name));
  LIME_ASSIGN_OR_RETURN(const DType dtype, ParseWorkingDType(config_json, std::string(name), FamilyOf(config.model_type)));
  return ModelSpec::FromConfig(config, dtype, name);
}

}  // namespace lime
