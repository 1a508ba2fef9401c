#include "common/http/target.h"

#include "absl/strings/ascii.h"
#include "common/http/http_message.h"

namespace lime {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = absl::ascii_tolower(static_cast<unsigned char>(c));
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

absl::StatusOr<std::string> Decoded(std::string_view text, bool plus_is_blank) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '%') {
      const int high = i + 2 < text.size() ? HexDigit(text[i + 1]) : -1, low = i + 2 < text.size() ? HexDigit(text[i + 2]) : -1;
      if (high < 0 || low < 0) return Invalid("the target of the request has a percent sign without two hexadecimal digits");
      c = static_cast<char>(high * 16 + low);
      i += 2;
    } else if (c == '+' && plus_is_blank) {
      c = ' ';
    }
    if (c == '\0') return Invalid("the target of the request has a NUL");
    out.push_back(c);
  }
  return out;
}

absl::Status ReadQuery(std::string_view text, HttpTarget& target) {
  while (!text.empty()) {
    const std::string_view field = text.substr(0, text.find('&'));
    text.remove_prefix(std::min(text.size(), field.size() + 1));
    if (field.empty()) continue;
    const std::string_view name = field.substr(0, field.find('='));
    LIME_ASSIGN_OR_RETURN(std::string decoded_name, Decoded(name, true));
    LIME_ASSIGN_OR_RETURN(std::string value, Decoded(field.substr(std::min(field.size(), name.size() + 1)), true));
    target.query.emplace_back(std::move(decoded_name), std::move(value));
  }
  return absl::OkStatus();
}

// Takes "http://host" from the front of a whole URL.
bool TakeAuthority(std::string_view& text, HttpTarget& target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!EqualsIgnoringCase(text.substr(0, scheme.size()), scheme)) continue;
    text.remove_prefix(scheme.size());
    target.authority = std::string(text.substr(0, text.find_first_of("/?")));
    text.remove_prefix(target.authority.size());
    return !target.authority.empty();
  }
  return false;
}

}  // namespace

absl::StatusOr<HttpTarget> ParseTarget(std::string_view target) {
  HttpTarget parsed;
  if (target == "*") {
    parsed.path = "*";
    return parsed;
  }
  if (!target.starts_with("/") && !TakeAuthority(target, parsed)) return Invalid("the target of the request is neither a path nor a URL");
  const std::string_view path = target.substr(0, target.find('?'));
  LIME_ASSIGN_OR_RETURN(parsed.path, Decoded(path, false));
  if (parsed.path.empty()) parsed.path = "/";
  LIME_RETURN_IF_ERROR(ReadQuery(target.substr(std::min(target.size(), path.size() + 1)), parsed));
  return parsed;
}

}  // namespace lime
