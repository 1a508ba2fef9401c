#include "daemon/machine/page_cache.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace lime {
namespace {

// For a file that this process may not write, the kernel says "cached" for every page, so as not to
// show what other users read.
bool MayAskForCache(const FileDescriptor& file) {
  struct stat info;
  if (::fstat(file.get(), &info) != 0) return false;
  return ::geteuid() == 0 || info.st_uid == ::geteuid() || (info.st_mode & S_IWOTH) != 0;
}

}  // namespace

PageCacheView::PageCacheView(const FileDescriptor& file, Bytes bytes) {
  if (bytes <= 0 || !MayAskForCache(file)) return;
  void* mapping = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ, MAP_SHARED, file.get(), 0);
  if (mapping == MAP_FAILED) return;
  mapping_ = mapping;
  bytes_ = bytes;
}

PageCacheView::~PageCacheView() {
  if (mapping_ != nullptr) ::munmap(mapping_, static_cast<size_t>(bytes_));
}

bool PageCacheView::PageCached(int64_t offset) const {
  const int64_t page = ::sysconf(_SC_PAGESIZE);
  unsigned char resident = 0;
#ifdef __APPLE__
  char* flag = reinterpret_cast<char*>(&resident);
#else
  unsigned char* flag = &resident;
#endif
  void* address = static_cast<char*>(mapping_) + offset / page * page;
  return ::mincore(address, static_cast<size_t>(page), flag) == 0 && (resident & 1) != 0;
}

bool PageCacheView::Cached(int64_t offset, Bytes bytes) const {
  if (mapping_ == nullptr || bytes <= 0 || offset + bytes > bytes_) return false;
  return PageCached(offset) && PageCached(offset + bytes / 2) && PageCached(offset + bytes - 1);
}

double PageCacheView::CachedFraction(int samples) const {
  if (mapping_ == nullptr) return 0;
  int cached = 0;
  for (int i = 0; i < samples; ++i) cached += PageCached(static_cast<int64_t>((i + 0.5) / samples * static_cast<double>(bytes_)));
  return static_cast<double>(cached) / samples;
}

}  // namespace lime
