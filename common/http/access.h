// Who may call the server: names of hosts, origins of pages, API keys. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/http/http_message.h"

namespace lime {

// 1 to 128 of [A-Za-z0-9._-]: an x-request-id of a client that is used.
bool IsRequestId(std::string_view text);

// The token of "Authorization: Bearer TOKEN". Nothing if the header is missing or has another form.
std::optional<std::string_view> BearerToken(const HttpRequest& request);

// Keys by which a server knows its clients.
class ApiKeys {
 public:
  ApiKeys() = default;
  explicit ApiKeys(std::vector<std::string> keys) : keys_(std::move(keys)) {}

  bool empty() const { return keys_.empty(); }
  // The index of the key that equals `presented`. The time depends on the length of `presented` and
  // on the number of keys, not on where texts differ.
  std::optional<size_t> Find(std::string_view presented) const;

 private:
  std::vector<std::string> keys_;
};

// The keys of a file, one a line; blanks around them and empty lines do not count.
std::vector<std::string> ParseApiKeys(std::string_view text);

// A Host header, or the part of a URL between "//" and the path.
struct Authority {
  std::string host;       // in lower case, addresses in their usual digits without brackets
  std::string_view port;  // digits; "" if there is none
};
// Nothing if the text is no authority, or has a user.
std::optional<Authority> ParseAuthority(std::string_view text);

// True for localhost, 127.0.0.0/8 and ::1.
bool IsLoopbackHost(const Authority& authority);

// Which hosts a request may name and which pages may send it. A page of a stranger cannot get here
// by rebinding its own name to our address, because the Host header still has that name.
class AllowedPlaces {
 public:
  struct Options {
    std::string bound_host;              // as given to --host
    std::vector<std::string> hostnames;  // names without port
    std::vector<std::string> origins;    // "https://chat.example.org"; "*" is every page
  };
  explicit AllowedPlaces(const Options& options);

  // Loopback, the bound host, one of the names, or the address to which the client is connected.
  bool AllowsHost(const HttpRequest& request) const;
  // No Origin, a page of loopback or of this server, or one of the origins.  REQUIRES: AllowsHost
  bool AllowsOrigin(const HttpRequest& request) const;

 private:
  std::vector<std::string> hosts_;
  std::vector<std::string> origins_;
};

// What an answer to an allowed origin has: Access-Control-Allow-Origin and Vary; none without an
// Origin header.
HttpHeaders CorsHeaders(const HttpRequest& request);

// True for the question that a browser asks before it sends the request itself.
bool IsPreflight(const HttpRequest& request);
// The same as CorsHeaders, with methods, the headers that are asked for, and how long that holds.
HttpHeaders PreflightHeaders(const HttpRequest& request);

}  // namespace lime
