#include "coordinator/cli/url_flags.h"

#include <cstdlib>
#include <utility>

#include "coordinator/cli/command.h"

namespace lime::cli {

void UrlFlags::AddTo(const CommandFlags& command) {
  command.Add("--url", &url,
              "Address of a server such as http://127.0.0.1:5463, which computes instead; --model is then the name of one of its models, "
              "and without it the first");
  command.Add("--api-key", &api_key, "With --url, the key of the server; without it the environment's LIME_API_KEY");
  command.Add("--tls-ca", &authorities,
              "With --url, PEM file of the authorities that may sign the server's certificate, instead of the system's");
}

absl::StatusOr<std::unique_ptr<ApiClient>> UrlFlags::Open() const {
  LIME_ASSIGN_OR_RETURN(ServerUrl parsed, OfUser(ParseServerUrl(url)));
  const char* const from_environment = std::getenv("LIME_API_KEY");
  HttpCaller::Options options;
  options.url = std::move(parsed);
  options.api_key = api_key.empty() && from_environment != nullptr ? from_environment : api_key;
  options.authorities = authorities;
  LIME_ASSIGN_OR_RETURN(std::unique_ptr<HttpCaller> http, OfUser(HttpCaller::Create(std::move(options))));
  return std::make_unique<ApiClient>(std::move(http));
}

}  // namespace lime::cli
