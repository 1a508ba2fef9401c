#include "daemon/formats/block_store_manifest.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/sampling/logits_hash.h"
#include "daemon/machine/files.h"
#include "nlohmann/json.hpp"
#include "planner/base/json_fields.h"
#include "planner/base/json_text.h"
#include "planner/plan/device/device_profile.h"
#include "planner/plan/model/block_parts.h"

namespace lime {
namespace {

using nlohmann::json;

constexpr char kFormat[] = "lime-block-store";
constexpr int64_t kMaxLayers = 100'000;
constexpr size_t kMaxFiles = 2 * kMaxLayers;
constexpr Bytes kMaxFileBytes = Bytes{1} << 52;
constexpr size_t kMaxRanges = 1'000'000;  // of one file
constexpr size_t kMaxTables = 3;          // of one file: weight, scales and biases of the embedding
constexpr size_t kRowDigits = 8;          // of one row's checksum

absl::Status FieldError(std::string_view where, std::string_view field, std::string_view problem) {
  return Invalid(Text(where), ": field \"", Text(field), "\" ", Text(problem));
}

// The value of at most 16 lower-case hexadecimal digits. Nothing if another character occurs.
std::optional<uint64_t> HexValue(std::string_view text) {
  uint64_t value = 0;
  for (const char c : text) {
    if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) return std::nullopt;
    value = value << 4 | static_cast<uint64_t>(c <= '9' ? c - '0' : c - 'a' + 10);
  }
  return value;
}

std::optional<uint64_t> ParseHex(const json& value) {
  if (!value.is_string()) return std::nullopt;
  return ParseHash(value.get_ref<const std::string&>());
}

absl::StatusOr<uint64_t> HashField(const json& object, const std::string& key, const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end()) return FieldError(where, key, "is missing");
  const std::optional<uint64_t> hash = ParseHex(*found);
  if (!hash) return FieldError(where, key, "is not 16 hexadecimal digits");
  return *hash;
}

absl::StatusOr<const json*> ArrayField(const json& object, const std::string& key, size_t most, const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_array()) return FieldError(where, key, "is not an array");
  if (found->size() > most) return FieldError(where, key, absl::StrCat("has ", found->size(), " entries, more than ", most));
  return &*found;
}

absl::StatusOr<BlockId> ParseBlockId(const json& object, int64_t layers, const std::string& where) {
  JsonFields fields(object, where);
  const std::string kind_name = fields.StringOr("kind", "");
  LIME_RETURN_IF_ERROR(fields.status());
  const std::optional<BlockKind> kind = BlockKindNamed(kind_name);
  if (!kind) return FieldError(where, "kind", "is no kind of block");
  const int64_t layer = fields.Int("layer", 0, IsLayered(*kind) ? layers - 1 : 0);
  LIME_RETURN_IF_ERROR(fields.status());
  return BlockId{*kind, static_cast<int32_t>(layer)};
}

absl::StatusOr<StoredBlock> ParseBlock(const json& object, int64_t layers, Bytes file_bytes, const std::string& where) {
  if (!object.is_object()) return absl::InvalidArgumentError(where + ": is not an object");
  StoredBlock block;
  LIME_ASSIGN_OR_RETURN(block.id, ParseBlockId(object, layers, where));
  JsonFields fields(object, where);
  block.offset = fields.Int("offset", 0, file_bytes);
  block.bytes = fields.Int("bytes", 1, file_bytes);
  LIME_RETURN_IF_ERROR(fields.status());
  if (block.offset % kStoreAlignment != 0) return FieldError(where, "offset", absl::StrCat("= ", block.offset, " is not aligned to 4 KiB"));
  if (block.bytes % kStoreAlignment != 0) return FieldError(where, "bytes", absl::StrCat("= ", block.bytes, " is not whole 4 KiB"));
  if (block.bytes > file_bytes - block.offset) {
    return FieldError(where, "bytes", absl::StrCat("= ", block.bytes, " from offset ", block.offset, " ends after its file"));
  }
  LIME_ASSIGN_OR_RETURN(block.xxh3, HashField(object, "xxh3", where));
  return block;
}

