// What a store says of itself.

#include "daemon/formats/block_store_manifest.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "tests/daemon/weights/block_store_fixture.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

TEST(StoreManifestTest, TextAndBack) {
  StoreManifest manifest{.source_xxh3 = 0xfedcba9876543210, .layers = 1};
  manifest.files.push_back({.name = "layer_0000.safetensors", .bytes = 4096 * 600, .xxh3 = 1});
  manifest.files[0].blocks = {{{BlockKind::kAttention, 0}, 4096, 8192, 7}, {{BlockKind::kMlp, 0}, 12288, 4096, 8}};
  manifest.files[0].ranges = {{4096, 2, 11}, {4096, 64, 12}, {5000, 1, 0xffffffffffffffff}, {4096 * 600 - 1, 1, 13}};
  manifest.files.push_back({.name = "non_layer.safetensors", .bytes = 12288, .xxh3 = 2});
  manifest.files[1].blocks = {{{BlockKind::kEmbedding, 0}, 4096, 4096, 9}, {{BlockKind::kHead, 0}, 4096, 8192, 10}};
  manifest.files[1].rows = {{4096, 1024, {0, 0xffffffff, 0x0123abcd}}, {8192, 1, {5}}};
  const auto parsed = ParseStoreManifest(StoreManifestText(manifest), "m");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, manifest);
  manifest.files.pop_back();
  EXPECT_TRUE(ParseStoreManifest(StoreManifestText(manifest), "m", /*complete=*/false).ok());
  EXPECT_THAT(std::string(ParseStoreManifest(StoreManifestText(manifest), "m").status().message()),
              HasSubstr("m: field \"files\" holds 2 blocks, but 1 layers have 4"));
}

// A manifest with bundles of two of three layers.
StoreManifest BundledManifest() {
  StoreManifest manifest{.source_xxh3 = 1, .layers = 3, .bundles = std::vector<StoredBundles>()};
  for (int32_t layer = 0; layer < 3; ++layer) {
    manifest.files.push_back({.name = absl::StrCat("layer_", layer), .bytes = 12288});
    manifest.files.back().blocks = {{{BlockKind::kAttention, layer}, 4096, 4096, 1}, {{BlockKind::kMlp, layer}, 8192, 4096, 2}};
  }
  manifest.files.push_back({.name = "non_layer", .bytes = 12288});
  manifest.files.back().blocks = {{{BlockKind::kEmbedding, 0}, 4096, 4096, 3}, {{BlockKind::kHead, 0}, 8192, 4096, 4}};
  manifest.files.push_back({.name = "bundles_0", .bytes = 100, .xxh3 = 5, .ranges = {{50, 10, 6}}});
  manifest.files.push_back({.name = "bundles_2", .bytes = 100, .xxh3 = 7});
  *manifest.bundles = {
      {.layer = 0, .file = "bundles_0"}, {.layer = 1, .why_not = NoBundles::kMayOverflow}, {.layer = 2, .file = "bundles_2"}};
  return manifest;
}

TEST(StoreManifestTest, BundlesMakeItTheNextVersionAndComeBack) {
  StoreManifest manifest = BundledManifest();
  EXPECT_THAT(StoreManifestText(manifest), HasSubstr("\"version\": 4"));
  auto parsed = ParseStoreManifest(StoreManifestText(manifest), "m");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, manifest);
  manifest.bundles->pop_back();
  EXPECT_EQ(ParseStoreManifest(StoreManifestText(manifest), "m", /*complete=*/false).value(), manifest)
      << "a journal has the bundles so far";
  manifest.bundles.reset();
  EXPECT_THAT(StoreManifestText(manifest), HasSubstr("\"version\": 3")) << "programs that know no bundles read stores without them";
  EXPECT_EQ(ParseStoreManifest(StoreManifestText(manifest), "m").value(), manifest);
}

