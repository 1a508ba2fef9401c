// Any text as a block store's manifest: an error, or blocks that lie aligned inside their files
// ranges in order and rows that lie in it, and the same again from its own text.
#include <algorithm>
#include <functional>
#include <string_view>

#include "daemon/formats/block_store_manifest.h"
#include "planner/base/check.h"

namespace lime {
namespace {

// Bundles are of ascending layers, each with a file of its own without blocks, or with a reason.
void CheckBundles(const StoreManifest& manifest) {
  int32_t last = -1;
  for (const StoredBundles& bundles : *manifest.bundles) {
    LIME_CHECK(bundles.layer > last && bundles.layer < manifest.layers) << bundles.layer;
    last = bundles.layer;
    const auto file = std::ranges::find(manifest.files, bundles.file, &StoredFile::name);
    LIME_CHECK(bundles.why_not ? bundles.file.empty() : file != manifest.files.end() && file->blocks.empty());
    LIME_CHECK(bundles.why_not || std::ranges::count(*manifest.bundles, bundles.file, &StoredBundles::file) == 1);
    LIME_CHECK(!bundles.why_not || bundles.WhyNot().find('\n') == std::string::npos);
  }
}

void Check(const StoreManifest& manifest) {
  if (manifest.bundles) CheckBundles(manifest);
  for (const StoredFile& file : manifest.files) {
    LIME_CHECK(file.name.find('/') == std::string::npos && file.name[0] != '.') << file.name;
    for (const StoredBlock& block : file.blocks) {
      LIME_CHECK(block.offset >= 0 && block.bytes > 0 && block.bytes <= file.bytes - block.offset);
      LIME_CHECK(block.offset % kStoreAlignment == 0 && block.bytes % kStoreAlignment == 0);
      LIME_CHECK(block.id.layer >= 0 && block.id.layer < manifest.layers);
    }
    for (const StoredRange& range : file.ranges)
      LIME_CHECK(range.offset >= 0 && range.bytes > 0 && range.bytes <= file.bytes - range.offset);
    for (const StoredRows& table : file.rows) {
      LIME_CHECK(table.offset >= 0 && table.row_bytes > 0 && !table.xxh3.empty());
      LIME_CHECK(table.row_bytes <= (file.bytes - table.offset) / static_cast<Bytes>(table.xxh3.size()));
    }
    LIME_CHECK(std::ranges::is_sorted(file.ranges, std::less_equal(), [](const StoredRange& r) { return std::pair(r.offset, r.bytes); }));
  }
}

}  // namespace
}  // namespace lime

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lime;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<StoreManifest> journal = ParseStoreManifest(text, "fuzz", /*complete=*/false);
  const absl::StatusOr<StoreManifest> manifest = ParseStoreManifest(text, "fuzz");
  LIME_CHECK(journal.ok() || !manifest.ok());
  if (!journal.ok()) return 0;
  Check(*journal);
  const absl::StatusOr<StoreManifest> again = ParseStoreManifest(StoreManifestText(*journal), "fuzz", /*complete=*/false);
  LIME_CHECK(again.ok()) << again.status().message();
  LIME_CHECK(*again == *journal);
  return 0;
}
