// Carries out what WeightStream decides: reads pieces ahead into the ring, or into memory that a block keeps, and hands them to the
// computation in order of use.
//
// Thread: the compute thread calls everything; reads end on the reader's thread. Both meet under one mutex.
// Memory: the ring is allocated and pre-faulted by Create; MakeRoom allocates what a block will keep.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/logic/trace_ring.h"
#include "daemon/logic/weight_stream.h"
#include "daemon/weights/huge_buffer.h"
#include "daemon/weights/piece_reader.h"
#include "daemon/weights/stall_watch.h"

namespace lime {

class PieceLoader {
 public:
  struct Options {
    Bytes ring_bytes = 0;
    std::vector<bool> resident;                    // by block of the spec; the embedding (0) does not pass through here
    bool prefault = true;                          // the ring; else its memory comes as it is written
    const std::atomic<bool>* cancelled = nullptr;  // ends a wait with kCancelled
    StallReport report;                            // while the disk delivers nothing
    TraceRing* trace = nullptr;                    // reads and waits, where that is asked for; outlives the loader
    int32_t first_step = 0;                        // number of the first BeginStep, for that
  };

  // What the disk did so far.
  struct Stats {
    Bytes bytes_read = 0;
    absl::Duration busy;    // with at least one read under way
    absl::Duration waited;  // of the computation, for pieces
    int64_t stalls = 0;     // waits that were reported
  };

  // ResourceExhausted where the ring cannot hold two pieces.
  static absl::StatusOr<std::unique_ptr<PieceLoader>> Create(std::unique_ptr<PieceReader> reader, int num_blocks, const Options& options);
  ~PieceLoader();

  // The least ring that a model needs: two of its largest pieces.
  static Bytes LeastRing(const PieceReader& reader, int num_blocks);

  // ---- A step: all blocks but the embedding, in order

  // Goes back to the first block after a step that ended early, and begins to read.
  absl::Status BeginStep(bool with_head);
  // What block() takes.
  WeightStream::Use BeginBlock();
  // Waits for the next piece of the block under way; it stays until ReleasePiece.
  absl::StatusOr<const std::byte*> AwaitPiece(int piece);
  void ReleasePiece();
  // Ends the block; waits for what is dropped.
  absl::Status FinishBlock();

  // ---- Residency, between two blocks

  WeightStream::State state(int block) const;
  // The pieces of a block that was filled; null where it has no memory of its own here.
  const std::byte* FilledPiece(int block, int piece) const;
  Bytes FilledBytes(int block) const { return place_sums_[block].back(); }
  // True: what the block had elsewhere can be given back now; otherwise TakeFreed tells when.
  bool Shed(int block);
  // The block's next use reads it into `own`, where it stays from then on: what MakeRoom gave, or nothing where it has its memory still.
  void Fill(int block, HugeBuffer own);
  // Memory for a block, pre-faulted: faulted in by the reads, it would hold them up. Cancelled soon after `stop` is set.  Thread: any
  absl::StatusOr<HugeBuffer> MakeRoom(int block, const std::atomic<bool>* stop = nullptr) const;
  // Blocks whose memory may be given back since the last call.
  std::vector<int> TakeFreed();

  const PieceReader& reader() const { return *reader_; }
  Bytes ring_bytes() const { return ring_.bytes(); }
  int32_t step() const { return step_; }  // number of the one begun last
  Stats stats() const;

 private:
  PieceLoader(std::unique_ptr<PieceReader> reader, const Options& options, HugeBuffer ring, std::vector<WeightStream::Block> blocks);
  void StartLoads() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnLoaded(int64_t id, const absl::Status& status);
  void Freed(int stream_block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteLoaded(int64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Await(const std::function<bool()>& ready, const std::function<std::string()>& what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  const HugeBuffer ring_;
  std::vector<std::vector<Bytes>> place_sums_;  // by block: where each piece begins in the block's own memory; last: all of it
  mutable absl::Mutex mutex_;
  absl::CondVar changed_;
  WeightStream stream_ ABSL_GUARDED_BY(mutex_);  // its block b is block b + 1 of the spec
  std::vector<HugeBuffer> own_ ABSL_GUARDED_BY(mutex_);
  std::vector<int> freed_ ABSL_GUARDED_BY(mutex_);
  std::vector<WeightStream::Load> starting_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  bool interrupted_ ABSL_GUARDED_BY(mutex_) = false;  // a step ended before its last block
  Stats stats_ ABSL_GUARDED_BY(mutex_);
  absl::Time busy_since_ ABSL_GUARDED_BY(mutex_);
  double reading_since_ms_ ABSL_GUARDED_BY(mutex_) = 0;  // the piece that the disk is at, where there is a trace
  int32_t step_;                                         // the compute thread's; changes under the lock
  std::unique_ptr<PieceReader> reader_;                  // last: its thread ends before what it uses goes
};

}  // namespace lime
