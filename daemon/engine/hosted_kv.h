// KV of other devices' layers in this device's memory: what they send is kept, and what they ask is attended to.
//
//   owner ── chunks ──► KvHost: where they go ── kept ──► owner
//   owner ── fetch ──► its bytes, as chunks ──► owner
//   owner ── query ──► waits for the compute thread ── Take ──► Answer ── records ──► owner
//
// Thread: the owner's of this, under its lock, but for Answer.
// Memory: all of it by Create, as much as the plan says (PlanMemory::hosted).
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "daemon/engine/kv_left.h"
#include "daemon/logic/kv_host.h"
#include "daemon/logic/kv_message.h"
#include "daemon/weights/huge_buffer.h"
#include "kernels/backend.h"
#include "planner/base/status.h"
#include "planner/plan/model_spec.h"
#include "planner/plan/plan.h"

namespace lime {

class HostedKv {
 public:
  struct Options {
    int32_t device = 0;
    int64_t max_rows = 0;  // of a micro-batch
    Backend* backend = nullptr;
    std::function<void(int32_t to, std::vector<std::byte> message, bool may_wait)> send;  // an answer; under the lock
  };

  // REQUIRES: `plan` is valid for `spec`; both and all that the options point to outlive this.
  static absl::StatusOr<std::unique_ptr<HostedKv>> Create(const Plan& plan, const ModelSpec& spec, Options options);

  // ---- From one plan to the next

  // What owners have lent when the plan begins (AwayAtFirst), from wherever it was in the plan before: ahead of any message. As
  // KvTakeover::read, and ResourceExhausted where it does not fit.
  absl::Status TakeOver(const KvTakeover& from);
  // What it has, for the next plan. Nothing but the destructor is called after it.
  std::vector<KvLeft::Hosted> Leave();

  // ---- While the plan is in use

  // A chunk, a fetch, a query, or what is free, from a device whose host this is. InvalidArgument for what cannot be: nothing has changed.
  absl::Status OnMessage(int32_t from, const KvMessage& message);

  bool asked() const { return !waiting_.empty(); }
  // The oldest query is answered next. Who asked.  REQUIRES: asked(), none is being answered
  int32_t Take();
  // Attends to what was asked.  Thread: the compute thread, without the lock.
  absl::Status Answer();
  // Sends what Answer made.
  void EndAnswer();

 private:
  struct Query {
    KvQuery what;  // whose queries are in `floats`
    std::vector<float> floats;
    std::vector<std::vector<const std::byte*>> places;  // by sequence, of its pieces
  };
  struct Owner {
    KvHost host;
    HugeBuffer memory;
    Query query;          // while it waits
    int64_t fetches = 0;  // so far
  };

  HostedKv(const Plan& plan, const ModelSpec& spec, Options options);
  absl::Status TakeOver(const KvTakeover& from, int32_t device, Owner& owner);
  absl::Status On(int32_t from, Owner& owner, const KvChunk& chunk);
  absl::Status On(int32_t from, Owner& owner, const KvFree& free);
  absl::Status On(int32_t from, Owner& owner, const KvQuery& query);
  absl::Status On(int32_t from, Owner& owner, const KvFetch& fetch);
  absl::Status CheckRows(const KvQuery& query) const;
  bool Waits(int32_t from) const;

  const Plan& plan_;
  const Options options_;
  const size_t query_floats_;        // of a row
  std::map<int32_t, Owner> owners_;  // by device
  std::deque<int32_t> waiting_;      // owners that have asked, oldest first; while it is answered the first stays
  const Owner* answered_ = nullptr;  // that Take gave
  std::vector<float> records_;       // that Answer made
};

}  // namespace lime
