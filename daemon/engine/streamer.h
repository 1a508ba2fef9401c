// Computes the steps of a model that is not all in memory: resident blocks at once, streamed ones piece by piece as they arrive.
//
// Thread: the compute thread.   Owner: Engine, which uses it only where something streams.
//
// A block is in one of three places: loaded whole (bound to the backend as in a resident model), filled (its pieces in memory of its own,
// after it was taken back), or on the disk. Norms and biases are always in memory.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/engine/piece_loader.h"
#include "daemon/engine/worker_thread.h"
#include "daemon/weights/checkpoint.h"
#include "daemon/weights/huge_buffer.h"
#include "daemon/weights/row_reader.h"
#include "daemon/weights/weight_store.h"
#include "kernels/backend.h"
#include "planner/plan/micro_batch.h"
#include "planner/plan/model_spec.h"

namespace lime {

class Streamer {
 public:
  struct Options {
    Bytes ring_bytes = 0;
    int64_t max_rows = 0;                          // of one step
    Bytes piece_bytes = 0;                         // as the reader has them; for who makes one later
    bool prefault = true;                          // the ring; else its memory comes as it is written
    const std::atomic<bool>* cancelled = nullptr;  // ends a step with kCancelled
    StallReport report;                            // while the disk delivers nothing
    TraceRing* trace = nullptr;                    // spans of every step, where that is asked for; outlives the streamer
    int32_t first_step = 0;                        // number of the first one, for that
    std::function<std::unique_ptr<BlockDevice>(std::unique_ptr<BlockDevice>)> wrap_device;  // for tests
  };

  // `blocks`: one for each of the spec's, taken where this succeeds; bound to the backend already; those without data for their matrices
  // stream (LoadKept). REQUIRES: checkpoint, spec and backend outlive the streamer.
  ~Streamer();
  static absl::StatusOr<std::unique_ptr<Streamer>> Create(const Checkpoint& checkpoint, const ModelSpec& spec, Backend& backend,
                                                          std::unique_ptr<PieceReader> reader, std::vector<LoadedBlock>& blocks,
                                                          const Options& options);

  // Embeds and runs every block of the batch that the backend has begun. After an error the next step begins anew. `on_block`, which may
  // be empty, is called before every block after the first, with how many of all there are have been computed.
  absl::Status Step(const MicroBatch& batch, const std::function<void(int done, int total)>& on_block = {});

  // ---- Residency: at any time between two calls of Step, or from `between_blocks`

  // Gives back resident blocks, highest layer first, then head and embedding, until `bytes` are on their way back or none is left. What
  // was decided already is given back after its next use. Returns the bytes.
  Bytes Shed(Bytes bytes);
  // Takes back the lowest block that was shed, if it has at most `bytes`, one after another: its memory is made present by a thread of its
  // own, which may take as long as many tokens; its next use after that reads it. Returns whether one is on its way, to be asked again.
  absl::StatusOr<bool> Regain(Bytes bytes);
  // Called before every block of a step, for pressure that cannot wait for its end.
  void set_between_blocks(std::function<void()> call) { between_blocks_ = std::move(call); }

  Bytes resident_bytes() const;                       // of the matrices in memory, or that have memory made for them
  Bytes given_up_bytes() const { return given_up_; }  // of the embedding, which is not taken back: its rows cost little
  int num_shed() const { return static_cast<int>(shed_.size()) + (room_ != nullptr ? 1 : 0); }
  int num_resident() const;  // blocks
  Bytes ring_bytes() const { return loader_->ring_bytes(); }
  PieceLoader::Stats stats() const { return loader_->stats(); }
  Bytes bytes_read() const { return loader_->stats().bytes_read + rows_->bytes_read(); }
  // Bytes of weights that one decode step reads from the disk.
  Bytes StreamedBytes() const;
  std::string Describe() const { return loader_->reader().DescribeDevice(); }

 private:
  // Memory that is made present for a block that comes back.
  struct Room {
    int block = 0;
    std::atomic<bool> stop = false;  // it is not needed any more
    std::atomic<bool> done = false;  // what follows is there
    absl::StatusOr<HugeBuffer> memory;
  };

  Streamer(const ModelSpec& spec, Backend& backend, const Options& options) : spec_(spec), backend_(backend), options_(options) {}

  absl::Status Embed(const MicroBatch& batch);
  absl::Status RunBlock(int block);
  absl::Status ComputeWhole(BlockId id);
  absl::Status ComputePiece(int block, int piece, const std::byte* place);
  absl::Status ComputeFilled(int block);
  bool IsWhole(int block) const;
  Bytes MatrixBytes(int block) const;
  void BeginRoom(int block);
  absl::Status TakeRoom();
  Bytes DropRoom();
  void GiveBack(int block);
  void GiveBackFreed();

  const ModelSpec& spec_;
  Backend& backend_;
  std::vector<LoadedBlock> blocks_;
  const Options options_;
  std::unique_ptr<PieceLoader> loader_;
  std::unique_ptr<RowReader> rows_;  // of the embedding
  std::vector<int32_t> tokens_;
  std::vector<int> shed_;  // blocks, in the order in which they were shed
  Bytes given_up_ = 0;
  std::function<void()> between_blocks_;
  std::shared_ptr<Room> room_;          // null where none is made
  std::optional<WorkerThread> worker_;  // that makes it, from the first time on; last, so that it ends before what it uses goes
};

// Gives the memory of a block's matrices back to the system, whole pages only, whoever else shares its storage. The tensors that are kept
// stay; `data` of the others becomes null.
void FreeMatrices(LoadedBlock& block, const BlockSpec& spec);

}  // namespace lime
