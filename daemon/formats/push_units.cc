#include "daemon/formats/push_units.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "daemon/formats/safetensors.h"
#include "daemon/machine/files.h"
#include "planner/base/json_text.h"

namespace lime {
namespace {

constexpr char kWeightFileEnd[] = ".safetensors";

std::tuple<int32_t, int64_t, int64_t> Place(const PlacedBlock& placed) {
  return {placed.file, placed.block.offset, placed.block.bytes};
}

// Cuts the part of one block behind `covered`.
absl::Status CutPlaced(const StoredFile& file, const PlacedBlock& placed, int64_t covered, std::vector<PushUnit>& units) {
  const auto hole = [&](int64_t end) {
    if (end - covered >= kStoreAlignment) {
      return Invalid(file.name, ": block ", BlockName(placed.block.id), " has no checksum for the bytes from ", covered, " to ", end,
                     "; prepare the model again");
    }
    if (end > covered) units.push_back({placed.file, covered, end - covered, std::nullopt});
    return absl::OkStatus();
  };
  // The block before may end inside a tensor of this block, because its end was rounded up. That
  // tensor is taken whole.
  const auto straddles = [&](const StoredRange& range) {
    const int64_t end = range.offset + range.bytes;
    return range.offset >= placed.block.offset && range.offset < covered && end > covered && end <= placed.end();
  };
  if (const auto range = std::ranges::find_if(file.ranges, straddles); covered > placed.block.offset && range != file.ranges.end()) {
    units.push_back({placed.file, range->offset, range->bytes, range->xxh3});
    covered = range->offset + range->bytes;
  }
  for (auto range = std::ranges::lower_bound(file.ranges, covered, {}, &StoredRange::offset); range != file.ranges.end(); ++range) {
    const int64_t end = range->offset + range->bytes;
    if (range->offset >= placed.end()) break;
    // It belongs to a tied block that is cut differently.
    if (range->offset < covered || end > placed.end()) continue;
    LIME_RETURN_IF_ERROR(hole(range->offset));
    units.push_back({placed.file, range->offset, range->bytes, range->xxh3});
    covered = end;
  }
  return hole(placed.end());
}

absl::Status CheckHeader(const StoredFile& file, const std::string& header) {
  const auto bytes = std::as_bytes(std::span(header));
  LIME_ASSIGN_OR_RETURN(const int64_t json_bytes, ParseSafetensorsLength(bytes, file.bytes, file.name));
  if (static_cast<int64_t>(header.size()) != kSafetensorsLengthBytes + json_bytes) {
    return Invalid(file.name, ": its header has ", json_bytes, " bytes, but ", header.size(), " were sent");
  }
  LIME_RETURN_IF_ERROR(ParseSafetensorsHeader(std::string_view(header).substr(kSafetensorsLengthBytes), file.bytes, file.name).status());
  for (const StoredBlock& block : file.blocks) {
    if (block.offset < static_cast<int64_t>(header.size()))
      return Invalid(file.name, ": block ", BlockName(block.id), " begins inside the header");
  }
  return absl::OkStatus();
}

absl::Status CheckFiles(const StoreOffer& offer) {
  const std::vector<StoredFile>& files = offer.manifest.files;
  if (offer.headers.size() != files.size()) return Invalid(files.size(), " files and ", offer.headers.size(), " headers were sent");
  for (size_t i = 0; i < files.size(); ++i) {
    if (files[i].blocks.empty() || !files[i].name.ends_with(kWeightFileEnd) || !IsPlainFileName(files[i].name))
      return Invalid("\"", absl::CEscape(files[i].name), "\" is not a weight file of a block store");
    LIME_RETURN_IF_ERROR(CheckHeader(files[i], offer.headers[i]));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<BlockId> BlocksOf(const StoreManifest& manifest) {
  std::vector<BlockId> blocks;
  for (const StoredFile& file : manifest.files) {
    for (const StoredBlock& block : file.blocks) blocks.push_back(block.id);
  }
  return blocks;
}

absl::StatusOr<std::vector<PlacedBlock>> PlaceBlocks(const StoreManifest& manifest, std::span<const BlockId> blocks) {
  std::map<std::pair<BlockKind, int32_t>, PlacedBlock> all;
  for (size_t i = 0; i < manifest.files.size(); ++i) {
    for (const StoredBlock& block : manifest.files[i].blocks) all[{block.id.kind, block.id.layer}] = {block, static_cast<int32_t>(i)};
  }
  std::vector<PlacedBlock> placed;
  for (const BlockId id : blocks) {
    const auto found = all.find({id.kind, id.layer});
    if (found == all.end()) return absl::NotFoundError(absl::StrCat("the block store has no block ", BlockName(id)));
    placed.push_back(found->second);
  }
  std::ranges::sort(placed, {}, Place);
  return placed;
}

absl::StatusOr<std::vector<PushUnit>> CutIntoUnits(const StoreManifest& manifest, std::span<const BlockId> blocks) {
  LIME_ASSIGN_OR_RETURN(const std::vector<PlacedBlock> placed, PlaceBlocks(manifest, blocks));
  std::vector<PushUnit> units;
  int32_t file = -1;
  int64_t covered = 0;  // end of the bytes of `file` that are in units
  for (const PlacedBlock& block : placed) {
    if (block.file != file) file = block.file, covered = 0;
    covered = std::max(covered, block.block.offset);
    if (covered >= block.end()) continue;
    LIME_RETURN_IF_ERROR(CutPlaced(manifest.files[static_cast<size_t>(file)], block, covered, units));
    covered = block.end();
  }
  return units;
}

void ByteSet::Add(int64_t begin, int64_t end) {
  auto next = ranges_.lower_bound(begin);
  if (next != ranges_.begin() && std::prev(next)->second >= begin) --next;
  while (next != ranges_.end() && next->first <= end) {
    begin = std::min(begin, next->first);
    end = std::max(end, next->second);
    next = ranges_.erase(next);
  }
  ranges_[begin] = end;
}

bool ByteSet::Contains(int64_t begin, int64_t end) const {
  const auto after = ranges_.upper_bound(begin);
  return after != ranges_.begin() && std::prev(after)->second >= end;
}

absl::Status CheckOffer(const StoreOffer& offer) {
  if (static_cast<Bytes>(offer.config_json.size()) > kMaxJsonBytes)
    return Invalid("config.json has ", offer.config_json.size(), " bytes, the limit is ", kMaxJsonBytes);
  if (offer.manifest.bundles) return Invalid("the offer has bundles, which are not pushed");
  LIME_RETURN_IF_ERROR(CheckFiles(offer));
  std::set<std::pair<BlockKind, int32_t>> seen;
  for (const BlockId id : offer.blocks) {
    if (!seen.insert({id.kind, id.layer}).second) return Invalid("block ", BlockName(id), " is offered twice");
  }
  return CutIntoUnits(offer.manifest, offer.blocks).status();
}

}  // namespace lime
