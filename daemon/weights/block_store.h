// The block store: a model's weights split into one file for each layer, every block one aligned range, with checksums.
//
// docs/reference/file-formats.md has the format.
#pragma once

#include <cstdint>
#include <string>

#include "daemon/weights/block_store_disk.h"
#include "daemon/weights/loader.h"
#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime {

struct PrepareOptions {
  LoadOptions watch;              // progress counts the bytes that this call writes
  Bytes buffer_bytes = 8 * kMiB;  // of the one buffer that all bytes pass through
  StoreDisk* disk = nullptr;      // null: the real one
  bool overwrite = false;         // files of the store's names that somebody else wrote; never weights
};

struct PrepareReport {
  int64_t layers = 0;
  int64_t files = 0;
  Bytes bytes = 0;            // of all files of the store
  int64_t kept_files = 0;     // weight files that an earlier call had finished
  bool was_complete = false;  // nothing was done
};

// Writes the block store of the checkpoint in `source_dir` into `store_dir`, which is made where it is missing. Goes on with what an
// earlier call left there; refuses the store of another model, and a folder that holds anything else. The manifest is written last: until
// then the folder is refused as a checkpoint. A damaged file of the wrong size is written again. One call at a time for each folder.
absl::StatusOr<PrepareReport> PrepareBlockStore(const std::string& source_dir, const std::string& store_dir,
                                                const PrepareOptions& options = {});

struct VerifyReport {
  int64_t layers = 0;
  int64_t files = 0;
  Bytes bytes = 0;
};

// Reads every byte of the store back, past the page cache where the file system can, and compares the checksums. The first difference is
// kDataLoss and names file, block and offsets (within a range that streaming reads).
absl::StatusOr<VerifyReport> VerifyBlockStore(const std::string& store_dir, const LoadOptions& options = {});

}  // namespace lime
