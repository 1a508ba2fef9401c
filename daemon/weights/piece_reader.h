// Brings the pieces of a model's blocks from its files into memory, checked, past the page cache.
//
// A piece lies in its place as one or several ranges of files, each as it lies there (the enclosing 4 KiB), so that the disk writes where
// the computation reads. Where the model is a block store, every range has a checksum that is compared after the read: the store's own, or
// where the pieces are cut otherwise than there (a head along kVocabRange, pieces of another size) one that LearnChecksums found.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "daemon/weights/block_reader.h"
#include "daemon/weights/checkpoint.h"
#include "daemon/weights/weight_store.h"
#include "planner/plan/block_pieces.h"
#include "planner/plan/model_spec.h"

namespace lime {

// Thread: StartRead, Cancel and bytes_read from any; completions run on the reader's own thread. Immutable otherwise, but for the checksums
// that are learned before anything is read.
class PieceReader {
 public:
  struct Options {
    int lanes = 8;                // reads in flight
    Bytes read_bytes = 1 * kMiB;  // of one read
    Bytes piece_bytes = kPieceBytes;
    std::function<std::vector<BlockPiece>(const BlockSpec&)> cut;  // how blocks are cut, where a plan says it; else into `piece_bytes`
    bool io_uring = true;
    int max_attempts = 4;  // of a piece whose checksum differs, before that is an error
    // For tests: stands between the reader and the disk.
    std::function<std::unique_ptr<BlockDevice>(std::unique_ptr<BlockDevice>)> wrap_device;
  };
  using Completion = std::function<void(absl::Status)>;

  // REQUIRES: `checkpoint` and `spec` outlive the reader.
  static absl::StatusOr<std::unique_ptr<PieceReader>> Open(const Checkpoint& checkpoint, const ModelSpec& spec, const Options& options);

  // Pieces of the block with index `block` in ModelSpec::blocks.
  int NumPieces(int block) const { return static_cast<int>(blocks_[block].size()); }
  // Room that a piece takes; a multiple of 4 KiB.
  Bytes PlaceBytes(int block, int piece) const { return blocks_[block][piece].place_bytes; }
  int NumRows(int block, int piece) const { return static_cast<int>(blocks_[block][piece].parts.size()); }
  // The `i`th rows of a piece whose place begins at `place`.
  RowsInMemory Rows(int block, int piece, int i, const std::byte* place) const;

  // Reads once, and compares, what of a block store covers those of the pieces that it has no checksums of by themselves, and keeps theirs
  // for StartRead. Nothing where there is no store. Blocks, with 16 MiB of memory. DataLoss names file, block and offset; kCancelled soon
  // after *cancelled is set.
  absl::Status LearnChecksums(int block, const std::vector<int>& pieces, const std::atomic<bool>* cancelled);
  // The same from all tensors of the block in memory, which were compared with what the store says.
  void LearnChecksums(const LoadedBlock& loaded);

  // Reads a piece into `place`, aligned to 4 KiB, and calls `done` once. A failed read is repeated, and so is a piece whose checksum
  // differs; the error that remains names file, block and offset. REQUIRES: `place` lives until `done`.
  void StartRead(int block, int piece, std::byte* place, Completion done);

  // Ends what is queued with kCancelled.
  void Cancel() { reader_->Cancel(); }
  Bytes bytes_read() const { return reader_->bytes_read(); }

 private:
  // Bytes of one tensor in a piece.
  struct Range {
    TensorLocation at;
    Bytes element = 1;  // alignment that the kernels need
    Bytes offset = 0;   // in the place, after sliding
    Bytes slide = 0;    // it arrives this much higher: its offset in the file is no multiple of its element
    std::optional<uint64_t> xxh3;
  };
  struct Read {
    Extent extent;
    Bytes place = 0;  // of the enclosing aligned range
  };
  struct Part {
    MatrixRows rows;
    std::array<int, 3> range = {-1, -1, -1};  // weight, scales, biases
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
  // Of the pieces, those that have no checksum; none where there is no store.
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
