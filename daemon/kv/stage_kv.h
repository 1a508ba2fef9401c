// The KV of a device's layers. Pages are in memory. If the plan limits their number, the rest is on
// the disk. A KvBook (daemon/logic/kv_book.h) decides which pieces go there; this class carries the
// decisions out.
//
//   step ends ──► pieces are full ──► written while steps go on
//             ──► away, when a step needs their pages ──► read in every later step
//
// The plan's KV parts read the pieces that are away into the ring, like weights (StartLoad). Each
// load knows which pieces it has. A piece that leaves memory after its load has begun is read when
// it is needed. So a piece may leave between any two steps, and nobody waits for loads.
//
// If the plan has a host for this KV, pieces go to the host's memory instead.
//
// If layers give pages back, this class has the snapshots of these pages.
//
// Thread: any, under the owner's lock, except Attend. Pieces are written by a thread of their own.
// Invariant: every piece of a sequence is in pages; or on the disk, and its checksum is compared
// when it is read; or with the host, which has confirmed it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "daemon/kv/hosting/lent_kv.h"
#include "daemon/kv/kv_file.h"
#include "daemon/kv/kv_handover.h"
#include "daemon/logic/kv_book.h"
#include "daemon/machine/huge_buffer.h"
#include "daemon/machine/worker_thread.h"
#include "kernels/backend.h"
#include "planner/base/status.h"
#include "planner/plan/micro_batch.h"
#include "planner/plan/plan.h"

namespace lime {

// The pieces that one load of a KV part has.
class KvLoad;

class StageKv {
 public:
  struct Options {
    LentKv::Options stage;              // also for KV that is with a host
    std::vector<int32_t> state_layers;  // layers of the device that keep a state
    absl::Mutex* mutex = nullptr;       // the owner's
    std::string folder;                 // for KV that does not fit in memory
    // A step may now get the pages that it waits for. Called under the lock.
    std::function<void()> wrote;
    std::function<std::unique_ptr<BlockDevice>(std::unique_ptr<BlockDevice>)> wrap_device;  // for tests
  };

  // REQUIRES: `plan` is valid. It and everything that the options point to outlive this object.
  static absl::StatusOr<std::unique_ptr<StageKv>> Create(const Plan& plan, Options options);
  // REQUIRES: the lock is not held
  ~StageKv();

  // ---- From one plan to the next

  // Takes over KV of the previous plan, before anything else is done. Pieces that are not in memory
  // when the plan begins (AwayAtFirst) go to the disk; a host brings its pieces itself. NotFound,
  // DataLoss, or the error of reading from another device. ResourceExhausted if it does not fit.
  // FailedPrecondition if the plan evicts KV. States and snapshots come along.  Without the lock.
  absl::Status TakeOver(const KvTakeover& from) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // Hands the KV and the states over to the next plan, with `memory` (Backend::ShareKv) and KV of
  // other devices that is here. `numerics_id`: of the kernels that computed it. FailedPrecondition if
  // the plan evicts KV. Afterwards only the destructor may be called.  Without the lock.
  absl::StatusOr<std::shared_ptr<KvHandover>> HandOver(const std::string& numerics_id, std::shared_ptr<const std::byte> memory,
                                                       KvOfOthers others);

  // ---- Decisions

  // The decisions. After a change Follow must be called, before anything computes.
  KvBook& book() { return book_; }
  const KvBook& book() const { return book_; }
  // Carries out the decisions since the last call: copies pages and snapshots, shows pages to the
  // backend, tells the host which sequences have ended, and starts to write a piece.
  void Follow();
  // A step has ended.
  void EndStep();
  // The attention block of a layer has been computed for these rows. If the layer has a window, copies
  // its pages to the snapshots that the rows name, before later rows take their place.
  // Thread: the compute thread, without the lock
  void TakeSnapshots(int32_t layer, const MicroBatch& batch);

  // ---- Loads and their use

  // Starts reading the pieces of a KV part that are away into `place`, which has the part's bytes.
  // `done` runs on the reader's thread.
  std::shared_ptr<KvLoad> StartLoad(int part, std::byte* place, std::function<void(absl::Status)> done);

