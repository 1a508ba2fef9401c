// The weights of one device's stages: resident ones, and the ring through which the others stream.
//
// A block that is resident as a whole is bound to the backend as a whole. Each part of any other
// block has a place: its own memory if it is resident, the ring while it is loaded. The ring is
// first in, first out.
// Residency changes at a border. Steps before it compute with the old residency, the step at the
// border and later ones with the new residency. A whole block leaves with all its parts, and comes
// back as parts. If the plan's KV grows, no block is bound as a whole, since any part may have to
// leave.
//
// Thread: any, under the owner's lock. Reads end on the reader's thread.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "daemon/kv/stage_kv.h"
#include "daemon/kv/weights_handover.h"
#include "daemon/logic/byte_ring.h"
#include "daemon/logic/neuron_window/neuron_window.h"
#include "daemon/machine/huge_buffer.h"
#include "daemon/weights/checkpoint.h"
#include "daemon/weights/load_meter.h"
#include "daemon/weights/loader.h"
#include "daemon/weights/neuron_copy.h"
#include "daemon/weights/neuron_reader.h"
#include "daemon/weights/part_reader.h"
#include "daemon/weights/weight_store.h"
#include "kernels/backend.h"
#include "planner/base/status.h"
#include "planner/plan/plan.h"

namespace lime {

// Weights that no computation uses any more. The destructor frees their memory, which takes a
// while.
struct EvictedWeights {
  EvictedWeights() = default;
  EvictedWeights(EvictedWeights&&) = default;
  EvictedWeights& operator=(EvictedWeights&&) = delete;
  ~EvictedWeights();

  std::vector<HugeBuffer> parts;    // memory of parts, and of the ring
  std::vector<LoadedBlock> blocks;  // matrices of blocks that were whole
};

class StageWeights {
 public:
  struct Options {
    LoadOptions load;
    // For blocks that are resident as a whole; kAuto means kRead if anything streams.
    LoaderKind loader = LoaderKind::kRead;
    int64_t passes = 1;     // how often all weights will be read, for kAuto
    StageKv* kv = nullptr;  // reads KV parts; outlives this object
    // The weights of the previous plan. LoadAll uses those that this plan needs, too, and frees
    // the others before it loads.
    WeightsHandover* handover = nullptr;
    std::function<std::unique_ptr<BlockDevice>(std::unique_ptr<BlockDevice>)> wrap_device;  // for tests
    // Neurons of StartNeuronReads have been read, or could not be. On the reader's thread.
    std::function<void(std::span<const int32_t> neurons, const absl::Status& status)> neurons_read;
  };

  // Loads the resident weights of `device` and binds them. REQUIRES: the plan is valid for `spec`.
  // Everything but the options outlives this object.
  static absl::StatusOr<std::unique_ptr<StageWeights>> Load(const Checkpoint& checkpoint, const ModelSpec& spec, const Plan& plan,
                                                            int32_t device, Backend& backend, const Options& options);

  // Bytes that Load takes: weights, and the ring with extra room for a place that crosses its end.
  static absl::StatusOr<Bytes> MemoryFor(const Checkpoint& checkpoint, const ModelSpec& spec, const Plan& plan, int32_t device);

  // Keeps in `handover` the weights that Load would use, and frees the rest.
  static void RetainFor(const ModelSpec& spec, const Plan& plan, int32_t device, WeightsHandover& handover);
  // Moves resident weights to `handover`, except views of files: they cost nothing to make again.
  // REQUIRES: closed; nothing computes with the weights
  void HandOver(WeightsHandover& handover);

  // True if the part's block is computed as a whole, not by rows.
  bool IsWhole(int part) const { return whole_[part]; }
  // Its rows in memory for `step`, in order of use.
  // REQUIRES: not whole; resident, or loaded and not released
  int NumRows(int part) const { return reader_->NumRows(BlockOf(part), PartInBlock(part)); }
  RowsInMemory Rows(int part, int i, int64_t step) const;
  // True if the part stays in memory in `step` and has been read: Rows may be called before its turn.
  // REQUIRES: not whole
  bool IsRead(int part, int64_t step) const { return !StreamsIn(part, step) && own_[part].data() != nullptr && read_[part]; }

  // ---- Parts on demand

