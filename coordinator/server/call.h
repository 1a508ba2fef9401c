// One request of HTTP, as the server knows it once its head is read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/http/http_message.h"
#include "coordinator/api/endpoint.h"
#include "coordinator/serving/serving_request.h"

namespace lime {

struct Call {
  std::string id;               // x-request-id: the client's, else ours
  std::string_view method;      // GET, HEAD, POST, OPTIONS, else "other"
  std::optional<Route> route;   // nothing: no such path, or not for this method
  bool is_ollama = false;       // its errors are Ollama's
  int64_t cache_group = 0;      // one for each API key; 0: without a key
  HttpHeaders headers;          // of every answer: x-request-id, and those for pages of other origins
  ServingClock::time_point at;  // when the head was there

  // Of the route, for metrics and the log; "unknown".
  std::string_view pattern() const { return route ? route->pattern : std::string_view("unknown"); }
};

}  // namespace lime
