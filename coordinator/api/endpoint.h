// Which endpoint a method and a path name.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "coordinator/api/api_error.h"

namespace lime {

enum class Endpoint {
  kHealth,          // whether the server is ready
  kMetrics,         // Prometheus' text
  kCluster,         // the state of the cluster
  kClusterEvents,   // the same, as a stream
  kModels,          // all models
  kModel,           // one of them
  kChat,            // OpenAI's chat completions
  kCompletions,     // OpenAI's completions
  kResponses,       // OpenAI's responses
  kTokenize,        // text to ids
  kDetokenize,      // ids to text
  kApplyTemplate,   // messages to text
  kOllamaVersion,   // Ollama's spelling, to the end of its names: the release
  kOllamaTags,      // all models
  kOllamaPs,        // models in memory
  kOllamaShow,      // one model
  kOllamaChat,      // messages
  kOllamaGenerate,  // a prompt
  kPageFile,        // a file of the page
};

struct Route {
  Endpoint endpoint = Endpoint::kHealth;
  std::string_view pattern;   // for metrics: the path as in the manual, never the client's
  std::string path;           // decoded, without the query
  std::string model;          // kModel: the id
  bool is_head = false;       // the answer has no body
  bool is_preflight = false;  // OPTIONS: what may be called, for a page of another origin
  std::string_view allow;     // for the header Allow
  friend bool operator==(const Route&, const Route&) = default;
};

// `path`: decoded, without the query. `is_page_file` says which paths are files of the page.
// Errors: UnknownUrl, MethodNotAllowed.
ApiResult<Route> FindRoute(std::string_view method, std::string_view path, const std::function<bool(std::string_view)>& is_page_file);

// The patterns of all routes, for metrics that start with 0.
std::span<const std::string_view> RoutePatterns();

// The field that holds the prompt, for errors about its length: messages, prompt or input.
std::string_view PromptField(Endpoint endpoint);

// Whether clients of the path read errors as Ollama writes them. The path may be unknown here.
bool IsOllama(std::string_view path);

}  // namespace lime
