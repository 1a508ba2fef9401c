#include "common/http/connection.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "planner/base/check.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

constexpr size_t kKeptBytes = 16 * 1024;  // capacity of a buffer between two answers

void Clear(std::string& buffer) {
  if (buffer.capacity() > kKeptBytes) buffer = std::string();
  buffer.clear();
}

std::string DateText(absl::Time now) {
  return absl::FormatTime("%a, %d %b %E4Y %H:%M:%S GMT", now, absl::UTCTimeZone());
}

}  // namespace

HttpConnection::HttpConnection(const Limits& limits, Ends ends, Owner& owner, absl::Time now)
    : limits_(limits), ends_(std::move(ends)), owner_(owner), since_(now), reader_(limits.request), progress_(now) {}

// ---- Reading

void HttpConnection::OnBytes(std::string_view bytes, absl::Time now) {
  if (phase_ == Phase::kClosing || phase_ == Phase::kClosed) return;
  input_.append(bytes);
  Advance(now);
}

// Reads requests until one has to be answered, or more bytes are needed.
void HttpConnection::Advance(absl::Time now) {
  while (ReadSome(now)) {
  }
}

bool HttpConnection::ReadSome(absl::Time now) {
  if (phase_ == Phase::kIdle) {
    const size_t blank = std::min(input_.find_first_not_of("\r\n"), input_.size());  // lines ahead of a request
    input_.erase(0, blank);
    if (input_.empty()) {
      Clear(input_);
      return false;
    }
    phase_ = Phase::kHead;
    since_ = now;
    reader_ = RequestReader(limits_.request);
  }
  if (phase_ != Phase::kHead && phase_ != Phase::kBody) return false;
  const size_t taken = reader_.Read(input_);
  input_.erase(0, taken);
  if (reader_.state() == RequestReader::State::kRefused) {
    Refuse(reader_.refusal(), now);
    return false;
  }
  if (phase_ == Phase::kHead && reader_.state() == RequestReader::State::kBody) {
    OnHeadDone(now);
    return true;
  }
  if (reader_.state() != RequestReader::State::kComplete) return false;
  Begin(now);
  return false;
}

HttpRequest& HttpConnection::Named() {
  HttpRequest& request = reader_.request();
  request.local_address = ends_.local;
  request.remote_address = ends_.remote;
  return request;
}

void HttpConnection::OnHeadDone(absl::Time now) {
  phase_ = Phase::kBody;
  window_began_ = now;
  window_bytes_ = 0;
  if (const std::optional<HttpResponse> refused = owner_.OnHead(Named())) {
    head_only_ = reader_.request().head;
    WriteWhole(*refused, true, now);
    phase_ = Phase::kClosing;
    since_ = now;
    return Clear(input_);
  }
  if (reader_.expects_continue() && input_.empty()) Write("HTTP/1.1 100 Continue\r\n\r\n", now);
}

void HttpConnection::Begin(absl::Time now) {
  phase_ = Phase::kAnswering;
  answer_ = Answer::kNone;
  dropped_ = false;
  head_sent_ = nullptr;
  head_only_ = reader_.request().head;
  chunked_ = !reader_.request().http_1_0;
  closes_ = reader_.wants_close();
  last_output_ = now;
  owner_.OnRequest(std::move(Named()));
}

void HttpConnection::Refuse(const HttpRefusal& refusal, absl::Time now) {
  head_only_ = reader_.has_head() && reader_.request().head;
  WriteWhole(owner_.OnRefusal(refusal, reader_.has_head() ? &Named() : nullptr), true, now);
  phase_ = Phase::kClosing;
  since_ = now;
  Clear(input_);
}

void HttpConnection::OnEof(absl::Time now) {
  eof_ = true;
  const bool waits = phase_ == Phase::kClosing || (phase_ == Phase::kAnswering && answer_ == Answer::kComplete);
  if (!waits || !unsent()) return Close(HttpEnd::kGone);
  since_ = now;
}

void HttpConnection::OnReset(absl::Time) {
  Close(HttpEnd::kGone);
}

void HttpConnection::Close(HttpEnd end) {
  if (phase_ == Phase::kClosed) return;
  const bool answering = phase_ == Phase::kAnswering;
  phase_ = Phase::kClosed;
  source_.reset();
  if (answering) owner_.OnEnd(end);
}

