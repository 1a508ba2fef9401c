// What a daemon runs with against what the file says, and which stored model a word means.

#include "coordinator/devices/daemon_settings.h"
#include "coordinator/devices/stored_choice.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lime::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ClusterConfig::Device WantedOf(const DaemonSettings& settings, Bytes memory) {
  ClusterConfig::Device wanted{settings};
  wanted.memory = memory;
  return wanted;
}

ClusterConfig::Device Wanted() {
  return WantedOf({.listen = "127.0.0.1:1", .weights = "/w", .tls = "/keys", .threads = 2, .cluster = "shelf"}, kGiB);
}

DeviceHealth RunsAsWanted() {
  return {.memory = kGiB, .settings = Wanted()};
}

TEST(DaemonSettingsTest, ADaemonThatRunsAsTheFileSaysHasNoDifference) {
  EXPECT_THAT(DifferencesOf(RunsAsWanted(), Wanted()), IsEmpty());
  EXPECT_THAT(DifferencesOf(DeviceHealth{.memory = 5}, Wanted()), IsEmpty()) << "an earlier release does not tell";
}

TEST(DaemonSettingsTest, EveryFieldThatWasEditedIsNamedWithBothValues) {
  ClusterConfig::Device wanted = Wanted();
  wanted.memory = 2 * kGiB;
  EXPECT_THAT(DifferencesOf(RunsAsWanted(), wanted), ElementsAre(SettingDifference{"memory", "1.00 GiB", "2.00 GiB"}));
  wanted = Wanted();
  wanted.backend = "torch";
  EXPECT_THAT(DifferencesOf(RunsAsWanted(), wanted), ElementsAre(SettingDifference{"backend", "cpu", "torch"}));
  wanted = Wanted();
  wanted.loader = "mmap", wanted.follow_memory = true, wanted.kv_dir = "/kv";
  EXPECT_THAT(DifferencesOf(RunsAsWanted(), wanted),
              ElementsAre(SettingDifference{"kv-dir", "nothing", "/kv"}, SettingDifference{"loader", "read", "mmap"},
                          SettingDifference{"follow-memory", "false", "true"}));
  wanted = Wanted();
  wanted.memory = 0, wanted.memory_mode = "balanced";
  EXPECT_THAT(DifferencesOf(RunsAsWanted(), wanted), ElementsAre(SettingDifference{"memory-mode", "nothing", "balanced"}))
      << "and memory is what limed chooses";
  wanted = WantedOf({.listen = "127.0.0.1:2", .store = "/s", .cluster = "shelf"}, 0);
  const std::vector<SettingDifference> all = DifferencesOf(RunsAsWanted(), wanted);
  EXPECT_THAT(all, ElementsAre(SettingDifference{"memory", "1.00 GiB", "nothing"}, SettingDifference{"threads", "2", "one for every core"},
                               SettingDifference{"weights", "/w", "nothing"}, SettingDifference{"store", "nothing", "/s"},
                               SettingDifference{"tls", "/keys", "nothing"}, SettingDifference{"listen", "127.0.0.1:1", "127.0.0.1:2"}));
  EXPECT_THAT(Sentence(all), HasSubstr("memory 1.00 GiB (the file says nothing), and threads 2 (the file says one for every core)"));
  EXPECT_THAT(Sentence(all), HasSubstr("no store (the file says /s)"));
}

// A service has settings of its own, of which the file need not say anything.
TEST(DaemonSettingsTest, OfADaemonThatWasStartedOtherwiseOnlyWhatTheFileSaysCounts) {
  DeviceHealth health = RunsAsWanted();
  health.settings->cluster = "";
  ClusterConfig::Device wanted = WantedOf({.listen = "127.0.0.1:2", .cluster = "shelf"}, 0);
  EXPECT_FALSE(IsStartedByUp(*health.settings, wanted));
  EXPECT_THAT(DifferencesOf(health, wanted), IsEmpty());
  wanted.memory = 2 * kGiB;
  EXPECT_THAT(DifferencesOf(health, wanted), ElementsAre(SettingDifference{"memory", "1.00 GiB", "2.00 GiB"}));
}

TEST(StoredChoiceTest, AWordIsANameOrTheFirstDigitsOfADigest) {
  const std::vector<StoreContent> devices = {
      {.folder = "/s", .models = {{.model = 0x1f3c0d5e7a9b2468, .name = "llama"}, {.model = 0x1f3c0d5e7a9b2469, .name = "qwen"}}},
      {.folder = "/t", .models = {{.model = 0x00000000000000ff, .name = "llama"}, {.model = 0x1f3c0d5e7a9b2468, .name = "llama"}}},
      {}};
  EXPECT_EQ(*ChooseStored("qwen", devices), 0x1f3c0d5e7a9b2469u);
  EXPECT_EQ(*ChooseStored("1F3C0D5E7A9B2468", devices), 0x1f3c0d5e7a9b2468u);
  EXPECT_EQ(*ChooseStored("00000000", devices), 0xffu);
  const absl::Status several = ChooseStored("llama", devices).status();
  EXPECT_TRUE(absl::IsInvalidArgument(several));
  EXPECT_THAT(std::string(several.message()), HasSubstr("llama (00000000000000ff), llama (1f3c0d5e7a9b2468)"));
  EXPECT_TRUE(absl::IsInvalidArgument(ChooseStored("1f3c0d5e7", devices).status()));
  const absl::Status none = ChooseStored("1f3c", devices).status();  // too short to be meant
  EXPECT_TRUE(absl::IsNotFound(none));
  EXPECT_THAT(std::string(none.message()), HasSubstr("qwen (1f3c0d5e7a9b2469)"));
  EXPECT_THAT(std::string(ChooseStored("x", {}).status().message()), HasSubstr("the devices hold nothing"));
}

}  // namespace
}  // namespace lime::cli
