// Makes the masks of requests that have a format, on threads of its own, while the step computes.
//
//   Begin ──► one thread compiles the format ─┐
//   Follow, Push ── tokens ───────────────────┴─► one thread follows them, makes the mask ──► Await
//
// Long formats therefore delay no mask of other requests. The threads start with the first format,
// so a run without formats has none. A token allocates nothing after the first ones of its request,
// except for masks that are new (TokenMasks).
// Bounds: json_schema::MostMaskMemory.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/json_schema/answer_format.h"
#include "common/json_schema/token_masks.h"
#include "common/json_schema/vocabulary.h"
#include "planner/base/recycled_queue.h"
#include "planner/base/status.h"

namespace lime {

class MaskMaker {
 public:
  class Answer;  // of one request
  using AnswerPtr = std::shared_ptr<Answer>;

  MaskMaker();
  ~MaskMaker();

  // Changes nothing after the first Begin.
  void UseVocabulary(json_schema::VocabularyPtr vocabulary);

  // A request whose tokens will have this format. Never null.
  AnswerPtr Begin(std::string format);
  // It goes on behind these tokens. `tokens_left`: how many it may still generate, the one that
  // ends it among them. Called once.
  void Follow(const AnswerPtr& answer, std::span<const int32_t> generated, int64_t tokens_left);
  // The next token.  REQUIRES: Await has returned a mask
  void Push(const AnswerPtr& answer, int32_t token);
  // Waits for the mask of the next token (SampleContext::mask); empty: any token may come next.
  // Valid until the next Push. FailedPrecondition without a vocabulary; the error of a format that
  // cannot be compiled.  REQUIRES: after Follow
  static absl::StatusOr<std::span<const uint64_t>> Await(Answer& answer);

 private:
  // A thread that works off a queue. It starts with the first entry.
  class Worker {
   public:
    explicit Worker(std::function<void(const AnswerPtr&)> work) : work_(std::move(work)) {}
    ~Worker();
    void Add(const AnswerPtr& answer);

   private:
    void Run();

    const std::function<void(const AnswerPtr&)> work_;
    absl::Mutex mutex_;
    RecycledQueue<AnswerPtr> queue_ ABSL_GUARDED_BY(mutex_);
    bool is_due_ ABSL_GUARDED_BY(mutex_) = false;  // the queue has entries, or the end has come
    bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
    std::thread thread_;
  };

  json_schema::VocabularyPtr vocabulary() const;
  void Compile(const AnswerPtr& answer);
  absl::StatusOr<json_schema::AnswerFormatPtr> Compiled(const std::string& format);
  void Keep(const json_schema::AnswerFormatPtr& compiled);
  void Make(Answer& answer);

  mutable absl::Mutex mutex_;
  json_schema::VocabularyPtr vocabulary_ ABSL_GUARDED_BY(mutex_);
  bool has_begun_ ABSL_GUARDED_BY(mutex_) = false;
  // Of the thread that compiles: formats in use and the newest others, so that choices of one
  // request, and requests with the same format, share their masks.
  std::vector<std::pair<std::string, std::weak_ptr<const json_schema::AnswerFormat>>> known_;
  std::vector<json_schema::AnswerFormatPtr> kept_;  // newest last, at most kMaxKeptFormats of memory
  std::unique_ptr<json_schema::TokenMasks> masks_;  // of the thread that makes them
  Worker makes_, compiles_;                         // the latter ends first
};

}  // namespace lime