bool HttpConnection::wants_bytes() const {
  if (eof_ || phase_ == Phase::kClosed) return false;
  return phase_ != Phase::kAnswering || static_cast<int64_t>(input_.size()) < limits_.read_ahead;
}

bool HttpConnection::wants_look() const {
  return phase_ == Phase::kAnswering && answer_ != Answer::kComplete && !eof_ && !wants_bytes();
}

bool HttpConnection::wants_shutdown() const {
  return phase_ == Phase::kClosing && !unsent();
}

// ---- Time

absl::Time HttpConnection::deadline() const {
  switch (phase_) {
    case Phase::kIdle:
      return since_ + limits_.idle;
    case Phase::kHead:
      return since_ + limits_.head;
    case Phase::kBody:
      return window_began_ + limits_.body_window;
    case Phase::kAnswering:
      if (unsent()) return progress_ + limits_.stall;
      return answer_ == Answer::kNone || answer_ == Answer::kComplete ? absl::InfiniteFuture() : last_output_ + silence_;
    case Phase::kClosing:
      return unsent() ? progress_ + limits_.stall : since_ + limits_.linger;
    case Phase::kClosed:
      return absl::InfiniteFuture();
  }
  return absl::InfiniteFuture();
}

void HttpConnection::OnTime(absl::Time now) {
  if (now < deadline()) return;
  switch (phase_) {
    case Phase::kIdle:
    case Phase::kClosed:
      return Close(HttpEnd::kGone);
    case Phase::kHead:
      return Refuse({.reason = HttpRefusal::Reason::kTooSlow,
                     .what = absl::StrCat("the headers of the request were not complete after ", absl::FormatDuration(limits_.head))},
                    now);
    case Phase::kBody: {
      const int64_t bytes = reader_.body_bytes() - window_bytes_;
      if (static_cast<double>(bytes) < absl::ToDoubleSeconds(limits_.body_window) * static_cast<double>(limits_.body_bytes_per_second))
        return Refuse(
            {.reason = HttpRefusal::Reason::kTooSlow,
             .what = absl::StrCat("the body of the request came with less than ", limits_.body_bytes_per_second, " bytes a second")},
            now);
      window_began_ = now;
      window_bytes_ += bytes;
      return;
    }
    case Phase::kAnswering:
    case Phase::kClosing:
      if (unsent() || phase_ == Phase::kClosing) {
        abortive_ = unsent();
        return Close(HttpEnd::kStalled);
      }
      return OnSilence(now);
  }
}

void HttpConnection::OnSilence(absl::Time now) {
  if (answer_ == Answer::kDelayed) {
    answer_ = Answer::kDelayedSent;
    WriteStreamHead(head_, now);
    if (head_sent_) head_sent_();
  }
  std::string sign;
  if (source_ != nullptr) {
    source_->OnSilence(sign);
  } else if (!head_only_) {
    sign = " ";
  }
  last_output_ = now;
  WritePiece(sign, now);
}

void HttpConnection::Retire(absl::Time) {
  retiring_ = true;
  if (phase_ == Phase::kIdle) Close(HttpEnd::kStopped);
}

void HttpConnection::Stop() {
  Close(HttpEnd::kStopped);
}

// ---- Writing

std::string_view HttpConnection::ToWrite() {
  if (sent_ == sending_.size()) {
    Clear(sending_);
    sent_ = 0;
    sending_.swap(waiting_);
  }
  return std::string_view(sending_).substr(sent_);
}

void HttpConnection::OnWritten(size_t bytes, absl::Time now) {
  sent_ += bytes;
  LIME_CHECK_LE(sent_, sending_.size());
  progress_ = now;
  if (!unsent()) OnAllSent(now);
}

void HttpConnection::OnAllSent(absl::Time now) {
  if (phase_ == Phase::kClosing) {
    since_ = now;
    if (eof_) Close(HttpEnd::kSent);
    return;
  }
  if (phase_ != Phase::kAnswering) return;
  if (answer_ == Answer::kStreaming) return Pull(now);
  if (answer_ != Answer::kComplete) return;
  phase_ = MayContinue() && !eof_ ? Phase::kIdle : Phase::kClosing;
  since_ = now;
  owner_.OnEnd(HttpEnd::kSent);
  if (eof_) return Close(HttpEnd::kSent);
  if (phase_ == Phase::kClosing) return Clear(input_);
  Advance(now);
}

