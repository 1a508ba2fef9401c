#include "coordinator/cluster/device_profiles.h"

#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/cluster/units.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

std::string ProfilesError(const std::string& text) {
  const absl::StatusOr<DescribedCluster> cluster = ParseDeviceProfiles(text, "d.json");
  EXPECT_EQ(cluster.status().message().find('\n'), absl::string_view::npos);
  return std::string(cluster.status().message());
}

std::string One(const std::string& fields) {
  return absl::StrCat(R"({"devices": [{"name": "a", )", fields, "}]}");
}

TEST(DeviceProfilesTest, ADeviceIsDescribedByItsRates) {
  const DescribedCluster cluster = *ParseDeviceProfiles(
      R"({"_note": "ours", "link": {"bandwidth": "100Mbit/s", "latency_ms": 0.3},
          "devices": [{"name": "a", "memory": "2GiB", "runtime_bytes": 7, "read_bytes_per_second": 4e10, "flops": 1e12,
                       "block_overhead_ms": 0.25, "disk": {"bytes_per_second": 2e9, "latency_ms": 0.3}},
                      {"name": "b", "memory_bytes": 1000, "read_bytes_per_second": 1e9}]})",
      "d.json");
  ASSERT_EQ(cluster.devices.size(), 2u);
  const DescribedDevice& a = cluster.devices[0];
  EXPECT_EQ(a.memory, 2 * kGiB);
  EXPECT_EQ(a.runtime, 7);
  EXPECT_FALSE(a.activations.has_value());
  EXPECT_EQ(a.profile.read_bytes_per_second, 4e10);
  EXPECT_EQ(a.profile.block_overhead_ms, 0.25);
  EXPECT_EQ(a.profile.DiskRate(64 * kMiB, 1), 2e9);
  EXPECT_EQ(a.profile.DiskLatencyMs(4 * kKiB, 32), 0.3);
  EXPECT_TRUE(cluster.devices[1].profile.disk.empty());
  ASSERT_TRUE(cluster.link.has_value());
  EXPECT_DOUBLE_EQ(cluster.link->bytes_per_second, 12.5e6);
}

TEST(DeviceProfilesTest, ADeviceIsDescribedByWhatWasMeasured) {
  DeviceProfile profile;
  profile.cpu = "some cpu";
  profile.threads = 4;
  profile.read_bytes_per_second = 1e10;
  profile.SetDisk({{.read_bytes = kMiB, .depth = 4, .bytes_per_second = 5e8, .latency_ms = 2}});
  const DescribedCluster cluster =
      *ParseDeviceProfiles(One(absl::StrCat(R"("memory_bytes": 5, "profile": )", ToJsonText(profile))), "d.json");
  EXPECT_EQ(cluster.devices[0].profile, profile);
}

TEST(DeviceProfilesTest, WhatIsKeptReturns) {
  DescribedDevice device{.name = "a", .numerics_id = "x86-f32-1", .memory = kGiB, .runtime = 7, .activations = 8, .margin = 9};
  device.profile.cpu = "some cpu";
  device.profile.threads = 4;
  device.profile.read_bytes_per_second = 1e10;
  device.profile.links = {{.peer = "b", .bytes_per_second = 1e8, .latency_ms = 0.25}};
  const DescribedCluster cluster = *ParseDeviceProfiles(
      ToJsonText(DescribedCluster{.devices = {device}, .link = LinkPoint{.peer = "", .bytes_per_second = 5e6, .latency_ms = 1}}), "kept");
  ASSERT_EQ(cluster.devices.size(), 1u);
  EXPECT_EQ(cluster.devices[0].numerics_id, device.numerics_id);
  EXPECT_EQ(cluster.devices[0].memory, device.memory);
  EXPECT_EQ(cluster.devices[0].runtime, device.runtime);
  EXPECT_EQ(cluster.devices[0].activations, device.activations);
  EXPECT_EQ(cluster.devices[0].margin, device.margin);
  EXPECT_EQ(cluster.devices[0].profile, device.profile);
  EXPECT_EQ(cluster.link->bytes_per_second, 5e6);
  EXPECT_EQ(ProfilesPathOf("/x/shelf.toml"), "/x/shelf.profiles.json");
}

