// Files of bundles: what was written comes back, and no damage stays unseen.
#include "daemon/formats/bundle_file.h"

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/base/random.h"

namespace lime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::byte> RandomBytes(Bytes size, Random& random) {
  std::vector<std::byte> bytes(static_cast<size_t>(size));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.Below(256));
  return bytes;
}

struct Bundle {
  std::vector<std::vector<std::byte>> parts;
  std::vector<std::byte> bytes;
  std::vector<uint32_t> sums;
};

Bundle RandomBundle(const BundleLayout& layout, Random& random) {
  Bundle bundle{.bytes = RandomBytes(layout.stride, random), .sums = std::vector<uint32_t>(static_cast<size_t>(layout.parts))};
  std::vector<std::span<const std::byte>> parts;
  for (int part = 0; part < layout.parts; ++part) bundle.parts.push_back(RandomBytes(layout.part_bytes, random));
  for (const std::vector<std::byte>& part : bundle.parts) parts.emplace_back(part);
  EncodeBundle(layout, parts, bundle.bytes, bundle.sums);
  return bundle;
}

std::span<const std::byte> RecordFrom(const BundleLayout& layout, const Bundle& bundle, int first) {
  return std::span(bundle.bytes)
      .subspan(static_cast<size_t>(layout.PartAt(first)), static_cast<size_t>(layout.record_bytes - layout.PartAt(first)));
}

TEST(BundleFileTest, PartsComeBackAlsoWithoutTheDecider) {
  Random random(1);
  for (const bool gated : {false, true}) {
    for (const Bytes part_bytes : {1, 63, 64, 100, 4096, 5120}) {
      const BundleLayout layout = LayoutOf(gated, part_bytes).value();
      const Bundle bundle = RandomBundle(layout, random);
      for (int first = 0; first < layout.parts; ++first) {
        const std::span<const std::byte> record = RecordFrom(layout, bundle, first);
        EXPECT_TRUE(CheckBundle(layout, record, first, bundle.sums, "layer 0").ok());
        for (int part = first; part < layout.parts; ++part) {
          const std::span<const std::byte> read = PartOf(layout, record, first, part);
          EXPECT_EQ(std::vector<std::byte>(read.begin(), read.end()), bundle.parts[static_cast<size_t>(part)]);
        }
      }
    }
  }
}

TEST(BundleFileTest, ABitThatFlipsInAPartIsSeenAndPaddingIsZero) {
  Random random(2);
  const BundleLayout layout = LayoutOf(true, 70).value();
  const Bundle bundle = RandomBundle(layout, random);
  for (Bytes at = 0; at < layout.stride; ++at) {
    const Bytes part = at / layout.part_stride;
    const bool in_part = part < layout.parts && at % layout.part_stride < layout.part_bytes;
    if (!in_part) EXPECT_EQ(bundle.bytes[static_cast<size_t>(at)], std::byte{0}) << at;
    if (at >= layout.record_bytes) continue;
    Bundle damaged = bundle;
    damaged.bytes[static_cast<size_t>(at)] ^= std::byte{1};
    const absl::Status status = CheckBundle(layout, RecordFrom(layout, damaged, 0), 0, damaged.sums, "bundles_0003: neuron 5");
    EXPECT_EQ(status.ok(), !in_part) << at;
    if (in_part) {
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
      EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("bundles_0003: neuron 5: part ", part, " ")));
    }
    EXPECT_EQ(CheckBundle(layout, RecordFrom(layout, damaged, 1), 1, damaged.sums, "").ok(), !in_part || part == 0)
        << "only what is read is checked";
  }
}

