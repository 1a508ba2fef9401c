#include "coordinator/cluster/cluster_config.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lime {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kShelf[] = R"(
[cluster]
name = "shelf"
model = "models/llama"
tls = "keys"

[[device]]
name = "orin"
address = "192.168.1.10:7001"
memory = "26GiB"
weights = "/data/llama"
store = "/data/lime"
threads = 8
backend = "torch"
loader = "auto"
follow-memory = true
kv-dir = "/data/kv"
profile = "orin.json"
ssh = "me@orin"
limed = "/opt/lime/limed"
tls = "/etc/lime/keys"
listen = "0.0.0.0:7001"

[[device]]
name = "box-2"
address = "[fe80::1]:7001"
memory = 1000000000

[[link]]
bandwidth = "100Mbit/s"
latency = "0.3ms"

[[link]]
from = "orin"
to = "box-2"
bandwidth = "1Gbit/s"
latency = "80us"
)";

ClusterConfig Parsed(const std::string& text) {
  absl::StatusOr<ClusterConfig> config = ParseClusterConfig(text, "c.toml");
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *std::move(config) : ClusterConfig{};
}

// The sentence about `text`, or "" where it passes.
std::string ConfigError(const std::string& text) {
  const absl::StatusOr<ClusterConfig> config = ParseClusterConfig(text, "c.toml");
  EXPECT_EQ(config.status().message().find('\n'), absl::string_view::npos);
  return std::string(config.status().message());
}

std::string Device(const std::string& field) {
  return "[[device]]\nname = \"a\"\n" + field + "\n";
}

TEST(ClusterConfigTest, PathsOnAnotherMachineAreWholeOnes) {
  for (const char* key : {"weights", "store", "kv-dir", "tls", "limed"}) {
    for (const char* path : {"data/llama", "./llama", "~/llama"}) {
      const std::string field = absl::StrCat(key, " = \"", path, "\"\n");
      EXPECT_EQ(ConfigError(Device(field)), "") << "of this machine: beside the file";
      EXPECT_THAT(ConfigError(Device("ssh = \"me@orin\"\n" + field)),
                  StartsWith(absl::StrCat("c.toml line 4: [[device]]: field \"", key, "\" = \"", path, "\" is relative, but")));
    }
  }
  EXPECT_EQ(ConfigError(Device("ssh = \"me@orin\"\nlimed = \"limed\"")), "") << "on the PATH there";
}

