// Reads one request of HTTP/1.0 or HTTP/1.1 from bytes, with the limits and checks of a server that
// strangers reach. Boost.Beast parses; the checks are ours. No socket and no clock.
//
// Refused beyond what Beast refuses: a second Content-Length, Host or Transfer-Encoding; an encoding
// other than chunked, or any in HTTP/1.0; folded headers; a missing Host; a target that cannot be
// decoded; more bytes or fields than the limits, in whatever pieces they come.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "common/http/http_message.h"

namespace lime {

class RequestReader {
 public:
  struct Limits {
    int64_t head_bytes = 16 * 1024;  // request line and headers; also of one chunk's header
    int64_t headers = 100;
    int64_t body_bytes = 16 * 1024 * 1024;
  };
  enum class State {
    kHead,      // the head is not complete
    kBody,      // the head is complete, the body is not
    kComplete,  // the request is complete
    kRefused,   // see refusal(); nothing more can be read
  };

  explicit RequestReader(const Limits& limits);
  ~RequestReader();
  RequestReader(RequestReader&&) noexcept;
  RequestReader& operator=(RequestReader&&) noexcept;

  // Reads from the front of `bytes` and returns how many it took. It stops behind the head, and
  // behind the request. It may leave bytes that are no whole line: they have to be given again, with
  // the bytes that follow them.  REQUIRES: kHead or kBody
  size_t Read(std::string_view bytes);

  State state() const { return state_; }
  const HttpRefusal& refusal() const { return refusal_; }
  // Complete but for its body if there is a head.
  HttpRequest& request() { return request_; }
  bool has_head() const { return !request_.method.empty(); }  // also of a request that is refused later
  int64_t body_bytes() const;                                 // that have been read
  bool wants_close() const;                                   // the client closes after this request, or speaks HTTP/1.0
  bool expects_continue() const;                              // it waits for a 100 before it sends the body

 private:
  class Parser;

  size_t Refuse(HttpRefusal::Reason reason, std::string_view what);
  void FinishHead();

  Limits limits_;
  HttpRequest request_;
  HttpRefusal refusal_;
  State state_ = State::kHead;
  int64_t head_taken_ = 0;
  std::unique_ptr<Parser> parser_;
};

}  // namespace lime
