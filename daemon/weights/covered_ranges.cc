#include "daemon/weights/covered_ranges.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/weights/hashing_reader.h"
#include "daemon/weights/store_units.h"

namespace lime {
namespace {

// Ranges of one file, one behind the other, and what covers them: [begin, end) is read in one go.
struct Run {
  int32_t file = 0;
  int64_t begin = 0, end = 0;
  std::vector<StoredRange> covering;  // with the checksums that the store says
  std::vector<size_t> ranges;         // indices of those asked for
};

// In the order of files and offsets. A range that is not covered is in none.
std::vector<Run> RunsOf(const Checkpoint& checkpoint, const std::vector<TensorLocation>& ranges) {
  std::vector<size_t> order(ranges.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::sort(order, {}, [&](size_t i) { return std::pair(ranges[i].file, ranges[i].offset); });
  std::vector<Run> runs;
  for (const size_t i : order) {
    const TensorLocation& at = ranges[i];
    const std::vector<BlockExtent> covering = checkpoint.RangesOver(at.file, at.offset, at.bytes);
    ByteSet covered;
    for (const BlockExtent& range : covering) covered.Add(range.offset, range.offset + range.bytes);
    if (!covered.Contains(at.offset, at.offset + at.bytes)) continue;
    if (runs.empty() || runs.back().file != at.file || covering.front().offset > runs.back().end) {
      runs.push_back({.file = at.file, .begin = covering.front().offset, .end = covering.front().offset, .covering = {}, .ranges = {}});
    }
    Run& run = runs.back();
    run.ranges.push_back(i);
    for (const BlockExtent& range : covering) {
      const StoredRange stored{range.offset, range.bytes, *range.xxh3};
      if (std::ranges::find(run.covering, stored) == run.covering.end()) run.covering.push_back(stored);
      run.begin = std::min(run.begin, range.offset);
      run.end = std::max(run.end, range.offset + range.bytes);
    }
  }
  return runs;
}

// What was found of the ranges in `covering`, then of those asked for.
absl::StatusOr<std::vector<StoredRange>> Read(HashingReader& reader, const std::string& path, const Run& run,
                                              const std::vector<TensorLocation>& ranges, const CoveredRangesOptions& options) {
  const int64_t begin = run.begin / kStoreAlignment * kStoreAlignment;
  StoredFile shape{.bytes = run.end - begin};
  for (const StoredRange& range : run.covering) shape.ranges.push_back({range.offset - begin, range.bytes});
  for (const size_t i : run.ranges) shape.ranges.push_back({ranges[i].offset - begin, ranges[i].bytes});
  LIME_ASSIGN_OR_RETURN(const StoredFile found, reader.Hash(path, begin, shape, [&](Bytes) {
    const bool cancelled = options.cancelled != nullptr && options.cancelled->load(std::memory_order_relaxed);
    return cancelled ? absl::CancelledError(path + ": reading was interrupted") : absl::OkStatus();
  }));
  return found.ranges;
}

}  // namespace

absl::StatusOr<std::vector<std::optional<uint64_t>>> HashCoveredRanges(const Checkpoint& checkpoint,
                                                                       const std::vector<TensorLocation>& ranges,
                                                                       const CoveredRangesOptions& options) {
  std::vector<std::optional<uint64_t>> hashes(ranges.size());
  const std::vector<Run> runs = RunsOf(checkpoint, ranges);
  if (runs.empty()) return hashes;
  LIME_ASSIGN_OR_RETURN(HashingReader reader, HashingReader::Create());
  for (const Run& run : runs) {
    const std::string& path = checkpoint.files()[static_cast<size_t>(run.file)].path;
    const StoredRange* differs = nullptr;
    std::vector<StoredRange> found;
    for (int attempt = 0; attempt < options.max_attempts && (attempt == 0 || differs != nullptr); ++attempt) {
      LIME_ASSIGN_OR_RETURN(found, Read(reader, path, run, ranges, options));
      const auto same = [](const StoredRange& one, const StoredRange& other) { return one.xxh3 == other.xxh3; };
      const auto first = std::ranges::mismatch(run.covering, found, same).in1;
      differs = first != run.covering.end() ? &*first : nullptr;
    }
    if (differs != nullptr) {
      return absl::DataLossError(absl::StrCat(path, ": ", options.block, ", ", differs->bytes, " bytes at offset ", differs->offset,
                                              " differ from their checksum after ", options.max_attempts,
                                              " reads; remove the file and run `lime prepare` again"));
    }
    for (size_t i = 0; i < run.ranges.size(); ++i) hashes[run.ranges[i]] = found[run.covering.size() + i].xxh3;
  }
  return hashes;
}

}  // namespace lime
