// The KV of a device's layers: the pages of its sequences in memory and, where the plan keeps only so many, the rest on the disk. Which
// those are is decided by a KvBook (daemon/logic/kv_book.h); this carries it out.
//
//   step ends ──► pieces are full ──► written beside the steps ──► away, when a step wants their pages ──► read with every step after that
//
// What is away is read by the plan's KV parts, into the ring as weights are (StartLoad); each load knows which pieces it has. A piece that
// went after its load had begun is read when it is needed. So a piece may go between any two steps, and nobody waits for loads.
//
// Where the plan has a host for it, pieces are written to the host's memory instead (daemon/engine/lent_kv.h).
//
// Thread: the owner's, under its lock, but for Attend and TakeAnswer. Pieces are written by a thread of its own.
// Invariant: every piece of a sequence is in pages, or on the disk and checked against its checksum when it is read, or the host has told
// that it has it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "daemon/engine/kv_file.h"
#include "daemon/engine/kv_left.h"
#include "daemon/engine/lent_kv.h"
#include "daemon/engine/worker_thread.h"
#include "daemon/logic/kv_book.h"
#include "daemon/logic/kv_message.h"
#include "daemon/weights/huge_buffer.h"
#include "kernels/backend.h"
#include "planner/base/status.h"
#include "planner/plan/micro_batch.h"
#include "planner/plan/plan.h"

namespace lime {

// What one load of a KV part has.
class KvLoad;

class StageKv {
 public:
  struct Options {
    int32_t device = 0;
    std::vector<int32_t> layers;  // whose attention is here, ascending
    Backend* backend = nullptr;
    absl::Mutex* mutex = nullptr;  // the owner's
    std::string folder;            // for what memory has no room for
    std::function<void()> wrote;   // pages may be had that a step waits for; under the lock
    int64_t max_rows = 0;          // of a micro-batch
    int64_t window = 0;            // that attention sees; 0: all
    // A message to the host of this device's KV; those that may wait do for all others.
    std::function<void(std::vector<std::byte> message, bool may_wait)> tell_host;
    std::function<std::unique_ptr<BlockDevice>(std::unique_ptr<BlockDevice>)> wrap_device;  // for tests
  };

  // REQUIRES: `plan` is valid; it and all that the options point to outlive this.
  static absl::StatusOr<std::unique_ptr<StageKv>> Create(const Plan& plan, Options options);
  // REQUIRES: the lock is not held
  ~StageKv();

  // ---- From one plan to the next

  // Brings KV of the plan before: before anything else is done. What the plan begins without in memory (AwayAtFirst) goes to the disk, or
  // is brought to the host by itself. NotFound, DataLoss, or what reading it from another device says; ResourceExhausted where it does not
  // fit; FailedPrecondition for a plan that evicts.  Without the lock.
  absl::Status TakeOver(const KvTakeover& from);
  // What the next plan takes over, of kernels of this order, in `memory` (Backend::TakeKv), with what this device hosts. FailedPrecondition
  // where nobody has it because it was evicted.  Nothing but the destructor is called after it.  Without the lock.
  absl::StatusOr<std::shared_ptr<KvLeft>> Leave(const std::string& numerics_id, std::shared_ptr<const std::byte> memory,
                                                std::vector<KvLeft::Hosted> hosted);

  // ---- What is decided

  // Whose decisions these are. To be followed by Follow, before anything computes.
  KvBook& book() { return book_; }
  const KvBook& book() const { return book_; }
  // Carries out what was decided since: pages are shown to the backend, the host hears whose sequence has ended, a piece is written.
  void Follow();
  // A step has ended.
  void EndStep();

  // ---- Loads and their use

  // Reads what is away of a KV part into `place`, of the part's bytes; `done` on the reader's thread.
  std::shared_ptr<KvLoad> StartLoad(int part, std::byte* place, std::function<void(absl::Status)> done);

  // Where the pieces of a load's part are, for the rows of a batch; then, on the compute thread and without the lock, attends to them.
  void Locate(const KvLoad& load, const MicroBatch& batch);
  absl::Status Attend();

  // ---- What the host has

  // As LentKv does; of a device without a host nothing is with it.
  absl::StatusOr<bool> Ask(const LentKv::Visit& visit, const MicroBatch& batch);
  absl::StatusOr<std::optional<std::pair<int32_t, int32_t>>> OnHost(const KvMessage& message);
  // Thread: the compute thread, without the lock, in the visit that asked
  absl::Status TakeAnswer();

  void Cancel();
  Bytes bytes_read() const { return file_ == nullptr ? 0 : file_->bytes_read(); }
  Bytes bytes_written() const { return bytes_written_; }
  // Free on the disk of the folder, beside what KV of this plan may still take there. Nothing where the disk does not say.  Thread: any
  std::optional<Bytes> disk_room() const;
  Bytes bytes_fetched() const { return lent_ == nullptr ? 0 : lent_->fetched(); }

 private:
  struct Missing {
    int64_t layer = 0;  // of the device's
    int32_t sequence = 0;
    int64_t piece = 0;
    uint64_t hash = 0;
    std::byte* place = nullptr;
  };
  // What Attend does.
  struct Attending {
    int32_t layer = 0;
    int64_t begin = 0, end = 0;  // pieces
    std::vector<const std::byte*> places;
    std::vector<Missing> missing;
  };

  StageKv(const Plan& plan, Options options);
  bool HostHasNext() const { return stopping_ || !lent_->lending(); }
  static KvBook::Shape ShapeOf(const Plan& plan, const Options& options);
  void Show(int32_t sequence);
  absl::Status TakePages(int64_t layer, int32_t sequence, int64_t first, std::span<const std::byte> pages);
  absl::Status TakeToDisk(int64_t layer, int32_t sequence, int64_t first, std::span<const std::byte> pages);
  void WriteNext();
  void WritePiece(const KvAway::Piece& piece);
  absl::Status WriteLayer(const KvAway::Piece& piece, int64_t layer, uint64_t& hash);
  absl::Status Lend(const KvAway::Piece& piece, int64_t layer);
  int64_t LayerIndex(int32_t layer) const;

  const Plan& plan_;
  const Options options_;
  const int64_t pieces_;  // of a sequence
  KvBook book_;
  Bytes bytes_written_ = 0;
  bool stopping_ = false;
  Attending attending_;  // of the compute thread, between Locate and Attend
  absl::Mutex loads_mutex_;
  int64_t loads_under_way_ ABSL_GUARDED_BY(loads_mutex_) = 0;  // their reads write into memory of others
  HugeBuffer staging_;                                         // of the writer
  std::unique_ptr<KvFile> file_;                               // null: all stays in memory, or goes to a host
  std::unique_ptr<LentKv> lent_;                               // null: no host has any of it
  std::optional<WorkerThread> writer_;
};

}  // namespace lime
