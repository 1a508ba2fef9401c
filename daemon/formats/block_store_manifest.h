// The manifest of a block store: its files, where each block lies in them, and their checksums.
//
// `lime_store.json` is the manifest of a whole store and is written last. `lime_store.partial` has
// the same form; it lists the finished files of a store that is being written. Both are hostile
// input: sizes are bounded, everything is checked, and an error names the file and the field.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/base/names.h"
#include "planner/base/status.h"
#include "planner/plan/model/model_spec.h"

namespace lime {

inline constexpr char kStoreManifestName[] = "lime_store.json";
inline constexpr char kStoreJournalName[] = "lime_store.partial";
inline constexpr char kStoreFilePrefix[] = "lime_store.";  // begins no copied file's name
// Tensors whose names begin with this fill holes between blocks. They belong to no model.
inline constexpr char kStorePadPrefix[] = "__lime_pad__.";

inline constexpr int kStoreVersion = 3;             // of a store without bundles
inline constexpr int kBundledStoreVersion = 4;      // of one with bundles: programs that know version 3 alone refuse it
inline constexpr Bytes kStoreAlignment = 4 * kKiB;  // of begin and end of every block
// A model of 405 billion parameters in bf16 with 126 layers takes 6.4 MB: 77,000 ranges of 69 bytes
// of text, and 8 bytes for each of 128,256 rows.
inline constexpr Bytes kMaxStoreManifestBytes = 16 * kMiB;

// A block is [offset, offset + bytes) of its file. A tied head begins inside the embedding; other
// blocks share no byte.
struct StoredBlock {
  BlockId id;
  int64_t offset = 0;
  Bytes bytes = 0;
  uint64_t xxh3 = 0;

  friend bool operator==(const StoredBlock&, const StoredBlock&) = default;
};

// Bytes that streaming reads at once: a tensor that stays in memory (IsPinned), or the rows of a
// matrix that lie in one part of its block.
struct StoredRange {
  int64_t offset = 0;
  Bytes bytes = 0;
  uint64_t xxh3 = 0;

  friend bool operator==(const StoredRange&, const StoredRange&) = default;
};

// A range of one of several files: of a checkpoint, or of a manifest.
struct BlockExtent {
  int32_t file = 0;  // index into Checkpoint::files(), or StoreManifest::files
  int64_t offset = 0;
  Bytes bytes = 0;
  std::optional<uint64_t> xxh3;  // checksum of exactly these bytes, if it is known

  friend bool operator==(const BlockExtent&, const BlockExtent&) = default;
};

// A table whose rows are read one by one: `xxh3.size()` rows of `row_bytes` bytes, without gaps.
struct StoredRows {
  int64_t offset = 0;
  Bytes row_bytes = 0;
  std::vector<uint32_t> xxh3;  // low halves of XXH3-64, by row: 600 KB for 150,000 rows

  friend bool operator==(const StoredRows&, const StoredRows&) = default;
};

struct StoredFile {
  std::string name;  // without folders; the file lies beside the manifest
  Bytes bytes = 0;
  uint64_t xxh3 = 0;  // of the whole file
  std::vector<StoredBlock> blocks;
  // By offset, then length; no two are the same. Ranges of a tied head may overlap ranges of the
  // embedding.
  std::vector<StoredRange> ranges;
  // The embedding's weight; also scales and biases if it is packed.
  std::vector<StoredRows> rows;

  friend bool operator==(const StoredFile&, const StoredFile&) = default;
};

// Why the MLP of a layer has no bundles: a neuron that is skipped might not be zero.
enum class NoBundles : uint8_t {
  kNotFinite,    // a weight of the MLP is infinite or NaN
  kMayOverflow,  // up of a gated MLP could overflow, and zero times infinity is not zero
};
inline constexpr Names<NoBundles, 2> kNoBundlesNames{{{NoBundles::kNotFinite, "not_finite"}, {NoBundles::kMayOverflow, "may_overflow"}}};

// The bundles of a layer's MLP (bundle_file.h): the name of a file of the manifest, which has no blocks;
// or why there are none.
struct StoredBundles {
  int32_t layer = 0;
  std::string file;
  std::optional<NoBundles> why_not;  // empty if there is a file

  // One sentence for people.  REQUIRES: why_not
  std::string WhyNot() const;
  friend bool operator==(const StoredBundles&, const StoredBundles&) = default;
};

struct StoreManifest {
  uint64_t source_xxh3 = 0;  // digest of the model that the store was made from
  int64_t layers = 0;
  std::vector<StoredFile> files;
  // By layer; a complete manifest has each layer with a dense MLP. nullopt: the store was prepared
  // without bundles.
  std::optional<std::vector<StoredBundles>> bundles;

  Bytes bytes() const;  // of all files
  friend bool operator==(const StoreManifest&, const StoreManifest&) = default;
};

// Pure. Parses a checksum as these files spell it (HashText): 16 lower-case hexadecimal digits.
// Returns nothing for any other text.
std::optional<uint64_t> ParseHash(std::string_view text);

// Pure. `name` (the path) opens every error. A complete manifest lists embedding, head and both
// blocks of every layer; a journal may list fewer.
absl::StatusOr<StoreManifest> ParseStoreManifest(std::string_view text, const std::string& name, bool complete = true);

// Pure: the text that ParseStoreManifest reads, as one JSON object.
std::string StoreManifestText(const StoreManifest& manifest);

// The manifest of the store in `dir`. kFailedPrecondition if the store is not finished or `dir` is
// no block store.
absl::StatusOr<StoreManifest> ReadStoreManifest(const std::string& dir);

}  // namespace lime
