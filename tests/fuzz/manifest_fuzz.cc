// Any text as a block store's manifest: an error, or blocks that lie aligned inside their files
// ranges in order and rows that lie in it, and the same again from its own text.
#include <algorithm>
#include <functional>
#include <string_view>

#include "daemon/formats/block_store_manifest.h"
#include "planner/base/check.h"

namespace lime {
namespace {

void Check(const StoreManifest& manifest) {
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
