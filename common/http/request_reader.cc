#include "common/http/request_reader.h"

#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <utility>  // before asio: Boost 1.74 uses std::exchange without it

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/http/target.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

namespace http = boost::beast::http;
using Error = boost::beast::error_code;
using View = boost::beast::string_view;
using Reason = HttpRefusal::Reason;

// "0\r\n\r\n": at least so many bytes of a chunked body are missing until its end. Beast 1.74 asserts
// that it gets them together.
constexpr size_t kLastChunkBytes = 5;

std::string Lower(View text) {
  return absl::AsciiStrToLower(absl::string_view(text.data(), text.size()));
}

// What Beast found, in words of ours.
const char* WhatIs(const Error& error) {
  switch (static_cast<http::error>(error.value())) {
    case http::error::bad_method:
      return "the request line has no valid method";
    case http::error::bad_target:
      return "the request line has no valid target";
    case http::error::bad_version:
      return "the request line does not end with HTTP/1.1 or HTTP/1.0";
    case http::error::bad_field:
      return "the name of a header is not valid";
    case http::error::bad_value:
      return "the value of a header is not valid";
    case http::error::bad_content_length:
      return "Content-Length is not one number, or comes beside another length";
    case http::error::bad_transfer_encoding:
      return "Transfer-Encoding comes twice, or beside Content-Length";
    case http::error::bad_chunk:
      return "a chunk of the body does not begin with its size";
    case http::error::bad_chunk_extension:
      return "the header of a chunk is not valid";
    default:
      return "the request is not HTTP";
  }
}

// A folded header, which old servers and proxies read in different ways.
bool HasFold(std::string_view lines) {
  for (size_t at = lines.find('\n'); at != std::string_view::npos; at = lines.find('\n', at + 1))
    if (at + 1 < lines.size() && (lines[at + 1] == ' ' || lines[at + 1] == '\t')) return true;
  return false;
}

}  // namespace

// Beast's parser with a request as the place of what it finds.
class RequestReader::Parser final : public http::basic_parser<true> {
 public:
  explicit Parser(const Limits& limits) : limits_(limits) {
    header_limit(static_cast<std::uint32_t>(limits.head_bytes));
    body_limit(static_cast<std::uint64_t>(limits.body_bytes));
  }

  HttpRequest request;
  std::string target;
  Reason reason = Reason::kMalformed;
  std::string what;  // of an error that a check of ours found
  int64_t hosts = 0;
  bool took_chunk_header = false;  // or the trailers

 private:
  void on_request_impl(http::verb, View method, View path, int version, Error&) override {
    request.method.assign(method.data(), method.size());
    target.assign(path.data(), path.size());
    request.http_1_0 = version < 11;
  }
  void on_response_impl(int, View, int, Error&) override {}
  void on_field_impl(http::field field, View name, View value, Error& error) override {
    if (++fields_ > limits_.headers) return Fail(error, Reason::kHeadersTooLarge, "the request has too many headers");
    if (head_done_) return;  // a trailer
    if (field == http::field::host && ++hosts > 1) return Fail(error, Reason::kMalformed, "the request has two Host headers");
    if (field == http::field::content_length && (++lengths_ > 1 || value.find(',') != View::npos))
      return Fail(error, Reason::kMalformed, "the request has two lengths");
    if (field == http::field::transfer_encoding && (request.http_1_0 || !boost::beast::iequals(value, "chunked")))
      return Fail(error, Reason::kMalformed, "Transfer-Encoding is not \"chunked\" in HTTP/1.1");
    request.headers.push_back({.name = Lower(name), .value = std::string(value.data(), value.size())});
  }
  void on_header_impl(Error&) override { head_done_ = true; }
  void on_body_init_impl(const boost::optional<std::uint64_t>&, Error&) override {}
  std::size_t on_body_impl(View bytes, Error&) override {
    request.body.append(bytes.data(), bytes.size());
    return bytes.size();
  }
  void on_chunk_header_impl(std::uint64_t, View, Error&) override { took_chunk_header = true; }
  std::size_t on_chunk_body_impl(std::uint64_t, View bytes, Error& error) override { return on_body_impl(bytes, error); }
  void on_finish_impl(Error&) override {}

