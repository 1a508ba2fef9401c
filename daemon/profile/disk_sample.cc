#include "daemon/profile/disk_sample.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/steady_clock.h"
#include "daemon/machine/huge_buffer.h"

namespace lime {
namespace {

constexpr Bytes kWriteBytes = 4 * kMiB;

std::string PathOf(const FileDescriptor& file) {
  return absl::StrCat("/proc/self/fd/", file.get());
}

absl::Status TooFull(const std::string& folder, Bytes free, const DiskSampleOptions& options) {
  return absl::ResourceExhaustedError(absl::StrCat(folder, ": has ", FormatBytes(free), " free, but measuring its disk needs ",
                                                   FormatBytes(2 * options.least), " for a moment; free some space there"));
}

// The file has a name only until it is removed. It is opened past the page cache after that: where
// the file system cannot do so, opening a new file in that way would leave it behind.
absl::StatusOr<FileDescriptor> OpenNameless(const std::string& folder) {
  std::string path = folder + "/.lime_disk_sample.XXXXXX";
  FileDescriptor file(::mkostemp(path.data(), O_CLOEXEC));
  if (!file.valid()) return ErrnoStatus(errno, folder, "create a file to measure the disk with");
  if (::unlink(path.c_str()) != 0) return ErrnoStatus(errno, path, "remove");
#ifdef O_DIRECT
  FileDescriptor direct(::open(PathOf(file).c_str(), O_RDWR | O_DIRECT | O_CLOEXEC));
  if (direct.valid()) return direct;
#endif
  return file;
}

// Data that no disk or file system can compress or has seen before.
void FillRandom(std::span<uint64_t> words, uint64_t& state) {
  for (uint64_t& word : words) {
    uint64_t mixed = (state += 0x9e3779b97f4a7c15);
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
    word = mixed ^ (mixed >> 31);
  }
}

}  // namespace

DiskSample::DiskSample(FileDescriptor file, Bytes bytes) : file_(std::move(file)), path_(PathOf(file_)), bytes_(bytes) {}

absl::StatusOr<DiskSample> DiskSample::Write(const std::string& folder, const DiskSampleOptions& options) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return ErrnoStatus(error.value(), folder, "make the folder");
  LIME_ASSIGN_OR_RETURN(const Bytes free, FreeDiskBytes(folder));
  const Bytes bytes = std::min(options.most, free / 2) / kWriteBytes * kWriteBytes;
  if (bytes < options.least) return TooFull(folder, free, options);
  LIME_ASSIGN_OR_RETURN(FileDescriptor file, OpenNameless(folder));
  LIME_ASSIGN_OR_RETURN(const HugeBuffer buffer, HugeBuffer::Allocate(kWriteBytes));
  uint64_t state = static_cast<uint64_t>(::getpid()) << 32;
  Bytes done = 0;
  for (const double start = SteadyMs(); done < bytes && (done < options.least || SteadyMs() - start < 1000 * options.seconds);) {
    if (options.cancelled != nullptr && options.cancelled->load(std::memory_order_relaxed)) return absl::CancelledError("interrupted");
    FillRandom({reinterpret_cast<uint64_t*>(buffer.data()), kWriteBytes / sizeof(uint64_t)}, state);
    const absl::Status written = WriteExactly(file, folder, done, {buffer.data(), kWriteBytes});
    if (absl::IsResourceExhausted(written)) return TooFull(folder, free, options);
    LIME_RETURN_IF_ERROR(written);
    done += kWriteBytes;
    if (options.progress) options.progress(static_cast<double>(done), static_cast<double>(bytes));
  }
  if (::fsync(file.get()) != 0) return errno == ENOSPC ? TooFull(folder, free, options) : ErrnoStatus(errno, folder, "sync");
#ifdef POSIX_FADV_DONTNEED
  ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
#endif
  return DiskSample(std::move(file), done);
}

}  // namespace lime