// [offset, bytes, "xxh3"]
absl::StatusOr<StoredRange> ParseRange(const json& entry, Bytes file_bytes, const std::string& where) {
  const bool well_formed = entry.is_array() && entry.size() == 3 && entry[0].is_number_unsigned() && entry[1].is_number_unsigned();
  const std::optional<uint64_t> hash = well_formed ? ParseHex(entry[2]) : std::nullopt;
  if (!hash) return absl::InvalidArgumentError(where + ": is not [offset, bytes, \"16 hexadecimal digits\"]");
  const auto offset = entry[0].get<uint64_t>(), bytes = entry[1].get<uint64_t>(), end = static_cast<uint64_t>(file_bytes);
  if (bytes == 0 || bytes > end || offset > end - bytes) {
    return Invalid(where, ": ", bytes, " bytes from offset ", offset, " are empty or end after their file");
  }
  return StoredRange{static_cast<int64_t>(offset), static_cast<Bytes>(bytes), *hash};
}

absl::StatusOr<std::vector<StoredRange>> ParseRanges(const json& object, Bytes file_bytes, const std::string& where) {
  LIME_ASSIGN_OR_RETURN(const json* entries, ArrayField(object, "ranges", kMaxRanges, where));
  std::vector<StoredRange> ranges;
  for (const json& entry : *entries) {
    const std::string here = absl::StrCat(where, " ranges[", ranges.size(), "]");
    LIME_ASSIGN_OR_RETURN(const StoredRange range, ParseRange(entry, file_bytes, here));
    if (!ranges.empty() && std::pair(ranges.back().offset, ranges.back().bytes) >= std::pair(range.offset, range.bytes)) {
      return absl::InvalidArgumentError(here + ": does not come after the range before it");
    }
    ranges.push_back(range);
  }
  return ranges;
}

// [offset, row_bytes, "8 digits for each row"]
absl::StatusOr<StoredRows> ParseTable(const json& entry, Bytes file_bytes, const std::string& where) {
  const bool well_formed = entry.is_array() && entry.size() == 3 && entry[0].is_number_unsigned() && entry[1].is_number_unsigned() &&
                           entry[2].is_string() && entry[2].get_ref<const std::string&>().size() % kRowDigits == 0;
  if (!well_formed) return absl::InvalidArgumentError(where + ": is not [offset, row_bytes, \"8 hexadecimal digits for each row\"]");
  const std::string_view digits = entry[2].get_ref<const std::string&>();
  const auto offset = entry[0].get<uint64_t>(), row_bytes = entry[1].get<uint64_t>(), count = uint64_t{digits.size() / kRowDigits},
             end = static_cast<uint64_t>(file_bytes);
  if (row_bytes == 0 || count == 0 || offset > end || row_bytes > (end - offset) / count) {
    return Invalid(where, ": ", count, " rows of ", row_bytes, " bytes from offset ", offset, " are empty or end after their file");
  }
  StoredRows table{.offset = static_cast<int64_t>(offset), .row_bytes = static_cast<Bytes>(row_bytes), .xxh3 = {}};
  table.xxh3.reserve(count);
  for (size_t at = 0; at < digits.size(); at += kRowDigits) {
    const std::optional<uint64_t> hash = HexValue(digits.substr(at, kRowDigits));
    if (!hash) return Invalid(where, ": row ", at / kRowDigits, " is not 8 hexadecimal digits");
    table.xxh3.push_back(static_cast<uint32_t>(*hash));
  }
  return table;
}

