// Reads single rows of the embedding from its file: a few KiB for every token, instead of the whole table in memory.
//
// It has a reader of its own, so that a row does not wait behind the pieces that are queued ahead of it. Rows of a block store are checked:
// rows that differ from their checksums are read again, and an error names file, token and offset of one that stays so.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/weights/huge_buffer.h"
#include "daemon/weights/piece_reader.h"
#include "daemon/weights/stall_watch.h"

namespace lime {

// Thread: one at a time.
class RowReader {
 public:
  struct Options {
    int64_t max_rows = 0;  // of one Read
    int max_attempts = 4;  // of rows whose checksums differ, before that is an error
    bool io_uring = true;
    const std::atomic<bool>* cancelled = nullptr;                                           // ends a Read with kCancelled
    StallReport report;                                                                     // while the disk delivers nothing
    std::function<std::unique_ptr<BlockDevice>(std::unique_ptr<BlockDevice>)> wrap_device;  // for tests
  };
  // REQUIRES: `checkpoint` outlives the reader, and `spec` is its.
  static absl::StatusOr<std::unique_ptr<RowReader>> Open(const Checkpoint& checkpoint, const ModelSpec& spec, const Options& options);

  // Memory that a reader of `max_rows` holds.
  static Bytes BytesFor(const ModelSpec& spec, int64_t max_rows);

  // Reads the rows of `tokens`: row i of rows() is then that of tokens[i]. Blocks.
  // REQUIRES: tokens are in the vocabulary, at most max_rows of them. DataLoss where a row stays damaged.
  absl::Status Read(std::span<const int32_t> tokens);

  // [0, n) of the last Read.
  RowsInMemory rows() const;
  Bytes bytes_read() const { return reader_->bytes_read(); }

 private:
  // One of the tensors that make up a row.
  struct Part {
    TensorLocation table;            // `file`: of the reader
    std::string path;                // of that file
    std::span<const uint32_t> xxh3;  // of the rows, owned by the checkpoint; empty: not known
    Bytes row_bytes = 0;
    Bytes rows_at = 0;   // in memory_: [max_rows, row_bytes]
    Bytes slots_at = 0;  // in memory_: [kGroup] places of aligned reads
    Bytes slot_bytes = 0;
  };
  static constexpr int64_t kGroup = 32;  // rows in flight

  static std::vector<Part> LayOut(const Checkpoint* checkpoint, const ModelSpec& spec, int64_t max_rows, Bytes& bytes);
  RowReader(const Options& options, std::vector<Part> parts, HugeBuffer memory, std::unique_ptr<BlockReader> reader)
      : options_(options), parts_(std::move(parts)), memory_(std::move(memory)), reader_(std::move(reader)) {}
  static Extent ExtentOf(const Part& part, int32_t token) {
    return {part.table.file, part.table.offset + token * part.row_bytes, part.row_bytes};
  }
  absl::Status ReadGroup(std::span<const int32_t> tokens, int64_t first);
  absl::Status FillSlots(std::span<const int32_t> tokens);
  absl::Status TakeRow(const Part& part, int32_t token, size_t slot, int64_t row);

  const Options options_;
  const std::vector<Part> parts_;  // weight; scales and biases where the table is packed
  const HugeBuffer memory_;
  const std::unique_ptr<BlockReader> reader_;
  int64_t num_rows_ = 0;
};

}  // namespace lime
