// Reads bytes of a checkpoint's files for a store that is written from them.
#pragma once

#include <cstdint>
#include <span>

#include "daemon/machine/files.h"
#include "daemon/weights/checkpoint.h"
#include "planner/base/status.h"

namespace lime {

// One file is open at a time. Files that were not cached before do not stay cached.
//
// Thread: one at a time.
class SourceReader {
 public:
  // REQUIRES: `source` outlives this object.
  explicit SourceReader(const Checkpoint& source) : source_(source) {}
  ~SourceReader() { Close(); }
  SourceReader(const SourceReader&) = delete;
  SourceReader& operator=(const SourceReader&) = delete;

  // Bytes of the tensor at `at`, from its byte `begin` on.
  absl::Status Read(const TensorLocation& at, int64_t begin, std::span<std::byte> out);

 private:
  absl::Status Open(int32_t file);
  void Close();
  void Drop(int64_t offset, Bytes bytes) const;

  const Checkpoint& source_;
  FileDescriptor file_;
  int32_t open_ = -1;
  bool keep_cached_ = false;
};

}  // namespace lime
