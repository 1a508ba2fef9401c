// KV that a plan leaves on a device for the plan that follows: KV follows its layers, so that nothing of it is computed again.
//
//   StageEngine::Leave ──► KvLeft ──► StageEngine::Install: pages of layers that stay here are copied
//                             └─────► other devices: pages of layers that are theirs now
//
// Of a device's own layers it has what is in memory and on the disk, and of others' what they have lent to it (common/kv_take.h).
//
// Memory: the pool of the plan before, and what it had of others, until the last who holds this lets it go.
// Thread: any; reads of KV that is on the disk wait for it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/kv_take.h"
#include "common/order.h"
#include "daemon/engine/kv_file.h"
#include "daemon/engine/weights_left.h"
#include "daemon/logic/kv_host.h"
#include "daemon/logic/kv_pages.h"
#include "daemon/weights/huge_buffer.h"
#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime {

// For KV that nobody reads: who is to read it may be making room, or reading from others first.
inline constexpr absl::Duration kKvLeftPatience = absl::Minutes(10);

class KvLeft {
 public:
  // What another device had lent to this one.
  struct Hosted {
    std::vector<int32_t> layers;  // of the other device, ascending
    KvHost places;
    HugeBuffer memory;
  };
  struct Content {
    std::string numerics_id;  // of the kernels that computed it
    Bytes page_bytes = 0;     // of 16 positions of a layer
    std::vector<int32_t> layers;
    int64_t sequences = 0;                    // slots
    std::shared_ptr<const std::byte> memory;  // of the pages
    Bytes memory_bytes = 0;                   // that are present
    KvPages pages;                            // -1: on file, or with the host
    std::unique_ptr<KvFile> file;             // null: nothing is on file
    std::vector<KvLent> lent = {};            // that the host has
    std::vector<Hosted> hosted = {};
  };
  explicit KvLeft(Content content);
  ~KvLeft();

  const std::string& numerics_id() const { return content_.numerics_id; }
  Bytes page_bytes() const { return content_.page_bytes; }
  Bytes memory_bytes() const;  // all of it
  const std::vector<KvLent>& lent() const { return content_.lent; }
  bool Has(int32_t layer) const;  // as the layer's owner

  // Pages of one layer of a sequence, run by run.  Thread: one.
  class Reader {
   public:
    // `hosts`: of what was lent to this device.  REQUIRES: `left` is there whenever Pages is called.
    Reader(const KvLeft& left, int32_t layer, bool hosts, const KvExtent& of) : left_(left), layer_(layer), hosts_(hosts), of_(of) {}
    // The pages [first, first + count), one behind another; valid until the next call. NotFound where they are not here; DataLoss where
    // the disk gives back something else than was written.  REQUIRES: a run of one piece (256 positions)
    absl::StatusOr<std::span<const std::byte>> Pages(int64_t first, int64_t count);

   private:
    absl::StatusOr<std::span<const std::byte>> LentPages(int64_t first, int64_t count) const;
    absl::Status ReadPiece(int64_t index, int64_t piece);

    const KvLeft& left_;
    const int32_t layer_;
    const bool hosts_;
    const KvExtent of_;
    HugeBuffer run_, piece_;
    int64_t read_ = -1;  // the piece of the file that piece_ has
  };
  // Hands over all pages of an extent, in runs; the first page of each, and its bytes.
  using Take = std::function<absl::Status(int64_t first, std::span<const std::byte> pages)>;
  absl::Status ReadAll(int32_t layer, bool hosts, const KvExtent& extent, const Take& take) const;
  // The longest run that begins there and does not go beyond `end`: of one piece, and a megabyte where that is more than a page.
  static int64_t RunAt(int64_t first, int64_t end, Bytes page_bytes);

  // Reads of what is on the disk end soon, with kCancelled.  Thread: any
  void Cancel();

  // ---- What other devices read

  // Somebody reads; whoever waits for it waits on.
  void Reading();
  // Another device has all that it needs of the layer, from its owner or from its host.
  void Given(int32_t layer, bool hosts);
  // Until all of these are given. Cancelled once `cancelled` is set; DeadlineExceeded where nobody reads for so long.
  absl::Status AwaitGiven(const std::vector<KvGiven>& all, absl::Duration patience, const std::atomic<bool>& cancelled);
  // Since somebody has read, or this was made.
  absl::Duration Unread(absl::Time now) const;

 private:
  const Content content_;
  mutable absl::Mutex mutex_;
  absl::CondVar changed_;  // what is given
  absl::Time read_at_ ABSL_GUARDED_BY(mutex_);
  std::map<std::pair<int32_t, bool>, int64_t> given_ ABSL_GUARDED_BY(mutex_);  // times, by layer and whether as its host
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
  // A run of pages of a sequence, which bears the slot of the plan before.
  using Take = std::function<absl::Status(int32_t sequence, int64_t first, std::span<const std::byte> pages)>;
  // Hands over the pages of a layer that are wanted, wherever they are: those of a sequence in order, in runs of one piece.
  // FailedPrecondition where they were not computed by kernels of this order.
  std::function<absl::Status(int32_t layer, const std::string& numerics_id, std::span<const KvExtent> wanted, const Take& take)> read;
  // Called once, when all is taken: returns when others have read what is theirs, and nobody but who called it holds `here` any more.
  std::function<absl::Status()> let_go;

  Bytes left_bytes() const { return here == nullptr ? 0 : here->memory_bytes(); }
  Bytes kept_bytes() const { return weights == nullptr ? 0 : weights->bytes(); }
};

}  // namespace lime
