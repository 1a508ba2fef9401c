// Bodies of requests to a server: an ApiRequest in the spelling of OpenAI's API. Pure; the reverse of
// ParseRequest for requests of the commands, which have texts, sampling and our own fields. Fields
// that the request leaves to the server are left out.
#pragma once

#include <string>

#include "coordinator/api/api_request.h"

namespace lime {

// Of POST /v1/chat/completions.  REQUIRES: request.chat(), without tools and calls
std::string ChatBody(const ApiRequest& request);
// Of POST /v1/completions.  REQUIRES: !request.chat()
std::string CompletionBody(const ApiRequest& request);

}  // namespace lime
