#include "coordinator/client/response_reader.h"

#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <limits>
#include <utility>  // before asio: Boost 1.74 uses std::exchange without it

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace lime {
namespace {

namespace http = boost::beast::http;
using Error = boost::beast::error_code;
using View = boost::beast::string_view;

// "0\r\n\r\n": at least so many bytes follow a chunk of a body. Beast 1.74 asserts that it gets them
// together.
constexpr size_t kLastChunkBytes = 5;
constexpr std::string_view kVersionBegin = "HTTP/";

}  // namespace

// Beast's parser, which keeps what it finds.
class ResponseReader::Parser final : public http::basic_parser<false> {
 public:
  explicit Parser(const Limits& limits) : limits_(limits) {
    header_limit(static_cast<std::uint32_t>(limits.head_bytes));
    body_limit(std::numeric_limits<std::uint64_t>::max());  // the caller bounds it; Beast 1.74 takes "none" for 0
  }

  int status = 0;
  HttpHeaders headers;
  std::string body;
  bool took_chunk_header = false;  // or the trailers
  uint64_t chunk_left = 0;         // bytes of the current chunk that are still missing

 private:
  void on_request_impl(http::verb, View, View, int, Error&) override {}
  void on_response_impl(int code, View, int, Error&) override { status = code; }
  void on_field_impl(http::field, View name, View value, Error& error) override {
    if (++fields_ > limits_.headers) {
      error = http::error::header_limit;
      return;
    }
    if (head_done_) return;  // a trailer
    headers.push_back(
        {.name = absl::AsciiStrToLower(absl::string_view(name.data(), name.size())), .value = std::string(value.data(), value.size())});
  }
  void on_header_impl(Error&) override { head_done_ = true; }
  void on_body_init_impl(const boost::optional<std::uint64_t>&, Error&) override {}
  std::size_t on_body_impl(View bytes, Error&) override {
    body.append(bytes.data(), bytes.size());
    return bytes.size();
  }
  void on_chunk_header_impl(std::uint64_t size, View, Error&) override {
    took_chunk_header = true;
    chunk_left = size;
  }
  std::size_t on_chunk_body_impl(std::uint64_t left, View bytes, Error& error) override {
    chunk_left = left - bytes.size();
    return on_body_impl(bytes, error);
  }
  void on_finish_impl(Error&) override {}

  const Limits limits_;
  int64_t fields_ = 0;
  bool head_done_ = false;
};

ResponseReader::ResponseReader(const Limits& limits) : limits_(limits), parser_(std::make_unique<Parser>(limits)) {}
ResponseReader::~ResponseReader() = default;

bool ResponseReader::Break(std::string_view what) {
  state_ = State::kBroken;
  what_ = std::string(what);
  return false;
}

void ResponseReader::Read(std::string_view bytes, std::string& body) {
  input_.append(bytes);
  while (!input_.empty() && (state_ == State::kHead || state_ == State::kBody)) {
    if (!ReadSome(body)) break;
  }
  if (state_ == State::kComplete || state_ == State::kBroken) input_.clear();
}

bool ResponseReader::ReadSome(std::string& body) {
  if (state_ == State::kBody && parser_->chunked() && parser_->chunk_left == 0 && input_.size() < kLastChunkBytes) return false;
  if (state_ == State::kHead && head_taken_ == 0 && !kVersionBegin.starts_with(std::string_view(input_).substr(0, kVersionBegin.size())))
    return Break("it is not HTTP");  // Beast would wait for the end of the headers
  Error error;
  parser_->took_chunk_header = false;
  const size_t taken = parser_->put(boost::asio::const_buffer(input_.data(), input_.size()), error);
  body.append(std::exchange(parser_->body, {}));
  input_.erase(0, taken);
  if (state_ == State::kHead) head_taken_ += static_cast<int64_t>(taken);
  const int64_t waiting = error == http::error::need_more ? static_cast<int64_t>(input_.size()) : 0;
  const bool long_head = state_ == State::kHead && head_taken_ + waiting > limits_.head_bytes;
  const int64_t chunk_header = parser_->took_chunk_header ? static_cast<int64_t>(taken) : waiting;
  const bool long_chunk_header = state_ == State::kBody && chunk_header > limits_.head_bytes;
  if (error == http::error::header_limit || long_head || long_chunk_header) return Break("its headers are too long");
  if (error == http::error::need_more) return false;
  if (error) return Break("it is not HTTP");
  if (state_ == State::kHead && parser_->is_header_done() && !FinishHead()) return false;
  if (state_ == State::kBody && parser_->is_done()) state_ = State::kComplete;
  return true;
}

bool ResponseReader::FinishHead() {
  if (parser_->status == 101) return Break("it changes to another protocol, for which nobody asked");
  if (parser_->status < 200) {  // the answer follows
    parser_ = std::make_unique<Parser>(limits_);
    return true;
  }
  status_ = parser_->status;
  headers_ = std::move(parser_->headers);
  state_ = State::kBody;
  return true;
}

void ResponseReader::ReadEnd() {
  if (state_ != State::kHead && state_ != State::kBody) return;
  Error error;
  if (state_ == State::kBody && input_.empty()) parser_->put_eof(error);
  if (state_ == State::kBody && input_.empty() && !error && parser_->is_done()) {
    state_ = State::kComplete;
    return;
  }
  Break(state_ == State::kHead && head_taken_ == 0 && input_.empty() ? "it is empty" : "it ended in its middle");
}

}  // namespace lime