TEST(ClusterConfigTest, ReadsWhatAPersonWrites) {
  const ClusterConfig config = Parsed(kShelf);
  EXPECT_EQ(config.name, "shelf");
  EXPECT_EQ(config.model, "models/llama");
  EXPECT_EQ(config.tls, "keys");
  ASSERT_EQ(config.devices.size(), 2u);
  const ClusterConfig::Device& orin = config.devices[0];
  EXPECT_EQ(orin.name, "orin");
  EXPECT_EQ(orin.address, "192.168.1.10:7001");
  EXPECT_EQ(orin.memory, 26 * kGiB);
  EXPECT_EQ(orin.weights, "/data/llama");
  EXPECT_EQ(orin.store, "/data/lime");
  EXPECT_EQ(orin.threads, 8);
  EXPECT_EQ(orin.backend, "torch");
  EXPECT_EQ(orin.loader, "auto");
  EXPECT_TRUE(orin.follow_memory);
  EXPECT_EQ(orin.kv_dir, "/data/kv");
  EXPECT_EQ(orin.profile, "orin.json");
  EXPECT_EQ(orin.ssh, "me@orin");
  EXPECT_EQ(orin.limed, "/opt/lime/limed");
  EXPECT_EQ(orin.tls, "/etc/lime/keys");
  EXPECT_EQ(orin.listen, "0.0.0.0:7001");
  EXPECT_EQ(config.devices[1].memory, 1'000'000'000);
  EXPECT_EQ(config.devices[1].backend, "cpu");
  EXPECT_EQ(config.devices[1].loader, "read");
  EXPECT_FALSE(config.devices[1].follow_memory);
  EXPECT_EQ(config.devices[1].line, 24);
  ASSERT_EQ(config.links.size(), 2u);
  EXPECT_EQ(config.links[0].from, "");
  EXPECT_DOUBLE_EQ(config.links[0].bytes_per_second, 12.5e6);
  EXPECT_DOUBLE_EQ(config.links[1].latency_ms, 0.08);
}

TEST(ClusterConfigTest, AMemoryModeIsForMemoryThatLimedChoosesForAModel) {
  const std::string mode = "memory-mode = \"max-context\"\n";
  EXPECT_EQ(Parsed(Device("weights = \"/m\"\n" + mode)).devices[0].memory_mode, "max-context");
  EXPECT_EQ(Parsed(Device("")).devices[0].memory_mode, "");
  EXPECT_THAT(ConfigError(Device(mode)), HasSubstr("add the weights on that device"));
  EXPECT_THAT(ConfigError(Device("weights = \"/m\"\nmemory = \"2GiB\"\n" + mode)), HasSubstr("leave out memory or memory-mode"));
  EXPECT_THAT(ConfigError(Device("memory-mode = \"fast\"")), HasSubstr("\"fast\" is none of max-tps, balanced, max-context"));
}

TEST(ClusterConfigTest, OnlyDevicesAreNeeded) {
  const ClusterConfig config = Parsed("[[device]]\nname = \"a\"\n");
  EXPECT_EQ(config.devices[0].memory, 0);
  EXPECT_EQ(config.devices[0].threads, 0);
  EXPECT_TRUE(config.links.empty());
}

TEST(ClusterConfigTest, ATypingErrorIsNamedWithItsLine) {
  EXPECT_EQ(
      ConfigError(Device("memroy = \"2GiB\"")),
      "c.toml line 3: [[device]]: field \"memroy\" is unknown; did you mean memory? The known fields are address, backend, follow-memory, "
      "kv-dir, limed, listen, loader, memory, memory-mode, name, profile, ssh, store, threads, tls, weights");
  EXPECT_EQ(ConfigError("[clutser]\n"),
            "c.toml line 1: \"clutser\" is unknown; did you mean cluster? The known fields are [cluster], [[device]] and [[link]]");
  EXPECT_THAT(ConfigError("[cluster]\nnmae = \"x\"\n" + Device("")), HasSubstr("line 2: [cluster]: field \"nmae\" is unknown"));
}

TEST(ClusterConfigTest, NamesTheFirstWrongField) {
  EXPECT_EQ(ConfigError(""), "c.toml: has no [[device]]; write one for each device");
  EXPECT_EQ(ConfigError("[[device]]\n"), "c.toml line 1: [[device]]: field \"name\" is missing; give every device its own name");
  EXPECT_THAT(ConfigError("[device]\nname = \"a\"\n"), HasSubstr("write [[device]]"));
  EXPECT_THAT(ConfigError("device = [1]\n"), HasSubstr("has an entry that is not a table; write [[device]]"));
  EXPECT_THAT(ConfigError("[[cluster]]\n"), HasSubstr("write [cluster] once"));
  EXPECT_THAT(ConfigError("[[device]]\nname = 7\n"), HasSubstr("field \"name\" is not a string"));
  EXPECT_THAT(ConfigError("[[device]]\nname = \"a b\"\n"), HasSubstr("is not 1 to 64 letters, digits"));
  EXPECT_THAT(ConfigError("[[device]]\nname = \"" + std::string(65, 'a') + "\"\n"), HasSubstr("is not 1 to 64 letters"));
  EXPECT_THAT(ConfigError(Device("memory = \"lots\"")), HasSubstr("c.toml line 3: [[device]]: field \"memory\": "));
  EXPECT_THAT(ConfigError(Device("memory = 0")), HasSubstr("field \"memory\" = 0 is outside 1 to"));
  EXPECT_THAT(ConfigError(Device("memory = 6")), HasSubstr("field \"memory\" = 6 is 6 B, but limed alone needs more"));
  EXPECT_THAT(ConfigError(Device("memory = \"6\"")), HasSubstr("write the size with its unit, such as \"8GiB\""));
  EXPECT_THAT(ConfigError(Device("memory = \"0\"")), HasSubstr("field \"memory\" = 0 is 0 B, but limed alone needs more"));
  EXPECT_THAT(ConfigError(Device("memory = -5")), HasSubstr("field \"memory\" = -5 is outside"));
  EXPECT_THAT(ConfigError(Device("memory = 1.5")), HasSubstr("field \"memory\" is not a string"));
  EXPECT_THAT(ConfigError(Device("memory = \"999999TiB\"")), HasSubstr("\"memory\""));
  EXPECT_THAT(ConfigError(Device("threads = 4096")), HasSubstr("field \"threads\" = 4096 is outside 0 to 1024"));
  EXPECT_THAT(ConfigError(Device("threads = true")), HasSubstr("field \"threads\" is not a whole number"));
  EXPECT_THAT(ConfigError(Device("ssh = \"-oProxyCommand=id\"")), HasSubstr("field \"ssh\" = \"-oProxyCommand=id\" is not [USER@]HOST"));
  EXPECT_THAT(ConfigError(Device("listen = \"7001\"")), HasSubstr("field \"listen\" = \"7001\" is not host:port"));
  EXPECT_THAT(ConfigError(Device("backend = \"tpu\"")),
              HasSubstr("is none of cpu, torch (torch where its module liblime_torch.so is installed)"));
  EXPECT_THAT(ConfigError(Device("loader = \"copy\"")), HasSubstr("field \"loader\" = \"copy\" is none of auto, read, mmap"));
  EXPECT_THAT(ConfigError(Device("follow-memory = 1")), HasSubstr("field \"follow-memory\" is neither true nor false"));
  EXPECT_THAT(ConfigError(Device("weights = \"a\\u0000b\"")), HasSubstr("holds control characters"));
  EXPECT_THAT(ConfigError(Device("weights = \"" + std::string(5000, 'x') + "\"")), HasSubstr("is longer than 4096 bytes"));
}

TEST(ClusterConfigTest, AddressesAreHostAndPort) {
  EXPECT_THAT(ConfigError(Device("address = \"\"")), HasSubstr("field \"address\" is empty; give a value, or leave it out"));
  for (const char* wrong :
       {"host", ":7001", "host:", "host:0", "host:65536", "host:x", "host:+1", "host:01", "a b:1", "fe80::1:7001", "[fe80::1:7001"})
    EXPECT_THAT(ConfigError(Device(absl::StrCat("address = \"", wrong, "\""))), HasSubstr("is not host:port")) << wrong;
  for (const char* right : {"host:1", "10.0.0.1:65535", "[::1]:7001"})
    EXPECT_EQ(ConfigError(Device(absl::StrCat("address = \"", right, "\""))), "");
}

TEST(ClusterConfigTest, NamesAreThoseOfFilesAndNotOfTheClustersOwnKeys) {
  for (const char* name : {"..", ".a", "-a", "a/b", "../../x", "a b"}) {
    EXPECT_THAT(ConfigError(absl::StrCat("[[device]]\nname = \"", name, "\"\n")), HasSubstr("is not 1 to 64 letters")) << name;
    EXPECT_THAT(ConfigError(absl::StrCat("[cluster]\nname = \"", name, "\"\n", Device(""))),
                StartsWith(absl::StrCat("c.toml line 2: [cluster]: field \"name\" = \"", name, "\" is not 1 to 64 letters")));
  }
  for (const char* name : {"ca", "coordinator"}) {
    EXPECT_EQ(ConfigError(absl::StrCat("[[device]]\nname = \"", name, "\"\n")),
              absl::StrCat("c.toml line 2: [[device]]: field \"name\" = \"", name,
                           "\" is reserved for keys that every cluster has; choose another name"));
  }
}

TEST(ClusterConfigTest, WhatTheFileSaysIsKeptAsItIsWritten) {
  const ClusterConfig::Device device = Parsed(Device("memory = \"2GiB\"\nthreads = 3")).devices[0];
  EXPECT_EQ(device.written.at("memory").text, "\"2GiB\"");
  EXPECT_EQ(device.written.at("memory").line, 3);
  EXPECT_EQ(device.written.at("threads").text, "3");
}

TEST(ClusterConfigTest, NamesAndLinksAreThereOnce) {
  EXPECT_THAT(ConfigError(Device("") + Device("")), HasSubstr("line 4: [[device]]: there is a device \"a\" already"));
  const std::string two = Device("") + "[[device]]\nname = \"b\"\n";
  const auto link = [](const std::string& ends) { return "[[link]]\n" + ends + "bandwidth = \"1MB/s\"\n"; };
  EXPECT_EQ(ConfigError(two + link("") + link("from = \"a\"\nto = \"b\"\n")), "");
  EXPECT_THAT(ConfigError(two + link("") + link("")), HasSubstr("there is a link for all pairs already"));
  EXPECT_THAT(ConfigError(two + link("from = \"a\"\nto = \"b\"\n") + link("from = \"b\"\nto = \"a\"\n")),
              HasSubstr("these two devices have a link already"));
  EXPECT_THAT(ConfigError(two + link("from = \"a\"\nto = \"c\"\n")), HasSubstr("there is no device \"c\""));
  EXPECT_THAT(ConfigError(two + link("from = \"a\"\nto = \"a\"\n")), HasSubstr("to itself"));
  EXPECT_THAT(ConfigError(two + link("from = \"a\"\n")), HasSubstr("field \"to\" is missing; name both ends"));
  EXPECT_THAT(ConfigError(two + "[[link]]\nlatency = \"1ms\"\n"), HasSubstr("field \"bandwidth\" is missing"));
  EXPECT_THAT(ConfigError(two + "[[link]]\nbandwidth = \"fast\"\n"), HasSubstr("\"fast\" is not a bandwidth; write one such as 100Mbit/s"));
  EXPECT_THAT(ConfigError(two + "[[link]]\nbandwidth = \"0MB/s\"\n"),
              HasSubstr("= 0MB/s is out of range; give 8e-06 Mbit/s to 8e+06 Gbit/s"));
  EXPECT_THAT(ConfigError(two + "[[link]]\nbandwidth = \"1MB/s\"\nlatency = \"-1ms\"\n"), HasSubstr("\"latency\""));
  EXPECT_THAT(ConfigError(two + "[[link]]\nbandwidth = \"1e300GB/s\"\n"), HasSubstr("is out of range"));
}

TEST(ClusterConfigTest, TwoDevicesWithOneAddressCannotBothAnswer) {
  const auto error = [](const std::string& a, const std::string& b) {
    const std::string text =
        absl::StrCat("[[device]]\nname = \"a\"\naddress = \"", a, "\"\n[[device]]\nname = \"b\"\naddress = \"", b, "\"\n");
    EXPECT_TRUE(ParseClusterConfig(text, "c.toml", /*distinct=*/false).ok());
    return ConfigError(text);
  };
  EXPECT_EQ(error("h:7001", "h:7001"),
            "c.toml line 4: [[device]]: device \"b\" has the address h:7001 of device \"a\"; give each device its own port or host");
  EXPECT_THAT(error("H:7001", "h:7001"), HasSubstr("has the address"));
  EXPECT_THAT(error("127.0.0.1:7001", "localhost:7001"), HasSubstr("has the address localhost:7001 of device \"a\""));
  EXPECT_THAT(error("127.0.0.1:7001", "127.1:7001"), HasSubstr("has the address 127.0.0.1:7001 of device \"a\""));
  EXPECT_THAT(error("[::1]:7001", "[0:0:0:0:0:0:0:1]:7001"), HasSubstr("has the address [::1]:7001 of device \"a\""));
  EXPECT_EQ(error("h:7001", "h:7002"), "");
  EXPECT_EQ(ConfigError("[[device]]\nname = \"a\"\n[[device]]\nname = \"b\"\n"), "");
}

TEST(ClusterConfigTest, DevicesMayBeLeftOutByName) {
  const std::string text = Device("") + "[[device]]\nname = \"b\"\n[[device]]\nname = \"c\"\n" +
                           "[[link]]\nfrom = \"a\"\nto = \"b\"\nbandwidth = \"1MB/s\"\n" +
                           "[[link]]\nfrom = \"a\"\nto = \"c\"\nbandwidth = \"1MB/s\"\n";
  auto config = ParseClusterConfig(text, "c.toml");
  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_TRUE(Exclude({"b", "b"}, *config).ok());
  ASSERT_EQ(config->devices.size(), 2u);
  EXPECT_EQ(config->devices[1].name, "c");
  ASSERT_EQ(config->links.size(), 1u);
  EXPECT_EQ(config->links[0].to, "c");
  EXPECT_THAT(std::string(Exclude({"d"}, *config).message()), HasSubstr("--without d: there is no such device; the devices are a, c"));
  EXPECT_THAT(std::string(Exclude({"a", "c"}, *config).message()), HasSubstr("leaves out every device"));
}

TEST(ClusterConfigTest, BrokenTomlIsOneSentence) {
  EXPECT_THAT(ConfigError("[cluster\nname"), HasSubstr("']'"));  // not escaped twice
  EXPECT_THAT(ConfigError("[cluster\nname"), StartsWith("c.toml line 1: is not valid TOML: "));
  EXPECT_THAT(ConfigError("a = \"\n\"\n"), StartsWith("c.toml line 1: is not valid TOML: "));
  EXPECT_THAT(ConfigError("a = \"x\nb = 1\n"), HasSubstr("its closing quotation mark is missing"));
  EXPECT_THAT(ConfigError(std::string("a = \"\xff\xfe\"\n")), HasSubstr("is not valid TOML: "));
  EXPECT_THAT(ConfigError("[[[link]]\n"), HasSubstr("c.toml: is not valid TOML: "));  // asserted by the parser
  EXPECT_THAT(ConfigError("a = 1\na = 2\n"), StartsWith("c.toml line 2: is not valid TOML: "));
}

TEST(ClusterConfigTest, LettersBeyondAsciiStandInStringsAndCommentsAlone) {
  for (const char* outside : {"gr\u00f6\u00dfe = 1\n", "[clust\u00e9r]\n", "a = \u4e2d\n", "a = 9{\"9\u00e4\n", "a = b\"\u00e4\"\n"}) {
    EXPECT_THAT(ConfigError(outside), StartsWith("c.toml line 1: is not valid TOML: ")) << outside;
  }
  const auto weights = [](const std::string& value) {
    const auto config = ParseClusterConfig(
        absl::StrCat("\xEF\xBB\xBF# \u00fcber\n[[device]]  # \u00e4\nname = \"a\"\naddress = \"1.2.3.4:5\"\nweights = ", value, "\n"),
        "c.toml");
    return config.ok() ? config->devices[0].weights : std::string(config.status().message());
  };
  EXPECT_EQ(weights("\"/m\u00fcll/\\\"#\""), "/m\u00fcll/\"#");
  EXPECT_EQ(weights("'/\u4e2d\\'"), "/\u4e2d\\");
  EXPECT_EQ(weights("\"\"\"\\\n \u00e4\"\"\""), "\u00e4");
}

TEST(ClusterConfigTest, SizeAndDepthAreBounded) {
  EXPECT_THAT(ConfigError(std::string(kMaxClusterBytes + 1, '\n')), HasSubstr("is longer than 256.00 KiB"));
  std::string dots = "a";
  for (int i = 0; i < 60'000; ++i) dots += ".a";
  EXPECT_THAT(ConfigError(dots + " = 1\n"), HasSubstr("line 1: has more than 64 dots"));
  EXPECT_THAT(ConfigError("a = " + std::string(100'000, '[')), HasSubstr("is not valid TOML"));
  std::string tables = "a = ";
  for (int i = 0; i < 10'000; ++i) tables += "{a=";
  EXPECT_THAT(ConfigError(tables), HasSubstr("is not valid TOML"));
  std::string devices;
  for (int i = 0; i < 1025; ++i) absl::StrAppend(&devices, "[[device]]\nname = \"d", i, "\"\n");
  EXPECT_THAT(ConfigError(devices), HasSubstr("has 1025 [[device]], more than 1024"));
}

}  // namespace
}  // namespace lime