TEST(StoreManifestTest, EveryWrongFieldOfBundlesIsNamed) {
  const auto good = nlohmann::json::parse(StoreManifestText(BundledManifest()));
  struct Case {
    std::string pointer;
    nlohmann::json value;
    std::string words;
  };
  const Case cases[] = {
      {"/bundles", nullptr, "field \"bundles\" is not an array"},
      {"/bundles", nlohmann::json::array(), "field \"bundles\" lacks layer 0"},
      {"/bundles/0", 7, "m: bundles[0]: is not an object"},
      {"/bundles/0/layer", -1, "m: bundles[0]: field \"layer\" = -1 is outside 0 to 2"},
      {"/bundles/0/layer", 3, "m: bundles[0]: field \"layer\" = 3 is outside 0 to 2"},
      {"/bundles/0/layer", 1, "m: bundles[1]: field \"layer\" does not come after the one before it"},
      {"/bundles/0/file", "../x", "m: bundles[0]: field \"file\" is no file of bundles of the manifest"},
      {"/bundles/0/file", "layer_0", "m: bundles[0]: field \"file\" is no file of bundles of the manifest"},
      {"/bundles/0/file", "bundles_2", "field \"bundles\" has the file \"bundles_2\" of two layers"},
      {"/bundles/0/file", 1, "m: bundles[0]: field \"file\" is not a string"},
      {"/bundles/0/without", "not_finite", "m: bundles[0]: has not one of \"file\" and \"without\""},
      {"/bundles/0", {{"layer", 0}}, "m: bundles[0]: has not one of"},
      {"/bundles/1/without", "no\ntime", "m: bundles[1]: field \"without\" is neither not_finite nor may_overflow"},
      {"/files/2/blocks/1/kind", "experts", "field \"bundles\" has layer 2, which has no dense MLP"},
  };
  for (const Case& wrong : cases) {
    auto manifest = good;
    manifest[nlohmann::json::json_pointer(wrong.pointer)] = wrong.value;
    const absl::Status status = ParseStoreManifest(manifest.dump(), "m").status();
    EXPECT_THAT(std::string(status.message()), HasSubstr(wrong.words)) << wrong.pointer << " " << wrong.value;
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("\n")));
  }
}

