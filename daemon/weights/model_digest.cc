#include "daemon/weights/model_digest.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/weights/block_store_hash.h"
#include "daemon/weights/block_store_manifest.h"
#include "daemon/weights/files.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

constexpr Bytes kSampleBytes = 256;
constexpr int64_t kSamples = 16;  // of every tensor, from its first bytes to its last

}  // namespace

absl::StatusOr<uint64_t> DigestTensors(const Checkpoint& checkpoint) {
  Xxh3 hash;
  const auto add = [&hash](std::string_view text) { hash.Add(std::as_bytes(std::span(text))); };
  add(checkpoint.config_json());
  std::vector<FileDescriptor> files;
  for (const CheckpointFile& file : checkpoint.files()) {
    LIME_ASSIGN_OR_RETURN(FileDescriptor opened, OpenForReading(file.path));
    files.push_back(std::move(opened));
  }
  std::vector<std::byte> sample;
  for (const auto& [name, info] : checkpoint.index()) {
    const TensorLocation& at = checkpoint.location(name);
    const auto file = static_cast<size_t>(at.file);
    add(absl::StrCat("\n", name, " ", Text(DTypeName(info.dtype)), " ", absl::StrJoin(info.shape, ","), "\n"));
    const Bytes bytes = std::min(at.bytes, kSampleBytes);
    const int64_t samples = at.bytes <= kSamples * kSampleBytes ? (at.bytes + kSampleBytes - 1) / kSampleBytes : kSamples;
    sample.resize(static_cast<size_t>(bytes));
    for (int64_t i = 0; i < samples; ++i) {
      const Bytes begin = samples > 1 ? (at.bytes - bytes) * i / (samples - 1) : 0;
      LIME_RETURN_IF_ERROR(ReadExactly(files[file], checkpoint.files()[file].path, at.offset + begin, sample));
      hash.Add(sample);
    }
  }
  return std::max<uint64_t>(1, hash.value());
}

absl::StatusOr<uint64_t> ModelDigest(const Checkpoint& checkpoint) {
  if (!checkpoint.is_block_store()) return DigestTensors(checkpoint);
  LIME_ASSIGN_OR_RETURN(const StoreManifest manifest, ReadStoreManifest(checkpoint.dir()));
  return manifest.source_xxh3;
}

}  // namespace lime
