#include "coordinator/api/endpoint.h"

#include <array>

#include "coordinator/text/unicode/utf8.h"

namespace lime {
namespace {

constexpr std::string_view kGet = "GET, HEAD, OPTIONS", kPost = "POST, OPTIONS";
constexpr std::string_view kModelsBelow = "/v1/models/";

struct Row {
  std::string_view pattern;
  Endpoint endpoint;
  std::string_view allow;
};

constexpr Row kRows[] = {
    {"/v1/chat/completions", Endpoint::kChat, kPost},
    {"/v1/completions", Endpoint::kCompletions, kPost},
    {"/v1/responses", Endpoint::kResponses, kPost},
    {"/v1/models", Endpoint::kModels, kGet},
    {"/health", Endpoint::kHealth, kGet},
    {"/metrics", Endpoint::kMetrics, kGet},
    {"/lime/cluster", Endpoint::kCluster, kGet},
    {"/lime/events", Endpoint::kClusterEvents, kGet},
    {"/tokenize", Endpoint::kTokenize, kPost},
    {"/detokenize", Endpoint::kDetokenize, kPost},
    {"/apply-template", Endpoint::kApplyTemplate, kPost},
    {"/api/version", Endpoint::kOllamaVersion, kGet},
    {"/api/tags", Endpoint::kOllamaTags, kGet},
    {"/api/ps", Endpoint::kOllamaPs, kGet},
    {"/api/show", Endpoint::kOllamaShow, kPost},
    {"/api/chat", Endpoint::kOllamaChat, kPost},
    {"/api/generate", Endpoint::kOllamaGenerate, kPost},
};
constexpr Row kModelRow = {"/v1/models/{id}", Endpoint::kModel, kGet};
constexpr Row kPageRow = {"/", Endpoint::kPageFile, kGet};

constexpr auto kPatterns = [] {
  std::array<std::string_view, std::size(kRows) + 2> patterns;
  for (size_t i = 0; i < std::size(kRows); ++i) patterns[i] = kRows[i].pattern;
  patterns[std::size(kRows)] = kModelRow.pattern;
  patterns[std::size(kRows) + 1] = kPageRow.pattern;
  return patterns;
}();

const Row* FindRow(std::string_view path, const std::function<bool(std::string_view)>& is_page_file) {
  for (const Row& row : kRows) {
    if (row.pattern == path) return &row;
  }
  if (path.size() > kModelsBelow.size() && path.substr(0, kModelsBelow.size()) == kModelsBelow) return &kModelRow;
  return is_page_file && is_page_file(path) ? &kPageRow : nullptr;
}

}  // namespace

ApiResult<Route> FindRoute(std::string_view method, std::string_view path, const std::function<bool(std::string_view)>& is_page_file) {
  const Row* const row = IsUtf8(path) ? FindRow(path, is_page_file) : nullptr;
  if (row == nullptr) return UnknownUrl(method, path);
  Route route = {.endpoint = row->endpoint, .pattern = row->pattern, .path = std::string(path), .allow = row->allow};
  route.is_head = method == "HEAD" && row->allow == kGet;
  route.is_preflight = method == "OPTIONS";
  const std::string_view needed = row->allow == kGet ? "GET" : "POST";
  if (!route.is_head && !route.is_preflight && method != needed) return MethodNotAllowed(method, row->allow);
  if (row->endpoint == Endpoint::kModel) route.model = route.path.substr(kModelsBelow.size());
  return route;
}

std::span<const std::string_view> RoutePatterns() {
  return kPatterns;
}

std::string_view PromptField(Endpoint endpoint) {
  if (endpoint == Endpoint::kResponses) return "input";
  return endpoint == Endpoint::kCompletions || endpoint == Endpoint::kOllamaGenerate ? "prompt" : "messages";
}

bool IsOllama(std::string_view path) {
  return path.starts_with("/api/");
}

}  // namespace lime
