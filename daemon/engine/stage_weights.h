// The weights of one device's stages: what is resident, and the ring through which the rest streams.
//
// A block that is resident as a whole is bound to the backend as that. Of the others every part has a place: its own memory where it is
// resident, and while it is loaded the ring, in which loads follow one another first in, first out.
// Residency changes at a border: steps before it compute with what the parts were, those from it on with what they are then. A block that
// was whole leaves with all of its parts, which come back as parts. Where the plan's KV grows no block is bound as a whole, since any part
// may have to leave.
//
// Thread: the owner's, under its lock; reads end on the reader's thread.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "daemon/engine/stage_kv.h"
#include "daemon/engine/weights_left.h"
#include "daemon/logic/byte_ring.h"
#include "daemon/weights/checkpoint.h"
#include "daemon/weights/huge_buffer.h"
#include "daemon/weights/load_meter.h"
#include "daemon/weights/loader.h"
#include "daemon/weights/piece_reader.h"
#include "daemon/weights/weight_store.h"
#include "kernels/backend.h"
#include "planner/base/status.h"
#include "planner/plan/plan.h"

namespace lime {

// Weights with which nothing computes any more. Their memory goes with them, which takes a while.
struct LeavingWeights {
  LeavingWeights() = default;
  LeavingWeights(LeavingWeights&&) = default;
  LeavingWeights& operator=(LeavingWeights&&) = delete;
  ~LeavingWeights();

  std::vector<HugeBuffer> parts;    // and the ring
  std::vector<LoadedBlock> blocks;  // matrices of those that were whole
};

class StageWeights {
 public:
  struct Options {
    LoadOptions load;
    LoaderKind loader = LoaderKind::kRead;  // of blocks that are resident as a whole; kAuto is kRead where something streams
    int64_t passes = 1;                     // how often all weights will be read, for that choice
    StageKv* kv = nullptr;                  // who reads KV parts; outlives this
    WeightsLeft* left = nullptr;            // by the plan before: what of it stays is taken, the rest freed first
    std::function<std::unique_ptr<BlockDevice>(std::unique_ptr<BlockDevice>)> wrap_device;  // for tests
  };

  // Loads what is resident on `device` and binds it. REQUIRES: the plan is valid for `spec`; all but the options outlive this.
  static absl::StatusOr<std::unique_ptr<StageWeights>> Load(const Checkpoint& checkpoint, const ModelSpec& spec, const Plan& plan,
                                                            int32_t device, Backend& backend, const Options& options);

  // Bytes that Load takes: weights, and the ring with room for a place that does not fit before its end.
  static absl::StatusOr<Bytes> MemoryFor(const Checkpoint& checkpoint, const ModelSpec& spec, const Plan& plan, int32_t device);

  // What of `left` Load would take; the rest is freed.
  static void KeepFor(const ModelSpec& spec, const Plan& plan, int32_t device, WeightsLeft& left);
  // What is resident goes to `left`, but for views of files, which cost nothing to make again.  REQUIRES: closed; nothing computes with it
  void Leave(WeightsLeft& left);

  // Whether the part's block is computed as a whole, not by rows.
  bool IsWhole(int part) const { return whole_[part]; }
  // Its rows in memory for `step`, in order of use. REQUIRES: not whole; resident, or loaded and not released
  int NumRows(int part) const { return reader_->NumRows(BlockOf(part), PieceOf(part)); }
  RowsInMemory Rows(int part, int i, int64_t step) const;

  // What a KV part has for `step`, null where it does not stream then.  REQUIRES: loaded and not released where it does
  const KvLoad* Kv(int part, int64_t step) const;

  // Reads a streamed part into the ring. REQUIRES: the ring has room, as Programs see to
  void StartLoad(int part, PieceReader::Completion done);

  // ---- Residency that changes

