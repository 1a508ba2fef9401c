#include "coordinator/server/gate.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

constexpr std::string_view kEveryMethod = "GET, HEAD, POST, OPTIONS";

std::string_view MethodOf(const HttpRequest& request) {
  if (request.head) return "HEAD";
  for (const std::string_view known : {"GET", "POST", "OPTIONS"}) {
    if (request.method == known) return known;
  }
  return "other";
}

bool NeedsKey(const std::optional<Route>& route) {
  return !route || (route->endpoint != Endpoint::kHealth && route->endpoint != Endpoint::kPageFile);
}

// application/json, with parameters or without.
bool IsJson(std::string_view content_type) {
  std::string_view type = content_type.substr(0, content_type.find(';'));
  while (type.ends_with(' ') || type.ends_with('\t')) type.remove_suffix(1);
  return EqualsIgnoringCase(type, "application/json");
}

// The same for the same key, also after keys were read again. FNV-1a.
int64_t GroupOf(std::string_view key) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : key) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return static_cast<int64_t>(hash >> 1) | 1;
}

}  // namespace

Gate::Gate(const AllowedPlaces::Options& places, std::vector<std::string> keys, std::function<bool(std::string_view)> is_page_file)
    : places_(places), is_page_file_(std::move(is_page_file)) {
  SetKeys(std::move(keys));
}

void Gate::SetKeys(std::vector<std::string> keys) {
  groups_.clear();
  for (const std::string& key : keys) groups_.push_back(GroupOf(key));
  keys_ = ApiKeys(std::move(keys));
}

std::optional<ApiError> Gate::Admit(const HttpRequest& request, std::string id, Call& call) const {
  const std::string_view given = request.header("x-request-id");
  call.id = IsRequestId(given) ? std::string(given) : std::move(id);
  call.method = MethodOf(request);
  call.is_ollama = IsOllama(request.path);
  call.headers = {{"x-request-id", call.id}};
  if (!places_.AllowsHost(request)) return HostNotAllowed(request.host);
  if (!places_.AllowsOrigin(request)) return OriginNotAllowed(request.header("origin"));
  const HttpHeaders cors = IsPreflight(request) ? PreflightHeaders(request) : CorsHeaders(request);
  call.headers.insert(call.headers.end(), cors.begin(), cors.end());
  if (call.method == "OPTIONS" && request.path == "*") {
    call.route = Route{.pattern = "*", .path = "*", .is_preflight = true, .allow = kEveryMethod};
    return std::nullopt;
  }
  ApiResult<Route> route = FindRoute(call.method == "HEAD" ? call.method : request.method, request.path, is_page_file_);
  if (route.ok()) call.route = *route;
  if (call.route && call.route->is_preflight) return std::nullopt;
  if (NeedsKey(call.route)) {
    if (auto refused = CheckKey(request, call)) return refused;
  }
  if (!route.ok()) return route.error();
  if (call.method == "POST" && !IsJson(request.header("content-type"))) return UnsupportedMediaType(request.header("content-type"));
  return std::nullopt;
}

std::optional<ApiError> Gate::CheckKey(const HttpRequest& request, Call& call) const {
  if (keys_.empty()) return std::nullopt;
  const std::optional<std::string_view> presented = BearerToken(request);
  const std::optional<size_t> found = presented ? keys_.Find(*presented) : std::nullopt;
  if (!found) return InvalidApiKey(presented.has_value());
  call.cache_group = groups_[*found];
  return std::nullopt;
}

std::string NewRequestId(const std::function<uint64_t()>& random) {
  return absl::StrFormat("req_%016x%04x", random(), random() & 0xffff);
}

}  // namespace lime
