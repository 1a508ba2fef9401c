// KV of this device's layers that another device, the host, keeps in its memory
// (daemon/kv/hosting/hosted_kv.h): how it gets there, and how attention uses it.
//
//   a full piece ── chunks, once ──► host: stored
//   before a layer is used ── fetch ──► host: its pieces ──► memory here   (if the link is fast)
//   a layer is used, all pieces are here ──► attends to them
//                    some are missing    ── queries ──► host attends ──► records
//                                        or waits for them, if that is sooner or planned
//
// Thread: any, under the engine's lock, except UseAnswer.
// Memory: Create allocates all of it; for fetched pieces as the plan says (PlanMemory::fetched).
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/steady_clock.h"
#include "daemon/logic/hosting/kv_fetch_size.h"
#include "daemon/logic/hosting/kv_fetcher.h"
#include "daemon/logic/hosting/kv_lender.h"
#include "daemon/logic/hosting/kv_message.h"
#include "daemon/logic/pages/kv_away.h"
#include "daemon/machine/huge_buffer.h"
#include "kernels/backend.h"
#include "planner/base/status.h"
#include "planner/plan/hosting/kv_on_host.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/micro_batch.h"
#include "planner/plan/plan.h"

namespace lime {

class LentKv {
 public:
  struct Options {
    int32_t device = 0;
    std::vector<int32_t> layers;  // whose attention is here, ascending
    Backend* backend = nullptr;
    int64_t max_rows = 0;  // of a micro-batch
    int64_t window = 0;    // positions that attention sees; 0: all
    std::function<double()> now_ms = SteadyMs;
    // Sends a message to the host. With `may_wait` it waits for all other messages of the link.
    std::function<void(std::vector<std::byte> message, bool may_wait)> send;

    int64_t LayerIndex(int32_t layer) const { return std::ranges::lower_bound(layers, layer) - layers.begin(); }
  };
  // One micro-batch reaches a layer.
  struct Visit {
    int part = 0;  // the layer's first KV part
    int32_t microbatch = 0;
    bool last = false;  // the step's last micro-batch
  };

  // REQUIRES: `plan` is valid, and the device has a host with room for some of its KV. `plan`,
  // `away` and what the options point to outlive this object.
  static absl::StatusOr<std::unique_ptr<LentKv>> Create(const Plan& plan, Options options, const KvAway& away);

  // ---- Lending

  // Sends one layer of a piece to the host.  REQUIRES: !lending()
  void Lend(const KvAway::Piece& piece, int64_t layer, std::span<const std::byte> bytes);
  bool lending() const { return lender_.under_way(); }  // until the host confirms the layer
  // The sequence with number `life` in this slot has ended.
  void Free(int32_t sequence, int64_t life);

  // ---- Use

  // Prepares attention to the lent KV that the rows of a batch see. True if some of it is still to
  // come; OnAnswer then says when all has come.
  absl::StatusOr<bool> Ask(const Visit& visit, const MicroBatch& batch);
  // Handles a message of the host. Returns the part and micro-batch that now have all they asked
  // for, if any. InvalidArgument for an answer that was not asked for; nothing has changed then.
  absl::StatusOr<std::optional<std::pair<int32_t, int32_t>>> OnAnswer(const KvMessage& message);
  // Attends to the KV of the last Ask.  Thread: the compute thread, without the lock, in that visit
  absl::Status UseAnswer();
  // The step's last micro-batch has used every layer.
  void EndStep();

  Bytes fetched() const { return fetched_; }

 private:
  // The answer that has come for a visit and is not used yet: nothing, records of the host, or all
  // pieces.
  enum class Answer : uint8_t { kNone, kRecords, kPieces };
  // The request of a visit.
  struct Asking {
    int64_t number = -1;  // the query's
    int32_t part = 0, microbatch = 0;
    int32_t layer = 0;       // index among the device's layers
    bool under_way = false;  // the host has not answered yet
    double since_ms = 0;
    Answer answer = Answer::kNone;
    std::vector<size_t> rows;              // rows of the batch that see lent KV, in order
    size_t num_rows = 0;                   // of the batch
    std::vector<int32_t> pieces;           // pieces with the host, by sequence; 0: not asked
    std::vector<float> queries;            // of `rows`; reserved for as many records
    std::vector<float> records;            // [rows of the batch, floats]
    int64_t end = 0;                       // of the pieces
    std::vector<const std::byte*> places;  // [sequences][end]
  };
  struct Sequence {
    int64_t life = 0;
    int64_t first = 0;  // the first piece that attention sees
  };

  LentKv(const Plan& plan, Options options, const KvAway& away);
  int64_t FirstSeen(const BatchRow& row) const;
  int64_t FirstWanted(int32_t s) const;
  void Collect(const MicroBatch& batch, KvQuery& query);
  void Follow();
  int64_t PiecesOfLayer() const;
  bool HasRoom() const { return PiecesOfLayer() + kKvFetchesUnderWay <= device_.kv_fetch_pieces; }
  Bytes Missing() const;
  bool IsSoonHere(Bytes missing) const;
  void UsePieces();
  absl::Status SendQuery(KvQuery query, const MicroBatch& batch);
  void FetchNext();
  absl::Status OnRecords(const KvRecords& records);
  absl::StatusOr<bool> OnFetched(const KvFetched& fetched);

  const Plan& plan_;
  const Options options_;
  const KvAway& away_;
  const PlanDevice& device_;
  KvLender lender_;
  Asking asking_;
  std::vector<Sequence> sequences_;
  std::optional<double> ask_ms_;  // the time until an answer, smoothed

  std::optional<KvFetcher> fetcher_;  // nothing: no pieces come back
  std::optional<KvFetchSize> size_;
  HugeBuffer room_;
  bool awaits_pieces_ = false;
  Bytes fetched_ = 0;
};

}  // namespace lime
