#include "coordinator/client/sse_reader.h"

#include <algorithm>
#include <utility>

namespace lime {

absl::Status SseReader::Read(std::string_view bytes, std::vector<Event>& events) {
  while (!bytes.empty()) {
    if (std::exchange(after_cr_, false) && bytes.front() == '\n') {
      bytes.remove_prefix(1);
      continue;
    }
    const size_t end = std::min(bytes.find_first_of("\r\n"), bytes.size());
    line_.append(bytes.substr(0, end));
    if (static_cast<Bytes>(line_.size() + event_.data.size()) > max_event_)
      return Invalid("an event of the stream has more than ", max_event_, " bytes");
    if (end == bytes.size()) break;
    after_cr_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    EndLine(events);
  }
  return absl::OkStatus();
}

void SseReader::EndLine(std::vector<Event>& events) {
  const std::string whole = std::exchange(line_, {});
  std::string_view line = whole;
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (std::exchange(first_line_, false) && line.starts_with(kByteOrderMark)) line.remove_prefix(kByteOrderMark.size());
  if (line.empty()) {
    Event ended = std::exchange(event_, {});
    if (std::exchange(has_data_, false)) events.push_back(std::move(ended));
    return;
  }
  const size_t colon = std::min(line.find(':'), line.size());
  const std::string_view field = line.substr(0, colon);
  std::string_view value = line.substr(std::min(colon + 1, line.size()));
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (field == "event") event_.type = std::string(value);
  if (field != "data") return;
  if (std::exchange(has_data_, true)) event_.data += '\n';
  event_.data += value;
}

}  // namespace lime
