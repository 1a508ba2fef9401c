#include "coordinator/cluster/shared_machine.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lime {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(SharedMachineTest, ThePortIsNotPartOfTheMachineAndLoopbackIsOneMachine) {
  EXPECT_EQ(MachineOf("10.0.0.3:7000"), "10.0.0.3");
  EXPECT_EQ(MachineOf("orin.local:7000"), "orin.local");
  EXPECT_EQ(MachineOf("[fe80::1]:7000"), "fe80::1");
  for (const char* loopback : {"127.0.0.1:1", "127.1.2.3:1", "localhost:9", "[::1]:7000", "127.1:1", "[0::1]:1"})
    EXPECT_EQ(MachineOf(loopback), "localhost");
}

TEST(SharedMachineTest, DevicesOnOneMachineAreNamedTogether) {
  EXPECT_THAT(SharedMachines({"a", "b", "c", "d"}, {"10.0.0.3:1", "localhost:1", "10.0.0.3:2", "10.0.0.4:1"}),
              ElementsAre(ElementsAre("a", "c")));
  EXPECT_THAT(SharedMachines({"a", "b"}, {"10.0.0.3:1", "10.0.0.4:1"}), IsEmpty());
  EXPECT_THAT(SharedMachines({"a", "b"}, {"", ""}), IsEmpty()) << "not known where they are";
}

TEST(SharedMachineTest, EachOfThoseThatShareADiskIsPlannedWithItsPart) {
  DescribedDevice device{.name = "a", .profile = {.disk = {{.read_bytes = kMiB, .depth = 8, .bytes_per_second = 900e6, .latency_ms = 2}}}};
  std::vector<DescribedDevice> devices = {device, device, device, device};
  devices[1].name = "b", devices[2].name = "c", devices[3].name = "alone";
  ShareDisks({{"a", "b", "c"}}, devices);
  for (int i = 0; i < 3; ++i) {
    EXPECT_DOUBLE_EQ(devices[i].profile.disk[0].bytes_per_second, 300e6);
    EXPECT_DOUBLE_EQ(devices[i].profile.disk[0].latency_ms, 6);
  }
  EXPECT_DOUBLE_EQ(devices[3].profile.disk[0].bytes_per_second, 900e6);
}

}  // namespace
}  // namespace lime
