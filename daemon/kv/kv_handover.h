// KV that a plan leaves on a device for the next plan. KV follows its layers, so nothing of it is
// computed again.
//
//   StageEngine::HandOver ──► KvHandover ──► Install: pages of layers that stay here are copied
//                                    └─────► other devices: pages of layers that are theirs now
//
// It has the KV of the device's own layers, in memory and on the disk, and the KV that other
// devices have lent to this device (common/kv_takeover_plan.h). States and snapshots of its layers
// are read in the same way, as pages.
//
// Memory: the page pool of the previous plan and its KV of other devices, until the last owner of
// this object releases it.
// Thread: any. Reading KV that is on the disk waits for the disk.
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
#include "common/kv_takeover_plan.h"
#include "common/order.h"
#include "daemon/kv/hosting/hosted_handover.h"
#include "daemon/kv/kv_file.h"
#include "daemon/kv/weights_handover.h"
#include "daemon/logic/pages/kv_pages.h"
#include "daemon/machine/huge_buffer.h"
#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime {

// KV that nobody has read for this time is given up. The time is long, because a reader may have to
// make room first.
inline constexpr absl::Duration kKvHandoverPatience = absl::Minutes(10);
// The same for KV of a plan that was interrupted: its coordinator may install it again, or be gone.
inline constexpr absl::Duration kKvLeftPatience = absl::Seconds(30);

// The states of the slots of a plan that has ended, and their snapshots.
struct StatesLeft {
  std::shared_ptr<const std::byte> memory;  // of all of them
  Bytes bytes = 0;                          // of that memory
  int64_t of_slot = 0;                      // the state and its snapshots
  // By layer: [slots * of_slot], all of the same size.
  std::map<int32_t, std::vector<std::span<const std::byte>>> layers;
};

class KvHandover {
 public:
  struct Content {
    std::string numerics_id;  // of the kernels that computed it
    Bytes page_bytes = 0;     // of 16 positions of a layer
    std::vector<int32_t> layers;
    int64_t sequences = 0;                    // slots
    std::shared_ptr<const std::byte> memory;  // of the pages
    Bytes memory_bytes = 0;                   // the part of it that is present
    KvPages pages;                            // page -1: in the file, or with the host
    std::unique_ptr<KvFile> file;             // null: none is in the file
    std::vector<KvLent> lent = {};            // to the host
    KvOfOthers others = {};
    StatesLeft states = {};
  };
  explicit KvHandover(Content content);
  ~KvHandover();

  const std::string& numerics_id() const { return content_.numerics_id; }
  Bytes page_bytes() const { return content_.page_bytes; }
  Bytes memory_bytes() const;  // of its pages and states, and of other devices' KV
  const std::vector<KvLent>& lent() const { return content_.lent; }
  bool Has(int32_t layer) const;  // KV, as the layer's owner

  // Reads pages of one layer of a sequence, run by run.  Thread: one.
  class Reader {
   public:
    // `hosts`: reads KV lent to this device.  REQUIRES: `handover` lives while Pages is called.
    Reader(const KvHandover& handover, int32_t layer, bool hosts, const KvExtent& of)
        : handover_(handover), layer_(layer), hosts_(hosts), of_(of) {}
    // The pages [first, first + count), contiguous; valid until the next call. NotFound if they are
    // not here. DataLoss if the disk returns other bytes than were written.  REQUIRES: the run lies
    // in one piece (256 positions)
    absl::StatusOr<std::span<const std::byte>> Pages(int64_t first, int64_t count);

   private:
    absl::Status ReadPiece(int64_t index, int64_t piece);
    absl::StatusOr<std::span<const std::byte>> StatesAsPages(const std::vector<std::span<const std::byte>>& states, int64_t first,
                                                             int64_t count);

    const KvHandover& handover_;
    const int32_t layer_;
    const bool hosts_;
    const KvExtent of_;
    HugeBuffer run_, piece_;
    int64_t read_ = -1;  // the piece that piece_ has from the file
  };
  // Reads all pages of an extent, and calls `sink` with each run: its first page, and its bytes.
  using PageSink = std::function<absl::Status(int64_t first, std::span<const std::byte> pages)>;
  absl::Status ReadAll(int32_t layer, bool hosts, const KvExtent& extent, const PageSink& sink) const;
  // Pages in the run that begins at `first`: up to `end`, within one piece, 1 MiB or one page.
  static int64_t RunAt(int64_t first, int64_t end, Bytes page_bytes);

  // Ends reads from the disk soon, with kCancelled.  Thread: any
  void Cancel();

  // ---- What other devices read

  // Another device is reading: the patience of AwaitReaders begins anew.
  void Reading();
  // Another device has read all that it needs of the layer; `hosts`: of the KV that this device
  // hosts.
  void ReadDone(int32_t layer, bool hosts);
  // Waits until all these readers are done. Cancelled once `cancelled` is set. DeadlineExceeded if
  // nobody reads for `patience`.
  absl::Status AwaitReaders(const std::vector<KvReaders>& all, absl::Duration patience, const std::atomic<bool>& cancelled);
  // Time since the last read, or since this object was made.
  absl::Duration Unread(absl::Time now) const;

 private:
  const Content content_;
  mutable absl::Mutex mutex_;
  absl::CondVar changed_;  // readers_done_ has changed
  absl::Time read_at_ ABSL_GUARDED_BY(mutex_);
  // Readers that are done, by layer and `hosts`.
  std::map<std::pair<int32_t, bool>, int64_t> readers_done_ ABSL_GUARDED_BY(mutex_);
};

// All that a plan leaves for the next plan.
struct PlanHandover {
  std::shared_ptr<KvHandover> kv;
  std::shared_ptr<WeightsHandover> weights;  // null: none
};

// Says how the next plan takes over KV and weights of the previous one.
struct KvTakeover {
  std::vector<KvSequence> sequences;
  // The KV of this device; null: the device had no part in the previous plan.
  std::shared_ptr<const KvHandover> here;
  std::shared_ptr<WeightsHandover> weights;  // of this device; null: none
  using PageSink = KvPageSink;
  KvPageReader read;
  // Called once, when all KV is taken over. Waits until the other devices have read their part, and
  // releases every other reference to `here`.
  std::function<absl::Status()> let_go;

  Bytes handover_bytes() const { return here == nullptr ? 0 : here->memory_bytes(); }
  Bytes weight_bytes() const { return weights == nullptr ? 0 : weights->bytes(); }
};

}  // namespace lime