absl::StatusOr<std::vector<StoredRows>> ParseTables(const json& object, Bytes file_bytes, const std::string& where) {
  LIME_ASSIGN_OR_RETURN(const json* entries, ArrayField(object, "rows", kMaxTables, where));
  std::vector<StoredRows> tables;
  for (const json& entry : *entries) {
    LIME_ASSIGN_OR_RETURN(StoredRows table, ParseTable(entry, file_bytes, absl::StrCat(where, " rows[", tables.size(), "]")));
    tables.push_back(std::move(table));
  }
  return tables;
}

absl::StatusOr<StoredFile> ParseFile(const json& object, int64_t layers, std::string where) {
  if (!object.is_object()) return absl::InvalidArgumentError(where + ": is not an object");
  JsonFields fields(object, where);
  StoredFile file;
  file.name = fields.StringOr("name", "");
  file.bytes = fields.Int("bytes", 0, kMaxFileBytes);
  LIME_RETURN_IF_ERROR(fields.status());
  if (!IsPlainFileName(file.name)) return FieldError(where, "name", "is not a plain file name in the same folder");
  if (file.name.starts_with(kStoreFilePrefix)) return FieldError(where, "name", "is that of a manifest");
  absl::StrAppend(&where, " (", absl::CEscape(file.name), ")");
  LIME_ASSIGN_OR_RETURN(file.xxh3, HashField(object, "xxh3", where));
  LIME_ASSIGN_OR_RETURN(const json* blocks, ArrayField(object, "blocks", 4, where));
  for (const json& block : *blocks) {
    LIME_ASSIGN_OR_RETURN(StoredBlock parsed,
                          ParseBlock(block, layers, file.bytes, absl::StrCat(where, " blocks[", file.blocks.size(), "]")));
    file.blocks.push_back(parsed);
  }
  LIME_ASSIGN_OR_RETURN(file.ranges, ParseRanges(object, file.bytes, where));
  LIME_ASSIGN_OR_RETURN(file.rows, ParseTables(object, file.bytes, where));
  return file;
}

absl::Status CheckBlocks(const StoreManifest& manifest, bool complete, const std::string& name) {
  std::set<std::string_view> names;
  std::set<std::tuple<LayerHalf, BlockKind, int32_t>> blocks;
  for (const StoredFile& file : manifest.files) {
    if (!names.insert(file.name).second) return FieldError(name, "files", "lists \"" + absl::CEscape(file.name) + "\" twice");
    for (const StoredBlock& block : file.blocks) {
      // A layer has one block for each half, of any kind.
      const LayerHalf half = InfoOf(block.id.kind).half;
      if (!blocks.insert({half, half == LayerHalf::kNone ? block.id.kind : BlockKind{}, block.id.layer}).second) {
        return FieldError(name, "files", absl::StrCat("holds the block ", BlockName(block.id), " twice"));
      }
    }
  }
  // All ids are valid and different, so their number tells whether some are missing.
  if (complete && static_cast<int64_t>(blocks.size()) != 2 * manifest.layers + 2) {
    return FieldError(name, "files",
                      absl::StrCat("holds ", blocks.size(), " blocks, but ", manifest.layers, " layers have ", 2 * manifest.layers + 2));
  }
  return absl::OkStatus();
}

// {"layer": 3, "file": "bundles_0003.safetensors"} or {"layer": 3, "without": "not_finite"}
absl::StatusOr<StoredBundles> ParseBundles(const json& entry, const StoreManifest& manifest, const std::string& where) {
  if (!entry.is_object()) return absl::InvalidArgumentError(where + ": is not an object");
  JsonFields fields(entry, where);
  StoredBundles bundles{.layer = static_cast<int32_t>(fields.Int("layer", 0, manifest.layers - 1)), .file = fields.StringOr("file", "")};
  const std::string why_not = fields.StringOr("without", "");
  LIME_RETURN_IF_ERROR(fields.status());
  if (bundles.file.empty() == why_not.empty()) return absl::InvalidArgumentError(where + R"(: has not one of "file" and "without")");
  if (bundles.file.empty()) {
    bundles.why_not = kNoBundlesNames.Find(why_not);
    if (!bundles.why_not) return FieldError(where, "without", kNoBundlesNames.NoneOf());
    return bundles;
  }
  const auto file = std::ranges::find(manifest.files, bundles.file, &StoredFile::name);
  if (file == manifest.files.end() || !file->blocks.empty()) return FieldError(where, "file", "is no file of bundles of the manifest");
  return bundles;
}

