// What the server answers instead of an answer: a status, and a sentence with its kind and place.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace lime {

struct ApiError {
  int status = 400;
  std::string type = "invalid_request_error";
  std::string code;
  std::string param;                                         // the field, as in messages[0].content[0].type; empty: none
  std::string message;                                       // one sentence: what is wrong, where, what to do
  std::vector<std::pair<std::string, std::string>> headers;  // of the answer, beside the usual ones

  friend bool operator==(const ApiError&, const ApiError&) = default;
};

// {"error": {"message", "type", "param", "code"}}, in one line without a line feed.
std::string OpenAiErrorJson(const ApiError& error);
// {"error": text}, as Ollama writes it.
std::string OllamaErrorJson(const ApiError& error);

// A value, or the error of whoever asked for it.
template <typename T>
class ApiResult {
 public:
  ApiResult(T value) : result_(std::move(value)) {}         // NOLINT: as absl::StatusOr
  ApiResult(ApiError error) : result_(std::move(error)) {}  // NOLINT
  bool ok() const { return result_.index() == 0; }
  // REQUIRES: ok()
  const T& operator*() const& { return std::get<0>(result_); }
  T& operator*() & { return std::get<0>(result_); }
  T operator*() && { return std::get<0>(std::move(result_)); }
  const T* operator->() const { return &std::get<0>(result_); }
  // REQUIRES: !ok()
  const ApiError& error() const { return std::get<1>(result_); }

 private:
  std::variant<T, ApiError> result_;
};

// A text of the client within a sentence: quoted, at most 64 bytes, without control characters.
std::string QuotedInput(std::string_view text);

// 400: errors of a body. `param` is the field.
ApiError InvalidJson(std::string_view what);
// "Invalid type for 'n': expected an integer, but got a string instead."
ApiError InvalidType(std::string_view param, std::string_view expected, std::string_view got);
// `what` is the end of the sentence, without its full stop.
ApiError InvalidValue(std::string_view param, std::string_view what);
ApiError MissingParameter(std::string_view param);
ApiError UnsupportedParameter(std::string_view param, std::string_view what);
ApiError UnsupportedContent(std::string_view param, std::string_view what);
ApiError InvalidJsonSchema(std::string_view param, std::string_view what);
// A prompt that leaves no room for an answer. `param`: messages, prompt or input.
ApiError ContextLengthExceeded(std::string_view param, int64_t prompt_tokens, int64_t context);
// The same, known from the bytes alone: the prompt has at least so many tokens.
ApiError PromptTooLong(std::string_view param, int64_t least_tokens, int64_t context);
// What a chat template says by raise_exception, or that it cannot be rendered.
ApiError TemplateError(std::string_view what);

// The other errors of the server.
ApiError InvalidApiKey(bool was_given);                                      // 401
ApiError OriginNotAllowed(std::string_view origin);                          // 403
ApiError HostNotAllowed(std::string_view host);                              // 403
ApiError UnknownUrl(std::string_view method, std::string_view path);         // 404
ApiError ModelNotFound(std::string_view model);                              // 404
ApiError MethodNotAllowed(std::string_view method, std::string_view allow);  // 405
ApiError RequestTimeout(std::string_view what);                              // 408
ApiError RequestTooLarge(int64_t max_bytes);                                 // 413
ApiError UnsupportedMediaType(std::string_view content_type);                // 415
ApiError HeadersTooLarge();                                                  // 431
ApiError QueueFull(int64_t waiting, double predicted_seconds);               // 429
// `what`: the end of a sentence.
ApiError NoSchemaMemory(std::string_view what, double predicted_seconds);  // 429
ApiError ServerError(std::string_view what);                               // 500
ApiError Loading();                                                        // 503
ApiError Draining();                                                       // 503
ApiError QueueTimeout(double seconds);                                     // 503
ApiError ClusterUnavailable(std::string_view device);                      // 503

}  // namespace lime
