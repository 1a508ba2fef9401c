// Who answers a chat: a server, or a session of this process or of a cluster.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "coordinator/api/answers/answer_events.h"
#include "coordinator/api/api_request.h"
#include "planner/base/status.h"

namespace lime::cli {

// Receives an answer as it comes, in the thread of Ask. Pieces may end within a character.
struct ChatPieces {
  std::function<void(std::string_view)> on_reasoning, on_content;
};

struct ChatReply {
  std::string content, reasoning;  // all of it, or what came before it was stopped
  std::string finish;              // stop, length, ...; empty: it was stopped
  bool has_counts = false;         // `report` has tokens and times
  AnswerReport report;
};

class ChatBackend {
 public:
  virtual ~ChatBackend() = default;

  // Answers the messages of `request`. Returns soon after `stop` is set, with the answer so far and
  // without `finish`. ResourceExhausted: the messages leave no room in the context; other errors say
  // what is wrong.  REQUIRES: request.chat(), without tools and formats
  virtual absl::StatusOr<ChatReply> Ask(const ApiRequest& request, const ChatPieces& pieces, const std::atomic<bool>& stop) = 0;

  virtual const std::string& model() const = 0;  // its name
  virtual int64_t context() const = 0;           // positions of a conversation; 0: not known
};

}  // namespace lime::cli
