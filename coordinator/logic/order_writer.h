// Writes the orders of a plan: admits requests to slots, and orders steps ahead of their tokens so that devices never wait for the
// coordinator.
//
// Pure: requests and what devices report in, orders out.   Thread: the owner's.
//
//   Add, OnTokens, OnStepEnded, Stop  ─►  NextOrders: retire those that ended, admit those that wait, order steps
//
// A decode row names no token: kSampledToken, which the device with the head sends to the first one directly. Where a request ends at a
// token that nobody knew beforehand, the rows ordered behind it are wasted: at most look_ahead - 1 of them.
// A step holds one decode row of every running request, and beside them one chunk of prompts: nobody's decoding waits longer than for that.
// Where the plan's KV grows, orders of another residency are written among the others (MemoryPlanner). A request that waits for pages while
// nobody computes is helped along by steps without rows: devices change what streams as steps go by.
// Invariant: an order is carried out after all before it, so a slot is free for the next request once its RetireOrder is written.
// Bounds: nothing is kept of a request that has ended, so memory grows with the requests that wait and run alone.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "common/activation.h"
#include "common/order.h"
#include "coordinator/logic/memory_planner.h"
#include "coordinator/logic/request.h"
#include "planner/base/recycled_queue.h"
#include "planner/plan/plan.h"

namespace lime {

class OrderWriter {
 public:
  static constexpr int32_t kAny = INT32_MAX;
  struct Options {
    int32_t sequences = 1;           // slots
    int64_t context = 0;             // positions of one slot
    int32_t batch = 1;               // of one micro-batch, rows that decode
    int64_t logit_rows = 0;          // likewise, rows that ask for logits, those that decode included; no more than batch: as many
    int32_t microbatches = 1;        // of one step
    int64_t max_rows = 1;            // of one micro-batch
    int64_t chunk = 1;               // prompt rows of a step in which others decode
    int32_t chunks = 1;              // such chunks where nobody does
    int32_t look_ahead = 3;          // steps that decode, ordered and not ended
    int32_t prompts_ahead = 16;      // steps of prompts alone, likewise: they wait for no token
    int64_t rows_ahead = INT64_MAX;  // of all steps ordered and not ended: what devices have room for
    int32_t prompt_logits = kAny;    // prompt rows of a step that ask for logits
    int64_t kept_positions = 0;      // of a sequence; where it has more, its evicted ones go ahead of its rows. 0: all
    int32_t evicting_ahead = 1;      // steps of which that is so, ordered and not ended
    std::vector<Residency> levels;   // by KV pages, ascending, where KV grows; the devices have the first. Empty: all pages are there
  };
  // What the devices of a plan are made for. Of one whose KV grows, the level that it begins with alone.
  static Options For(const Plan& plan);

  explicit OrderWriter(const Options& options);

  // Of which known tokens the logits are made.
  enum class Logits {
    kNewest,  // the last one's: what is needed to go on
    kAgain,   // after a Restart also those that generated tokens were taken from, for a hash over all of them
    kAll,     // the prompt's too, to score it; max_new_tokens may be 0 then: it ends with the logits after its prompt
  };
  // How long a request may be under a plan.
  struct Room {
    int64_t context = 0;                                        // positions of one slot
    int64_t layer_pages = std::numeric_limits<int64_t>::max();  // KV pages that one may come to have, where KV grows
  };
  // InvalidArgument for a request that is none; ResourceExhausted, with the numbers, for one that can never fit.  Thread: any
  static absl::Status Check(const Request& request, Logits logits, const Room& room);
  Room room() const { return RoomOf(options_); }
  // Whether all requests that have not ended fit another plan: the first error of Check.
  absl::Status CheckAll(const Options& options) const;

  // Queues a request behind all others. Errors as of Check. Ids count from 0 where the caller names none.
  // REQUIRES: `id` is higher than all before
  absl::StatusOr<RequestId> Add(Request request, Logits logits = Logits::kNewest, std::optional<RequestId> id = std::nullopt);

  // Another plan goes on. What has not ended is admitted again, what ran first, and computed as far as its tokens are known: prompt and
  // generated tokens in chunks. Orders and steps count from 0 again. ResourceExhausted, and nothing has changed, where a request does not
  // fit the plan.
  absl::Status Restart(const Options& options);

  // Likewise, where the plan takes KV over: requests that run go on behind the positions that are computed, as far as slots and the KV that
  // the plan begins with have room for them; these are what it answers with. Their slots are theirs from now on.
  // REQUIRES: no step is under way.
  struct Kept {
    RequestId request = 0;
    KvSequence sequence;
  };
  absl::StatusOr<std::vector<Kept>> GoOn(const Options& options);

  // What may be ordered now, in order; empty where nothing may. Valid until the next call.
  const std::vector<Order>& NextOrders();

  struct Token {
    RequestId request = 0;
    size_t index = 0;  // in the report
    FinishReason reason = FinishReason::kNone;
    bool again = false;  // it was known before: of a prompt that is scored, or generated before the Restart
  };
  // The device with the head has sampled. Answers with those tokens whose requests go on or end here; those of requests that have ended
  // are dropped. InvalidArgument, and nothing has changed, for a step that is not under way or a token that it does not make. The answer is
  // valid until the next call.
  absl::StatusOr<std::span<const Token>> OnTokens(int64_t step, std::span<const SampledToken> tokens);

