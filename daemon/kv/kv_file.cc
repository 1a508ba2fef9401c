#include "daemon/kv/kv_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "planner/plan/plan.h"
#include "xxhash.h"

namespace lime {
namespace {

constexpr int kMaxReads = 3;  // of a piece whose checksum is wrong
constexpr int kChannels = 4;  // reads in flight; consecutive pieces are one read

// Bypasses the page cache if the file system allows that.
void WriteDirect(int file) {
#ifdef O_DIRECT
  ::fcntl(file, F_SETFL, ::fcntl(file, F_GETFL) | O_DIRECT);  // else through the cache
#endif
#ifdef F_NOCACHE
  ::fcntl(file, F_NOCACHE, 1);
#endif
}

absl::Status CheckRoom(const std::string& folder, Bytes bytes) {
  LIME_ASSIGN_OR_RETURN(const Bytes free, FreeDiskBytes(folder));
  if (free >= bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("KV that does not fit in memory may need ", FormatBytes(bytes), " in ", folder,
                                                   ", but its disk has ", FormatBytes(free),
                                                   " free; give --kv-dir on another disk, or plan a shorter context"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<KvFile>> KvFile::Create(
    const std::string& folder, const Shape& shape,
    const std::function<std::unique_ptr<BlockDevice>(std::unique_ptr<BlockDevice>)>& wrap_device) {
  std::string path = folder + "/.lime-kv-XXXXXX";
  FileDescriptor file(::mkstemp(path.data()));
  if (!file.valid()) {
    return absl::FailedPreconditionError(absl::StrCat(ErrnoStatus(errno, folder, "create a file").message(),
                                                      "; KV that does not fit in memory goes there: give a --kv-dir that limed may write"));
  }
  // Opened twice, for writing and for reading; then the name goes.
  absl::StatusOr<std::unique_ptr<BlockDevice>> device = OpenBlockDevice({path}, {.channels = kChannels});
  ::unlink(path.c_str());
  LIME_RETURN_IF_ERROR(device.status());
  LIME_RETURN_IF_ERROR(CheckRoom(folder, shape.bytes()));
  if (::ftruncate(file.get(), shape.bytes()) != 0) return ErrnoStatus(errno, path, "ftruncate");
  WriteDirect(file.get());
  if (wrap_device) device = wrap_device(*std::move(device));
  auto reader = std::make_unique<BlockReader>(*std::move(device), BlockReader::Options{});
  return std::unique_ptr<KvFile>(new KvFile(folder, path, shape, std::move(file), std::move(reader)));
}

std::optional<Bytes> KvFile::Room() const {
  constexpr Bytes kStatBlock = 512;  // POSIX's unit, for every file system
  const absl::StatusOr<Bytes> free = FreeDiskBytes(folder_);
  struct stat info;
  if (!free.ok() || ::fstat(file_.get(), &info) != 0) return std::nullopt;
  return *free - std::max<Bytes>(0, shape_.bytes() - static_cast<Bytes>(info.st_blocks) * kStatBlock);
}

absl::Status KvFile::Write(int64_t layer, int64_t sequence, int64_t piece, const std::byte* data) {
  return WriteExactly(file_, name_, Index(layer, sequence, piece) * shape_.piece_bytes, {data, static_cast<size_t>(shape_.piece_bytes)});
}

void KvFile::StartRead(int64_t layer, int64_t sequence, int64_t first, int64_t count, std::byte* place, BlockReader::Completion done) {
  const Extent extent{.file = 0, .offset = Index(layer, sequence, first) * shape_.piece_bytes, .bytes = count * shape_.piece_bytes};
  reader_->StartRead(extent, place, std::move(done));
}

absl::Status KvFile::Read(int64_t layer, int64_t sequence, int64_t piece, uint64_t hash, std::byte* place) {
  for (int attempt = 0; attempt < kMaxReads; ++attempt) {
    AwaitedReads read;
    StartRead(layer, sequence, piece, 1, place, read.Add());
    LIME_RETURN_IF_ERROR(read.Await());
    if (HashOf(place) == hash) return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat("KV of positions from ", piece * kKvPiece,
                                          " on was damaged on the disk (its checksum differs); check the disk of ", folder_));
}

uint64_t KvFile::HashOf(const std::byte* data) const {
  return XXH3_64bits(data, static_cast<size_t>(shape_.piece_bytes));
}

}  // namespace lime
