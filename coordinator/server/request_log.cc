#include "coordinator/server/request_log.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/notification.h"
#include "coordinator/api/api_error.h"
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

// A character that ends a line or steers a terminal: C0, DEL, C1, and the separators U+2028 and
// U+2029.
struct Control {
  size_t bytes = 0;  // 0: the text begins with no such character
  int code_point = 0;
};

Control ControlAt(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0xFF; };
  if (byte(0) < 0x20 || byte(0) == 0x7F) return {1, byte(0)};
  if (byte(0) == 0xC2 && byte(1) >= 0x80 && byte(1) < 0xA0) return {2, byte(1)};
  if (byte(0) == 0xE2 && byte(1) == 0x80 && (byte(2) == 0xA8 || byte(2) == 0xA9)) return {3, 0x2000 + byte(2) - 0x80};
  return {};
}

// Parts of a line are texts of clients.
std::string OneLine(std::string_view text) {
  std::string line;
  line.reserve(text.size());
  while (!text.empty()) {
    const Control control = ControlAt(text);
    if (control.bytes > 0) {
      absl::StrAppendFormat(&line, "\\u%04x", control.code_point);
    } else {
      line += text[0];
    }
    text.remove_prefix(std::max<size_t>(control.bytes, 1));
  }
  return line;
}

std::string WordsOf(const LoggedRequest& request) {
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

}  // namespace

std::string LogLine(const LoggedRequest& request, bool as_json) {
  return OneLine(as_json ? JsonText(ObjectOf(request)) : WordsOf(request));
}

std::string SkippedToolsNote(const std::vector<std::string>& types) {
  std::vector<std::string> different;
  for (const std::string& type : types) {
    if (std::ranges::find(different, type) == different.end()) different.push_back(type);
  }
  const size_t named = std::min(different.size(), kMostNamedTypes);
  std::vector<std::string> quoted;
  for (size_t i = 0; i < named; ++i) quoted.push_back(QuotedInput(different[i]));
  std::string note = absl::StrCat("skipped tools of the types ", absl::StrJoin(quoted, ", "));
  if (named < different.size()) absl::StrAppend(&note, " and ", different.size() - named, " more");
  return note;
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
