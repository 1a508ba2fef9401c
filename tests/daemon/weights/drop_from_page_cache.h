// Makes the next read of a file come from the disk.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "daemon/machine/files.h"
#include "planner/base/status.h"

namespace lime {

// Drops the clean pages of the file.
inline absl::Status DropFromPageCache(const std::string& path) {
  LIME_ASSIGN_OR_RETURN(const FileDescriptor file, OpenForReading(path));
#ifdef POSIX_FADV_DONTNEED
  ::fdatasync(file.get());  // pages not yet written cannot be dropped
  if (const int error = ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED); error != 0) {
    return ErrnoStatus(error, path, "drop the page cache");
  }
#endif
  return absl::OkStatus();
}

}  // namespace lime
