// What a block store says of itself: its files, where each block lies in them, and their checksums.
//
// `lime_store.json` is the manifest of a whole store and is written last. `lime_store.partial` has the same form and lists what a store
// that is being written has so far. Both are hostile input: bounded, checked, and an error names the file and the field.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/plan/model_spec.h"

namespace lime {

inline constexpr char kStoreManifestName[] = "lime_store.json";
inline constexpr char kStoreJournalName[] = "lime_store.partial";
inline constexpr char kStoreFilePrefix[] = "lime_store.";  // no file that a store copies begins so
// Tensors named so fill holes between blocks; they belong to no model.
inline constexpr char kStorePadPrefix[] = "__lime_pad__.";

inline constexpr int kStoreVersion = 3;
inline constexpr Bytes kStoreAlignment = 4 * kKiB;  // of blocks, at both ends
// 405 billion parameters in bf16, 126 layers, take 6.4 MB: 77,000 ranges of 69 bytes of text, and 8 for each of 128,256 rows.
inline constexpr Bytes kMaxStoreManifestBytes = 16 * kMiB;

// A block is [offset, offset + bytes) of its file. A tied head begins inside the embedding; other blocks share no byte.
struct StoredBlock {
  BlockId id;
  int64_t offset = 0;
  Bytes bytes = 0;
  uint64_t xxh3 = 0;

  friend bool operator==(const StoredBlock&, const StoredBlock&) = default;
};

// Bytes that streaming reads at once: a tensor that is kept whatever streams, or of a matrix the rows that lie in one piece of its block.
struct StoredRange {
  int64_t offset = 0;
  Bytes bytes = 0;
  uint64_t xxh3 = 0;

  friend bool operator==(const StoredRange&, const StoredRange&) = default;
};

// A table of which single rows are read: `xxh3.size()` rows of `row_bytes`, one behind the other.
struct StoredRows {
  int64_t offset = 0;
  Bytes row_bytes = 0;
  std::vector<uint32_t> xxh3;  // by row: the low half of XXH3-64, so that a vocabulary of 150,000 takes 600 KB of memory

  friend bool operator==(const StoredRows&, const StoredRows&) = default;
};

struct StoredFile {
  std::string name;  // plain, beside the manifest
  Bytes bytes = 0;
  uint64_t xxh3 = 0;  // of the whole file
  std::vector<StoredBlock> blocks;
  std::vector<StoredRange> ranges;  // by offset, then length, no two the same; those of a tied head may overlap the embedding's
  std::vector<StoredRows> rows;     // of the embedding: its weight; scales and biases where it is packed

  friend bool operator==(const StoredFile&, const StoredFile&) = default;
};

struct StoreManifest {
  uint64_t source_xxh3 = 0;  // of the model that the store was made from
  int64_t layers = 0;
  std::vector<StoredFile> files;

  Bytes bytes() const;  // of all files
  friend bool operator==(const StoreManifest&, const StoreManifest&) = default;
};

// Pure. The checksum that stands in these files so: 16 lower-case hexadecimal digits (HashText); nothing where `text` is none.
std::optional<uint64_t> ParseHash(std::string_view text);

// Pure. `name` (the path) opens every error. A manifest lists embedding, head and both blocks of every layer, a journal may list fewer.
absl::StatusOr<StoreManifest> ParseStoreManifest(std::string_view text, std::string_view name);
absl::StatusOr<StoreManifest> ParseStoreJournal(std::string_view text, std::string_view name);

// Pure: the text that is parsed above, as one JSON object.
std::string StoreManifestText(const StoreManifest& manifest);

// The manifest of the store in `dir`; kFailedPrecondition where the store is not finished or `dir` is none.
absl::StatusOr<StoreManifest> ReadStoreManifest(const std::string& dir);

}  // namespace lime