  // Units of a part with experts on demand, or pieces of a sparse one, in order; 0 of a KV part, 1 of
  // another one.
  int NumUnits(int part) const { return num_units_[part]; }
  // Starts reading a unit into one of the part's places. `number` names the read for CancelUnitRead.
  // REQUIRES: nothing reads into the place or computes with it
  void StartUnitRead(int part, int unit, int place, int64_t number, PartReader::Completion done);
  // Ends a read early if the disk has not begun all of it: with kCancelled, unless it succeeds.
  void CancelUnitRead(int64_t number) { reader_->Cancel(TagOf(number)); }
  // Returns the memory of `count` places to the system. MakePlaces makes it present again, and reads may
  // fill it meanwhile.  Thread: any.  REQUIRES: for FreePlaces, as StartUnitRead
  void FreePlaces(int part, int first, int count) const {
    if (count > 0) ReturnPages(PlaceOfUnit(part, first), count * plan_.parts[part].unit_bytes);
  }
  absl::Status MakePlaces(int part, int first, int count) const {
    return BringPagesBack(PlaceOfUnit(part, first), count * plan_.parts[part].unit_bytes);
  }
  // The rows of a unit that has been read into `place`, in order of use.
  int NumUnitRows(int part, int unit) const;
  RowsInMemory UnitRows(int part, int unit, int i, int place) const;

  // ---- Sparse parts

  // Starts reading neurons into rows of the part's memory. Options::neurons_read has the answer.
  // REQUIRES: the neurons of the call before have been read; nothing computes with these rows
  void StartNeuronReads(int part, std::span<const NeuronWindow::Load> loads);
  // What the kernels need of a neuron that has been read into `row`.
  NeuronInMemory Neuron(int part, int32_t neuron, int32_t row) const;
  // Starts reading a piece of the part's rows into one of the places for pieces.
  void StartPieceRead(int part, int piece, int place, PartReader::Completion done);
  RowsInMemory PieceRows(int part, int piece, int i, int place) const;
  // Copies what Neuron() has of these neurons, ascending, from rows of PieceRows to their rows of memory.
  // Called once for all rows of all pieces, it gives the bytes of a read.  Thread: the compute thread
  void CopyNeurons(int part, const RowsInMemory& rows, std::span<const NeuronWindow::Load> neurons);
  Bytes PieceBytes(int part, int piece) const { return reader_->PlaceBytes(BlockOf(part), PartInBlock(part) + piece); }
  // Of neurons, since the start.
  Bytes neuron_bytes_read() const { return neurons_ == nullptr ? 0 : neurons_->bytes_read(); }
  int64_t neuron_reads() const { return neurons_ == nullptr ? 0 : neurons_->reads_started(); }

  // ----

  // The load of a KV part for `step`; null if the part does not stream then.  REQUIRES: if it
  // streams, loaded and not released
  const KvLoad* Kv(int part, int64_t step) const;

  // Starts reading a streamed part into the ring. REQUIRES: the ring has room (Programs ensure it)
  void StartLoad(int part, PartReader::Completion done);

  // ---- Residency that changes

  // From step `border` on, residency is that of `after`: its streamed parts stream, and no others;
  // of a whole block all parts or none. `evicts_embedding`: from then on the rows of the embedding
  // are read one by one.
  void Change(const Plan& after, int64_t border, bool evicts_embedding = false);
  // True if memory can be freed: of weights that stream now, or of a ring.
  bool MayEvict() const;
  // Removes and returns that memory. Called once nothing computes with it.
  EvictedWeights ReleaseEvicted();
  // True if the ring exists only while something streams. NeedsRing: true if it must be made now.
  // MakeRing: a pre-faulted ring for `ring` bytes of parts.  Thread of MakeRing: any
  bool ring_comes_and_goes() const { return slack_ == 0; }
  bool NeedsRing() const;
  absl::StatusOr<HugeBuffer> MakeRing(Bytes ring) const;
  void SetRing(HugeBuffer memory);
  // Pre-faulted memory for a part that becomes resident.  Thread: any.
  absl::StatusOr<HugeBuffer> Room(int part) const { return HugeBuffer::AllocatePresent(PlaceBytes(part)); }
  // Starts reading a part into memory from Room, where it stays.
  void StartResidentLoad(int part, HugeBuffer room, PartReader::Completion done);

  // Frees the ring space of the oldest load.
  void ReleaseOldest();

  void Cancel() {
    reader_->Cancel();
    if (neurons_ != nullptr) neurons_->Cancel();
  }
  // Ends all reads and the readers' threads. Afterwards only HandOver may be called.
  void Close() { reader_.reset(), neurons_.reset(); }
  Bytes bytes_read() const { return bytes_streamed() + neuron_bytes_read(); }
  Bytes bytes_streamed() const { return reader_->bytes_read(); }  // without neurons
  const LoadSummary& loaded() const { return load_; }
  // True if the part fits in the ring, or in a ring that would be made for it.
  bool MayStream(int part) const { return slack_ == 0 || PlaceBytes(part) <= slack_; }

