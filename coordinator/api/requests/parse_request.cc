#include "coordinator/api/requests/parse_request.h"

#include "coordinator/api/requests/endpoint_parsers.h"
#include "planner/base/check.h"

namespace lime {
namespace {

using Parser = void (*)(RequestFields&, const ParseOptions&, ApiRequest&);

Parser ParserOf(Endpoint endpoint) {
  switch (endpoint) {
    case Endpoint::kChat:
      return ParseChat;
    case Endpoint::kCompletions:
      return ParseCompletions;
    case Endpoint::kResponses:
      return ParseResponses;
    case Endpoint::kTokenize:
      return ParseTokenize;
    case Endpoint::kDetokenize:
      return ParseDetokenize;
    case Endpoint::kApplyTemplate:
      return ParseApplyTemplate;
    case Endpoint::kOllamaShow:
      return ParseOllamaShow;
    case Endpoint::kOllamaChat:
      return ParseOllamaChat;
    case Endpoint::kOllamaGenerate:
      return ParseOllamaGenerate;
    default:
      return nullptr;
  }
}

}  // namespace

ApiResult<ApiRequest> ParseRequest(Endpoint endpoint, std::string_view body, const ParseOptions& options) {
  const Parser parser = ParserOf(endpoint);
  LIME_CHECK(parser != nullptr) << static_cast<int>(endpoint);
  const ApiResult<Json> object = ParseBody(body);
  if (!object.ok()) return object.error();
  FirstError errors;
  RequestFields fields(*object, "", errors);
  ApiRequest request;
  parser(fields, options, request);
  if (!errors.ok()) return errors.error();
  return request;
}

}  // namespace lime
