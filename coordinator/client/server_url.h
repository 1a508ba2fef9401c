// The address of a server, as people write it.
#pragma once

#include <string>
#include <string_view>

#include "planner/base/status.h"

namespace lime {

struct ServerUrl {
  bool tls = false;
  std::string host;  // a name in lower case, or an address in its usual digits without brackets
  int port = 0;
  std::string base;  // of all paths, such as /models/a behind a proxy; without a slash at its end

  // "http://127.0.0.1:5463", for sentences.
  std::string Text() const;
  // host:port; without the port that the scheme means.
  std::string HostHeader() const;
};

// "http://127.0.0.1:5463", "https://[::1]:8443/base". A path that ends with /v1, as other clients
// want it, means the same without it. InvalidArgument, with the whole sentence about --url, for
// anything else.
absl::StatusOr<ServerUrl> ParseServerUrl(std::string_view url);

}  // namespace lime
