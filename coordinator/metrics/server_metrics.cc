#include "coordinator/metrics/server_metrics.h"

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/exposition/exposition.h"
#include "common/exposition/process_metrics.h"
#include "coordinator/api/endpoint.h"
#include "coordinator/metrics/cluster_metrics.h"

namespace lime {
namespace {

using prometheus::Counter;
using prometheus::Histogram;

constexpr std::array<const char*, 4> kRejections = {"queue_full", "too_long", "auth", "draining"};        // by Rejection
constexpr std::array<const char*, 5> kFinishes = {"stop", "length", "tool_calls", "cancelled", "error"};  // by GenerationFinish
constexpr std::array<const char*, 5> kMethods = {"GET", "HEAD", "OPTIONS", "POST", "other"};
constexpr const char* kUnknownRoute = "unknown";

// Seconds. A request waits up to minutes, a token takes milliseconds to seconds.
const Histogram::BucketBoundaries& RequestSeconds() {
  static const Histogram::BucketBoundaries seconds = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 600, 1800};
  return seconds;
}
const Histogram::BucketBoundaries& TokenSeconds() {
  static const Histogram::BucketBoundaries seconds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30};
  return seconds;
}

}  // namespace

struct ServerMetrics::Counts {
  Counts() {
    for (const char* const reason : kRejections) rejected.push_back(&rejections.Add({{"reason", reason}}));
    for (const char* const finish : kFinishes) finished.push_back(&finishes.Add({{"finish", finish}}));
    for (const std::string_view route : RoutePatterns()) {
      const bool is_get = FindRoute("GET", route, [](std::string_view) { return true; }).ok();
      AddRoute(std::string(route), is_get ? "GET" : "POST", "200");
    }
    AddRoute(kUnknownRoute, "GET", "404");
  }

  // The method and the status that it usually has. Zeros of all others would be more lines than all
  // else together.
  void AddRoute(const std::string& route, const char* method, const char* status) {
    seconds_of.emplace(route, &durations.Add({{"route", route}}, RequestSeconds()));
    requests.Add({{"route", route}, {"method", method}, {"status", status}});
  }

  prometheus::Family<Counter>& CounterOf(const char* name, const char* help) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
  }
  prometheus::Family<Histogram>& HistogramOf(const char* name, const char* help) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry);
  }

  prometheus::Registry registry;
  prometheus::Family<Counter>& requests =
      CounterOf("lime_http_requests_total", "HTTP requests that have ended, by route, method and status.");
  prometheus::Family<Histogram>& durations =
      HistogramOf("lime_http_request_duration_seconds", "Time from the head of an HTTP request to the end of its answer, in seconds.");
  prometheus::Family<Counter>& rejections = CounterOf("lime_requests_rejected_total", "Requests that were refused, by reason.");
  prometheus::Family<Counter>& finishes = CounterOf("lime_generations_total", "Choices of answers that have ended, by what ended them.");
  std::map<std::string, Histogram*, std::less<>> seconds_of;  // by route
  std::vector<Counter*> rejected, finished;                   // by Rejection, by GenerationFinish
  Counter& prompt_tokens = CounterOf("lime_prompt_tokens_total", "Tokens of prompts.").Add({});
  Counter& cached_tokens = CounterOf("lime_prompt_tokens_cached_total", "Tokens of prompts whose KV was computed before.").Add({});
  Counter& generated_tokens = CounterOf("lime_generated_tokens_total", "Generated tokens, with end tokens.").Add({});
  Histogram& queue = HistogramOf("lime_queue_seconds", "Time from a request's arrival to its slot, in seconds.").Add({}, RequestSeconds());
  Histogram& first_token = HistogramOf("lime_time_to_first_token_seconds", "Time from a request's arrival to its first token, in seconds.")
                               .Add({}, RequestSeconds());
  Histogram& per_token =
      HistogramOf("lime_time_per_token_seconds", "Mean time of a choice's tokens after the first, in seconds.").Add({}, TokenSeconds());
};

ServerMetrics::ServerMetrics() : counts_(std::make_unique<Counts>()) {}

ServerMetrics::~ServerMetrics() = default;

void ServerMetrics::OnRejected(Rejection why) {
  counts_->rejected[static_cast<size_t>(why)]->Increment();
}

void ServerMetrics::OnFirstToken(absl::Duration since_arrival) {
  tokens_.OnToken(absl::Now(), std::nullopt);
  counts_->first_token.Observe(absl::ToDoubleSeconds(since_arrival));
}

void ServerMetrics::OnToken(absl::Duration since_last) {
  tokens_.OnToken(absl::Now(), since_last);
}

void ServerMetrics::OnAnswer(const SeenAnswer& answer) {
  counts_->prompt_tokens.Increment(static_cast<double>(answer.prompt_tokens));
  counts_->cached_tokens.Increment(static_cast<double>(answer.cached_tokens));
  for (const SeenChoice& choice : answer.choices) {
    counts_->finished[static_cast<size_t>(choice.finish)]->Increment();
    counts_->generated_tokens.Increment(static_cast<double>(choice.generated_tokens));
    if (choice.queue) counts_->queue.Observe(absl::ToDoubleSeconds(*choice.queue));
    if (choice.per_token) counts_->per_token.Observe(absl::ToDoubleSeconds(*choice.per_token));
  }
}

void ServerMetrics::OnExchange(const SeenExchange& exchange) {
  const auto known = counts_->seconds_of.find(exchange.route);
  const std::string route = known != counts_->seconds_of.end() ? known->first : kUnknownRoute;
  const auto method = std::ranges::find(kMethods, exchange.method);
  counts_->requests
      .Add({{"route", route},
            {"method", method != kMethods.end() ? *method : "other"},
            {"status", exchange.status > 0 ? absl::StrCat(exchange.status) : "none"}})
      .Increment();
  counts_->seconds_of.at(route)->Observe(absl::ToDoubleSeconds(exchange.duration));
}

std::string ServerMetrics::Text(const ClusterFacts& facts, int64_t connections) const {
  MetricFamilies families = counts_->registry.Collect();
  families.push_back(GaugeFamily("lime_http_connections", "Open HTTP connections.", {{.value = static_cast<double>(connections)}}));
  for (MetricFamilies more : {ClusterMetrics(facts), ProcessMetrics()}) std::ranges::move(more, std::back_inserter(families));
  return ExpositionText(std::move(families));
}

}  // namespace lime
