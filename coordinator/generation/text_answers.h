// Answers from the model's text alone, as the JSON of their bodies.
//
// Pure. Long texts take up to a second: call these on the thread that tokenizes.
#pragma once

#include <string>
#include <string_view>

#include "absl/time/civil_time.h"
#include "coordinator/api/api_error.h"
#include "coordinator/api/api_request.h"
#include "coordinator/generation/served_model.h"

namespace lime {

// POST /tokenize, /detokenize, /apply-template. REQUIRES: ParseRequest made `request` for this
// endpoint
ApiResult<std::string> TokenizeAnswer(const ServedModel& model, const ApiRequest& request, absl::CivilSecond now);
ApiResult<std::string> DetokenizeAnswer(const ServedModel& model, const ApiRequest& request);
ApiResult<std::string> ApplyTemplateAnswer(const ServedModel& model, const ApiRequest& request, absl::CivilSecond now);

// GET /v1/models, /v1/models/{id}
std::string ModelsAnswer(const ServedModel& model);
ApiResult<std::string> ModelAnswer(const ServedModel& model, std::string_view id);

}  // namespace lime
