// Reads single rows of the embedding from its file: a few KiB for each token, instead of the whole
// table in memory.
//
// It has a disk reader of its own, so a row does not wait behind queued parts of blocks. Rows of a
// block store are checked. Rows that differ from their checksums are read again; if a row stays
// different, the error names file, token and offset.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/machine/huge_buffer.h"
#include "daemon/machine/stall_watch.h"
#include "daemon/weights/part_reader.h"

namespace lime {

// Thread: one at a time.
class RowReader {
 public:
  struct Options {
    int64_t max_rows = 0;  // of one Read
    int max_attempts = 4;  // tries of rows whose checksums differ, before that is an error
    bool io_uring = true;
    // Ends a Read with kCancelled.
    const std::atomic<bool>* cancelled = nullptr;
    // Called while the disk delivers nothing.
    StallReport report;
    // For tests: wraps the device.
    std::function<std::unique_ptr<BlockDevice>(std::unique_ptr<BlockDevice>)> wrap_device;
  };
  // REQUIRES: `checkpoint` outlives the reader, and `spec` was built from it.
  static absl::StatusOr<std::unique_ptr<RowReader>> Open(const Checkpoint& checkpoint, const ModelSpec& spec, const Options& options);

  // Memory of a reader of `max_rows`.
  static Bytes BytesFor(const ModelSpec& spec, int64_t max_rows);

  // Reads the rows of `tokens`: rows() then has the row of tokens[i] at i. Blocks. DataLoss if a
  // row stays damaged.
  // REQUIRES: at most max_rows tokens, all in the vocabulary.
  absl::Status Read(std::span<const int32_t> tokens);

  // The rows of the last Read: [0, n).
  RowsInMemory rows() const;
  Bytes bytes_read() const { return reader_->bytes_read(); }

 private:
  // One of the tensors that a row consists of.
  struct Part {
    TensorLocation table;  // `file` is an index into the reader's files
    std::string path;      // of that file
    // Checksums of the rows, owned by the checkpoint. Empty: not known.
    std::span<const uint32_t> xxh3;
    Bytes row_bytes = 0;
    Bytes rows_at = 0;  // in memory_: [max_rows, row_bytes]
    // In memory_: kGroup buffers for aligned reads.
    Bytes buffers_at = 0;
    Bytes buffer_bytes = 0;
  };
  static constexpr int64_t kGroup = 32;  // rows in flight

  static std::vector<Part> LayOut(const Checkpoint* checkpoint, const ModelSpec& spec, int64_t max_rows, Bytes& bytes);
  RowReader(const Options& options, std::vector<Part> parts, HugeBuffer memory, std::unique_ptr<BlockReader> reader)
      : options_(options), parts_(std::move(parts)), memory_(std::move(memory)), reader_(std::move(reader)) {}
  static Extent ExtentOf(const Part& part, int32_t token) {
    return {part.table.file, part.table.offset + token * part.row_bytes, part.row_bytes};
  }
  absl::Status ReadGroup(std::span<const int32_t> tokens, int64_t first);
  absl::Status FillBuffers(std::span<const int32_t> tokens);
  absl::Status CopyRow(const Part& part, int32_t token, size_t buffer, int64_t row);

  const Options options_;
  const std::vector<Part> parts_;  // weight; scales and biases if packed
  const HugeBuffer memory_;
  const std::unique_ptr<BlockReader> reader_;
  int64_t num_rows_ = 0;
};

}  // namespace lime
