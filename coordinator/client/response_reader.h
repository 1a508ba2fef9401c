// Reads one answer of HTTP/1.0 or HTTP/1.1 from bytes, in whatever pieces they come. Boost.Beast
// parses; the bounds are ours. No socket and no clock.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "common/http/http_message.h"

namespace lime {

class ResponseReader {
 public:
  struct Limits {
    int64_t head_bytes = 64 * 1024;  // status line and headers; also of one chunk's header
    int64_t headers = 200;
  };
  enum class State {
    kHead,      // the head is not complete
    kBody,      // the head is complete, the body is not
    kComplete,  // the answer is complete
    kBroken,    // see what(); nothing more can be read
  };

  explicit ResponseReader(const Limits& limits);
  ~ResponseReader();

  // Appends the bytes of the body among `bytes` to `body`. Interim answers (1xx) are skipped. Drops
  // what follows a complete answer.
  void Read(std::string_view bytes, std::string& body);
  // The connection has ended: so has a body without a length. Else the answer is broken.
  void ReadEnd();

  State state() const { return state_; }
  int status() const { return status_; }                   // from kBody on
  const HttpHeaders& headers() const { return headers_; }  // names in lower case
  const std::string& what() const { return what_; }        // "it ended in its middle"

 private:
  class Parser;

  // These return whether reading goes on.
  bool Break(std::string_view what);
  bool ReadSome(std::string& body);
  bool FinishHead();

  const Limits limits_;
  State state_ = State::kHead;
  int status_ = 0;
  HttpHeaders headers_;
  std::string what_;
  std::string input_;  // bytes that are no whole line yet
  int64_t head_taken_ = 0;
  std::unique_ptr<Parser> parser_;
};

}  // namespace lime
