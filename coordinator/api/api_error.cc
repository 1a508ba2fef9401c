#include "coordinator/api/api_error.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "coordinator/text/unicode/utf8.h"
#include "nlohmann/json.hpp"
#include "planner/base/json_text.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

constexpr size_t kMostQuoted = 64;

ApiError BadRequest(std::string_view code, std::string_view param, std::string message) {
  return {.code = std::string(code), .param = std::string(param), .message = std::move(message)};
}

ApiError Of(int status, std::string_view type, std::string_view code, std::string message) {
  return {.status = status, .type = std::string(type), .code = std::string(code), .message = std::move(message)};
}

ApiError Unavailable(std::string_view code, std::string message) {
  return Of(503, "server_error", code, std::move(message));
}

int SecondsToRetry(double predicted) {
  return std::isfinite(predicted) ? static_cast<int>(std::clamp(std::ceil(predicted), 1.0, 60.0)) : 60;
}

ApiError RateLimit(std::string message, int seconds) {
  ApiError error = Of(429, "rate_limit_error", "rate_limit_exceeded", std::move(message));
  error.headers = {{"Retry-After", absl::StrCat(seconds)}};
  return error;
}

}  // namespace

std::string OpenAiErrorJson(const ApiError& error) {
  nlohmann::ordered_json inner = {{"message", error.message}, {"type", error.type}, {"param", nullptr}, {"code", nullptr}};
  if (!error.param.empty()) inner["param"] = error.param;
  if (!error.code.empty()) inner["code"] = error.code;
  return JsonText(nlohmann::ordered_json{{"error", std::move(inner)}});
}

std::string OllamaErrorJson(const ApiError& error) {
  return JsonText(nlohmann::ordered_json{{"error", error.message}});
}

std::string QuotedInput(std::string_view text) {
  const bool is_cut = text.size() > kMostQuoted;
  std::string_view shown = text.substr(0, kMostQuoted);
  if (is_cut) shown.remove_suffix(IncompleteUtf8Suffix(shown));
  std::string quoted = "'";
  AppendLossyUtf8(shown, quoted);
  std::ranges::replace_if(
      quoted, [](unsigned char c) { return c < 0x20 || c == 0x7F; }, ' ');
  return absl::StrCat(quoted, is_cut ? "..." : "", "'");
}

ApiError InvalidJson(std::string_view what) {
  return BadRequest("invalid_json", "", absl::StrCat("The body ", Text(what), "."));
}

ApiError InvalidType(std::string_view param, std::string_view expected, std::string_view got) {
  return BadRequest("invalid_type", param,
                    absl::StrCat("Invalid type for '", Text(param), "': expected ", Text(expected), ", but got ", Text(got), " instead."));
}

ApiError InvalidValue(std::string_view param, std::string_view what) {
  return BadRequest("invalid_value", param, absl::StrCat("Invalid value for '", Text(param), "': ", Text(what), "."));
}

ApiError MissingParameter(std::string_view param) {
  return BadRequest("missing_required_parameter", param, absl::StrCat("Missing required parameter: '", Text(param), "'."));
}

ApiError UnsupportedParameter(std::string_view param, std::string_view what) {
  return BadRequest("unsupported_parameter", param, absl::StrCat("Unsupported parameter: '", Text(param), "'; ", Text(what), "."));
}

ApiError UnsupportedContent(std::string_view param, std::string_view what) {
  return BadRequest("unsupported_content", param, absl::StrCat("Unsupported content in '", Text(param), "': ", Text(what), "."));
}

ApiError InvalidJsonSchema(std::string_view param, std::string_view what) {
  return BadRequest("invalid_json_schema", param, absl::StrCat("Invalid schema in '", Text(param), "': ", Text(what), "."));
}

ApiError ContextLengthExceeded(std::string_view param, int64_t prompt_tokens, int64_t context) {
  return BadRequest("context_length_exceeded", param,
                    absl::StrCat("The prompt has ", prompt_tokens, " tokens and the context ", context,
                                 ", which leaves no room for an answer; shorten the prompt."));
}

