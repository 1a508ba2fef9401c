// The answer to one request.
#pragma once

#include <functional>
#include <memory>

#include "absl/time/time.h"
#include "common/http/body_source.h"
#include "common/http/connection.h"
#include "common/http/http_message.h"

namespace lime {

// Send, or Delay and Send, or Stream: once. If the object goes away before, the request is answered
// with 500, or the connection breaks. A stream whose object has gone away goes on until its source
// has nothing; then the connection breaks, unless that was the end. The source may have the object.
//
// Thread: any; calls of several threads are carried out one by one, in the thread of the server.
// After the end of the request they do nothing.
class HttpAnswer {
 public:
  virtual ~HttpAnswer() = default;

  // The whole answer.
  virtual void Send(HttpResponse response) = 0;
  // The answer takes time. Once `silence` is over, the head goes out without the body, and a blank
  // after each further `silence`. Send later gives the body; if the head has gone out, its status and
  // headers are ignored. `head_sent` is called in the thread of the server when the head goes out.
  virtual void Delay(HttpResponse head, absl::Duration silence, std::function<void()> head_sent) = 0;
  // Sends the head, and then what the source has, in chunks; see BodySource. The source is deleted in
  // the thread of the server.
  virtual void Stream(HttpResponse head, absl::Duration silence, std::unique_ptr<BodySource> source) = 0;
  // The source has something. Allocates nothing once the server is warm.
  virtual void Wake() = 0;
  // Calls back in the thread of the server after each Wake from now on, before the source is asked,
  // and also while the connection takes nothing. Wakes that came before count as one: calls back for
  // them at once. Not after the end of the request. Only the last function given counts.
  virtual void OnWake(std::function<void()> woken) = 0;
  // Ends a stream before its end: the client sees a broken connection.
  virtual void Abort() = 0;
  // Calls back once when the request has ended, in the thread of the server; at once if it has ended.
  // Only the last function given counts.
  virtual void OnEnd(std::function<void(HttpEnd)> ended) = 0;
};

}  // namespace lime
