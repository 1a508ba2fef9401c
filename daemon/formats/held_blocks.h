// The list of the blocks of a pushed store that a device holds. The folder is a block store in which
// some blocks are holes:
//
//   config.json
//   layer_0000.safetensors ... non_layer.safetensors    full size; blocks not held are zeros
//   lime_store.model                                     the manifest of the whole model
//   lime_store.held                                      which blocks are held
//   lime_store.name                                      what the model is called, for people
//
// The folder has no lime_store.json and no index of its shards, so no program takes it for a model.
// Checkpoint::OpenPart reads it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/formats/block_store_manifest.h"
#include "planner/base/status.h"

namespace lime {

inline constexpr char kPushedManifestName[] = "lime_store.model";
inline constexpr char kHeldBlocksName[] = "lime_store.held";
inline constexpr char kPushedNameFile[] = "lime_store.name";

struct HeldBlocks {
  uint64_t manifest_xxh3 = 0;  // checksum of the manifest's text
  std::vector<BlockId> held;   // complete, synced and checked
  std::vector<BlockId> begun;  // some of their bytes may be there

  bool Holds(BlockId id) const;
  friend bool operator==(const HeldBlocks&, const HeldBlocks&) = default;
};

uint64_t ManifestTextHash(std::string_view text);

// Pure. `name` (the path) opens every error. A block that `manifest` lacks, or that the text names
// twice, is an error.
absl::StatusOr<HeldBlocks> ParseHeldBlocks(std::string_view text, std::string_view name, const StoreManifest& manifest);
std::string HeldBlocksText(const HeldBlocks& held);

// The manifest and the held blocks of a pushed store. FailedPrecondition if `dir` is no pushed
// store, or if a push was interrupted before its first block.
struct PushedManifest {
  StoreManifest manifest;
  HeldBlocks held;
};
absl::StatusOr<PushedManifest> ReadPushedManifest(const std::string& dir);

// The held blocks of a pushed store; none if its push was interrupted before its first block.
// Returns nothing if `dir` is an ordinary model folder, whose blocks may all be read. NotFound if
// `dir` is no folder.
absl::StatusOr<std::optional<std::vector<BlockId>>> BlocksHeldIn(const std::string& dir);

}  // namespace lime
