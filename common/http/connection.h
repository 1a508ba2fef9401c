// One connection of the server, without its socket: bytes and times in, bytes and requests out.
//
//   kIdle -> kHead -> kBody -> kAnswering -> kIdle ...       one request after the other
//   kHead, kBody -> kClosing                                 refused: the answer, then no more
//   kAnswering -> kClosing -> kClosed                        answered, and no further request
//   any -> kClosed                                           the client is gone, or too slow
//
// In kClosing the answer goes out, the sending direction is closed, and bytes of the client are read
// and dropped for up to Limits::linger. Otherwise a client that still writes gets a reset instead of
// the answer.
//
// Pipelined requests wait as bytes while a request is answered, up to Limits::read_ahead.
//
// Thread: one. Times never go back.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "common/http/body_source.h"
#include "common/http/http_message.h"
#include "common/http/request_reader.h"

namespace lime {

// How a request ended.
enum class HttpEnd {
  kSent,     // the whole answer was given to the socket
  kGone,     // the client closed or reset the connection
  kStalled,  // the client took nothing for Limits::stall
  kAborted,  // the owner ended the answer in its middle
  kStopped,  // the server ended
};

class HttpConnection {
 public:
  struct Limits {
    RequestReader::Limits request;
    absl::Duration idle = absl::Seconds(75);         // without a request
    absl::Duration head = absl::Seconds(10);         // from the first byte of a request to its body
    absl::Duration body_window = absl::Seconds(10);  // in each of which a body makes the rate below
    int64_t body_bytes_per_second = 1000;
    absl::Duration stall = absl::Seconds(60);  // in which the client takes no byte of an answer
    absl::Duration linger = absl::Seconds(2);
    int64_t read_ahead = 64 * 1024;
  };

  // Calls come from within the functions below, and must not call back into the connection.
  class Owner {
   public:
    virtual ~Owner() = default;
    // The head is there, and a body follows. An answer refuses the request before its body is read.
    virtual std::optional<HttpResponse> OnHead(const HttpRequest& request) = 0;
    // The request is there. It is answered by Send or Stream, once.
    virtual void OnRequest(HttpRequest request) = 0;
    // The words of an answer that the connection makes. `request` is null if its head is not there.
    virtual HttpResponse OnRefusal(const HttpRefusal& refusal, const HttpRequest* request) = 0;
    // Exactly once after each OnRequest.
    virtual void OnEnd(HttpEnd end) = 0;
  };

  // Addresses in digits, which its requests get.
  struct Ends {
    std::string local, remote;
  };
  // REQUIRES: `owner` outlives this object
  HttpConnection(const Limits& limits, Ends ends, Owner& owner, absl::Time now);

  // ---- The socket
  void OnBytes(std::string_view bytes, absl::Time now);
  void OnEof(absl::Time now);    // the client sends no more: it is gone, or waits for the end of an answer
  void OnReset(absl::Time now);  // reading or writing failed
  // The next bytes to send; valid until OnWritten. OnWritten says how many of them the socket took.
  std::string_view ToWrite();
  void OnWritten(size_t bytes, absl::Time now);
  bool wants_bytes() const;  // reading goes on
  // An answer is made, and reading pauses because read_ahead is full. The end of the client stays
  // behind its bytes then: look for it otherwise, and call OnEof.
  bool wants_look() const;
  bool wants_shutdown() const;  // all is sent: close the sending direction
  bool closed() const { return phase_ == Phase::kClosed; }
  bool abortive() const { return abortive_; }  // closed: drop what the socket still holds
  // When to call OnTime next.
  absl::Time deadline() const;
  void OnTime(absl::Time now);

  // ---- The server
  // No request after this one; an idle connection closes at once.
  void Retire(absl::Time now);
  void Stop();

  // ---- The answer to the request of the last OnRequest. Does nothing once the answer is complete.
  // REQUIRES: OnEnd has not been called
  void Send(const HttpResponse& response, absl::Time now);
  // The answer takes time. After `silence` the head goes out, then a blank after each further
  // `silence`, until Send gives the body. Send then has no say about status and headers.
  // `head_sent` is called when the head goes out.
  void Delay(HttpResponse head, absl::Duration silence, std::function<void()> head_sent, absl::Time now);
  // Sends a head, then what the source has. Its OnSilence is called when nothing was sent for
  // `silence`.
  void Stream(const HttpResponse& head, absl::Duration silence, std::unique_ptr<BodySource> source, absl::Time now);
  void Wake(absl::Time now);  // the source has something
  // A 500 if nothing of the answer was sent; else the connection breaks.
  void Abort(absl::Time now);
  // Nobody will call Send or Wake again. A stream goes on until its source has nothing; if that was
  // not its end, or for another answer, this is an Abort.
  void Drop(absl::Time now);

 private:
  enum class Phase { kIdle, kHead, kBody, kAnswering, kClosing, kClosed };
  enum class Answer {
    kNone,         // nothing is known of it
    kDelayed,      // its head waits in head_
    kDelayedSent,  // its head is sent, its body is not known
    kStreaming,    // it comes from source_
    kComplete,     // all of it is in the buffers
  };

  void Advance(absl::Time now);
  bool ReadSome(absl::Time now);
  HttpRequest& Named();
  void OnHeadDone(absl::Time now);
  void Begin(absl::Time now);
  void Refuse(const HttpRefusal& refusal, absl::Time now);
  void WriteWhole(const HttpResponse& response, bool closes, absl::Time now);
  void WriteHead(const HttpResponse& head, HttpHeaders more, bool closes, absl::Time now);
  void WriteStreamHead(const HttpResponse& head, absl::Time now);
  void WritePiece(std::string_view piece, absl::Time now);
  void CompleteStream(absl::Time now);
  void Write(std::string_view bytes, absl::Time now);
  void Pull(absl::Time now);
  void OnSilence(absl::Time now);
  void OnAllSent(absl::Time now);
  void Close(HttpEnd end);
  bool unsent() const { return sent_ < sending_.size() || !waiting_.empty(); }
  bool MayContinue() const { return !closes_ && !retiring_; }

  const Limits limits_;
  const Ends ends_;
  Owner& owner_;
  Phase phase_ = Phase::kIdle;
  absl::Time since_;  // of kIdle, kHead, and of kClosing since all was sent
  RequestReader reader_;
  std::string input_;  // not read by reader_ yet
  bool retiring_ = false, eof_ = false, abortive_ = false;

  absl::Time window_began_;
  int64_t window_bytes_ = 0;  // of the body when the window began

  Answer answer_ = Answer::kNone;
  bool closes_ = false, head_only_ = false, chunked_ = false, dropped_ = false;
  HttpResponse head_;
  std::function<void()> head_sent_;
  absl::Duration silence_;
  absl::Time last_output_;
  std::unique_ptr<BodySource> source_;

  std::string sending_, waiting_;  // sending_ is at the socket, and does not change
  size_t sent_ = 0;                // of sending_
  absl::Time progress_;            // of sending
};

}  // namespace lime
