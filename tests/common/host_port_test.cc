#include "common/input/host_port.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

std::string Plain(const std::string& address) {
  const absl::StatusOr<HostPort> parsed = ParseAddress(address);
  return parsed.ok() ? AddressText(*parsed) : std::string(parsed.status().message());
}

TEST(HostPortTest, OneAddressHasOneText) {
  for (const char* address : {"127.0.0.1:7911", "127.1:7911", "[::ffff:127.0.0.1]:7911"}) EXPECT_EQ(Plain(address), "127.0.0.1:7911");
  EXPECT_EQ(Plain("[0:0:0:0:0:0:0:1]:7911"), "[::1]:7911");
  EXPECT_EQ(Plain("[FE80::0:1%eth0]:1"), "[fe80::1%eth0]:1");
  for (const char* as_it_is : {"orin.local:7001", "Orin_2:0", "m\u00fcll:65535", "256.1.1.1:1"}) EXPECT_EQ(Plain(as_it_is), as_it_is);
  EXPECT_EQ(PlainHost("LocalHost"), "127.0.0.1");
}

TEST(HostPortTest, APortIsPlainDigits) {
  for (const char* port : {"", "x", "+7911", "-1", "07911", " 7911", "7911 ", "7e3", "65536", "99999999999"})
    EXPECT_THAT(Plain(std::string("h:") + port), HasSubstr("is not an address: its port is not a number from 0 to 65535; write HOST:PORT"))
        << port;
}

TEST(HostPortTest, AHostIsANameOrAnAddress) {
  EXPECT_THAT(Plain("7001"), HasSubstr("it has no port"));
  EXPECT_THAT(Plain(":7001"), HasSubstr("it has no host"));
  for (const char* wrong : {"a b:1", "fe80::1:7001", "[fe80::1:7001", "http://h:1", "me@h:1"})
    EXPECT_THAT(Plain(wrong), HasSubstr("its host is neither a name nor an address")) << wrong;
  for (const char* wrong : {"[h]:1", "[1.2.3.4]:1", "[::1::]:1"})
    EXPECT_THAT(Plain(wrong), HasSubstr("its brackets do not hold an IPv6 address")) << wrong;
}

TEST(HostPortTest, KnowsWhichAddressesOthersReach) {
  for (const char* address : {"127.0.0.1:0", "127.1.2.3:7001", "localhost:1", "[::1]:7001", "127.1:1", "[0:0:0:0:0:0:0:1]:7001"})
    EXPECT_TRUE(*IsLoopback(address)) << address;
  for (const char* address : {"0.0.0.0:7001", "[::]:1", "192.168.1.10:7001", "127.0.0.1.evil.example:1", "orin:7001"})
    EXPECT_FALSE(*IsLoopback(address)) << address;
  for (const char* address : {"", "7001", "localhost", ":7001", "host:x", "host:70000", "host:-1"})
    EXPECT_FALSE(IsLoopback(address).ok()) << address;
}

}  // namespace
}  // namespace lime
