// Bytes of hostile servers: an answer of HTTP, the events of its body, their JSON; whole and in
// pieces. The first byte says how large the pieces are.
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/client/answer_chunk.h"
#include "coordinator/client/response_reader.h"
#include "coordinator/client/sse_reader.h"

namespace {

struct Seen {
  lime::ResponseReader::State state = lime::ResponseReader::State::kHead;
  int status = 0;
  std::string body;
  std::vector<lime::SseReader::Event> events;
  bool events_fit = true;

  friend bool operator==(const Seen&, const Seen&) = default;
};

Seen Read(std::string_view bytes, size_t piece) {
  Seen seen;
  lime::ResponseReader response({});
  lime::SseReader events(/*max_event=*/1024);
  for (size_t at = 0; at < bytes.size(); at += piece) {
    std::string body;
    response.Read(bytes.substr(at, piece), body);
    if (seen.events_fit) seen.events_fit = events.Read(body, seen.events).ok();
    seen.body += body;
  }
  response.ReadEnd();
  seen.state = response.state();
  seen.status = response.status();
  if ((seen.state == lime::ResponseReader::State::kBroken) == response.what().empty()) std::abort();
  if (!seen.events_fit) seen.events.clear();  // how many came before depends on the pieces
  return seen;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Seen seen = Read(bytes, bytes.size() + 1);
  if (seen != Read(bytes, data[0] + 1)) std::abort();
  for (const lime::SseReader::Event& event : seen.events) (void)lime::ReadAnswerChunk(event.data);
  const absl::StatusOr<lime::AnswerChunk> whole = lime::ReadAnswerChunk(seen.body);
  if (!whole.ok() && whole.status().message().empty()) std::abort();
  if (lime::ReadApiError(seen.status, seen.body).message.empty()) std::abort();
  return 0;
}