absl::StatusOr<std::vector<StoredBundles>> ParseAllBundles(const json& root, const StoreManifest& manifest, const std::string& name) {
  LIME_ASSIGN_OR_RETURN(const json* entries, ArrayField(root, "bundles", kMaxLayers, name));
  std::vector<StoredBundles> all;
  std::set<std::string_view> files;
  for (const json& entry : *entries) {
    const std::string where = absl::StrCat(name, ": bundles[", all.size(), "]");
    LIME_ASSIGN_OR_RETURN(StoredBundles bundles, ParseBundles(entry, manifest, where));
    if (!all.empty() && all.back().layer >= bundles.layer) return FieldError(where, "layer", "does not come after the one before it");
    all.push_back(std::move(bundles));
  }
  for (const StoredBundles& bundles : all) {
    if (!bundles.file.empty() && !files.insert(bundles.file).second)
      return FieldError(name, "bundles", absl::StrCat("has the file \"", absl::CEscape(bundles.file), "\" of two layers"));
  }
  return all;
}

// Whether the bundles of a complete manifest are those of the layers that have a dense MLP.
absl::Status CheckBundles(const StoreManifest& manifest, const std::string& name) {
  std::set<int32_t> dense;
  for (const StoredFile& file : manifest.files) {
    for (const StoredBlock& block : file.blocks) {
      if (block.id.kind == BlockKind::kMlp) dense.insert(block.id.layer);
    }
  }
  for (const StoredBundles& bundles : *manifest.bundles) {
    if (dense.erase(bundles.layer) == 0)
      return FieldError(name, "bundles", absl::StrCat("has layer ", bundles.layer, ", which has no dense MLP"));
  }
  if (!dense.empty()) return FieldError(name, "bundles", absl::StrCat("lacks layer ", *dense.begin()));
  return absl::OkStatus();
}

json BundlesJson(const std::vector<StoredBundles>& all) {
  json entries = json::array();
  for (const StoredBundles& bundles : all) {
    json& entry = entries.emplace_back(json{{"layer", bundles.layer}});
    if (bundles.why_not) {
      entry["without"] = kNoBundlesNames.Of(*bundles.why_not);
    } else {
      entry["file"] = bundles.file;
    }
  }
  return entries;
}

std::string RowDigits(const StoredRows& table) {
  std::string digits;
  digits.reserve(table.xxh3.size() * kRowDigits);
  for (const uint32_t hash : table.xxh3) absl::StrAppend(&digits, absl::Hex(hash, absl::kZeroPad8));
  return digits;
}

json FileJson(const StoredFile& file) {
  json blocks = json::array(), ranges = json::array(), rows = json::array();
  for (const StoredBlock& block : file.blocks) {
    blocks.push_back({{"kind", InfoOf(block.id.kind).name},
                      {"layer", block.id.layer},
                      {"offset", block.offset},
                      {"bytes", block.bytes},
                      {"xxh3", HashText(block.xxh3)}});
  }
  for (const StoredRange& range : file.ranges) ranges.push_back(json::array({range.offset, range.bytes, HashText(range.xxh3)}));
  for (const StoredRows& table : file.rows) rows.push_back(json::array({table.offset, table.row_bytes, RowDigits(table)}));
  return {{"name", file.name}, {"bytes", file.bytes}, {"xxh3", HashText(file.xxh3)},
          {"blocks", blocks},  {"ranges", ranges},    {"rows", rows}};
}

}  // namespace

std::optional<uint64_t> ParseHash(std::string_view text) {
  return text.size() == 16 ? HexValue(text) : std::nullopt;
}

