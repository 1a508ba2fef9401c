#include "common/http/http_message.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

const char* ReasonOf(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 503:
      return "Service Unavailable";
  }
  switch (status / 100) {
    case 2:
      return "Success";
    case 3:
      return "Redirection";
    case 4:
      return "Client Error";
    default:
      return "Server Error";
  }
}

void AppendText(std::string& to, std::string_view text) {
  for (const char c : text) to.push_back(static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c);
}

void AppendHeader(std::string& to, const HttpHeader& header) {
  AppendText(to, header.name);
  to.append(": ");
  AppendText(to, header.value);
  to.append("\r\n");
}

}  // namespace

bool EqualsIgnoringCase(std::string_view a, std::string_view b) {
  return absl::EqualsIgnoreCase(Text(a), Text(b));
}

const std::string* FindHeader(const HttpHeaders& headers, std::string_view name) {
  const auto found =
      std::find_if(headers.begin(), headers.end(), [&](const HttpHeader& header) { return EqualsIgnoringCase(header.name, name); });
  return found == headers.end() ? nullptr : &found->value;
}

std::string_view HttpRequest::header(std::string_view name) const {
  const std::string* const value = FindHeader(headers, name);
  return value == nullptr ? std::string_view() : *value;
}

int HttpRefusal::status() const {
  switch (reason) {
    case Reason::kMalformed:
      return 400;
    case Reason::kTooSlow:
      return 408;
    case Reason::kBodyTooLarge:
      return 413;
    case Reason::kHeadersTooLarge:
      return 431;
    case Reason::kNotAnswered:
      return 500;
  }
  return 500;
}

std::string StatusLineText(int status) {
  return absl::StrCat(status, " ", ReasonOf(status));
}

bool HasNoBody(int status) {
  return status == 204 || status == 304;
}

std::string HeadText(const HttpResponse& response, const HttpHeaders& more) {
  std::string text = absl::StrCat("HTTP/1.1 ", StatusLineText(response.status), "\r\n");
  for (const HttpHeader& header : response.headers) AppendHeader(text, header);
  for (const HttpHeader& header : more) AppendHeader(text, header);
  return text.append("\r\n");
}

}  // namespace lime
