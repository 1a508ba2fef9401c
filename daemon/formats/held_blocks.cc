#include "daemon/formats/held_blocks.h"

#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/sampling/logits_hash.h"
#include "daemon/formats/push_units.h"
#include "daemon/machine/files.h"
#include "nlohmann/json.hpp"
#include "planner/base/json_fields.h"
#include "planner/base/json_text.h"

namespace lime {
namespace {

using nlohmann::json;

constexpr char kHeldFormat[] = "lime-held-blocks";
constexpr int64_t kVersion = 1;
constexpr size_t kMaxBlocks = 1'000'000;

json JsonOf(const std::vector<BlockId>& blocks) {
  json names = json::array();
  for (const BlockId id : blocks) names.push_back(BlockName(id));
  return names;
}

// Finds blocks by their names; each at most once.
class BlockNames {
 public:
  BlockNames(const StoreManifest& manifest, std::string where) : where_(std::move(where)) {
    for (const BlockId id : BlocksOf(manifest)) by_name_.emplace(BlockName(id), id);
  }

  absl::Status Parse(const json& names, std::vector<BlockId>& blocks) {
    for (const json& name : names) {
      const auto found = name.is_string() ? by_name_.find(name.get<std::string>()) : by_name_.end();
      if (found == by_name_.end())
        return Invalid(where_, ": ", absl::CEscape(name.dump()), " is not a block of the model, or is named twice");
      blocks.push_back(found->second);
      by_name_.erase(found);
    }
    return absl::OkStatus();
  }

 private:
  const std::string where_;
  std::map<std::string, BlockId> by_name_;  // not used so far
};

}  // namespace

bool HeldBlocks::Holds(BlockId id) const {
  return std::ranges::find(held, id) != held.end();
}

uint64_t ManifestTextHash(std::string_view text) {
  return XXH3_64bits(text.data(), text.size());
}

absl::StatusOr<HeldBlocks> ParseHeldBlocks(std::string_view text, std::string_view name, const StoreManifest& manifest) {
  const std::string where(name);
  LIME_ASSIGN_OR_RETURN(const json root, ParseJsonObject(text, name, kMaxStoreManifestBytes));
  JsonFields fields(root, where);
  const bool known = fields.StringOr("format", "") == kHeldFormat && fields.IntOr("version", 0, 0, 1 << 30) == kVersion;
  const std::string hash = fields.String("manifest_xxh3");
  const json &held = fields.Array("held", kMaxBlocks), &begun = fields.Array("begun", kMaxBlocks);
  LIME_RETURN_IF_ERROR(fields.status());
  if (!known) return absl::InvalidArgumentError(where + ": is not a list of held blocks that this program can read");
  const std::optional<uint64_t> manifest_xxh3 = ParseHash(hash);
  if (!manifest_xxh3) return Invalid(where, ": field \"manifest_xxh3\" is not 16 hexadecimal digits");
  HeldBlocks blocks{.manifest_xxh3 = *manifest_xxh3};
  BlockNames names(manifest, where);
  LIME_RETURN_IF_ERROR(names.Parse(held, blocks.held));
  LIME_RETURN_IF_ERROR(names.Parse(begun, blocks.begun));
  return blocks;
}

std::string HeldBlocksText(const HeldBlocks& held) {
  const json root = {{"format", kHeldFormat},
                     {"version", kVersion},
                     {"manifest_xxh3", HashText(held.manifest_xxh3)},
                     {"held", JsonOf(held.held)},
                     {"begun", JsonOf(held.begun)}};
  return root.dump(1) + "\n";
}

absl::StatusOr<PushedManifest> ReadPushedManifest(const std::string& dir) {
  const std::string path = dir + "/" + kPushedManifestName, held_path = dir + "/" + kHeldBlocksName;
  if (!FileExists(path) || !FileExists(held_path))
    return absl::FailedPreconditionError(absl::StrCat(dir, ": holds no pushed blocks; run `lime push`"));
  LIME_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxStoreManifestBytes));
  LIME_ASSIGN_OR_RETURN(const std::string held_text, ReadTextFile(held_path, kMaxStoreManifestBytes));
  PushedManifest pushed;
  LIME_ASSIGN_OR_RETURN(pushed.manifest, ParseStoreManifest(text, path));
  LIME_ASSIGN_OR_RETURN(pushed.held, ParseHeldBlocks(held_text, held_path, pushed.manifest));
  if (pushed.held.manifest_xxh3 != ManifestTextHash(text))
    return absl::FailedPreconditionError(absl::StrCat(dir, ": a push was interrupted while it began; run `lime push` again"));
  return pushed;
}

absl::StatusOr<std::optional<std::vector<BlockId>>> BlocksHeldIn(const std::string& dir) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(dir, ignored))
    return absl::NotFoundError(absl::StrCat(dir, ": is not a folder; name the folder that holds the model's config.json and safetensors"));
  if (!FileExists(dir + "/" + kHeldBlocksName) || FileExists(dir + "/" + kStoreManifestName)) return std::nullopt;
  absl::StatusOr<PushedManifest> pushed = ReadPushedManifest(dir);
  if (pushed.ok()) return std::move(pushed->held.held);
  if (absl::IsFailedPrecondition(pushed.status())) return std::vector<BlockId>{};
  return pushed.status();
}

}  // namespace lime
