#include "daemon/limed/metrics_server.h"

#include <utility>

#include "common/exposition/exposition.h"
#include "common/http/http_server.h"

namespace lime {
namespace {

constexpr int kMostConnections = 16;

HttpResponse Sentence(int status, std::string sentence, HttpHeaders headers = {}) {
  headers.push_back({"Content-Type", "text/plain; charset=utf-8"});
  return {.status = status, .headers = std::move(headers), .body = std::move(sentence) + "\n"};
}

class Metrics final : public MetricsServer, public HttpHandler {
 public:
  explicit Metrics(std::function<std::string()> text) : text_(std::move(text)) {}

  absl::Status Listen(const HostPort& address) {
    LIME_ASSIGN_OR_RETURN(server_,
                          HttpServer::Create({.host = address.host, .port = address.port, .max_connections = kMostConnections}, *this));
    return absl::OkStatus();
  }

  int port() const override { return server_->port(); }

 private:
  std::optional<HttpResponse> OnHead(const HttpRequest& /*request*/) override {
    return Sentence(413, "A request for metrics has no body: send GET /metrics without one.");
  }
  void OnRequest(HttpRequest request, std::shared_ptr<HttpAnswer> answer) override { answer->Send(Answer(request)); }
  HttpResponse OnRefusal(const HttpRefusal& refusal, const HttpRequest* /*request*/) override {
    return Sentence(refusal.status(), refusal.what);
  }

  HttpResponse Answer(const HttpRequest& request) const {
    if (request.path != "/metrics") return Sentence(404, "Only /metrics is here.");
    if (request.method != "GET") return Sentence(405, "Metrics are read: send GET /metrics.", {{"Allow", "GET, HEAD"}});
    return {.status = 200, .headers = {{"Content-Type", std::string(kExpositionType)}}, .body = text_()};
  }

  const std::function<std::string()> text_;
  std::unique_ptr<HttpServer> server_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(const HostPort& address, std::function<std::string()> text) {
  auto metrics = std::make_unique<Metrics>(std::move(text));
  LIME_RETURN_IF_ERROR(metrics->Listen(address));
  return metrics;
}

}  // namespace lime