ApiError PromptTooLong(std::string_view param, int64_t least_tokens, int64_t context) {
  return BadRequest("context_length_exceeded", param,
                    absl::StrCat("The prompt has at least ", least_tokens, " tokens and the context ", context,
                                 ", which leaves no room for an answer; shorten the prompt."));
}

ApiError TemplateError(std::string_view what) {
  return BadRequest("invalid_value", "messages", std::string(what));
}

ApiError InvalidApiKey(bool was_given) {
  ApiError error = Of(401, "invalid_request_error", "invalid_api_key",
                      was_given ? "The API key is not one of this server; check the header Authorization."
                                : "An API key is missing; send it in the header 'Authorization: Bearer KEY'.");
  error.headers = {{"WWW-Authenticate", "Bearer"}};
  return error;
}

ApiError OriginNotAllowed(std::string_view origin) {
  return Of(403, "permission_error", "origin_not_allowed",
            absl::StrCat("Pages of ", QuotedInput(origin), " may not call this server; allow them with --cors-origin."));
}

ApiError HostNotAllowed(std::string_view host) {
  return Of(403, "permission_error", "host_not_allowed",
            absl::StrCat("The server is not known as ", QuotedInput(host), "; name it with --hostname."));
}

ApiError UnknownUrl(std::string_view method, std::string_view path) {
  return Of(
      404, "invalid_request_error", "unknown_url",
      absl::StrCat("Unknown URL ", QuotedInput(absl::StrCat(Text(method), " ", Text(path))), "; see the list of endpoints in the manual."));
}

ApiError ModelNotFound(std::string_view model) {
  ApiError error = Of(404, "invalid_request_error", "model_not_found",
                      absl::StrCat("The model ", QuotedInput(model), " does not exist here; GET /v1/models lists those that do."));
  error.param = "model";
  return error;
}

ApiError MethodNotAllowed(std::string_view method, std::string_view allow) {
  ApiError error = Of(405, "invalid_request_error", "method_not_allowed",
                      absl::StrCat("The method ", QuotedInput(method), " is not allowed for this URL; use ", Text(allow), "."));
  error.headers = {{"Allow", std::string(allow)}};
  return error;
}

ApiError RequestTimeout(std::string_view what) {
  return Of(408, "invalid_request_error", "request_timeout", absl::StrCat(Text(what), "; send the request again."));
}

ApiError RequestTooLarge(int64_t max_bytes) {
  return Of(413, "invalid_request_error", "request_too_large",
            absl::StrCat("The body is longer than ", max_bytes, " bytes; send less, or start the server with a larger --max-body."));
}

ApiError UnsupportedMediaType(std::string_view content_type) {
  return Of(
      415, "invalid_request_error", "unsupported_media_type",
      absl::StrCat("The body is ", content_type.empty() ? "of no stated type" : QuotedInput(content_type), "; send application/json."));
}

ApiError HeadersTooLarge() {
  return Of(431, "invalid_request_error", "headers_too_large", "The headers have more than 16 KiB or 100 lines; send fewer.");
}

ApiError QueueFull(int64_t waiting, double predicted_seconds) {
  const int seconds = SecondsToRetry(predicted_seconds);
  return RateLimit(absl::StrCat("The queue is full: ", waiting, " requests wait; try again in ", seconds, " s."), seconds);
}

ApiError NoSchemaMemory(std::string_view what, double predicted_seconds) {
  return RateLimit(absl::StrCat("No memory for the schema: ", Text(what), "."), SecondsToRetry(predicted_seconds));
}

ApiError ServerError(std::string_view what) {
  return Of(500, "server_error", "server_error", absl::StrCat("The server failed: ", Text(what), "."));
}

ApiError Loading() {
  return Unavailable("loading", "The model is still loading; try again when /health says ok.");
}

ApiError Draining() {
  return Unavailable("draining", "The server is ending and takes no new requests; try again when it is back.");
}

ApiError QueueTimeout(double seconds) {
  return Unavailable("queue_timeout", absl::StrCat("The request waited ", std::llround(seconds), " s for its turn; try again later."));
}

ApiError ClusterUnavailable(std::string_view device) {
  return Unavailable("cluster_unavailable", absl::StrCat("The device ", QuotedInput(device), " is missing; try again when it is back."));
}

}  // namespace lime
