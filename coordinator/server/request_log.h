// The log of `lime serve`: one line a request, when it has ended.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "daemon/machine/worker_thread.h"

namespace lime {

struct LoggedAnswer {
  int64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
  double queue_ms = 0, first_token_ms = 0, ms_per_token = 0, predicted_ms_per_token = 0;
  std::string_view finish;  // of its first choice that did not end by itself, else of the first
};

struct LoggedRequest {
  absl::Time at;  // of its end
  std::string id;
  std::string_view method, route;
  int status = 0;                      // as it went out; 0: the client left before it was known
  std::string code;                    // of the error; empty: none
  double ms = 0;                       // from its head to the end of its answer
  std::optional<LoggedAnswer> answer;  // if it was accepted for generation
  std::string note;                    // more that the person who reads the log should know
  std::string body;                    // only with --log-prompts
};

// One line without its line feed: a JSON object, or words. What a client has sent cannot end the
// line or steer a terminal: control characters are written as \u and four digits.
std::string LogLine(const LoggedRequest& request, bool as_json);

// A note that tools of these types were skipped. The types are texts of the client: each different
// one is quoted once, shortened, at most kMostNamedTypes.
// REQUIRES: at least one
inline constexpr size_t kMostNamedTypes = 8;
std::string SkippedToolsNote(const std::vector<std::string>& types);

// Writes lines on a thread of its own, since a terminal or a pipe may take none for a while.
//
// Thread: any; Add never waits.   Bounds: kMostWaiting lines wait; how many were lost is said.
class RequestLog {
 public:
  static constexpr int64_t kMostWaiting = 4096;
  // `write` gets each line without its line feed, one call at a time.
  RequestLog(bool as_json, std::function<void(std::string_view line)> write);
  ~RequestLog();  // writes what waits

  void Add(LoggedRequest request);

 private:
  const bool as_json_;
  const std::function<void(std::string_view line)> write_;
  std::atomic<int64_t> waiting_ = 0, lost_ = 0;
  WorkerThread writer_;  // destroyed first
};

}  // namespace lime
