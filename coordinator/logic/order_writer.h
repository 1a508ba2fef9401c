// Writes the orders of a plan: admits requests to slots, and orders steps ahead of their tokens, so
// that devices never wait for the coordinator.
//
// Pure: requests and reports of devices in, orders out.   Thread: the owner's.
//
//   Add, OnTokens, OnStepEnded, Stop  ─►  NextOrders: retire, admit waiting requests, order steps
//
// A decode row holds kSampledToken in place of its token: the device with the head sends the token
// directly to the first device. If a request ends at a token that nobody could predict, the rows
// ordered after it are wasted: at most look_ahead - 1.
// A step holds one decode row of every running request and one chunk of prompts, so decoding waits
// for one chunk at most.
// If the plan's KV grows, orders for another residency come between the others (MemoryPlanner). If
// a request waits for pages and no request computes, steps without rows are ordered: devices change
// their residency as steps pass.
// Invariant: devices execute orders in sequence, so a slot is free for the next request once its
// RetireOrder is written, and its KV up to a row is there once the row's step is written.
//
// A request may begin with KV of another one (PrefixCache): of a running one, whose pages are
// copied, or of one that has ended and left its KV in an idle slot. If the model keeps a state, it
// begins where the other request has a snapshot: near the end of its prompt, or at one of the last
// units of its answer. If another request is about to compute more of its prompt, it takes a slot and
// waits for those rows to be ordered. Idle slots are freed, the oldest first, before any request waits
// for a slot or for pages. Layers with a window give pages back (KvWindow): KV of a slot is then
// shared only close behind its newest position, or where it has a snapshot of these pages.
// Bounds: keeps nothing of a request that has ended, except the ids of idle slots. Memory grows
// only with waiting and running requests.
#pragma once

