// Requests and answers of HTTP/1.1, as the server gives them to its owner and takes them back.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lime {

struct HttpHeader {
  std::string name, value;
};
using HttpHeaders = std::vector<HttpHeader>;

// The value of the first header of this name, in upper or lower case; null if there is none.
const std::string* FindHeader(const HttpHeaders& headers, std::string_view name);

// True if texts are equal but for the case of ASCII letters.
bool EqualsIgnoringCase(std::string_view a, std::string_view b);

struct HttpRequest {
  std::string method;                                      // as sent, but GET for HEAD
  bool head = false;                                       // it was a HEAD: the connection sends the answer to the GET without its body
  std::string path;                                        // percent signs decoded, without the query; "*" in OPTIONS *
  std::vector<std::pair<std::string, std::string>> query;  // decoded, in the order of the target
  HttpHeaders headers;                                     // names in lower case; no trailers
  std::string host;                                        // of the target if it is a whole URL, else of the header
  std::string body;
  bool http_1_0 = false;
  bool has_body = false;      // a body of at least one byte follows the head
  std::string local_address;  // of the connection, digits without a port: 127.0.0.1
  std::string remote_address;

  // "" if there is none.
  std::string_view header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  // Without Content-Length, Transfer-Encoding, Connection and Date: the connection adds these.
  HttpHeaders headers;
  std::string body;
};

// Why the server answers without its owner.
struct HttpRefusal {
  enum class Reason {
    kMalformed,        // 400: not a request of HTTP/1.0 or HTTP/1.1, or an ambiguous one
    kTooSlow,          // 408: its head or its body took too long
    kBodyTooLarge,     // 413
    kHeadersTooLarge,  // 431: too many bytes or too many fields
    kNotAnswered,      // 500: the owner dropped the request
  };
  Reason reason = Reason::kMalformed;
  std::string what;  // a clause without a full stop: "the request has two Content-Length headers"

  int status() const;
};

// "404 Not Found". A status that has no words here gets those of its class.
std::string StatusLineText(int status);

// True for answers that never have a body: 204 and 304.
bool HasNoBody(int status);

// The lines of a head, from the status to the empty line. `more` has what the connection adds.
// Control characters in a header become blanks.
std::string HeadText(const HttpResponse& response, const HttpHeaders& more);

}  // namespace lime
