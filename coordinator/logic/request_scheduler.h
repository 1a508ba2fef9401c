// Decides what every step computes: admits requests to sequence slots, decodes those that run, feeds prompts in chunks beside them.
//
// Pure: ids and counts in, micro-batches out; the driver owns engine, sampler and text.
// Thread: the driver's.
// A step holds one decode row of every running request first, then chunks of prompts in order of arrival up to max_rows, so that a prompt
// holds up the decoding of others for one chunk at most.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "planner/base/status.h"
#include "planner/plan/micro_batch.h"

namespace lime {

using RequestId = int32_t;

struct Request {
  std::vector<int32_t> prompt;      // at least one token
  int64_t max_new_tokens = 0;       // at least one
  std::vector<int32_t> end_tokens;  // generation ends after one of these
};

enum class FinishReason {
  kNone,         // still running
  kEndToken,     // an end token was generated
  kLength,       // max_new_tokens reached
  kStopped,      // the driver ended it: a stop string
  kInterrupted,  // the call was interrupted before it was done
};

class RequestScheduler {
 public:
  struct Options {
    int64_t max_rows = 0;       // rows of one step
    int64_t chunk = 0;          // prompt rows of one step, at most max_rows
    int64_t max_sequences = 0;  // slots; at most max_rows
    int64_t context = 0;        // positions of one slot
  };
  explicit RequestScheduler(const Options& options);

  // Queues a request; ids count from 0. InvalidArgument when it is empty; ResourceExhausted, with the numbers, when it can never fit its
  // slot.
  absl::StatusOr<RequestId> Add(Request request);

  struct Admission {
    RequestId request = 0;
    int32_t slot = 0;
    int64_t positions = 0;  // prompt and generated tokens together
  };
  struct Step {
    std::vector<Admission> admitted;  // reserve these before computing
    MicroBatch batch;
    std::vector<RequestId> sampled;  // requests whose next token comes of this step, in the order of the logits
  };
  // Fills `step` with the next work; false when nothing is left to do. Allocates only while requests are admitted.
  bool NextStep(Step& step);

  // Tells the token sampled for a request of the last step. Any reason but kNone frees its slot for the next request.
  FinishReason OnToken(RequestId request, int32_t token);

  // Ends a request at once, in whatever state. REQUIRES: not finished.
  void Stop(RequestId request);

  bool finished(RequestId request) const { return requests_.at(request).state == State::kFinished; }
  bool running(RequestId request) const { return requests_.at(request).state == State::kRunning; }
  int32_t slot(RequestId request) const { return requests_.at(request).slot; }
  const std::vector<int32_t>& generated(RequestId request) const { return requests_.at(request).generated; }

 private:
  enum class State {
    kWaiting,   // for a slot
    kRunning,   // in a slot: prompt not finished, or decoding
    kFinished,  // slot given back
  };
  struct Entry {
    Request request;
    State state = State::kWaiting;
    int32_t slot = -1;
    int64_t computed = 0;  // positions whose KV is in the cache after the steps handed out
    std::vector<int32_t> generated;
  };

  void Admit(Step& step);
  void AddDecodeRows(Step& step);
  void AddPromptRows(Step& step);
  void Finish(Entry& entry);

  Options options_;
  std::vector<Entry> requests_;
  std::deque<RequestId> waiting_;
  std::vector<RequestId> running_;   // in order of admission
  std::vector<int32_t> free_slots_;  // lowest last
};

}  // namespace lime