TEST(DeviceProfilesTest, NamesTheFirstWrongField) {
  EXPECT_THAT(ProfilesError("[]"), HasSubstr("d.json"));
  EXPECT_THAT(ProfilesError("{}"), HasSubstr("field \"devices\" is missing"));
  EXPECT_THAT(ProfilesError(R"({"devices": []})"), HasSubstr("field \"devices\" is empty"));
  EXPECT_THAT(ProfilesError(R"({"devices": [3]})"), HasSubstr("d.json: devices[0]: is not an object"));
  EXPECT_THAT(ProfilesError(R"({"device": []})"), HasSubstr("field \"device\" is unknown; the known fields are devices, link"));
  EXPECT_THAT(ProfilesError(One(R"("read_bytes_per_second": 1e9)")), HasSubstr("field \"memory_bytes\" is missing"));
  EXPECT_THAT(ProfilesError(One(R"("memory": "much", "read_bytes_per_second": 1e9)")), HasSubstr("field \"memory\": "));
  EXPECT_THAT(ProfilesError(One(R"("memory_bytes": -1, "read_bytes_per_second": 1e9)")), HasSubstr("\"memory_bytes\" = -1 is outside"));
  EXPECT_THAT(ProfilesError(One(R"("memory_bytes": 1)")),
              HasSubstr("has neither \"profile\" (the JSON that `lime profile --out F` writes"));
  EXPECT_THAT(ProfilesError(One(R"("memory_bytes": 1, "profile": 3)")), HasSubstr("field \"profile\" is not an object"));
  EXPECT_THAT(ProfilesError(One(R"("memory_bytes": 1, "profile": {}, "flops": 1)")), HasSubstr("has both \"profile\" and \"flops\""));
  EXPECT_THAT(ProfilesError(One(R"("memory_bytes": 1, "memory": "5 potatoes", "read_bytes_per_second": 1e9)")),
              HasSubstr("has both \"memory\" and \"memory_bytes\"; leave one out"));
  EXPECT_THAT(ProfilesError(One(R"("memory_bytes": 1, "read_bytes_per_second": 1e9, "flops": 0)")),
              HasSubstr("field \"flops\" is below 1"));
  EXPECT_THAT(ProfilesError(One(R"("memory_bytes": 1, "read_bytes_per_second": -4)")),
              HasSubstr("\"read_bytes_per_second\" = -4 is outside"));
  EXPECT_THAT(ProfilesError(One(R"("memory_bytes": 1, "read_bytes_per_second": 1e9, "speed": 3)")),
              HasSubstr("field \"speed\" is unknown"));
  EXPECT_THAT(ProfilesError(One(R"("memory_bytes": 1, "read_bytes_per_second": 1e9, "disk": 3)")), HasSubstr("field \"disk\" is neither"));
  EXPECT_THAT(ProfilesError(One(R"("memory_bytes": 1, "read_bytes_per_second": 1e9, "disk": {"rate": 3})")),
              HasSubstr("field \"rate\" is unknown"));
  EXPECT_THAT(ProfilesError(One(
                  R"("memory_bytes": 1, "read_bytes_per_second": 1e9, "links": [{"peer": "a", "bytes_per_second": 1, "latency_ms": 0}])")),
              HasSubstr("has a link to itself"));
  EXPECT_THAT(ProfilesError(R"({"devices": [{"name": "../a"}]})"), HasSubstr("field \"name\" is not 1 to 64"));
  const std::string a = R"({"name": "a", "memory_bytes": 1, "read_bytes_per_second": 1})";
  EXPECT_THAT(ProfilesError(absl::StrCat(R"({"devices": [)", a, ",", a, "]}")), HasSubstr("there are two devices \"a\""));
  EXPECT_THAT(ProfilesError(absl::StrCat(R"({"link": {"bandwidth": "x"}, "devices": [)", a, "]}")), HasSubstr("is not a bandwidth"));
  EXPECT_THAT(ProfilesError(absl::StrCat(R"({"link": {"bytes_per_second": 9, "bandwidth": "1MB/s"}, "devices": [)", a, "]}")),
              HasSubstr("has both \"bandwidth\" and \"bytes_per_second\""));
  EXPECT_THAT(ProfilesError(absl::StrCat(R"({"link": {"bytes_per_second": 0}, "devices": [)", a, "]}")), HasSubstr("= 0 is outside"));
}

TEST(DeviceProfilesTest, TheExamplesAreRead) {
  for (const char* name : {"e1", "e2", "e3", "setting-1", "setting-2", "setting-3"}) {
    std::ifstream file(absl::StrCat(LIME_SOURCE_DIR "/testbed/clusters/", name, ".json"));
    const std::string text(std::istreambuf_iterator<char>(file), {});
    EXPECT_EQ(ProfilesError(text), "") << name;
  }
}

TEST(UnitsTest, BandwidthsAndTimesAreReadAsPeopleWriteThem) {
  EXPECT_DOUBLE_EQ(*ParseBandwidth("100Mbit/s"), 12.5e6);
  EXPECT_DOUBLE_EQ(*ParseBandwidth("1 Gbit/s"), 125e6);
  EXPECT_DOUBLE_EQ(*ParseBandwidth("2.5MiB/s"), 2.5 * 1048576);
  EXPECT_DOUBLE_EQ(*ParseMilliseconds("300us"), 0.3);
  EXPECT_DOUBLE_EQ(*ParseMilliseconds("1.5s"), 1500);
  for (const char* wrong : {"", "100", "Mbit/s", "1 mbit/s", "-1MB/s", "nanMB/s", "1e999MB/s", "1MB/s "})
    EXPECT_FALSE(ParseBandwidth(wrong).ok()) << wrong;
  for (const char* wrong : {"", "1", "ms", "-1ms", "1min"}) EXPECT_FALSE(ParseMilliseconds(wrong).ok()) << wrong;
  EXPECT_EQ(FormatBandwidth(12.5e6), "100 Mbit/s");
  EXPECT_EQ(FormatBandwidth(187.5e6), "1.5 Gbit/s");
}

}  // namespace
}  // namespace lime