  // Locate finds the pieces of a load's part for the rows of a batch. Attend then attends to them.
  // Thread of Attend: the compute thread, without the lock
  void Locate(const KvLoad& load, const MicroBatch& batch);
  absl::Status Attend();

  // The KV on a host; null if there is none. Use it with Options::mutex held, except
  // LentKv::UseAnswer.
  LentKv* lent() const { return lent_.get(); }

  void Cancel();
  Bytes bytes_read() const { return file_ == nullptr ? 0 : file_->bytes_read(); }
  Bytes bytes_written() const { return options_.mutex->AssertHeld(), bytes_written_; }
  // Free bytes on the folder's disk beyond what this plan's KV may still use, if known.
  // Thread: any
  std::optional<Bytes> disk_room() const;
  Bytes bytes_fetched() const { return options_.mutex->AssertHeld(), lent_ == nullptr ? 0 : lent_->fetched(); }

 private:
  struct Missing {
    int64_t layer = 0;  // index among the device's layers
    int32_t sequence = 0;
    int64_t piece = 0;
    uint64_t hash = 0;
    std::byte* place = nullptr;
  };
  // The input of Attend.
  struct Attending {
    int32_t layer = 0;
    int64_t begin = 0, end = 0;  // pieces
    std::vector<const std::byte*> places;
    std::vector<Missing> missing;
  };

  StageKv(const Plan& plan, Options options);
  bool HostHasNext() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(options_.mutex) { return stopping_ || !lent_->lending(); }
  static KvBook::Shape ShapeOf(const Plan& plan, const Options& options);
  void Show(int32_t sequence) ABSL_EXCLUSIVE_LOCKS_REQUIRED(options_.mutex);
  std::vector<KvExtent> WantedOf(int32_t layer, const std::vector<KvSequence>& sequences, const std::vector<int64_t>& away) const;
  absl::Status StorePages(int64_t layer, int32_t sequence, int64_t first, std::span<const std::byte> pages) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  absl::Status TakeOverStates(const KvTakeover& from, int32_t layer);
  std::span<std::byte> StateAt(int32_t sequence, int64_t copy, int32_t layer) const;
  StatesLeft HandOverStates() const;
  absl::Status StoreOnDisk(int64_t layer, int32_t sequence, int64_t first, std::span<const std::byte> pages) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // The pages of a layer with a window in a snapshot of a slot; `with_window`: its number among them.
  std::byte* SnapshotAt(int64_t with_window, int32_t sequence, int32_t snapshot) const;
  void CopyPages(const KvBook::PageCopy& copy) ABSL_EXCLUSIVE_LOCKS_REQUIRED(options_.mutex);
  void Restore(const StateBook::Restore& restore) ABSL_EXCLUSIVE_LOCKS_REQUIRED(options_.mutex);
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(options_.mutex);
  void WritePiece(const KvAway::Piece& piece);
  absl::Status WriteLayer(const KvAway::Piece& piece, int64_t layer, uint64_t& hash);
  absl::Status Lend(const KvAway::Piece& piece, int64_t layer);

  const Plan& plan_;
  const Options options_;
  const int64_t pieces_;  // of a sequence
  const KvWindow window_;
  std::vector<int32_t> window_layers_;  // layers of the device that give pages back, if there are snapshots
  KvBook book_ ABSL_GUARDED_BY(options_.mutex);
  Bytes bytes_written_ ABSL_GUARDED_BY(options_.mutex) = 0;
  bool stopping_ ABSL_GUARDED_BY(options_.mutex) = false;
  Attending attending_;  // set by Locate, used by the compute thread in Attend
  absl::Mutex loads_mutex_;
  int64_t loads_under_way_ ABSL_GUARDED_BY(loads_mutex_) = 0;        // their reads write into the ring
  HugeBuffer snapshots_;                                             // [window layers][slots][snapshots][pages]
  HugeBuffer staging_;                                               // the writer's
  std::unique_ptr<KvFile> file_;                                     // null: no KV is on the disk
  std::unique_ptr<LentKv> lent_ ABSL_PT_GUARDED_BY(options_.mutex);  // null: none is with a host
  std::optional<WorkerThread> writer_;
};

}  // namespace lime
