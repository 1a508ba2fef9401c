// Cuts blocks of a block store into the units that a push sends. Pure: both ends make the same list
// from the same manifest.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "daemon/formats/block_store_manifest.h"
#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/plan/model/model_spec.h"

namespace lime {

// Bytes that are checked together: a range of the manifest, or a hole of less than 4 KiB between
// two ranges, which has no checksum.
using PushUnit = BlockExtent;

// A block and its place.
struct PlacedBlock {
  StoredBlock block;
  int32_t file = 0;  // index into StoreManifest::files

  int64_t end() const { return block.offset + block.bytes; }
};
// Sorted by file and offset. NotFound if the manifest lacks one of `blocks`.
absl::StatusOr<std::vector<PlacedBlock>> PlaceBlocks(const StoreManifest& manifest, std::span<const BlockId> blocks);
// All blocks that the manifest lists.
std::vector<BlockId> BlocksOf(const StoreManifest& manifest);

// The units of the blocks, sorted by file and offset. Bytes that two blocks share appear once.
// InvalidArgument if the ranges of the manifest leave a hole of 4 KiB or more.
absl::StatusOr<std::vector<PushUnit>> CutIntoUnits(const StoreManifest& manifest, std::span<const BlockId> blocks);

// A set of bytes of a file, as ranges that do not touch.
class ByteSet {
 public:
  void Add(int64_t begin, int64_t end);
  bool Contains(int64_t begin, int64_t end) const;

 private:
  std::map<int64_t, int64_t> ranges_;  // begin -> end
};

// A coordinator's offer to a device: the model, its store's manifest, and the blocks that the
// device should hold.
struct StoreOffer {
  std::string model;       // its name, for people
  StoreManifest manifest;  // lists weight files only
  std::string config_json;
  std::vector<std::string> headers;  // for each file, its first bytes
  std::vector<BlockId> blocks;
  // True: the device reads back bytes that are there already. False: it trusts that they are still
  // as written.
  bool check = true;

  friend bool operator==(const StoreOffer&, const StoreOffer&) = default;
};
inline constexpr Bytes kMaxOfferBytes = 64 * kMiB;  // of manifest, config and headers

// Checks an offer, which is hostile input: bounded sizes, plain file names, headers that fit their
// files, blocks that can be cut into units. The error names the first fault.
absl::Status CheckOffer(const StoreOffer& offer);

}  // namespace lime
