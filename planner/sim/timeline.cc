#include "planner/sim/timeline.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace lime {
namespace {

using Kind = TimelineSpan::Kind;

// Kinds of activity of a device; one span at a time in each. Text does not show received messages,
// because they take almost no time.
enum class Lane { kCompute, kDisk, kLink, kInbox };
constexpr std::array<const char*, 3> kLanes = {"compute", "disk", "link"};
constexpr int kInboxLane = static_cast<int>(Lane::kInbox);

Lane LaneOf(Kind kind) {
  switch (kind) {
    case Kind::kLoad:
      return Lane::kDisk;
    case Kind::kSend:
      return Lane::kLink;
    case Kind::kReceive:
      return Lane::kInbox;
    default:
      return Lane::kCompute;
  }
}

// Rows of text. Each column is an equal time and shows what filled most of it.
class Lines {
 public:
  Lines(const Timeline& timeline, double begin_ms, double end_ms, int columns)
      : begin_ms_(begin_ms),
        column_ms_((end_ms - begin_ms) / columns),
        columns_(columns),
        by_stage_(std::ranges::all_of(timeline.spans, [](const TimelineSpan& span) { return span.microbatch <= 0; })),
        cells_(timeline.devices.size() * kLanes.size() * columns) {
    for (const TimelineSpan& span : timeline.spans) Add(span);
  }

  std::string Line(size_t device, size_t lane) const {
    std::string text;
    for (int c = 0; c < columns_; ++c) text += cells_[(device * kLanes.size() + lane) * columns_ + c].Most(column_ms_);
    return text;
  }

 private:
  struct Cell {
    std::map<char, double> ms;

    // The letter that fills most of the column; a blank if idle time does.
    char Most(double column_ms) const {
      double idle_ms = column_ms, most_ms = 0;
      char most = ' ';
      for (const auto& [letter, letter_ms] : ms) {
        idle_ms -= letter_ms;
        if (letter_ms > most_ms) most = letter, most_ms = letter_ms;
      }
      return most_ms > 0 && most_ms >= idle_ms ? most : ' ';
    }
  };

  char LetterOf(const TimelineSpan& span) const {
    const int number = by_stage_ ? span.stage : span.microbatch;
    switch (span.kind) {
      case Kind::kCompute:
      case Kind::kSend:
        return static_cast<char>('0' + std::max(number, 0) % 10);
      case Kind::kLoad:
        return '=';
      case Kind::kAttendFor:
        return 'k';
      case Kind::kComputeFor:
        return 'e';
      case Kind::kWaitWeights:
        return '.';
      case Kind::kWaitKv:
      case Kind::kWaitHost:
        return ',';
      case Kind::kWaitInput:
      case Kind::kReceive:
        return ' ';
    }
    return '?';
  }

  void Add(const TimelineSpan& span) {
    const double begin = (span.begin_ms - begin_ms_) / column_ms_, end = (span.end_ms - begin_ms_) / column_ms_;
    if (LetterOf(span) == ' ' || !(end > 0) || !(begin < columns_)) return;
    const int first = std::max(0, static_cast<int>(begin));
    const size_t row = (span.device * kLanes.size() + static_cast<size_t>(LaneOf(span.kind))) * columns_;
    for (int c = first; c < columns_ && c < end; ++c) {
      const double covered = std::min(end, c + 1.0) - std::max(begin, static_cast<double>(c));
      cells_[row + c].ms[LetterOf(span)] += covered * column_ms_;
    }
  }

