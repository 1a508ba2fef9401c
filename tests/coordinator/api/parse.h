// Parses bodies for tests.
#pragma once

#include <gtest/gtest.h>

#include "coordinator/api/requests/parse_request.h"
#include "planner/base/json_text.h"

namespace lime {

inline constexpr int64_t kVocabSize = 1000;

// The request; after a failure of the test, an empty one.
inline ApiRequest Parsed(Endpoint endpoint, std::string_view body, const ParseOptions& options = {.vocab_size = kVocabSize}) {
  ApiResult<ApiRequest> request = ParseRequest(endpoint, body, options);
  if (request.ok()) return *std::move(request);
  ADD_FAILURE() << body << "\n" << request.error().message;
  return {};
}

inline ApiError Refused(Endpoint endpoint, std::string_view body, const ParseOptions& options = {.vocab_size = kVocabSize}) {
  const ApiResult<ApiRequest> request = ParseRequest(endpoint, body, options);
  if (!request.ok()) return request.error();
  ADD_FAILURE() << "accepted: " << body;
  return {};
}

// One sentence, with a capital letter and a full stop.
inline bool IsSentence(std::string_view text) {
  return text.size() > 2 && text.front() >= 'A' && text.front() <= 'Z' && text.back() == '.' && text.find('\n') == std::string_view::npos &&
         text.substr(0, text.size() - 1).find(". ") == std::string_view::npos;
}

inline std::string Variables(const ApiRequest& request) {
  return JsonText(TemplateVariables(*request.chat()));
}

}  // namespace lime