TEST(StoreManifestTest, EveryWrongFieldIsNamed) {
  TempDir dir;
  ASSERT_TRUE(MakeModel({}, dir.file("model")).ok());
  ASSERT_TRUE(PrepareBlockStore(dir.file("model"), dir.file("store")).ok());
  const auto good = nlohmann::json::parse(dir.Read("store/lime_store.json"));
  struct Case {
    std::string pointer;
    nlohmann::json value;
    std::string words;
  };
  const Case cases[] = {
      {"/format", "zip", "field \"format\" is not \"lime-block-store\""},
      {"/version", 1, "field \"version\" = 1, but this program reads versions 3 and 4; remove the folder and prepare the model again"},
      {"/version", 5, "field \"version\" = 5, but this program reads versions 3 and 4"},
      {"/version", "2", "field \"version\" is not an integer"},
      {"/alignment", 512, "field \"alignment\" = 512 is outside"},
      {"/piece_bytes", 0, "field \"piece_bytes\""},
      {"/layers", 0, "field \"layers\" = 0 is outside"},
      {"/layers", 18446744073709551615u, "field \"layers\" is too large"},
      {"/layers", 3, "holds 6 blocks, but 3 layers have 8"},
      {"/source_xxh3", "12", "field \"source_xxh3\" is not 16 hexadecimal digits"},
      {"/files", 7, "field \"files\" is not an array"},
      {"/files/0", 7, "m: files[0]: is not an object"},
      {"/files/0/name", "../x", "m: files[0]: field \"name\" is not a plain file name"},
      {"/files/0/name", "lime_store.json", "field \"name\" is that of a manifest"},
      {"/files/0/name", good["files"][1]["name"], "lists \"layer_0001.safetensors\" twice"},
      {"/files/0/bytes", -1, "m: files[0]: field \"bytes\" = -1 is outside"},
      {"/files/0/bytes", 1e300, "field \"bytes\" is not an integer"},
      {"/files/0/xxh3", nullptr, "m: files[0] (layer_0000.safetensors): field \"xxh3\" is not 16"},
      {"/files/0/ranges", 7, "m: files[0] (layer_0000.safetensors): field \"ranges\" is not an array"},
      {"/files/0/ranges/0", 7, "files[0] (layer_0000.safetensors) ranges[0]: is not [offset, bytes, "},
      {"/files/0/ranges/0", {0, 1}, "ranges[0]: is not ["},
      {"/files/0/ranges/1/0", -1, "ranges[1]: is not ["},
      {"/files/0/ranges/1/0", 1.5, "ranges[1]: is not ["},
      {"/files/0/ranges/1/2", "XYZ", "ranges[1]: is not ["},
      {"/files/0/ranges/1/0", 18446744073709551615u, "bytes from offset 18446744073709551615 are empty or end after their file"},
      {"/files/0/ranges/1/1", 18446744073709551615u, "ranges[1]: 18446744073709551615 bytes from offset"},
      {"/files/0/ranges/1/1", good["files"][0]["bytes"], "are empty or end after their file"},
      {"/files/0/ranges/1/1", 0, "ranges[1]: 0 bytes from offset"},
      {"/files/0/ranges/1", good["files"][0]["ranges"][0], "ranges[1]: does not come after the range before it"},
      {"/files/0/ranges/2/0", 0, "ranges[2]: does not come after the range before it"},
      {"/files/2/rows", nullptr, "m: files[2] (non_layer.safetensors): field \"rows\" is not an array"},
      {"/files/2/rows/0", {4096, 640}, "rows[0]: is not [offset, row_bytes, "},
      {"/files/2/rows/0/1", -1, "rows[0]: is not ["},
      {"/files/2/rows/0/2", "0123456", "rows[0]: is not ["},
      {"/files/2/rows/0/2", "0123456789abcdeX", "rows[0]: row 1 is not 8 hexadecimal digits"},
      {"/files/2/rows/0/2", "", "rows[0]: 0 rows of "},
      {"/files/2/rows/0/1", 0, "rows of 0 bytes from offset"},
      {"/files/2/rows/0/0", 18446744073709551615u, "bytes from offset 18446744073709551615 are empty or end after their file"},
      {"/files/2/rows/0/1", good["files"][2]["bytes"], "are empty or end after their file"},
      {"/files/2/rows", nlohmann::json::array({1, 2, 3, 4}), "has 4 entries, more than 3"},
      {"/files/0/blocks/0/kind", "tail", "blocks[0]: field \"kind\" is no kind of block"},
      {"/files/0/blocks/0/layer", 2, "blocks[0]: field \"layer\" = 2 is outside 0 to 1"},
      {"/files/0/blocks/0/layer", 1, "holds the block attention 1 twice"},
      {"/files/0/blocks/0/offset", 4097, "field \"offset\" = 4097 is not aligned to 4 KiB"},
      {"/files/0/blocks/1/offset", 9223372036854775807, "field \"offset\""},
      {"/files/0/blocks/1/bytes", 0, "field \"bytes\" = 0 is outside"},
      {"/files/0/blocks/1/bytes", 4095, "is not whole 4 KiB"},
      {"/files/0/blocks/1/bytes", good["files"][0]["bytes"].get<int64_t>() / 4096 * 4096, "ends after its file"},
  };
  for (const Case& wrong : cases) {
    auto manifest = good;
    manifest[nlohmann::json::json_pointer(wrong.pointer)] = wrong.value;
    const absl::Status status = ParseStoreManifest(manifest.dump(), "m").status();
    EXPECT_THAT(std::string(status.message()), HasSubstr(wrong.words)) << wrong.pointer << " " << wrong.value;
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("\n")));
  }
  EXPECT_THAT(std::string(ParseStoreManifest("{", "m").status().message()), HasSubstr("m: is not valid JSON"));
  EXPECT_THAT(std::string(ParseStoreManifest("[]", "m").status().message()), HasSubstr("m: is not a JSON object"));
}

}  // namespace
}  // namespace lime