 private:
  struct Loaded {
    int part = 0;
    std::byte* place = nullptr;
    std::shared_ptr<KvLoad> kv;  // of a KV part
  };

  StageWeights(const ModelSpec& spec, const Plan& plan, StageKv* kv);
  absl::Status LoadAll(const Checkpoint& checkpoint, int32_t device, Backend& backend, const Options& options);
  absl::Status LoadBlocks(const Checkpoint& checkpoint, const std::vector<BlockId>& whole, const std::vector<BlockId>& pinned,
                          Backend& backend, const Options& options);
  absl::Status LoadWhole(const Checkpoint& checkpoint, const std::vector<BlockId>& ids, bool all_whole, const Options& options);
  // Memory of the parts on demand, and what reads their neurons.
  absl::Status OpenOnDemand(const Checkpoint& checkpoint, const Options& options);
  // Learns the checksums of the parts that are not whole blocks.
  absl::Status LearnChecksums(const LoadOptions& options);
  absl::Status ReadPart(int part);
  bool StreamsIn(int part, int64_t step) const { return step < border_ ? streamed_before_[part] : streamed_[part]; }
  bool Streams() const;
  void Unbind(BlockId id, EvictedWeights& evicted);
  const Loaded& OldestLoad(int part) const;
  Bytes PlaceBytes(int part) const { return PlaceBytesOf(*reader_, spec_, plan_, part); }
  static Bytes PlaceBytesOf(const PartReader& reader, const ModelSpec& spec, const Plan& plan, int part);
  std::byte* PlaceOfUnit(int part, int place) const;
  // Where a neuron's record begins in its row, from the first part that is read.
  std::byte* RecordIn(int part, int32_t neuron, int32_t row) const;
  // Of a certified part: reads and binds the copy of its decider.
  absl::Status BindCopy(int part);
  static int64_t TagOf(int64_t number) { return number + 1; }
  int BlockOf(int part) const { return place_of_[part].first; }
  int PartInBlock(int part) const { return place_of_[part].second; }

  const ModelSpec& spec_;
  const Plan& plan_;
  StageKv* const kv_;
  // By part: its block in the spec, and its index among the block's parts with rows.
  std::vector<std::pair<int, int>> place_of_;
  std::vector<int> num_units_;  // by part
  std::vector<bool> whole_;     // by part
  // By part: memory of resident parts of blocks that are not whole, and the places of parts on
  // demand.
  std::vector<HugeBuffer> own_;
  std::unique_ptr<std::atomic<bool>[]> read_;     // by part: own_ has been read
  std::vector<bool> streamed_before_, streamed_;  // by part: before border_, and from border_ on
  int64_t border_ = 0;
  struct Bound {
    LoadedBlock block;
    bool whole = false;   // false: only the tensors that stay in memory while its parts stream
    bool copied = false;  // a whole block in its own memory, not a view of a file
  };
  std::vector<Bound> blocks_;
  LoadSummary load_;
  bool evicts_embedding_ = false;  // from border_ on
  std::vector<int> parts_here_;
  Backend* backend_ = nullptr;
  Bytes slack_ = 0;            // the ring's extra room: its largest place
  bool ring_is_made_ = false;  // after the start; freed when nothing streams any more
  HugeBuffer ring_memory_;
  ByteRing ring_{0};
  std::deque<Loaded> loaded_;  // loads begun and not released, oldest first
  // Of sparse parts: places for pieces, of piece_bytes_ each; slots of the current burst; neurons that
  // one of its reads has brought, on the reader's thread.
  HugeBuffer pieces_;
  Bytes piece_bytes_ = 0;
  std::vector<BundleSlot> slots_;
  std::vector<int32_t> came_;
  std::vector<NeuronTarget> targets_;      // of a copy
  std::unique_ptr<NeuronReader> neurons_;  // null: no part is sparse
  std::unique_ptr<PartReader> reader_;
};

// A loaded block in the form that the backend takes.
inline BlockWeights ToWeights(const LoadedBlock& block) {
  BlockWeights weights;
  weights.storage = block.storage;
  for (const LoadedTensor& tensor : block.tensors) weights.tensors.push_back(tensor.data);
  return weights;
}

}  // namespace lime
