#include "daemon/weights/page_cache.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <sstream>

namespace lime {
namespace {

// The kernel says "cached" of every page of a file that we could not write, so as not to leak what others read.
bool MayAskForCache(const FileDescriptor& file) {
  struct stat info;
  if (::fstat(file.get(), &info) != 0) return false;
  return ::geteuid() == 0 || info.st_uid == ::geteuid() || (info.st_mode & S_IWOTH) != 0;
}

// A number in the file, or `otherwise` ("max" in cgroup v2, or no such file).
Bytes ReadNumber(const std::string& path, Bytes otherwise) {
  std::ifstream in(path);
  Bytes value = 0;
  return in >> value ? value : otherwise;
}

// Room left under the cgroup v2 limits from our group up to the root; page cache that could be dropped counts as room.
Bytes CgroupRoom(Bytes otherwise) {
  std::ifstream in("/proc/self/cgroup");
  Bytes room = otherwise;
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("0::", 0) != 0) continue;
    for (std::string group = line.substr(3); !group.empty() && group != "/"; group = group.substr(0, group.rfind('/'))) {
      const std::string folder = "/sys/fs/cgroup" + group;
      const Bytes limit = ReadNumber(folder + "/memory.max", -1);
      if (limit < 0) continue;
      Bytes cache = 0;
      std::ifstream stat(folder + "/memory.stat");
      std::string key;
      for (Bytes value = 0; stat >> key >> value;) {
        if (key == "inactive_file" || key == "active_file") cache += value;
      }
      room = std::min(room, std::max<Bytes>(0, limit - ReadNumber(folder + "/memory.current", 0) + cache));
    }
  }
  return room;
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

absl::Status DropFromPageCache(const std::string& path) {
  LIME_ASSIGN_OR_RETURN(const FileDescriptor file, OpenForReading(path));
#ifdef POSIX_FADV_DONTNEED
  ::fdatasync(file.get());  // pages not yet written cannot be dropped
  if (const int error = ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED); error != 0) {
    return ErrnoStatus(error, path, "drop the page cache");
  }
#endif
  return absl::OkStatus();
}

Bytes AvailableMemory() {
  std::ifstream in("/proc/meminfo");
  std::string key;
  Bytes available = static_cast<Bytes>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
  for (std::string line; std::getline(in, line);) {
    std::istringstream fields(line);
    Bytes kib = 0;
    if (fields >> key >> kib && key == "MemAvailable:") available = kib * kKiB;
  }
  return CgroupRoom(available);
}

}  // namespace lime