void HttpConnection::Write(std::string_view bytes, absl::Time now) {
  if (bytes.empty()) return;
  if (!unsent()) progress_ = now;
  last_output_ = now;
  waiting_.append(bytes);
}

void HttpConnection::WriteHead(const HttpResponse& head, HttpHeaders more, bool closes, absl::Time now) {
  closes_ = closes;
  more.push_back({"Date", DateText(now)});
  if (closes) more.push_back({"Connection", "close"});
  Write(HeadText(head, more), now);
}

void HttpConnection::WriteWhole(const HttpResponse& response, bool closes, absl::Time now) {
  HttpHeaders more;
  if (!HasNoBody(response.status)) more.push_back({"Content-Length", absl::StrCat(response.body.size())});
  WriteHead({.status = response.status, .headers = response.headers, .body = {}}, std::move(more), closes, now);
  if (!head_only_ && !HasNoBody(response.status)) Write(response.body, now);
}

// A client of HTTP/1.0 sees the end of the body by the end of the connection.
void HttpConnection::WriteStreamHead(const HttpResponse& head, absl::Time now) {
  HttpHeaders more;
  if (chunked_) more.push_back({"Transfer-Encoding", "chunked"});
  WriteHead(head, std::move(more), !MayContinue(), now);
}

void HttpConnection::WritePiece(std::string_view piece, absl::Time now) {
  if (piece.empty() || head_only_) return;
  if (!chunked_) return Write(piece, now);
  Write(absl::StrCat(absl::Hex(piece.size()), "\r\n"), now);
  Write(piece, now);
  Write("\r\n", now);
}

void HttpConnection::CompleteStream(absl::Time now) {
  answer_ = Answer::kComplete;
  source_.reset();
  if (chunked_ && !head_only_) Write("0\r\n\r\n", now);
  if (!unsent()) OnAllSent(now);
}

// ---- Answers

void HttpConnection::Send(const HttpResponse& response, absl::Time now) {
  LIME_CHECK(phase_ == Phase::kAnswering);
  LIME_CHECK(answer_ != Answer::kStreaming);
  if (answer_ == Answer::kComplete) return;
  if (answer_ == Answer::kDelayedSent) {
    WritePiece(response.body, now);
    return CompleteStream(now);
  }
  answer_ = Answer::kComplete;
  WriteWhole(response, !MayContinue(), now);
}

void HttpConnection::Delay(HttpResponse head, absl::Duration silence, std::function<void()> head_sent, absl::Time now) {
  LIME_CHECK(phase_ == Phase::kAnswering);
  if (answer_ == Answer::kComplete) return;
  LIME_CHECK(answer_ == Answer::kNone);
  answer_ = Answer::kDelayed;
  head_ = std::move(head);
  head_sent_ = std::move(head_sent);
  silence_ = silence;
  last_output_ = now;
}

void HttpConnection::Stream(const HttpResponse& head, absl::Duration silence, std::unique_ptr<BodySource> source, absl::Time now) {
  LIME_CHECK(phase_ == Phase::kAnswering);
  if (answer_ == Answer::kComplete) return;
  LIME_CHECK(answer_ == Answer::kNone);
  answer_ = Answer::kStreaming;
  silence_ = silence;
  source_ = std::move(source);
  WriteStreamHead(head, now);
  if (head_only_) return CompleteStream(now);
  Pull(now);
}

void HttpConnection::Wake(absl::Time now) {
  if (source_ != nullptr && !unsent()) Pull(now);
}

void HttpConnection::Pull(absl::Time now) {
  std::string piece;
  const bool last = source_->Pull(piece);
  WritePiece(piece, now);
  if (last) return CompleteStream(now);
  if (dropped_ && piece.empty()) Close(HttpEnd::kAborted);
}

void HttpConnection::Abort(absl::Time now) {
  if (answer_ == Answer::kComplete) return;
  if (answer_ == Answer::kStreaming || answer_ == Answer::kDelayedSent) return Close(HttpEnd::kAborted);
  const HttpRefusal refusal{.reason = HttpRefusal::Reason::kNotAnswered, .what = "the server did not answer the request"};
  answer_ = Answer::kComplete;
  closes_ = true;
  WriteWhole(owner_.OnRefusal(refusal, nullptr), true, now);
}

void HttpConnection::Drop(absl::Time now) {
  if (source_ == nullptr) return Abort(now);
  dropped_ = true;
  if (!unsent()) Pull(now);
}

}  // namespace lime
