// Reads the pieces of a model's blocks from its files into memory, past the page cache, and checks
// them.
//
// A piece is one or several ranges of files. Each is stored in memory as in the file, with its
// enclosing 4 KiB, so the disk writes directly to where the computation reads. In a block store
// every range has a checksum, which is compared after the read. It is the store's own checksum, or
// one that LearnChecksums computed if the pieces are cut differently from the store (a head along
// kVocabRange, pieces of another size).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "daemon/machine/block_reader.h"
#include "daemon/weights/checkpoint.h"
#include "daemon/weights/weight_store.h"
#include "planner/plan/block_pieces.h"
#include "planner/plan/model_spec.h"

namespace lime {

// Thread: StartRead, Cancel and bytes_read from any; completions run on the reader's own thread.
// The rest is immutable, except for the checksums, which are learned before anything is read.
class PieceReader {
 public:
  struct Options {
    int lanes = 8;                // reads in flight
    Bytes read_bytes = 1 * kMiB;  // of one read
    Bytes piece_bytes = kPieceBytes;
    // Cuts a block as the plan says. Empty: blocks are cut into `piece_bytes`.
    std::function<std::vector<BlockPiece>(const BlockSpec&)> cut;
    bool io_uring = true;
    int max_attempts = 4;  // tries of a piece whose checksum differs, before that is an error
    // For tests: wraps the device.
    std::function<std::unique_ptr<BlockDevice>(std::unique_ptr<BlockDevice>)> wrap_device;
  };
  using Completion = std::function<void(absl::Status)>;

  // REQUIRES: `checkpoint` and `spec` outlive the reader.
  static absl::StatusOr<std::unique_ptr<PieceReader>> Open(const Checkpoint& checkpoint, const ModelSpec& spec, const Options& options);

  // Number of pieces of the block with index `block` in ModelSpec::blocks.
  int NumPieces(int block) const { return static_cast<int>(blocks_[block].size()); }
  // Memory that a piece takes; a multiple of 4 KiB.
  Bytes PlaceBytes(int block, int piece) const { return blocks_[block][piece].place_bytes; }
  int NumRows(int block, int piece) const { return static_cast<int>(blocks_[block][piece].parts.size()); }
  // The `i`th rows of a piece whose memory begins at `place`.
  RowsInMemory Rows(int block, int piece, int i, const std::byte* place) const;

  // Finds checksums for those ranges of `pieces` that the block store lists none for: reads the
  // listed ranges that cover them once, compares these, and hashes the pieces on the way. Does
  // nothing if the model is no block store. Blocks; needs 16 MiB of memory. DataLoss names file,
  // block and offset. kCancelled soon after *cancelled is set.
  absl::Status LearnChecksums(int block, const std::vector<int>& pieces, const std::atomic<bool>* cancelled);
  // The same, from all tensors of the block in memory. REQUIRES: they were compared with the
  // store's checksums.
  void LearnChecksums(const LoadedBlock& loaded);

  // Reads a piece into `place` and calls `done` once. A failed read is repeated, and so is a piece
  // whose checksum differs. The final error names file, block and offset. REQUIRES: `place` is
  // aligned to 4 KiB and lives until `done`.
  void StartRead(int block, int piece, std::byte* place, Completion done);

  // Completes all requests with kCancelled.
  void Cancel() { reader_->Cancel(); }
  Bytes bytes_read() const { return reader_->bytes_read(); }

 private:
  // Bytes of one tensor in a piece.
  struct Range {
    TensorLocation at;
    Bytes element = 1;  // alignment that the kernels need
    Bytes offset = 0;   // in the piece's memory, after sliding down
    // Bytes by which it must slide down after the read, since its offset in the file is no multiple
    // of `element`.
    Bytes slide = 0;
    std::optional<uint64_t> xxh3;
  };
  struct Read {
    Extent extent;
    Bytes place = 0;  // where the enclosing aligned range lies in the piece's memory
  };
  struct Part {
    MatrixRows rows;
    std::array<int, 3> range = {-1, -1, -1};  // index of weight, scales, biases; -1: none
  };
  struct Piece {
    std::vector<Part> parts;
    std::vector<Range> ranges;
    std::vector<Read> reads;  // in file order
    Bytes place_bytes = 0;
  };
  struct Request;

  PieceReader(const Checkpoint& checkpoint, const ModelSpec& spec, const Options& options, std::unique_ptr<BlockReader> reader);
  Piece LayOut(const BlockSpec& block, const BlockPiece& piece) const;
  // The ranges of the pieces that have no checksum; empty if the model is no block store.
  std::vector<Range*> Unchecked(int block, const std::vector<int>& pieces);
  void LayOutReads(Piece& piece) const;
  void Start(const std::shared_ptr<Request>& request);
  void OnRead(const std::shared_ptr<Request>& request, const absl::Status& status);
  absl::Status Check(const Request& request) const;
  absl::Status InBlock(int block, const absl::Status& status) const;

  const Checkpoint& checkpoint_;
  const ModelSpec& spec_;
  const Options options_;
  std::vector<std::vector<Piece>> blocks_;
  const std::unique_ptr<BlockReader> reader_;
};

}  // namespace lime
