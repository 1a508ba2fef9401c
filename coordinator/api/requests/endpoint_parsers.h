// The parser of each endpoint. ParseRequest calls them; each adds its first error to the fields'.
#pragma once

#include "coordinator/api/requests/parse_request.h"
#include "coordinator/api/requests/request_fields.h"

namespace lime {

void ParseChat(RequestFields& fields, const ParseOptions& options, ApiRequest& request);
void ParseCompletions(RequestFields& fields, const ParseOptions& options, ApiRequest& request);
void ParseResponses(RequestFields& fields, const ParseOptions& options, ApiRequest& request);
void ParseTokenize(RequestFields& fields, const ParseOptions& options, ApiRequest& request);
void ParseDetokenize(RequestFields& fields, const ParseOptions& options, ApiRequest& request);
void ParseApplyTemplate(RequestFields& fields, const ParseOptions& options, ApiRequest& request);
void ParseOllamaShow(RequestFields& fields, const ParseOptions& options, ApiRequest& request);
void ParseOllamaChat(RequestFields& fields, const ParseOptions& options, ApiRequest& request);
void ParseOllamaGenerate(RequestFields& fields, const ParseOptions& options, ApiRequest& request);

}  // namespace lime