std::string StoredBundles::WhyNot() const {
  if (*why_not == NoBundles::kNotFinite)
    return absl::StrCat("layer ", layer, " has no bundles: a weight of its MLP is infinite or NaN, so a skipped neuron might not be zero");
  return absl::StrCat("layer ", layer,
                      " has no bundles: its norm and up projection do not show that up stays finite, and zero times infinity is not zero");
}

Bytes StoreManifest::bytes() const {
  Bytes sum = 0;
  for (const StoredFile& file : files) sum += file.bytes;
  return sum;
}

absl::StatusOr<StoreManifest> ParseStoreManifest(std::string_view text, const std::string& name, bool complete) {
  LIME_ASSIGN_OR_RETURN(const json root, ParseJsonObject(text, name, kMaxStoreManifestBytes));
  JsonFields fields(root, name);
  if (fields.StringOr("format", "") != kFormat) return FieldError(name, "format", absl::StrCat("is not \"", kFormat, "\""));
  const int64_t version = fields.Int("version", 1, 1 << 30);
  LIME_RETURN_IF_ERROR(fields.status());
  if (version != kStoreVersion && version != kBundledStoreVersion) {
    return FieldError(name, "version",
                      absl::StrCat("= ", version, ", but this program reads versions ", kStoreVersion, " and ", kBundledStoreVersion,
                                   "; remove the folder and prepare the model again"));
  }
  fields.Int("alignment", kStoreAlignment, kStoreAlignment);
  fields.Int("piece_bytes", kPartBytes, kPartBytes);
  StoreManifest manifest;
  manifest.layers = fields.Int("layers", 1, kMaxLayers);
  LIME_RETURN_IF_ERROR(fields.status());
  LIME_ASSIGN_OR_RETURN(manifest.source_xxh3, HashField(root, "source_xxh3", name));
  LIME_ASSIGN_OR_RETURN(const json* files, ArrayField(root, "files", kMaxFiles, name));
  for (const json& file : *files) {
    LIME_ASSIGN_OR_RETURN(StoredFile parsed, ParseFile(file, manifest.layers, absl::StrCat(name, ": files[", manifest.files.size(), "]")));
    manifest.files.push_back(std::move(parsed));
  }
  LIME_RETURN_IF_ERROR(CheckBlocks(manifest, complete, name));
  if (version != kBundledStoreVersion) return manifest;
  LIME_ASSIGN_OR_RETURN(manifest.bundles, ParseAllBundles(root, manifest, name));
  if (complete) LIME_RETURN_IF_ERROR(CheckBundles(manifest, name));
  return manifest;
}

std::string StoreManifestText(const StoreManifest& manifest) {
  json files = json::array();
  for (const StoredFile& file : manifest.files) files.push_back(FileJson(file));
  json root = {{"format", kFormat},
               {"version", manifest.bundles ? kBundledStoreVersion : kStoreVersion},
               {"alignment", kStoreAlignment},
               {"piece_bytes", kPartBytes},
               {"layers", manifest.layers},
               {"source_xxh3", HashText(manifest.source_xxh3)},
               {"files", files}};
  if (manifest.bundles) root["bundles"] = BundlesJson(*manifest.bundles);
  return root.dump(1) + "\n";
}

absl::StatusOr<StoreManifest> ReadStoreManifest(const std::string& dir) {
  const std::string path = dir + "/" + kStoreManifestName;
  if (!FileExists(path)) {
    return absl::FailedPreconditionError(
        FileExists(dir + "/" + kStoreJournalName)
            ? absl::StrCat(dir, ": is an unfinished block store; run `lime prepare` again to continue it")
            : absl::StrCat(dir, ": is not a block store, it lacks ", kStoreManifestName, "; make one with `lime prepare`"));
  }
  LIME_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxStoreManifestBytes));
  return ParseStoreManifest(text, path);
}

}  // namespace lime
