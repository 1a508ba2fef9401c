// Bytes of hostile clients: requests one after the other, as a connection reads them, whole and in
// pieces. The first byte says how large the pieces are.
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/http/access.h"
#include "common/http/connection.h"

namespace {

using lime::HttpConnection;

// Answers every request at once, in one of three ways, and notes what it has seen.
class Echo final : public HttpConnection::Owner {
 public:
  std::optional<lime::HttpResponse> OnHead(const lime::HttpRequest& request) override {
    if (!request.has_body || request.path.find('\0') != std::string::npos) std::abort();
    return std::nullopt;
  }
  void OnRequest(lime::HttpRequest request) override {
    if (request.headers.size() > 100) std::abort();
    (void)places_.AllowsHost(request);
    (void)places_.AllowsOrigin(request);
    (void)BearerToken(request);
    (void)PreflightHeaders(request);
    seen.push_back(
        absl::StrCat(request.method, " ", request.path, " ", request.query.size(), " ", request.headers.size(), " ", request.body));
    waits = true;
  }
  lime::HttpResponse OnRefusal(const lime::HttpRefusal& refusal, const lime::HttpRequest*) override {
    if (refusal.what.empty()) std::abort();
    return {.status = refusal.status(), .headers = {}, .body = refusal.what};
  }
  void OnEnd(lime::HttpEnd) override { ++ends; }

  std::vector<std::string> seen;
  size_t ends = 0;
  bool waits = false;

 private:
  const lime::AllowedPlaces places_{{.bound_host = "10.0.0.7", .hostnames = {"name"}, .origins = {"https://a.example"}}};
};

std::vector<std::string> RequestsOf(std::string_view bytes, size_t piece) {
  absl::Time now = absl::UnixEpoch();
  Echo echo;
  HttpConnection connection({.request = {.body_bytes = 4096}}, {}, echo, now);
  const auto settle = [&] {
    for (;;) {
      if (echo.waits) {
        echo.waits = false;
        connection.Send({.status = 200, .headers = {}, .body = echo.seen.back()}, now);
      }
      const size_t size = connection.ToWrite().size();
      if (size == 0) return;
      connection.OnWritten(size, now);
    }
  };
  for (size_t at = 0; at < bytes.size() && !connection.closed(); at += piece) {
    now += absl::Microseconds(1);
    connection.OnBytes(bytes.substr(at, piece), now);
    settle();
  }
  for (int i = 0; i < 10 && !connection.closed(); ++i) {  // idle, or too slow, then lingering
    now = std::max(now, connection.deadline());
    connection.OnTime(now);
    settle();
  }
  if (!connection.closed() || echo.ends != echo.seen.size()) std::abort();
  return echo.seen;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (RequestsOf(bytes, bytes.size() + 1) != RequestsOf(bytes, data[0] + 1)) std::abort();
  return 0;
}
