// KV that a plan leaves on a device for the plan that follows: KV follows its layers, so that nothing of it is computed again.
//
//   StageEngine::Leave ──► KvLeft ──► StageEngine::Install: pages of layers that stay here are copied
//                             └─────► other devices: pages of layers that are theirs now
//
// Memory: the pool of the plan before, until the last who holds this lets it go.
// Thread: any; reads of KV that is on the disk wait for it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/engine/kv_file.h"
#include "daemon/engine/weights_left.h"
#include "daemon/logic/kv_pages.h"
#include "daemon/logic/order.h"
#include "daemon/weights/huge_buffer.h"
#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime {

class KvLeft {
 public:
  struct Content {
    std::string numerics_id;  // of the kernels that computed it
    Bytes page_bytes = 0;     // of 16 positions of a layer
    std::vector<int32_t> layers;
    int64_t sequences = 0;                    // slots
    std::shared_ptr<const std::byte> memory;  // of the pages
    Bytes memory_bytes = 0;                   // that are present
    KvPages pages;                            // -1: on file
    std::unique_ptr<KvFile> file;             // null: all is in memory
    std::vector<uint64_t> hashes;             // of what is on file, [layer, sequence, piece]
    int64_t pieces = 0;                       // of a sequence
    Bytes piece_bytes = 0;                    // on file
  };
  explicit KvLeft(Content content);
  ~KvLeft();

  const std::string& numerics_id() const { return content_.numerics_id; }
  Bytes page_bytes() const { return content_.page_bytes; }
  Bytes memory_bytes() const { return content_.memory_bytes; }
  const std::vector<int32_t>& layers() const { return content_.layers; }
  bool Has(int32_t layer) const;

  // Pages of one layer of a sequence, run by run.  Thread: one.
  class Reader {
   public:
    // REQUIRES: `left` outlives this.
    Reader(const KvLeft& left, int32_t layer, int32_t sequence) : left_(left), layer_(layer), sequence_(sequence) {}
    // The pages [first, first + count), one behind another; valid until the next call. NotFound where they are not here; DataLoss where
    // the disk gives back something else than was written.  REQUIRES: a run of one piece (256 positions)
    absl::StatusOr<std::span<const std::byte>> Pages(int64_t first, int64_t count);

   private:
    absl::Status ReadPiece(int64_t index, int64_t piece);

    const KvLeft& left_;
    const int32_t layer_, sequence_;
    HugeBuffer run_, piece_;
    int64_t read_ = -1;  // the piece of the file that piece_ has
  };
  // Hands over the pages of the first `positions` positions of a sequence, in runs; the first page of each, and its bytes.
  using Take = std::function<absl::Status(int64_t first, std::span<const std::byte> pages)>;
  absl::Status ReadAll(int32_t layer, int32_t sequence, int64_t positions, const Take& take) const;
  // The longest run that begins there, of `count` pages in all: of one piece, and a megabyte where that is more than a page.
  static int64_t RunAt(int64_t first, int64_t count, Bytes page_bytes);

  // ---- What other devices read

  // Somebody reads; whoever waits for it waits on.
  void Reading();
  // Another device has all that it needs of the layer.
  void Given(int32_t layer);
  // Until all of these layers are given. Cancelled once `cancelled` is set; DeadlineExceeded where nobody reads for so long.
  absl::Status AwaitGiven(const std::vector<int32_t>& layers, absl::Duration patience, const std::atomic<bool>& cancelled);
  // Since somebody has read, or this was made.
  absl::Duration Unread(absl::Time now) const;

 private:
  const Content content_;
  mutable absl::Mutex mutex_;
  absl::CondVar changed_;  // what is given
  absl::Time read_at_ ABSL_GUARDED_BY(mutex_);
  std::set<int32_t> given_ ABSL_GUARDED_BY(mutex_);
};

// All that a plan leaves.
struct LeftByPlan {
  std::shared_ptr<KvLeft> kv;
  std::shared_ptr<WeightsLeft> weights;  // null: none
};

// How the plan that follows comes to it.
struct KvTakeover {
  std::vector<KvSequence> sequences;
  std::shared_ptr<const KvLeft> here;    // of this device; null where it had no part in the plan before
  std::shared_ptr<WeightsLeft> weights;  // of this device; null where none are
  // The pages of all sequences in a layer that is not here, in runs, in any order; `sequence` as in the plan before, computed by kernels of
  // this order. Empty: there are none.
  using Take = std::function<absl::Status(int32_t sequence, int64_t first, std::span<const std::byte> pages)>;
  std::function<absl::Status(int32_t layer, const std::string& numerics_id, const Take& take)> fetch;
  // Called once, when all is taken: returns when others have read what is theirs, and nobody but who called it holds `here` any more.
  std::function<absl::Status()> let_go;
};

}  // namespace lime
