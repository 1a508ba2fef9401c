// Reads a stream of server-sent events from bytes, in whatever pieces they come. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime {

class SseReader {
 public:
  struct Event {
    std::string type;  // of the line "event:"; empty: none
    std::string data;  // of the lines "data:", with line feeds between them

    friend bool operator==(const Event&, const Event&) = default;
  };

  explicit SseReader(Bytes max_event = 16 * kMiB) : max_event_(max_event) {}

  // Appends the events that are complete now. Comments, and events without data, are dropped; so is
  // what stands behind the last empty line of a stream.
  // InvalidArgument if an event is longer than the limit. Then nothing more can be read.
  absl::Status Read(std::string_view bytes, std::vector<Event>& events);

 private:
  void EndLine(std::vector<Event>& events);

  const Bytes max_event_;
  std::string line_;
  Event event_;
  bool has_data_ = false;
  bool first_line_ = true;  // a byte order mark may stand before it
  bool after_cr_ = false;   // a line feed now belongs to the end of the line before
};

}  // namespace lime
