// KV of this device's layers that another one, the host, keeps in its memory (daemon/engine/hosted_kv.h): how it gets there, and how
// attention comes to see it.
//
//   a full piece ── chunks, once ──► host: kept
//   before a layer is used ── fetch ──► host: its pieces ──► room here                  where the link is fast enough for it
//   a layer is used, all of it is here ──► attends to the pieces
//                    not all of it is ── queries ──► host attends ──► records             or waits, where that is sooner or planned
//
// Thread: the owner's, under its lock, but for TakeAnswer.
// Memory: all of it by Create: the room is what the plan says (PlanMemory::fetched).
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/steady_clock.h"
#include "daemon/logic/kv_away.h"
#include "daemon/logic/kv_fetch_size.h"
#include "daemon/logic/kv_fetcher.h"
#include "daemon/logic/kv_lender.h"
#include "daemon/logic/kv_message.h"
#include "daemon/weights/huge_buffer.h"
#include "kernels/backend.h"
#include "planner/base/status.h"
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
    int64_t window = 0;    // that attention sees; 0: all
    std::function<double()> now_ms = SteadyMs;
    // A message to the host; those that may wait do for all others.
    std::function<void(std::vector<std::byte> message, bool may_wait)> tell;
  };
  // One micro-batch comes to a layer.
  struct Visit {
    int part = 0;  // the layer's first KV part
    int32_t microbatch = 0;
    bool last = false;  // of the step's micro-batches
  };

  // REQUIRES: `plan` is valid, and the device has a host with room for some of its KV; plan, options and `away` outlive this.
  static absl::StatusOr<std::unique_ptr<LentKv>> Create(const Plan& plan, Options options, const KvAway& away);

  // ---- Lending

  // One layer of a piece goes to the host.  REQUIRES: !lending()
  void Lend(const KvAway::Piece& piece, int64_t layer, std::span<const std::byte> bytes);
  bool lending() const { return lender_.under_way(); }  // until the host says that it has it
  // The sequence of the slot has ended in this life.
  void Free(int32_t sequence, int64_t life);

  // ---- Use

  // Sees to it that attention gets what the rows of a batch see of it. True where that has still to come: OnHost tells when it has.
  absl::StatusOr<bool> Ask(const Visit& visit, const MicroBatch& batch);
  // A message of the host. The part and micro-batch that it was the last for, if it was. InvalidArgument, and nothing has changed, for what
  // was not asked.
  absl::StatusOr<std::optional<std::pair<int32_t, int32_t>>> OnHost(const KvMessage& message);
  // Attends to what Ask was about.  Thread: the compute thread, without the lock, in the visit that asked
  absl::Status TakeAnswer();
  // The step's last micro-batch has used every layer.
  void EndStep();

  Bytes fetched() const { return fetched_; }

 private:
  enum class Answer : uint8_t { kNone, kRecords, kPieces };
  // What a visit sees.
  struct Asking {
    int64_t number = -1;  // of the query
    int32_t part = 0, microbatch = 0;
    int32_t layer = 0;       // among the device's
    bool under_way = false;  // the host was asked
    double since_ms = 0;
    Answer answer = Answer::kNone;         // that is there and not taken
    std::vector<size_t> rows;              // of the batch, that the records are of, in order
    size_t num_rows = 0;                   // of the batch
    std::vector<int32_t> taken;            // pieces that the host has, by sequence; 0 where it was not asked
    std::vector<float> queries;            // of `rows`; a record has no less room than a query
    std::vector<float> records;            // [rows of the batch, floats]
    int64_t end = 0;                       // pieces
    std::vector<const std::byte*> places;  // [sequences][end]
  };
  struct Sequence {
    int64_t life = 0;
    int64_t first = 0;  // piece that attention sees
  };

  LentKv(const Plan& plan, Options options, const KvAway& away);
  int64_t LayerIndex(int32_t layer) const;
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
  std::optional<double> ask_ms_;  // what an answer takes

  std::optional<KvFetcher> fetcher_;  // where there is room for what comes back
  std::optional<KvFetchSize> size_;
  HugeBuffer room_;
  bool awaits_pieces_ = false;
  Bytes fetched_ = 0;
};

}  // namespace lime