  void Fail(Error& error, Reason why, std::string words) {
    reason = why;
    what = std::move(words);
    error = http::error::bad_field;
  }

  const Limits limits_;
  int64_t fields_ = 0, lengths_ = 0;
  bool head_done_ = false;
};

RequestReader::RequestReader(const Limits& limits) : limits_(limits), parser_(std::make_unique<Parser>(limits)) {}
RequestReader::~RequestReader() = default;
RequestReader::RequestReader(RequestReader&&) noexcept = default;
RequestReader& RequestReader::operator=(RequestReader&&) noexcept = default;

int64_t RequestReader::body_bytes() const {
  return static_cast<int64_t>((state_ == State::kBody ? parser_->request : request_).body.size());
}

bool RequestReader::wants_close() const {
  return request_.http_1_0 || !parser_->keep_alive();
}

bool RequestReader::expects_continue() const {
  return !request_.http_1_0 && EqualsIgnoringCase(request_.header("expect"), "100-continue");
}

size_t RequestReader::Refuse(Reason reason, std::string_view what) {
  state_ = State::kRefused;
  refusal_ = {.reason = reason, .what = std::string(what)};
  return 0;
}

size_t RequestReader::Read(std::string_view bytes) {
  size_t taken = 0;
  while (taken < bytes.size() && (state_ == State::kHead || state_ == State::kBody)) {
    const std::string_view rest = bytes.substr(taken);
    if (state_ == State::kBody && parser_->chunked() && rest.size() < kLastChunkBytes) return taken;
    Error error;
    parser_->took_chunk_header = false;
    const size_t now = parser_->put(boost::asio::const_buffer(rest.data(), rest.size()), error);
    taken += now;
    if (state_ == State::kHead) {
      head_taken_ += static_cast<int64_t>(now);
      if (HasFold(rest.substr(0, now))) return Refuse(Reason::kMalformed, "a header is folded over two lines");
    }
    const int64_t waiting = error == http::error::need_more ? static_cast<int64_t>(bytes.size() - taken) : 0;
    if (error == http::error::header_limit || (state_ == State::kHead && head_taken_ + waiting > limits_.head_bytes))
      return Refuse(Reason::kHeadersTooLarge, absl::StrCat("the headers have more than ", limits_.head_bytes, " bytes"));
    const int64_t chunk_header = parser_->took_chunk_header ? static_cast<int64_t>(now) : waiting;
    if (state_ == State::kBody && chunk_header > limits_.head_bytes) return Refuse(Reason::kMalformed, "the header of a chunk is too long");
    if (error == http::error::need_more) return taken;
    if (error == http::error::body_limit) {
      if (state_ == State::kHead) FinishHead();  // by its Content-Length
      if (state_ == State::kRefused) return 0;
      return Refuse(Reason::kBodyTooLarge, absl::StrCat("the body has more than ", limits_.body_bytes, " bytes"));
    }
    if (error) return Refuse(parser_->reason, parser_->what.empty() ? WhatIs(error) : parser_->what);
    if (state_ == State::kHead && parser_->is_header_done()) {
      FinishHead();
      return taken;
    }
    if (parser_->is_done()) {
      request_.body = std::move(parser_->request.body);
      state_ = State::kComplete;
    }
  }
  return taken;
}

void RequestReader::FinishHead() {
  HttpRequest& request = parser_->request;
  absl::StatusOr<HttpTarget> target = ParseTarget(parser_->target);
  if (!target.ok()) {
    Refuse(Reason::kMalformed, std::string_view(target.status().message().data(), target.status().message().size()));
    return;
  }
  if (parser_->hosts == 0) {
    Refuse(Reason::kMalformed, "the request has no Host header");
    return;
  }
  request.has_body = !parser_->is_done();
  request.head = request.method == "HEAD";
  if (request.head) request.method = "GET";
  request.path = std::move(target->path);
  request.query = std::move(target->query);
  request.host = target->authority.empty() ? std::string(request.header("host")) : target->authority;
  request_ = std::exchange(request, {});
  state_ = parser_->is_done() ? State::kComplete : State::kBody;
}

}  // namespace lime