  // A step has ended on the last device. InvalidArgument where it is not the next, or tokens of it are missing.
  absl::Status OnStepEnded(int64_t step);

  // Ends a request at once, in whatever state. REQUIRES: not finished.
  void Stop(RequestId request);

  bool finished(RequestId request) const { return request < next_id_ && !entries_.contains(request); }
  // REQUIRES: not finished
  const std::vector<int32_t>& generated(RequestId request) const { return entries_.at(request).generated; }
  // Until all requests have ended, where none ends before its max_new_tokens: steps that decode, positions known of the longest, and KV
  // pages of a layer that those that run have now and at their ends. `again`: of a request's known positions, those whose logits a Restart
  // makes again, at most.
  struct Left {
    int64_t steps = 0;
    int64_t known = 0, again = 0;
    int64_t pages = 0, pages_at_end = 0;
    int64_t level_pages = 0;  // that the devices have, or are to have; 0: KV does not grow
    bool decodes = false;     // as below
  };
  Left left() const;
  // Of a request that runs, while not all that was known of it at its admission is computed: rows of steps that have ended, rows of the
  // oldest step under way, and all of them.
  struct InPromptOf {
    RequestId request = 0;
    int64_t computed = 0, under_way = 0, rows = 0;
  };
  // In order of admission. Valid until the next call.
  std::span<const InPromptOf> in_prompt();
  bool decodes() const;  // a request that runs has made a token, and will make another
  bool idle() const { return waiting_.empty() && running_.empty(); }
  int64_t steps_ordered() const { return next_step_; }
  int64_t steps_under_way() const { return static_cast<int64_t>(under_way_.size()); }

 private:
  struct Entry {
    RequestId id = 0;
    Request request;
    bool running = false;         // in a slot; else it waits
    int32_t slot = -1;            // of one that waits: taken over with its KV
    int64_t logits_from = 0;      // after so many tokens, where more than the newest are made
    std::vector<int32_t> tokens;  // prompt, and what was generated before a Restart: what is computed in chunks
    int64_t end = 0;              // positions, those of all tokens that may be generated included
    int64_t ordered = 0;          // positions that are computed by the steps ordered so far
    int64_t computed = 0;         // of `tokens`, by the steps that have ended
    std::vector<int32_t> generated;
  };
  struct Sampling {
    RequestId request = 0;
    int32_t slot = 0, position = 0;
  };
  // A step ordered and not ended, with the tokens that have not come yet.
  struct UnderWay {
    int64_t step = 0;
    int64_t rows = 0;
    std::vector<Sampling> awaited;
    int32_t prompt_logits = 0;  // rows of prompts that asked for them
    struct Chunk {
      RequestId request = 0;
      int64_t rows = 0;
    };
    std::vector<Chunk> chunks;  // of prompts
  };

  static Room RoomOf(const Options& options);
  static absl::Status CheckFits(const Request& request, const Room& room);
  void BeginPlan();
  void ReserveMemory();
  bool WantsLogits(const Entry& entry) const;
  bool InPrompt(const Entry& entry) const { return entry.ordered < static_cast<int64_t>(entry.tokens.size()); }
  // The last token that is generated is not computed again.
  bool Decodes(const Entry& entry) const { return !InPrompt(entry) && entry.ordered + 1 < entry.end; }
  void Write(decltype(Order::what) what);
  void WriteBatches();
  void Admit();
  bool HasSlotFor(const Entry& entry) const { return entry.slot >= 0 || !free_slots_.empty(); }
  bool MayAdmit(const Entry& entry);
  static MemoryPlanner::Claim ClaimOf(const Entry& entry);
  bool AwaitsPages() const;
  void Tell(const MemoryPlanner::Event& event);
  void TakeLevel(std::optional<int> level);
  bool MayOrderStep() const;
  bool Evicts() const;
  bool WriteStep();
  void AddDecodeRows(UnderWay& step);
  void AddPromptRows(UnderWay& step, int64_t room);
  int64_t AddPrompt(Entry& entry, UnderWay& step, int64_t room);
  void AddRow(Entry& entry, int32_t token, bool wants_logits, MicroBatch& batch, UnderWay& step);
  Entry* Find(RequestId request);
  void Finish(Entry& entry);

  Options options_;
  std::map<RequestId, Entry> entries_;  // that have not ended
  RequestId next_id_ = 0;
  std::deque<Entry*> waiting_;
  std::vector<Entry*> running_;          // in order of admission
  std::vector<int32_t> free_slots_;      // lowest last
  std::vector<int32_t> to_retire_;       // slots
  RecycledQueue<UnderWay> under_way_;    // oldest first
  std::optional<MemoryPlanner> memory_;  // where KV grows
  // In the memory of the calls before: a step allocates nothing.
  std::vector<Order> orders_;        // of the last call
  std::vector<Order> spare_orders_;  // steps
  std::vector<MicroBatch> batches_;  // of the step that is written
  std::vector<Sampling> awaited_;    // by OnTokens
  std::vector<RequestId> requests_;  // likewise, of its tokens
  std::vector<Token> tokens_;        // its answer
  std::vector<InPromptOf> in_prompt_;
  int64_t next_order_ = 0;
  int64_t next_step_ = 0;
};

}  // namespace lime
