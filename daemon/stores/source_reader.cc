#include "daemon/stores/source_reader.h"

#include <fcntl.h>

#include "daemon/machine/page_cache.h"

namespace lime {

absl::Status SourceReader::Read(const TensorLocation& at, int64_t begin, std::span<std::byte> out) {
  LIME_RETURN_IF_ERROR(Open(at.file));
  const int64_t offset = at.offset + begin;
  LIME_RETURN_IF_ERROR(ReadExactly(file_, source_.files()[static_cast<size_t>(at.file)].path, offset, out));
  Drop(offset, static_cast<Bytes>(out.size()));
  return absl::OkStatus();
}

absl::Status SourceReader::Open(int32_t file) {
  if (file == open_) return absl::OkStatus();
  Close();
  const CheckpointFile& next = source_.files()[static_cast<size_t>(file)];
  LIME_ASSIGN_OR_RETURN(file_, OpenForReading(next.path));
  open_ = file;
  keep_cached_ = PageCacheView(file_, next.bytes).CachedFraction(64) > 0.5;
  return absl::OkStatus();
}

void SourceReader::Close() {
  if (open_ >= 0) Drop(0, 0);
  open_ = -1;
}

void SourceReader::Drop([[maybe_unused]] int64_t offset, [[maybe_unused]] Bytes bytes) const {
#ifdef POSIX_FADV_DONTNEED
  if (!keep_cached_) ::posix_fadvise(file_.get(), offset, bytes, POSIX_FADV_DONTNEED);
#endif
}

}  // namespace lime
