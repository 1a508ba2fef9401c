#include "coordinator/server/replies.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace lime {
namespace {

constexpr std::string_view kJson = "application/json";

// "the request has two lengths" as the beginning of a sentence.
std::string Sentence(std::string_view clause) {
  std::string sentence(clause);
  if (!sentence.empty()) sentence[0] = absl::ascii_toupper(static_cast<unsigned char>(sentence[0]));
  return sentence;
}

}  // namespace

HttpResponse JsonReply(std::string body, int status) {
  return {.status = status, .headers = {{"Content-Type", std::string(kJson)}}, .body = std::move(body)};
}

HttpResponse ErrorReply(bool is_ollama, const ApiError& error) {
  HttpResponse reply = JsonReply(is_ollama ? OllamaErrorJson(error) : OpenAiErrorJson(error), error.status);
  for (const auto& [name, value] : error.headers) reply.headers.push_back({name, value});
  return reply;
}

HttpResponse HeadReply(std::string_view content_type, bool is_stream) {
  HttpResponse head{.status = 200, .headers = {{"Content-Type", std::string(content_type)}}, .body = {}};
  if (!is_stream) return head;
  head.headers.push_back({"Cache-Control", "no-cache"});
  head.headers.push_back({"X-Accel-Buffering", "no"});
  return head;
}

HttpResponse PageReply(const PageFile& file, const HttpRequest& request) {
  std::string tags;
  for (const HttpHeader& header : request.headers) {
    if (header.name == "if-none-match") absl::StrAppend(&tags, tags.empty() ? "" : ", ", header.value);
  }
  const bool unchanged = IsUnchanged(file, tags);
  HttpResponse reply{.status = unchanged ? 304 : 200, .headers = {{"ETag", std::string(file.etag)}}, .body = {}};
  for (const PageHeader& header : PageHeaders()) reply.headers.push_back({std::string(header.name), std::string(header.value)});
  if (unchanged) return reply;
  reply.headers.push_back({"Content-Type", std::string(file.content_type)});
  reply.body = std::string(file.bytes);
  return reply;
}

HttpResponse OptionsReply(std::string_view allow) {
  return {.status = 204, .headers = {{"Allow", std::string(allow)}}, .body = {}};
}

ApiError ErrorOf(const HttpRefusal& refusal, int64_t max_body_bytes) {
  switch (refusal.reason) {
    case HttpRefusal::Reason::kMalformed:
      return {.status = refusal.status(), .code = "invalid_request", .message = absl::StrCat(Sentence(refusal.what), ".")};
    case HttpRefusal::Reason::kTooSlow:
      return RequestTimeout(Sentence(refusal.what));
    case HttpRefusal::Reason::kBodyTooLarge:
      return RequestTooLarge(max_body_bytes);
    case HttpRefusal::Reason::kHeadersTooLarge:
      return HeadersTooLarge();
    case HttpRefusal::Reason::kNotAnswered:
      return ServerError(refusal.what);
  }
  return ServerError(refusal.what);
}

}  // namespace lime