  const double begin_ms_, column_ms_;
  const int columns_;
  const bool by_stage_;  // with one micro-batch, stages are more useful
  std::vector<Cell> cells_;
};

std::string SpanName(const Timeline& timeline, const TimelineSpan& span) {
  switch (span.kind) {
    case Kind::kCompute:
    case Kind::kLoad:
      return span.part < 0 ? "embedding" : timeline.parts[span.part];
    case Kind::kSend:
      return absl::StrCat("to ", timeline.devices[span.peer]);
    case Kind::kAttendFor:
      return absl::StrCat("KV of ", timeline.devices[span.peer]);
    case Kind::kComputeFor:
      return absl::StrCat("experts for ", timeline.devices[span.peer]);
    case Kind::kReceive:
      return absl::StrCat("from ", timeline.devices[span.peer]);
    case Kind::kWaitWeights:
    case Kind::kWaitInput:
    case Kind::kWaitKv:
    case Kind::kWaitHost:
      return std::string(kSpanKindNames.Of(span.kind));
  }
  return "?";
}

nlohmann::ordered_json Named(const char* what, size_t device, int lane, const std::string& name) {
  return {{"name", what}, {"ph", "M"}, {"pid", device}, {"tid", lane}, {"args", {{"name", name}}}};
}

nlohmann::ordered_json SpanToJson(const Timeline& timeline, const TimelineSpan& span) {
  nlohmann::ordered_json args = {{"step", span.step}};
  if (span.stage >= 0) args["stage"] = span.stage;
  if (span.microbatch >= 0) args["microbatch"] = span.microbatch;
  if (span.kind == Kind::kWaitWeights && span.part >= 0) args["for"] = timeline.parts[span.part];
  if (span.kind == Kind::kWaitInput && span.peer >= 0) args["for"] = timeline.devices[span.peer];
  return {{"name", SpanName(timeline, span)},
          {"cat", kSpanKindNames.Of(span.kind)},
          {"ph", "X"},
          {"pid", span.device},
          {"tid", static_cast<int>(LaneOf(span.kind))},
          {"ts", span.begin_ms * 1000},
          {"dur", (span.end_ms - span.begin_ms) * 1000},
          {"args", std::move(args)}};
}

// One end of an arrow between two rows.
nlohmann::ordered_json ArrowEnd(const TimelineSpan& span, size_t arrow) {
  const bool begins = span.kind == Kind::kSend;
  nlohmann::ordered_json end = {{"name", "message"},         {"cat", "message"},
                                {"ph", begins ? "s" : "f"},  {"id", arrow},
                                {"pid", span.device},        {"tid", static_cast<int>(LaneOf(span.kind))},
                                {"ts", span.begin_ms * 1000}};
  if (!begins) end["bp"] = "e";  // points at this span, not at the next one
  return end;
}

template <typename Add>
void ForArrows(const Timeline& timeline, Add& add) {
  std::map<MessageKey, const TimelineSpan*> received;
  for (const TimelineSpan& span : timeline.spans) {
    if (span.kind == Kind::kReceive) received[MessageOf(span)] = &span;
  }
  size_t arrow = 0;
  for (const TimelineSpan& span : timeline.spans) {
    const auto found = span.kind == Kind::kSend ? received.find(MessageOf(span)) : received.end();
    if (found == received.end()) continue;
    add(ArrowEnd(span, arrow));
    add(ArrowEnd(*found->second, arrow++));
  }
}

}  // namespace

void SortSpans(std::vector<TimelineSpan>& spans) {
  std::ranges::stable_sort(spans, {}, [](const TimelineSpan& span) { return std::tuple(span.device, span.kind, span.begin_ms); });
}

MessageKey MessageOf(const TimelineSpan& span) {
  const bool sends = span.kind == Kind::kSend;
  return {span.step, span.stage, span.microbatch, sends ? span.device : span.peer, sends ? span.peer : span.device};
}

std::string GanttText(const Timeline& timeline, double begin_ms, double end_ms, int columns) {
  if (!(end_ms > begin_ms) || columns < 1) return "";
  const Lines lines(timeline, begin_ms, end_ms, columns);
  std::string text = absl::StrFormat("%.6g .. %.6g ms, %.4g ms a column\n", begin_ms, end_ms, (end_ms - begin_ms) / columns);
  for (size_t d = 0; d < timeline.devices.size(); ++d) {
    for (size_t lane = 0; lane < kLanes.size(); ++lane) {
      const auto in_lane = [&](const TimelineSpan& s) {
        return s.device == static_cast<int>(d) && LaneOf(s.kind) == static_cast<Lane>(lane);
      };
      if (lane > 0 && std::ranges::none_of(timeline.spans, in_lane)) continue;
      const std::string name = lane == 0 ? timeline.devices[d].substr(0, 12) : "";
      absl::StrAppendFormat(&text, "%-12s %-7s |%s|\n", name, kLanes[lane], lines.Line(d, lane));
    }
  }
  return text;
}

// Writes a line per event. A trace of a million events as a JSON tree would need too much memory.
std::string TraceJson(const Timeline& timeline) {
  std::string text = absl::StrCat(kTraceBegin, ", \"displayTimeUnit\": \"ms\", \"traceEvents\": [");
  auto add = [&text, first = true](const nlohmann::ordered_json& event) mutable {
    absl::StrAppend(&text, std::exchange(first, false) ? "\n" : ",\n",
                    event.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  };
  const bool receives = std::ranges::any_of(timeline.spans, [](const TimelineSpan& span) { return span.kind == Kind::kReceive; });
  for (size_t d = 0; d < timeline.devices.size(); ++d) {
    add(Named("process_name", d, 0, timeline.devices[d]));
    for (int lane = 0; lane < static_cast<int>(kLanes.size()); ++lane) add(Named("thread_name", d, lane, kLanes[lane]));
    if (receives) add(Named("thread_name", d, kInboxLane, "inbox"));
  }
  for (const TimelineSpan& span : timeline.spans) add(SpanToJson(timeline, span));
  ForArrows(timeline, add);
  return text + "]}\n";
}

}  // namespace lime
