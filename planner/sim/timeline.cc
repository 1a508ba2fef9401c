#include "planner/sim/timeline.h"

#include <algorithm>
#include <array>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace lime {
namespace {

using Kind = TimelineSpan::Kind;

// What a device does at a time: one thing in each.
enum class Lane { kCompute, kDisk, kLink };
constexpr std::array<const char*, 3> kLanes = {"compute", "disk", "link"};

Lane LaneOf(Kind kind) {
  switch (kind) {
    case Kind::kLoad:
      return Lane::kDisk;
    case Kind::kSend:
    case Kind::kSendKv:
      return Lane::kLink;
    default:
      return Lane::kCompute;
  }
}

// Lanes of text: columns of equal time, each showing what filled most of it.
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

    // What is there for most of the column, or for as much as nothing.
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
      case Kind::kSendKv:
        return 'k';
      case Kind::kWaitWeights:
        return '.';
      case Kind::kWaitKv:
        return ',';
      case Kind::kWaitInput:
        return ' ';
    }
    return '?';
  }

  void Add(const TimelineSpan& span) {
    const double begin = (span.begin_ms - begin_ms_) / column_ms_, end = (span.end_ms - begin_ms_) / column_ms_;
    if (span.kind == Kind::kWaitInput || !(end > 0) || !(begin < columns_)) return;
    const int first = std::max(0, static_cast<int>(begin));
    const size_t row = (span.device * kLanes.size() + static_cast<size_t>(LaneOf(span.kind))) * columns_;
    for (int c = first; c < columns_ && c < end; ++c) {
      const double covered = std::min(end, c + 1.0) - std::max(begin, static_cast<double>(c));
      cells_[row + c].ms[LetterOf(span)] += covered * column_ms_;
    }
  }

  const double begin_ms_, column_ms_;
  const int columns_;
  const bool by_stage_;  // one micro-batch alone: stages say more
  std::vector<Cell> cells_;
};

std::string SpanName(const Timeline& timeline, const TimelineSpan& span) {
  switch (span.kind) {
    case Kind::kCompute:
    case Kind::kLoad:
      return span.part < 0 ? "embedding" : timeline.parts[span.part];
    case Kind::kSend:
    case Kind::kSendKv:
      return absl::StrCat("to ", timeline.devices[span.peer]);
    case Kind::kWaitWeights:
    case Kind::kWaitInput:
    case Kind::kWaitKv:
      return SpanKindName(span.kind);
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
  return {{"name", SpanName(timeline, span)},
          {"cat", SpanKindName(span.kind)},
          {"ph", "X"},
          {"pid", span.device},
          {"tid", static_cast<int>(LaneOf(span.kind))},
          {"ts", span.begin_ms * 1000},
          {"dur", (span.end_ms - span.begin_ms) * 1000},
          {"args", std::move(args)}};
}

}  // namespace

const char* SpanKindName(Kind kind) {
  switch (kind) {
    case Kind::kCompute:
      return "compute";
    case Kind::kLoad:
      return "load";
    case Kind::kSend:
      return "send";
    case Kind::kSendKv:
      return "send_kv";
    case Kind::kWaitWeights:
      return "wait_weights";
    case Kind::kWaitInput:
      return "wait_input";
    case Kind::kWaitKv:
      return "wait_kv";
  }
  return "?";
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

std::string TraceJson(const Timeline& timeline) {
  nlohmann::ordered_json events = nlohmann::ordered_json::array();
  for (size_t d = 0; d < timeline.devices.size(); ++d) {
    events.push_back(Named("process_name", d, 0, timeline.devices[d]));
    for (int lane = 0; lane < static_cast<int>(kLanes.size()); ++lane) events.push_back(Named("thread_name", d, lane, kLanes[lane]));
  }
  for (const TimelineSpan& span : timeline.spans) events.push_back(SpanToJson(timeline, span));
  const nlohmann::ordered_json root = {{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
  return root.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace lime
