#include "coordinator/server/request_log.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/notification.h"
#include "nlohmann/json.hpp"
#include "planner/base/json_text.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

using Json = nlohmann::ordered_json;

std::string TimeText(absl::Time time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", time, absl::UTCTimeZone());
}

Json ObjectOf(const LoggedRequest& request) {
  Json line = {{"time", TimeText(request.at)}, {"id", request.id},         {"method", request.method},
               {"route", request.route},       {"status", request.status}, {"ms", request.ms}};
  if (!request.code.empty()) line["error"] = request.code;
  if (const auto& answer = request.answer) {
    line["prompt_tokens"] = answer->prompt_tokens;
    line["cached_tokens"] = answer->cached_tokens;
    line["generated_tokens"] = answer->generated_tokens;
    line["queue_ms"] = answer->queue_ms;
    line["first_token_ms"] = answer->first_token_ms;
    line["ms_per_token"] = answer->ms_per_token;
    line["predicted_ms_per_token"] = answer->predicted_ms_per_token;
    line["finish"] = answer->finish;
  }
  if (!request.note.empty()) line["note"] = request.note;
  if (!request.body.empty()) line["body"] = request.body;
  return line;
}

}  // namespace

std::string LogLine(const LoggedRequest& request, bool as_json) {
  if (as_json) return JsonText(ObjectOf(request));
  std::string line = absl::StrCat(TimeText(request.at), " ", request.id, " ", Text(request.method), " ", Text(request.route), " ",
                                  request.status == 0 ? "-" : absl::StrCat(request.status));
  if (!request.code.empty()) absl::StrAppend(&line, " ", request.code);
  if (const auto& answer = request.answer) {
    absl::StrAppendFormat(&line, " prompt %d (%d cached), new %d, queue %.1f ms, first token %.1f ms, %.2f ms/token (predicted %.2f), %s",
                          answer->prompt_tokens, answer->cached_tokens, answer->generated_tokens, answer->queue_ms, answer->first_token_ms,
                          answer->ms_per_token, answer->predicted_ms_per_token, answer->finish);
  } else {
    absl::StrAppendFormat(&line, " %.1f ms", request.ms);
  }
  if (!request.note.empty()) absl::StrAppend(&line, "; ", request.note);
  if (!request.body.empty()) absl::StrAppend(&line, " ", JsonText(Json(request.body)));
  return line;
}

RequestLog::RequestLog(bool as_json, std::function<void(std::string_view line)> write) : as_json_(as_json), write_(std::move(write)) {}

RequestLog::~RequestLog() {
  absl::Notification written;
  writer_.Post([&written] { written.Notify(); });
  written.WaitForNotification();
}

void RequestLog::Add(LoggedRequest request) {
  if (waiting_.fetch_add(1) >= kMostWaiting) {
    --waiting_;
    ++lost_;
    return;
  }
  const auto kept = std::make_shared<const LoggedRequest>(std::move(request));
  writer_.Post([this, kept] {
    --waiting_;
    if (const int64_t lost = lost_.exchange(0); lost > 0)
      write_(as_json_ ? JsonText(Json{{"time", TimeText(kept->at)}, {"lost_lines", lost}})
                      : absl::StrCat(TimeText(kept->at), " ", lost, " lines of the log were lost, since nobody read them"));
    write_(LogLine(*kept, as_json_));
  });
}

}  // namespace lime
