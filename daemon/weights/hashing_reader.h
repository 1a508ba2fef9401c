// Reads a part of a file back from the disk, past the page cache, and hashes it on the way: reads run ahead of the hashing.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "daemon/weights/block_store_hash.h"
#include "daemon/weights/huge_buffer.h"
#include "planner/base/status.h"

namespace lime {

// Thread: one at a time; Hash blocks.
class HashingReader {
 public:
  static absl::StatusOr<HashingReader> Create();

  // Told of the bytes of every few milliseconds; an error ends the reading.
  using Progress = std::function<absl::Status(Bytes bytes)>;

  // The checksums of the `shape.bytes` bytes that begin at `begin`; blocks, ranges and rows of `shape` count from there. REQUIRES: `begin`
  // is a multiple of 4 KiB.
  absl::StatusOr<StoredFile> Hash(const std::string& path, int64_t begin, const StoredFile& shape, const Progress& progress);

 private:
  explicit HashingReader(HugeBuffer slots) : slots_(std::move(slots)) {}
  HugeBuffer slots_;
};

}  // namespace lime
