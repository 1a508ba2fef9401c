// Calls a server over HTTP/1.1, plain or over TLS.
//
// A call has a connection of its own, which ends with the call. So a call that is cancelled, or whose
// process ends, is seen by the server at once. Proxies of the environment and redirects are not
// followed.
//
// Thread: any; a call waits in the thread of its caller, and several may run at once.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "common/http/http_message.h"
#include "coordinator/client/server_url.h"
#include "planner/base/bytes.h"
#include "planner/base/status.h"

struct ssl_ctx_st;  // OpenSSL's SSL_CTX

namespace lime {

struct HttpCall {
  std::string method = "GET";
  std::string path;  // below ServerUrl::base, such as /v1/models
  std::string body;  // of a POST: JSON
};

struct HttpReply {
  int status = 0;
  HttpHeaders headers;  // names in lower case
  std::string body;     // empty if it was given out in pieces

  // "" if there is none.
  std::string_view header(std::string_view name) const;
  // Status 200, and server-sent events.
  bool is_stream() const;
};

class HttpCaller {
 public:
  struct Options {
    ServerUrl url;
    std::string api_key;                         // empty: none
    std::string authorities;                     // PEM file of the authorities that may sign the server's certificate; empty: the system's
    absl::Duration connect = absl::Seconds(15);  // all of: name, connection, TLS
    absl::Duration idle = absl::Minutes(10);     // in which neither side's bytes move
    Bytes max_body = 256 * kMiB;                 // of a body that is collected
  };

  // InvalidArgument if the key or the file of authorities cannot be used.
  static absl::StatusOr<std::unique_ptr<HttpCaller>> Create(Options options);
  // REQUIRES: `trusted` is set if the URL wants TLS; Create does so
  HttpCaller(Options options, std::shared_ptr<ssl_ctx_st> trusted) : options_(std::move(options)), trusted_(std::move(trusted)) {}

  // Gets a piece of the body, as it comes. An error ends the call with it.
  using OnPiece = std::function<absl::Status(std::string_view piece)>;
  // Returns the answer, whatever its status. With `on_piece`, the body of a stream goes there; any
  // other body is collected. `cancel`, if it is not null, ends the call within a tenth of a second after it is
  // set, from any thread or signal handler.
  // Errors, each one sentence with the URL: Unavailable if the server cannot be reached, breaks off or
  // speaks no HTTP; DeadlineExceeded if it is silent for too long; FailedPrecondition if its
  // certificate is not trusted; ResourceExhausted if a body is too long; Cancelled.
  absl::StatusOr<HttpReply> Call(const HttpCall& call, const OnPiece& on_piece, const std::atomic<bool>* cancel) const;

  const ServerUrl& url() const { return options_.url; }

 private:
  const Options options_;
  const std::shared_ptr<ssl_ctx_st> trusted_;  // null without TLS
};

}  // namespace lime
