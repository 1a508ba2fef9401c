#include "daemon/weights/part_reader.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/formats/hashing_reader.h"
#include "daemon/formats/push_units.h"

namespace lime {
namespace {

constexpr Bytes kMaxGap = 16 * kKiB;  // read across smaller gaps between two ranges
constexpr Bytes kPlaceAlignment = 4 * kKiB;

// The index of a tensor among its matrix's ranges.
int PartIndex(TensorPart part) {
  return part == TensorPart::kWeight ? 0 : part == TensorPart::kScales ? 1 : 2;
}

// ---- Checksums of ranges that the block store does not list, because a plan cuts its blocks
// differently. The listed ranges that cover them are read once and compared; the new checksums are
// computed on the way.

struct CoveredRangesOptions {
  // The block of the ranges; for people.
  std::string block;
  // Tries to read a range that differs from its checksum.
  int max_attempts = 4;
  // Ends the reading with kCancelled.
  const std::atomic<bool>* cancelled = nullptr;
};

// Consecutive ranges of one file and the listed ranges that cover them. [begin, end) is read at
// once.
struct Run {
  int32_t file = 0;
  int64_t begin = 0, end = 0;
  std::vector<StoredRange> covering;  // with the store's checksums
  std::vector<size_t> ranges;         // indices of the ranges asked for
};

// In the order of files and offsets. A range that is not completely covered is left out.
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

// Checksums of the ranges in `covering`, then of the ranges asked for.
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

// XXH3-64 of each range; nothing if some of its bytes have no checksum in the store. Reads past the
// page cache, through 16 MiB of memory. DataLoss names file, block and offset, and says what to do.
// REQUIRES: no two of `ranges` overlap. Thread: any; blocks.
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

}  // namespace

// Used on the device's thread only, once it was posted.
struct PartReader::Request {
  int block = 0;
  int part = 0;
  std::byte* place = nullptr;
  Completion done;
  int64_t tag = 0;
  int reads_left = 0;
  int attempts = 0;
  absl::Status status;
};

absl::StatusOr<std::unique_ptr<PartReader>> PartReader::Open(const Checkpoint& checkpoint, const ModelSpec& spec, const Options& options) {
  LIME_ASSIGN_OR_RETURN(
      std::unique_ptr<BlockDevice> device,
      OpenBlockDevice(checkpoint.FilePaths(), {.channels = options.channels, .direct = true, .io_uring = options.io_uring}));
  if (options.wrap_device) device = options.wrap_device(std::move(device));
  auto reader = std::make_unique<BlockReader>(std::move(device), BlockReader::Options{.read_bytes = options.read_bytes});
  return std::unique_ptr<PartReader>(new PartReader(checkpoint, spec, options, std::move(reader)));
}

PartReader::PartReader(const Checkpoint& checkpoint, const ModelSpec& spec, const Options& options, std::unique_ptr<BlockReader> reader)
    : checkpoint_(checkpoint), spec_(spec), options_(options), reader_(std::move(reader)) {
  for (const BlockSpec& block : spec.blocks) {
    std::vector<Part>& parts = blocks_.emplace_back();
    const std::vector<BlockPart> cut = options.cut ? options.cut(block) : CutBlock(block, options.part_bytes);
    for (const BlockPart& part : cut) parts.push_back(LayOut(block, part));
  }
}

// ---- Layout

PartReader::Part PartReader::LayOut(const BlockSpec& block, const BlockPart& cut) const {
  Part part{.rows = {}, .ranges = {}, .reads = {}};
  for (const MatrixRows& rows : cut.rows) {
    RowRanges ranges{.rows = rows};
    for (const TensorSpec& tensor : block.OfExpert(rows.expert)) {
      if (tensor.role != rows.role || IsPinned(tensor)) continue;
      const TensorLocation whole = checkpoint_.location(tensor);
      const Bytes row_bytes = tensor.info.bytes / tensor.info.shape[0];
      const TensorLocation at{whole.file, whole.offset + rows.begin * row_bytes, (rows.end - rows.begin) * row_bytes};
      ranges.range[PartIndex(tensor.part)] = static_cast<int>(part.ranges.size());
      part.ranges.push_back(
          {.at = at, .element = ElementBytes(tensor.info.dtype), .xxh3 = checkpoint_.RangeHash(at.file, at.offset, at.bytes)});
    }
    part.rows.push_back(ranges);
  }
  LayOutReads(part);
  return part;
}

// Joins neighbours in a file into one read. Exception: a range that would not arrive at a multiple
// of its element gets its own read, and slides down afterwards.
void PartReader::LayOutReads(Part& part) const {
  std::vector<Range*> order;
  for (Range& range : part.ranges) order.push_back(&range);
  std::ranges::sort(order, {}, [](const Range* range) { return std::pair(range->at.file, range->at.offset); });
  const Range* previous = nullptr;
  for (Range* range : order) {
    const TensorLocation& at = range->at;
    const auto arrives_at = [&](const Read& read) {
      return read.place + reader_->BufferOffset(read.extent) + (at.offset - read.extent.offset);
    };
    Read* last = part.reads.empty() ? nullptr : &part.reads.back();
    const int64_t gap = last == nullptr ? -1 : at.offset - (last->extent.offset + last->extent.bytes);
    const bool joins = last != nullptr && last->extent.file == at.file && gap >= 0 && gap <= kMaxGap && previous->slide == 0 &&
                       arrives_at(*last) % range->element == 0;
    if (joins) {
      last->extent.bytes = at.offset + at.bytes - last->extent.offset;
    } else {
      part.reads.push_back({.extent = {at.file, at.offset, at.bytes}, .place = part.place_bytes});
      last = &part.reads.back();
    }
    range->slide = arrives_at(*last) % range->element;
    range->offset = arrives_at(*last) - range->slide;
    part.place_bytes = RoundUp(last->place + reader_->BufferBytes(last->extent), kPlaceAlignment);
    previous = range;
  }
}

RowsInMemory PartReader::Rows(int block, int part, int i, const std::byte* place) const {
  const Part& layout = blocks_[block][part];
  const RowRanges& ranges = layout.rows[i];
  const auto at = [&](int index) { return ranges.range[index] < 0 ? nullptr : place + layout.ranges[ranges.range[index]].offset; };
  return {.rows = ranges.rows, .weight = at(0), .scales = at(1), .biases = at(2)};
}

// ---- Checksums

std::vector<PartReader::Range*> PartReader::Unchecked(int block, const std::vector<int>& parts) {
  std::vector<Range*> unchecked;
  if (!checkpoint_.is_block_store()) return unchecked;
  for (const int part : parts) {
    for (Range& range : blocks_[block][part].ranges) {
      if (!range.xxh3) unchecked.push_back(&range);
    }
  }
  return unchecked;
}

absl::Status PartReader::LearnChecksums(int block, const std::vector<int>& parts, const std::atomic<bool>* cancelled) {
  const std::vector<Range*> unchecked = Unchecked(block, parts);
  std::vector<TensorLocation> places;
  places.reserve(unchecked.size());
  for (const Range* range : unchecked) places.push_back(range->at);
  LIME_ASSIGN_OR_RETURN(
      const std::vector<std::optional<uint64_t>> hashes,
      HashCoveredRanges(checkpoint_, places,
                        {.block = BlockName(spec_.blocks[block].id), .max_attempts = options_.max_attempts, .cancelled = cancelled}));
  for (size_t i = 0; i < unchecked.size(); ++i) unchecked[i]->xxh3 = hashes[i];
  return absl::OkStatus();
}

void PartReader::LearnChecksums(const LoadedBlock& loaded) {
  const auto block = std::ranges::find(spec_.blocks, loaded.id, &BlockSpec::id);
  std::vector<int> all(blocks_[block - spec_.blocks.begin()].size());
  std::iota(all.begin(), all.end(), 0);
  const std::vector<Range*> unchecked = Unchecked(static_cast<int>(block - spec_.blocks.begin()), all);
  if (unchecked.empty()) return;
  std::map<std::pair<int32_t, int64_t>, size_t> tensors;  // by file and offset
  for (size_t i = 0; i < block->tensors.size(); ++i) {
    const TensorLocation at = checkpoint_.location(block->tensors[i]);
    tensors.emplace(std::pair(at.file, at.offset), i);
  }
  for (Range* range : unchecked) {
    const auto after = tensors.upper_bound({range->at.file, range->at.offset});
    if (after == tensors.begin()) continue;
    const auto& [place, i] = *std::prev(after);
    const int64_t from = range->at.offset - place.second;
    if (place.first != range->at.file || from + range->at.bytes > block->tensors[i].info.bytes) continue;
    range->xxh3 = XXH3_64bits(loaded.tensors[i].data + from, static_cast<size_t>(range->at.bytes));
  }
}

// ---- Reading

void PartReader::StartRead(int block, int part, std::byte* place, Completion done, int64_t tag) {
  auto request = std::make_shared<Request>();
  request->block = block;
  request->part = part;
  request->place = place;
  request->done = std::move(done);
  request->tag = tag;
  Start(request);
}

void PartReader::Start(const std::shared_ptr<Request>& request) {
  const Part& part = blocks_[request->block][request->part];
  request->reads_left = static_cast<int>(part.reads.size());
  for (const Read& read : part.reads) {
    reader_->StartRead(
        read.extent, request->place + read.place, [this, request](const absl::Status& status) { OnRead(request, status); }, request->tag);
  }
}

// All reads of a part have ended: slides, checks, and reads a damaged part again.
void PartReader::OnRead(const std::shared_ptr<Request>& request, const absl::Status& status) {
  request->status.Update(status);
  if (--request->reads_left > 0) return;
  if (!request->status.ok()) return request->done(InBlock(request->block, request->status));
  for (const Range& range : blocks_[request->block][request->part].ranges) {
    std::byte* const data = request->place + range.offset;
    if (range.slide > 0) std::memmove(data, data + range.slide, static_cast<size_t>(range.at.bytes));
  }
  const absl::Status check = Check(*request);
  if (!check.ok() && ++request->attempts < options_.max_attempts) return Start(request);
  request->done(check);
}

absl::Status PartReader::Check(const Request& request) const {
  for (const Range& range : blocks_[request.block][request.part].ranges) {
    if (!range.xxh3 || XXH3_64bits(request.place + range.offset, static_cast<size_t>(range.at.bytes)) == *range.xxh3) continue;
    return absl::DataLossError(absl::StrCat(checkpoint_.files()[range.at.file].path, ": ", BlockName(spec_.blocks[request.block].id), ", ",
                                            range.at.bytes, " bytes at offset ", range.at.offset, " differ from their checksum after ",
                                            options_.max_attempts, " reads; remove the file and run `lime prepare` again"));
  }
  return absl::OkStatus();
}

absl::Status PartReader::InBlock(int block, const absl::Status& status) const {
  if (absl::IsCancelled(status)) return status;
  return absl::Status(status.code(), absl::StrCat(BlockName(spec_.blocks[block].id), ": ", status.message()));
}

}  // namespace lime
