// A profile that is not there yet is measured without a trace in the memory of the process that
// asks.

#include <sys/resource.h>

#include "daemon/engine/process_memory.h"
#include "daemon/profile/profile_file.h"
#include "gtest/gtest.h"
#include "tests/temp_dir.h"

namespace lime {
namespace {

class DeviceProfileTest : public ::testing::Test {
 protected:
  void SetUp() override { setenv("XDG_CACHE_HOME", cache_.path().c_str(), 1); }
  void TearDown() override { unsetenv("XDG_CACHE_HOME"); }

  // Of the largest child that was waited for.
  static Bytes ChildrensPeak() {
    struct rusage usage = {};
    getrusage(RUSAGE_CHILDREN, &usage);
    return usage.ru_maxrss * kKiB;
  }

  TempDir cache_;
};

// In this order: the peak of the children only grows.
TEST_F(DeviceProfileTest, WithoutRoomNothingIsMeasured) {
  EXPECT_EQ(LoadOrMeasureProfile(1, kMiB).read_bytes_per_second, 0);
  EXPECT_EQ(LoadOrMeasureProfile(1, -5 * kMiB).read_bytes_per_second, 0);
  EXPECT_EQ(ChildrensPeak(), 0);
}

TEST_F(DeviceProfileTest, TheMeasurementStaysWithinItsRoomAndOutsideThisProcess) {
  const Bytes peak = ProcessPeakResidentBytes();
  const DeviceProfile small = LoadOrMeasureProfile(2, 64 * kMiB);
  EXPECT_GT(small.read_bytes_per_second, 1e8);
  EXPECT_LT(ChildrensPeak(), 64 * kMiB);
  EXPECT_GT(ChildrensPeak(), 32 * kMiB) << "half of the room was read";
  EXPECT_GT(LoadOrMeasureProfile(2, Bytes{8} * kGiB).read_bytes_per_second, 1e8);
  EXPECT_GT(ChildrensPeak(), 128 * kMiB);
  EXPECT_LT(ChildrensPeak(), 160 * kMiB);
  EXPECT_LT(ProcessPeakResidentBytes() - peak, 8 * kMiB);
}

TEST_F(DeviceProfileTest, AStoredProfileIsUsedAsItIs) {
  DeviceProfile stored = LoadOrMeasureProfile(1, 0);
  stored.read_bytes_per_second = 12345;
  ASSERT_TRUE(WriteProfile(stored, DefaultProfilePath()).ok());
  EXPECT_EQ(LoadOrMeasureProfile(1, Bytes{8} * kGiB).read_bytes_per_second, 12345);
  EXPECT_NE(LoadOrMeasureProfile(2, Bytes{8} * kGiB).read_bytes_per_second, 12345) << "it is of one thread";
}

}  // namespace
}  // namespace lime