#include <algorithm>
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
#include "coordinator/logic/prefix_cache.h"
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
    int32_t batch = 1;               // decode rows of one micro-batch
    int64_t logit_rows = 0;          // its rows that ask for logits, at least `batch`
    int32_t microbatches = 1;        // of one step
    int64_t max_rows = 1;            // of one micro-batch
    int64_t chunk = 1;               // prompt rows of a step that also decodes
    int32_t chunks = 1;              // such chunks of a step that does not decode
    int32_t look_ahead = 3;          // decode steps that are ordered and not ended
    int32_t prompts_ahead = 16;      // the same for prompt-only steps, which wait for no token
    int64_t rows_ahead = INT64_MAX;  // of all steps ordered and not ended: the devices' capacity
    int32_t prompt_logits = kAny;    // prompt rows of a step that ask for logits
    int64_t retained_positions = 0;  // KV kept of a sequence; older rows are computed again. 0: all
    int32_t again_ahead = 1;         // look_ahead for steps that compute rows again
    std::vector<Residency> levels;   // by KV pages, ascending; first: in use; empty: no growth
    PrefixCache::Options cache;      // its unit is 0 if requests share no KV
    bool copies_kv = false;          // KV of a slot can be copied to another one
    int32_t snapshots = 0;           // Plan::state_snapshots
    KvWindow window = {};            // of layers that give pages back
    // KV pages that a slot has in a layer, at most: in that with the most.
    int64_t slot_pages = std::numeric_limits<int64_t>::max();
  };
  // The limits of a plan's devices. If its KV grows, `levels` has only the level that it begins
  // with. `prompt_cache`: bytes of KV that idle slots may keep on all devices together; 0: requests
  // share no KV.
  static Options For(const Plan& plan, Bytes prompt_cache = 0);

  explicit OrderWriter(const Options& options);

  // The known tokens of a request whose logits are computed.
  enum class Logits {
    kNewest,  // the last one: enough to continue
    kAgain,   // after a Restart also the one before each generated token, to hash all logits
    kAll,     // also the prompt's, to score it; max_new_tokens may be 0
  };
  // The limits of one request under a plan.
  struct RequestLimits {
    int64_t context = 0;                                        // positions of one slot
    int64_t layer_pages = std::numeric_limits<int64_t>::max();  // maximum KV, if it grows
    int64_t slot_pages = std::numeric_limits<int64_t>::max();   // KV that a request has at most
  };
  // InvalidArgument for an invalid request; ResourceExhausted, with the numbers, for a request that
  // can never fit.  Thread: any
  static absl::Status Check(const Request& request, Logits logits, const RequestLimits& limits);
  RequestLimits limits() const { return LimitsOf(options_); }
  // Whether all requests that have not ended fit another plan. Returns the first error of Check.
  absl::Status CheckAll(const Options& options) const;

  // Queues a request behind all others. Errors: see Check. Ids count from 0 if the caller gives
  // none.
  // REQUIRES: `id` is higher than all before
  absl::StatusOr<RequestId> Add(Request request, Logits logits = Logits::kNewest, std::optional<RequestId> id = std::nullopt);

  // Continues with another plan. Admits again all requests that have not ended, running ones first.
  // Computes their known tokens again, prompt and generated, in chunks. Orders and steps count from
  // 0 again. ResourceExhausted, and nothing changes, if a request does not fit the plan.
  absl::Status Restart(const Options& options);

  // Restart for a plan that takes KV over. Running requests continue after their computed
  // positions, as far as the new plan has slots and initial KV for them. Then idle sequences stay,
  // the newest first, as far as there are slots and KV left, and all have at most `most_pages`
  // pages of a layer. Returns all these. They own their slots from now on.
  // REQUIRES: no step is under way.
  struct Continued {
    std::optional<RequestId> request;  // nullopt: an idle sequence
    KvSequence sequence;
  };
  absl::StatusOr<std::vector<Continued>> GoOn(const Options& options, int64_t most_pages = std::numeric_limits<int64_t>::max());
  // GoOn after a failure, if all devices still have their KV: steps may be under way, and devices may
  // be at different ones. A running request continues behind the positions that every device has
  // computed; if the model has a state, at the newest snapshot of no more positions. Logits that are
  // computed again after a Restart are computed again here, too. Idle sequences end.
  absl::StatusOr<std::vector<Continued>> GoOnInterrupted(const Options& options);

  // The orders that may be sent now, in sequence; may be empty. Valid until the next call.
  const std::vector<Order>& NextOrders();
  // The requests that got a slot in the last call, under this plan. Valid until the next call.
  std::span<const RequestId> started() const { return started_; }
  const PrefixCache& cache() const { return cache_; }  // idle slots

  struct Token {
    RequestId request = 0;
    size_t index = 0;  // in the report
    FinishReason reason = FinishReason::kNone;
    bool again = false;  // known before: in a scored prompt, or generated before the Restart
  };
  // The device with the head has sampled. Returns the tokens whose requests continue or end here;
  // drops tokens of ended requests. InvalidArgument, and nothing changes, if the step is not under
  // way or does not make one of these tokens. Valid until the next call.
  absl::StatusOr<std::span<const Token>> OnTokens(int64_t step, std::span<const SampledToken> tokens);

  // A step has ended on the last device. InvalidArgument if it is not the oldest under way, or some
  // of its tokens are missing.
  absl::Status OnStepEnded(int64_t step);

  // Ends a request at once, in any state. REQUIRES: not finished.
  void Stop(RequestId request);

  bool finished(RequestId request) const { return request < next_id_ && !entries_.contains(request); }
  // REQUIRES: not finished
  const std::vector<int32_t>& generated(RequestId request) const { return entries_.at(request).generated; }
  // The remaining work, if every request makes max_new_tokens. `steps`: decode steps until all have
  // ended. `known`: known positions of the longest request. `again`: the most positions of one
  // request whose logits a Restart computes again. `pages`: KV pages per layer of running requests,
  // now and at their ends.
  struct Remaining {
    int64_t steps = 0;
    int64_t known = 0, again = 0;
    int64_t pages = 0, pages_at_end = 0;
    int64_t level_pages = 0;  // of the level in use or ordered; 0: KV does not grow
    bool decodes = false;     // see decodes()
  };
  Remaining remaining() const;
  // A running request whose tokens known at admission are not all computed. Counts rows: in ended
  // steps, in the oldest step under way, and all.
  struct InPromptOf {
    RequestId request = 0;
    int64_t computed = 0, under_way = 0, rows = 0;
  };
  // In order of admission. Valid until the next call.
  std::span<const InPromptOf> in_prompt();
  bool decodes() const;  // a running request has made a token and will make another
  bool idle() const { return waiting_.empty() && running_.empty(); }
  int64_t steps_ordered() const { return next_step_; }
  int64_t steps_under_way() const { return static_cast<int64_t>(under_way_.size()); }

 private:
  struct Entry {
    RequestId id = 0;
    Request request;
    bool running = false;    // has a slot; else it waits
    bool admitted = false;   // its AdmitOrder is written
    int32_t slot = -1;       // of a waiting request: taken over with its KV
    RequestId awaited = -1;  // until it has ordered the rows of the shared prompt
    int64_t awaited_rows = 0;
    int64_t parts_at = 0;                 // where its prompt parts from another one that it does not begin with; 0: nowhere
    std::vector<int64_t> snapshots = {};  // positions of its slot's snapshots, by the rows ordered; 0: none
    int64_t logits_from = 0;              // logits are computed from this number of tokens on
    std::vector<int32_t> tokens;          // computed in chunks: prompt, and generated before a Restart
    int64_t end = 0;                      // maximum positions, with all tokens that it may generate
    int64_t ordered = 0;                  // positions computed by the steps ordered so far
    int64_t computed = 0;                 // of `tokens`, computed by the steps that have ended
    int64_t begun = 0;                    // positions with which it was admitted
    bool goes_back = false;               // its states begin with the snapshot of its slot that has `ordered` positions
    std::vector<int32_t> generated;
  };
  struct Sampling {
    RequestId request = 0;
    int32_t slot = 0, position = 0;
  };
  // A step ordered and not ended, with the tokens that have not arrived.
  struct UnderWay {
    int64_t step = 0;
    int64_t rows = 0;
    std::vector<Sampling> awaited;
    int32_t prompt_logits = 0;  // prompt rows that asked for logits
    struct Chunk {
      RequestId request = 0;
      int64_t rows = 0;
    };
    std::vector<Chunk> chunks;  // of prompts
  };

  // KV that is there for a request.
  struct Beginning {
    int32_t slot = -1;      // that has it; -1: there is none
    int64_t positions = 0;  // from the first on
    int32_t snapshot = -1;  // of the slot, with as many positions; -1: none is needed
    int64_t lost = 0;       // other positions of the slot, if it is idle
    bool idle = false;
  };
  struct Leaving {
    int32_t slot = 0;
    bool admitted = true;  // devices know of the sequence
    int64_t group = 0;
    std::vector<int32_t> kept;  // ids whose KV stays
    std::vector<int64_t> snapshots = {};
  };

  static RequestLimits LimitsOf(const Options& options);
  int64_t PagesOf(int64_t positions) const { return std::min(KvPagesFor(positions), options_.slot_pages); }
  int64_t& LeastShared(int32_t slot) { return least_shared_[static_cast<size_t>(slot)]; }
  int64_t LeastShared(int32_t slot) const { return least_shared_[static_cast<size_t>(slot)]; }
  static absl::Status CheckFits(const Request& request, const RequestLimits& limits);
  void BeginPlan();
  void ReserveMemory();
  bool WantsLogits(const Entry& entry) const;
  bool InPrompt(const Entry& entry) const { return entry.ordered < static_cast<int64_t>(entry.tokens.size()); }
  // The last generated token is never an input, so it needs no position.
  bool Decodes(const Entry& entry) const { return !InPrompt(entry) && entry.ordered + 1 < entry.end; }
  void Write(decltype(Order::what) what);
  void WriteBatches();
  void RetireLeaving();
  void FreeSlot(int32_t slot);
  bool EvictIdle();
  std::vector<PrefixCache::Idle> NextIdle(const Options& options);
  KvSequence AllOf(const Entry& entry, const Options& next) const;
  KvSequence ComputedEverywhere(const Entry& entry, const Options& next) const;
  absl::StatusOr<std::vector<Continued>> ContinueWith(const Options& options, std::vector<Continued> continued,
                                                      std::vector<PrefixCache::Idle> idle);
  void Admit();
  void AdmitWaiting(Entry& entry);
  void WriteAdmit(Entry& entry, const Beginning& beginning);
  bool HasSlotFor(const Entry& entry) const { return entry.slot >= 0 || !free_slots_.empty() || !cache_.empty(); }
  static int64_t MostShared(const Entry& entry);
  static bool MayShare(const Entry& one, const Entry& other);
  Beginning FindBeginning(const Entry& entry) const;
  bool Awaits(Entry& entry);
  bool FindAwaited(Entry& entry, int64_t there) const;
  int64_t PromptEnd(const Entry& entry) const;
  void GiveSlot(Entry& entry, const Beginning& beginning);
  std::vector<int32_t> KeptOf(const Entry& entry) const;
  static std::vector<int64_t> StatesThatContinue(int64_t positions, const std::vector<int64_t>& snapshots, const Options& options);
  size_t SnapshotsOf(const Entry& entry) const;
  int64_t SnapshotUnit() const { return cache_.unit() > 0 ? cache_.unit() : kPageTokens; }
  int64_t SnapshotStride() const;
  int64_t PromptSnapshot(const Entry& entry) const;
  int64_t PartsAt(const Entry& entry, int64_t begins) const;
  int32_t SnapshotOfStates(const Entry& entry) const;
  int32_t SnapshotOfWindows(const Entry& entry) const;
  int32_t SnapshotAfter(Entry& entry) const;
  bool MayAdmit(const Entry& entry);
  static MemoryPlanner::Claim ClaimOf(const Entry& entry);
  bool AwaitsPages() const;
  void PostToPlanner(const MemoryPlanner::Event& event);
  void OrderLevel(std::optional<int> level);
  bool MayOrderStep() const;
  bool ComputesAgain() const;
  bool WriteStep();
  void AddDecodeRows(UnderWay& step);
  void AddPromptRows(UnderWay& step, int64_t room);
  int64_t AddPrompt(Entry& entry, UnderWay& step, int64_t room);
  void AddRow(Entry& entry, int32_t token, bool wants_logits, MicroBatch& batch, UnderWay& step);
  Entry* Find(RequestId request);
  void Finish(Entry& entry);

  Options options_;
  std::map<RequestId, Entry> entries_;  // requests that have not ended
  RequestId next_id_ = 0;
  std::deque<Entry*> waiting_;
  std::vector<Entry*> running_;          // in order of admission
  std::vector<int32_t> free_slots_;      // lowest last
  std::vector<int64_t> least_shared_;    // by slot: fewer positions of it cannot be shared (KvWindow)
  std::vector<Leaving> leaving_;         // ended since the last NextOrders
  PrefixCache cache_{{}};                // idle slots
  RecycledQueue<UnderWay> under_way_;    // oldest first
  std::optional<MemoryPlanner> memory_;  // where KV grows
  // These buffers keep their memory between calls, so a step allocates nothing.
  std::vector<Order> orders_;              // of the last call
  std::vector<Order> spare_orders_;        // step orders to reuse
  std::vector<MicroBatch> spare_batches_;  // micro-batches to reuse, from larger steps
  std::vector<MicroBatch> batches_;        // of the step being written
  std::vector<Sampling> awaited_;          // by OnTokens
  std::vector<RequestId> started_;         // by NextOrders
  std::vector<RequestId> requests_;        // by OnTokens: requests of its tokens
  std::vector<Token> tokens_;              // returned by OnTokens
  std::vector<InPromptOf> in_prompt_;
  int64_t next_order_ = 0;
  int64_t next_step_ = 0;
};

}  // namespace lime
