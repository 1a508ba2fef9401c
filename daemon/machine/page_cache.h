// The bytes of a file that are in the kernel's page cache.
#pragma once

#include "daemon/machine/files.h"
#include "planner/base/bytes.h"

namespace lime {

// Answers, range by range, whether a file is cached. Looks at pages without reading them.
class PageCacheView {
 public:
  // A file counts as not cached if it cannot be mapped, or if the system does not show its cache to
  // this process.
  PageCacheView(const FileDescriptor& file, Bytes bytes);
  ~PageCacheView();
  PageCacheView(const PageCacheView&) = delete;
  PageCacheView& operator=(const PageCacheView&) = delete;

  // True if the first, a middle and the last page of the range are cached.
  bool Cached(int64_t offset, Bytes bytes) const;
  // Share of `samples` pages, evenly spread over the file, that are cached.
  double CachedFraction(int samples) const;

 private:
  bool PageCached(int64_t offset) const;

  void* mapping_ = nullptr;
  Bytes bytes_ = 0;
};

}  // namespace lime
