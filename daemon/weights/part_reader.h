// Reads the parts of a model's blocks from its files into memory, past the page cache, and checks
// them.
//
// A part is one or several ranges of files. Each range is stored in memory as in the file, with the
// 4 KiB units that enclose it, so the disk writes directly to where the computation reads. In a
// block store every range has a checksum, which is compared after the read. It is the store's own
// checksum, or one that LearnChecksums computed if the parts are cut differently from the store (a
// head along kVocabRange, parts of another size).
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
#include "planner/plan/model/block_parts.h"
#include "planner/plan/model/model_spec.h"

namespace lime {

// Thread: StartRead, Cancel and bytes_read from any; completions run on the reader's own thread.
// The rest is immutable, except for the checksums, which are learned before anything is read.
class PartReader {
 public:
  struct Options {
    int channels = 8;             // reads in flight
    Bytes read_bytes = 1 * kMiB;  // of one read
    Bytes part_bytes = kPartBytes;
    // Cuts a block as the plan says. Empty: blocks are cut into `part_bytes`.
    std::function<std::vector<BlockPart>(const BlockSpec&)> cut;
    bool io_uring = true;
    int max_attempts = 4;  // tries of a part whose checksum differs, before that is an error
    // For tests: wraps the device.
    std::function<std::unique_ptr<BlockDevice>(std::unique_ptr<BlockDevice>)> wrap_device;
  };
  using Completion = std::function<void(absl::Status)>;

  // REQUIRES: `checkpoint` and `spec` outlive the reader.
  static absl::StatusOr<std::unique_ptr<PartReader>> Open(const Checkpoint& checkpoint, const ModelSpec& spec, const Options& options);

  // Number of parts of the block with index `block` in ModelSpec::blocks.
  int NumParts(int block) const { return static_cast<int>(blocks_[block].size()); }
  // Memory that a part takes; a multiple of 4 KiB.
  Bytes PlaceBytes(int block, int part) const { return blocks_[block][part].place_bytes; }
  int NumRows(int block, int part) const { return static_cast<int>(blocks_[block][part].rows.size()); }
  // The `i`th rows of a part whose memory begins at `place`.
  RowsInMemory Rows(int block, int part, int i, const std::byte* place) const;

  // Finds checksums for the ranges of `parts` for which the block store lists none: reads once the
  // listed ranges that cover them, compares their checksums, and hashes the parts on the way. Does
  // nothing if the model is no block store. Blocks; needs 16 MiB of memory. DataLoss names file,
  // block and offset. kCancelled soon after *cancelled is set.
  absl::Status LearnChecksums(int block, const std::vector<int>& parts, const std::atomic<bool>* cancelled);
  // The same, from all tensors of the block in memory. REQUIRES: they were compared with the
  // store's checksums.
  void LearnChecksums(const LoadedBlock& loaded);

  // Reads a part into `place` and calls `done` once. A failed read is repeated, and so is a part
  // whose checksum differs. The final error names file, block and offset. REQUIRES: `place` is
  // aligned to 4 KiB and lives until `done`. `tag`: for Cancel; 0: none.
  void StartRead(int block, int part, std::byte* place, Completion done, int64_t tag = 0);

  // Completes all requests with kCancelled.
  void Cancel() { reader_->Cancel(); }
  // Completes the requests with this tag with kCancelled, unless all their reads are in flight.
  void Cancel(int64_t tag) { reader_->Cancel(tag); }
  Bytes bytes_read() const { return reader_->bytes_read(); }

 private:
  // Bytes of one tensor in a part.
  struct Range {
    TensorLocation at;
    Bytes element = 1;  // alignment that the kernels need
    Bytes offset = 0;   // in the part's memory, after sliding down
    // Bytes by which it must slide down after the read, since its offset in the file is no multiple
    // of `element`.
    Bytes slide = 0;
    std::optional<uint64_t> xxh3;
  };
  struct Read {
    Extent extent;
    Bytes place = 0;  // where the enclosing aligned range lies in the part's memory
  };
  struct RowRanges {
    MatrixRows rows;
    std::array<int, 3> range = {-1, -1, -1};  // index of weight, scales, biases; -1: none
  };
  struct Part {
    std::vector<RowRanges> rows;
    std::vector<Range> ranges;
    std::vector<Read> reads;  // in file order
    Bytes place_bytes = 0;
  };
  struct Request;

  PartReader(const Checkpoint& checkpoint, const ModelSpec& spec, const Options& options, std::unique_ptr<BlockReader> reader);
  Part LayOut(const BlockSpec& block, const BlockPart& part) const;
  // The ranges of the parts that have no checksum; empty if the model is no block store.
  std::vector<Range*> Unchecked(int block, const std::vector<int>& parts);
  void LayOutReads(Part& part) const;
  void Start(const std::shared_ptr<Request>& request);
  void OnRead(const std::shared_ptr<Request>& request, const absl::Status& status);
  absl::Status Check(const Request& request) const;
  absl::Status InBlock(int block, const absl::Status& status) const;

  const Checkpoint& checkpoint_;
  const ModelSpec& spec_;
  const Options options_;
  std::vector<std::vector<Part>> blocks_;
  const std::unique_ptr<BlockReader> reader_;
};

}  // namespace lime
