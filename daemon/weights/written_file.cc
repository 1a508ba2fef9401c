#include "daemon/weights/written_file.h"

#include <algorithm>
#include <filesystem>
#include <span>
#include <vector>

#include "daemon/weights/block_store_hash.h"

namespace lime {
namespace {

constexpr Bytes kWholeBytes = 64 * kMiB;  // a file of this size is hashed whole
constexpr Bytes kStep = kMiB, kSampleBytes = 4 * kKiB;

}  // namespace

absl::StatusOr<WrittenFile> RecordOf(const FileDescriptor& file, const std::string& path) {
  WrittenFile written{.name = std::filesystem::path(path).filename().string()};
  LIME_ASSIGN_OR_RETURN(written.bytes, FileBytes(file, path));
  std::vector<std::byte> buffer(static_cast<size_t>(kStep));
  Xxh3 hash;
  const auto add = [&](int64_t begin, Bytes bytes) -> absl::Status {
    const auto part = std::span(buffer).first(static_cast<size_t>(std::min(bytes, written.bytes - begin)));
    LIME_RETURN_IF_ERROR(ReadExactly(file, path, begin, part));
    hash.Add(part);
    return absl::OkStatus();
  };
  const bool whole = written.bytes <= kWholeBytes;
  for (int64_t begin = 0; begin < written.bytes; begin += kStep) LIME_RETURN_IF_ERROR(add(begin, whole ? kStep : kSampleBytes));
  if (!whole) LIME_RETURN_IF_ERROR(add(written.bytes - kSampleBytes, kSampleBytes));
  written.xxh3 = hash.value();
  return written;
}

bool IsUnchanged(const std::string& folder, const WrittenFile& written) {
  const std::string path = folder + "/" + written.name;
  const absl::StatusOr<FileDescriptor> file = OpenForReading(path);
  if (!file.ok()) return false;
  const absl::StatusOr<WrittenFile> found = RecordOf(*file, path);
  return found.ok() && *found == written;
}

}  // namespace lime
