// Tokens of one choice on their way from the thread of Serving to that of the server.
//
// Threads: Push and End on that of Serving, Take on that of the server.
// Bounds: the tokens of a request, which max_new_tokens bounds. Their memory is reserved ahead, so a
// token allocates nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/serving/serving_request.h"

namespace lime {

class TokenBuffer {
 public:
  explicit TokenBuffer(const ServingRequest& request);

  void Push(const ServedToken& token);
  void End(const RequestEnd& end);

  struct Token {
    int32_t id = 0;
    bool known = false, has_score = false;
    uint64_t logits_hash = 0;
    ServingClock::time_point at;
  };
  struct Batch {
    std::vector<Token> tokens;
    std::vector<cpu::RowScore> scores;  // of the tokens that have one, in their order
    std::optional<RequestEnd> end;      // without text; behind the tokens

    // Calls `next` with each token as Serving gave it, but for its text.
    template <typename Next>
    void ForEach(const Next& next) const {
      size_t score = 0;
      for (const Token& token : tokens)
        next(ServedToken{.token = token.id,
                         .known = token.known,
                         .text = {},
                         .logits_hash = token.logits_hash,
                         .score = token.has_score ? &scores[score++] : nullptr,
                         .at = token.at});
    }
  };
  // Moves what has come since the last call to `batch`, which keeps its memory.
  void Take(Batch& batch);

 private:
  absl::Mutex mutex_;
  Batch waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lime
