// KV of other devices' layers, which this device (their host) keeps in its memory. The host stores
// the pieces that owners send, and computes attention to them.
//
//   owner ── chunks ──► KvHost: where they go ── stored ──► owner
//   owner ── fetch ──► the piece, as chunks ──► owner
//   owner ── query ──► waits for the compute thread ── BeginAnswer ──► Answer ── records ──► owner
//
// Thread: any, under the engine's lock, except Answer.
// Memory: Create allocates all of it, as much as the plan says (PlanMemory::hosted).
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "common/order.h"
#include "daemon/kv/hosting/hosted_handover.h"
#include "daemon/logic/hosting/kv_host.h"
#include "daemon/logic/hosting/kv_message.h"
#include "daemon/machine/huge_buffer.h"
#include "kernels/backend.h"
#include "planner/base/status.h"
#include "planner/plan/model/model_spec.h"
#include "planner/plan/plan.h"

namespace lime {

class HostedKv {
 public:
  struct Options {
    int32_t device = 0;
    int64_t max_rows = 0;  // of a micro-batch
    Backend* backend = nullptr;
    // Sends an answer to a device. Called under the lock.
    std::function<void(int32_t to, std::vector<std::byte> message, bool may_wait)> send;
  };

  // REQUIRES: `plan` is valid for `spec`. Both, and what the options point to, outlive this object.
  static absl::StatusOr<std::unique_ptr<HostedKv>> Create(const Plan& plan, const ModelSpec& spec, Options options);

  // ---- From one plan to the next

  // Takes over the pieces that are with this host when the plan begins (AwayAtFirst), wherever the
  // previous plan had them. Called before any message. Errors as for `read`; ResourceExhausted if
  // they do not fit.
  absl::Status TakeOver(const std::vector<KvSequence>& sequences, const KvPageReader& read);
  // Hands the hosted KV over to the next plan. Afterwards only the destructor may be called.
  KvOfOthers HandOver();

  // ---- While the plan is in use

  // Handles a chunk, fetch, query or free message from a device that this one hosts.
  // InvalidArgument for an invalid message; nothing has changed then.
  absl::Status OnMessage(int32_t from, const KvMessage& message);

  bool asked() const { return !waiting_.empty(); }
  // Chooses the oldest query to be answered next. Returns the device that asked.
  // REQUIRES: asked(), and no query is being answered
  int32_t BeginAnswer();
  // Computes attention for that query.  Thread: the compute thread, without the lock.
  absl::Status Answer();
  // Sends what Answer has computed.
  void EndAnswer();

 private:
  struct Query {
    KvQuery what;  // its queries are in `floats`
    std::vector<float> floats;
    std::vector<std::vector<const std::byte*>> places;  // of the pieces, by sequence
  };
  struct Owner {
    KvHost host;
    HugeBuffer memory;
    Query query;          // valid while the owner is in waiting_
    int64_t fetches = 0;  // so far
  };

  HostedKv(const Plan& plan, const ModelSpec& spec, Options options);
  absl::Status TakeOver(const std::vector<KvSequence>& sequences, const KvPageReader& read, int32_t device, Owner& owner);
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
  // Owners with a query, oldest first; the front stays while it is answered.
  std::deque<int32_t> waiting_;
  const Owner* answered_ = nullptr;  // chosen by BeginAnswer
  std::vector<float> records_;       // made by Answer
};

}  // namespace lime
