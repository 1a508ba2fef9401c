// By what LIME knows a file again that it wrote: a name alone may be anybody's by then.
#pragma once

#include <cstdint>
#include <string>

#include "daemon/weights/files.h"
#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime {

// Its size and a checksum: of all bytes up to 64 MiB, beyond that of the first 4 KiB of every MiB and of the last 4 KiB. Other weights
// of the same model differ everywhere; one changed value between the samples is not told, as the price of not reading 40 GB again.
struct WrittenFile {
  std::string name;
  Bytes bytes = 0;
  uint64_t xxh3 = 0;

  friend bool operator==(const WrittenFile&, const WrittenFile&) = default;
};

// Of a whole file, under the last part of `path`.
absl::StatusOr<WrittenFile> RecordOf(const FileDescriptor& file, const std::string& path);

// Whether `folder` has the file as it was recorded. Not where it cannot be read.
bool IsUnchanged(const std::string& folder, const WrittenFile& written);

}  // namespace lime
