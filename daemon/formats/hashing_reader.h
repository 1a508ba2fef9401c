// Reads part of a file from the disk, past the page cache, and hashes it. Reads run ahead of the
// hashing.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "daemon/formats/block_store_hash.h"
#include "daemon/machine/huge_buffer.h"
#include "planner/base/status.h"

namespace lime {

// Thread: one at a time. Hash() waits until all is read.
class HashingReader {
 public:
  static absl::StatusOr<HashingReader> Create();

  // Called every few milliseconds with the bytes read since the last call. An error ends the
  // reading.
  using Progress = std::function<absl::Status(Bytes bytes)>;

  // Returns the checksums of the `shape.bytes` bytes that begin at `begin`. Offsets of blocks,
  // ranges and rows in `shape` are relative to `begin`. REQUIRES: `begin` is a multiple of 4 KiB.
  absl::StatusOr<StoredFile> Hash(const std::string& path, int64_t begin, const StoredFile& shape, const Progress& progress);

 private:
  explicit HashingReader(HugeBuffer buffers) : buffers_(std::move(buffers)) {}
  HugeBuffer buffers_;
};

}  // namespace lime