TEST(BundleFileTest, TablesComeBackAndWrongOnesAreRefused) {
  const std::vector<int32_t> places = {2, 0, 3, 1};
  EXPECT_EQ(ParsePlaces(EncodePlaces(places), 4, "f").value(), places);
  const auto refused = [](const std::vector<int32_t>& table, int32_t neurons) {
    return std::string(ParsePlaces(EncodePlaces(table), neurons, "f").status().message());
  };
  EXPECT_THAT(refused({2, 0, 3}, 4), HasSubstr("12 bytes, need 16"));
  EXPECT_THAT(refused({2, 0, 2, 1}, 4), HasSubstr("f: neuron 2 has place 2, which is another neuron's"));
  EXPECT_THAT(refused({2, 0, 4, 1}, 4), HasSubstr("neuron 2 has place 4, which is not that of a bundle"));
  EXPECT_THAT(refused({-1, 0, 2, 1}, 4), HasSubstr("neuron 0 has place -1"));
  const BundleShape shape{.layout = LayoutOf(true, 8).value(), .neurons = 2};
  const std::vector<uint32_t> sums = {1, 0xffffffff, 3, 4, 5, 6};
  EXPECT_EQ(ParseSums(EncodeSums(sums), shape, "f").value(), sums);
  EXPECT_THAT(std::string(ParseSums(EncodeSums(std::vector<uint32_t>{1, 2}), shape, "f").status().message()),
              HasSubstr("8 bytes, need 24"));
}

// A header as safetensors has it, with tensors at these offsets of the data.
absl::StatusOr<BundleFile> Found(std::string_view tensors, int64_t data_bytes, const BundleShape& shape) {
  std::string json(tensors);
  json.resize(4096 - 8, ' ');  // the data begins on 4 KiB
  const auto header = ParseSafetensorsHeader(json, 4096 + data_bytes, "b");
  EXPECT_TRUE(header.ok()) << header.status().message();
  return FindBundles(*header, shape, "b");
}

TEST(BundleFileTest, TensorsAreFoundByNameTypeAndShape) {
  const BundleShape shape{.layout = LayoutOf(false, 2048).value(), .neurons = 2};
  const std::string bundles = R"("__lime_bundles__":{"dtype":"U8","shape":[2,4096],"data_offsets":[0,8192]})";
  const std::string sums = R"("__lime_bundle_sums__":{"dtype":"U32","shape":[2,2],"data_offsets":[8192,8208]})";
  const std::string pad = R"("__lime_pad__.0":{"dtype":"U8","shape":[4080],"data_offsets":[8208,12288]})";
  const std::string place = R"("__lime_bundle_place__":{"dtype":"U32","shape":[2],"data_offsets":[12288,12296]})";
  const std::string all = absl::StrCat("{", bundles, ",", sums, ",", pad, ",", place, "}");
  const BundleFile found = Found(all, 12296, shape).value();
  EXPECT_EQ(found.bundles.offset, 4096);
  EXPECT_EQ(found.bundles.bytes, 8192);
  EXPECT_EQ(found.sums.offset, 3 * 4096);
  EXPECT_EQ(found.place.offset, 4 * 4096);
  const auto refused = [&](std::string_view json, int64_t bytes, const BundleShape& wanted) {
    return std::string(Found(json, bytes, wanted).status().message());
  };
  EXPECT_THAT(refused(absl::StrCat("{", bundles, "}"), 8192, shape), HasSubstr("__lime_bundle_sums__ is missing"));
  EXPECT_THAT(refused(all, 12296, {.layout = shape.layout, .neurons = 3}), HasSubstr("__lime_bundles__ is not U8 [3, 4096]"));
  EXPECT_THAT(refused(all, 12296, {.layout = shape.layout, .neurons = 0}), HasSubstr("0 neurons"));
  EXPECT_THAT(refused(all, 12296, {.layout = LayoutOf(true, 1344).value(), .neurons = 2}),
              HasSubstr("__lime_bundle_sums__ is not U32 [2, 3]"));
  const std::string beside = R"("__lime_bundle_place__":{"dtype":"U32","shape":[2],"data_offsets":[8208,8216]})";
  EXPECT_THAT(refused(absl::StrCat("{", bundles, ",", sums, ",", beside, "}"), 8216, shape), HasSubstr("not at a multiple of 4096"));
}

}  // namespace
}  // namespace lime