  // From step `border` on the parts of `after` that stream do, and no others; of a block that is whole all or none. `embedding_leaves`: its
  // rows are read by themselves.
  void Change(const Plan& after, int64_t border, bool embedding_leaves = false);
  // Whether any of them, or a ring that was made, is in memory and needed no more.
  bool Leaves() const;
  // Memory of those that stream and are in memory still. To be called once nothing computes with it.
  LeavingWeights TakeLeaving();
  // Whether the ring is there only while something streams. Where it is time to make it: of `ring` bytes of parts, pre-faulted.  Thread of
  // MakeRing: any
  bool ring_comes_and_goes() const { return slack_ == 0; }
  bool NeedsRing() const;
  absl::StatusOr<HugeBuffer> MakeRing(Bytes ring) const;
  void SetRing(HugeBuffer memory);
  // Memory for a part that is to stay; pre-faulted.  Thread: any.
  absl::StatusOr<HugeBuffer> Room(int part) const;
  // Reads a part into what Room gave, where it stays.
  void StartKeeping(int part, HugeBuffer room, PieceReader::Completion done);

  // Takes the room of the oldest load back.
  void ReleaseOldest();

  void Cancel() { reader_->Cancel(); }
  // Ends all reads and the thread on which they end; nothing may be used afterwards.
  void Close() { reader_.reset(); }
  Bytes bytes_read() const { return reader_->bytes_read(); }
  const LoadSummary& loaded() const { return load_; }
  // Whether there is a place for the part in the ring, or can be in one that is made.
  bool MayStream(int part) const { return slack_ == 0 || PlaceBytes(part) <= slack_; }

 private:
  struct Loaded {
    int part = 0;
    std::byte* place = nullptr;
    std::shared_ptr<KvLoad> kv;  // of a KV part
  };

  StageWeights(const ModelSpec& spec, const Plan& plan, StageKv* kv);
  absl::Status LoadAll(const Checkpoint& checkpoint, int32_t device, Backend& backend, const Options& options);
  absl::Status LoadBlocks(const Checkpoint& checkpoint, const std::vector<BlockId>& whole, const std::vector<BlockId>& kept,
                          Backend& backend, const Options& options);
  absl::Status LoadWhole(const Checkpoint& checkpoint, const std::vector<BlockId>& ids, bool all_whole, const Options& options);
  // Of all parts that are read by themselves.
  absl::Status LearnChecksums(const LoadOptions& options);
  absl::Status ReadPart(int part);
  bool StreamsIn(int part, int64_t step) const { return step < border_ ? streamed_before_[part] : streamed_[part]; }
  bool Streams() const;
  void Unbind(BlockId id, LeavingWeights& leaving);
  const Loaded& OldestLoad(int part) const;
  Bytes PlaceBytes(int part) const { return PlaceBytesOf(*reader_, spec_, plan_, part); }
  static Bytes PlaceBytesOf(const PieceReader& reader, const ModelSpec& spec, const Plan& plan, int part);
  int BlockOf(int part) const { return place_of_[part].first; }
  int PieceOf(int part) const { return place_of_[part].second; }

  const ModelSpec& spec_;
  const Plan& plan_;
  StageKv* const kv_;
  std::vector<std::pair<int, int>> place_of_;     // by part: its block in the spec, and which of the block's parts with rows it is
  const bool parts_leave_;                        // the plan's KV grows
  std::vector<bool> whole_;                       // by part
  std::vector<HugeBuffer> own_;                   // by part: of resident parts of blocks that are not whole
  std::unique_ptr<std::atomic<bool>[]> read_;     // by part: what own_ has was read
  std::vector<bool> streamed_before_, streamed_;  // by part: in steps before border_, and from it on
  int64_t border_ = 0;
  struct Bound {
    LoadedBlock block;
    bool whole = false;   // else what stays in memory where its parts stream
    bool copied = false;  // a whole one whose memory is its own, and no view of a file
  };
  std::vector<Bound> blocks_;
  LoadSummary load_;
  bool embedding_leaves_ = false;  // from border_ on
  std::vector<int> parts_here_;
  Backend* backend_ = nullptr;
  Bytes slack_ = 0;            // of the ring: the largest place that it was made for
  bool ring_is_made_ = false;  // for what left; goes where nothing streams any more
  HugeBuffer ring_memory_;
  ByteRing ring_{0};
  std::deque<Loaded> loaded_;  // begun and not released, oldest first
  std::unique_ptr<PieceReader> reader_;
};

// A block as it was loaded, for the backend.
inline BlockWeights ToWeights(const LoadedBlock& block) {
  BlockWeights weights;
  weights.storage = block.storage;
  for (const LoadedTensor& tensor : block.tensors) weights.tensors.push_back(tensor.data);
  return weights;
}

}  // namespace lime
