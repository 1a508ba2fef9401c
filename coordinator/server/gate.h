// Decides for each request whether it is answered at all: its host, the page that sends it, its key,
// its path, method and type. Everything but the body, so that a refused body is not read.
//
// Pure.   Thread: any, but one call of SetKeys at a time with none of Admit.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/http/access.h"
#include "coordinator/api/api_error.h"
#include "coordinator/server/call.h"

namespace lime {

class Gate {
 public:
  // `keys`: none lets everybody in. `is_page_file`: see FindRoute.
  Gate(const AllowedPlaces::Options& places, std::vector<std::string> keys, std::function<bool(std::string_view)> is_page_file);

  // Fills the call: `id` is used if the client has none. Returns the error of a request that may not
  // go on. A preflight has no key; its answer allows it (see Call::headers).
  std::optional<ApiError> Admit(const HttpRequest& request, std::string id, Call& call) const;

  void SetKeys(std::vector<std::string> keys);

 private:
  std::optional<ApiError> CheckKey(const HttpRequest& request, Call& call) const;

  const AllowedPlaces places_;
  const std::function<bool(std::string_view)> is_page_file_;
  ApiKeys keys_;
  std::vector<int64_t> groups_;  // by key, see Call::cache_group
};

// A new id of 24 letters and digits. `random` returns 64 random bits each time.
std::string NewRequestId(const std::function<uint64_t()>& random);

}  // namespace lime
