#include "coordinator/generation/sampling_defaults.h"

#include <algorithm>
#include <string>

#include "nlohmann/json.hpp"
#include "planner/base/json_text.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

// Reads a number; leaves `value` if there is none.
absl::Status ReadNumber(const nlohmann::json& object, const char* key, double& value) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return absl::OkStatus();
  if (!found->is_number()) return Invalid("\"", key, "\" is ", found->type_name(), ", need a number");
  value = found->get<double>();
  return absl::OkStatus();
}

absl::StatusOr<SamplingDefaults> Read(const nlohmann::json& object) {
  SamplingDefaults defaults;
  double top_k = 0;
  LIME_RETURN_IF_ERROR(ReadNumber(object, "temperature", defaults.temperature));
  LIME_RETURN_IF_ERROR(ReadNumber(object, "top_p", defaults.top_p));
  LIME_RETURN_IF_ERROR(ReadNumber(object, "min_p", defaults.min_p));
  LIME_RETURN_IF_ERROR(ReadNumber(object, "repetition_penalty", defaults.repetition_penalty));
  LIME_RETURN_IF_ERROR(ReadNumber(object, "top_k", top_k));
  // Below 1 it is off. Above the largest vocabulary, too.
  defaults.top_k = top_k >= 1 && top_k <= INT32_MAX ? static_cast<int32_t>(top_k) : 0;
  if (const auto samples = object.find("do_sample"); samples != object.end() && *samples == false) defaults.temperature = 0;
  LIME_RETURN_IF_ERROR(ValidateSamplingParams(ParamsOf({}, defaults, 0)));
  return defaults;
}

}  // namespace

absl::StatusOr<SamplingDefaults> ParseSamplingDefaults(std::string_view text, std::string_view name) {
  LIME_ASSIGN_OR_RETURN(const nlohmann::json object, ParsePythonJsonObject(text, name));
  absl::StatusOr<SamplingDefaults> defaults = Read(object);
  if (!defaults.ok()) return Invalid(Text(name), ": ", defaults.status().message());
  return defaults;
}

SamplingParams ParamsOf(const RequestedSampling& requested, const SamplingDefaults& defaults, uint64_t seed) {
  SamplingParams params;
  params.repetition_penalty = requested.repetition_penalty.value_or(defaults.repetition_penalty);
  params.presence_penalty = requested.presence_penalty;
  params.frequency_penalty = requested.frequency_penalty;
  for (const auto& [id, bias] : requested.logit_bias) params.logit_bias.push_back({.id = id, .bias = static_cast<float>(bias)});
  params.temperature = requested.temperature.value_or(defaults.temperature);
  params.top_k = requested.top_k.value_or(defaults.top_k);
  params.top_p = requested.top_p.value_or(defaults.top_p);
  params.min_p = requested.min_p.value_or(defaults.min_p);
  params.seed = seed;
  return params;
}

}  // namespace lime
