// What is sent of a block store, unit by unit. Pure: of one manifest both ends make the same list.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "daemon/weights/block_store_manifest.h"
#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/plan/model_spec.h"

namespace lime {

// Bytes that are checked at once: a range of the manifest, or a hole of less than 4 KiB between two.
struct StoreUnit {
  int32_t file = 0;  // index into StoreManifest::files
  int64_t offset = 0;
  Bytes bytes = 0;
  std::optional<uint64_t> xxh3;  // none: a hole

  friend bool operator==(const StoreUnit&, const StoreUnit&) = default;
};

// A block and where it lies.
struct PlacedBlock {
  StoredBlock block;
  int32_t file = 0;  // index into StoreManifest::files

  int64_t end() const { return block.offset + block.bytes; }
};
// In the order of files and offsets. NotFound where the manifest lacks one of `blocks`.
absl::StatusOr<std::vector<PlacedBlock>> PlaceBlocks(const StoreManifest& manifest, std::span<const BlockId> blocks);
// All that the manifest lists.
std::vector<BlockId> BlocksOf(const StoreManifest& manifest);

// The units that make up the blocks, in the order of files and offsets; what two blocks share is there once. InvalidArgument where the
// ranges of the manifest leave a hole of 4 KiB or more.
absl::StatusOr<std::vector<StoreUnit>> CutIntoUnits(const StoreManifest& manifest, std::span<const BlockId> blocks);

// Bytes of a file, as ranges that do not touch.
class ByteSet {
 public:
  void Add(int64_t begin, int64_t end);
  bool Contains(int64_t begin, int64_t end) const;

 private:
  std::map<int64_t, int64_t> ranges_;  // begin -> end
};

// What a coordinator offers a device: the model that its store is made of, and the blocks that the device should hold of it.
struct StoreOffer {
  std::string model;       // its name, for people
  StoreManifest manifest;  // weight files alone
  std::string config_json;
  std::vector<std::string> headers;  // what each file begins with
  std::vector<BlockId> blocks;
  bool check = true;  // read back what is there already, rather than trust that it is as it was written

  friend bool operator==(const StoreOffer&, const StoreOffer&) = default;
};
inline constexpr Bytes kMaxOfferBytes = 64 * kMiB;  // of manifest, config and headers

// From outside: bounded, plain names, headers that fit their files, blocks that can be cut; the first thing wrong is named.
absl::Status CheckOffer(const StoreOffer& offer);

}  // namespace lime
