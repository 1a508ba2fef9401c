#include "daemon/weights/load_meter.h"

#include <gtest/gtest.h>

namespace lime {
namespace {

// 100 MB a block at 200 MB/s; its memory is there after 50 ms.
TEST(LoadMeterTest, ADiskThatIsSlowerThanMemoryIsMadePresentIsMeasured) {
  LoadMeter meter;
  for (int block = 0; block < 10; ++block) meter.Add(100'000'000, 0.5, 0.45);
  EXPECT_EQ(meter.steady().bytes, 1'000'000'000);
  EXPECT_DOUBLE_EQ(meter.steady().bytes_per_second(), 200e6);
}

TEST(LoadMeterTest, MemoryThatComesAsLateAsTheDataSaysNothingOfTheDisk) {
  LoadMeter meter;
  for (int block = 0; block < 10; ++block) meter.Add(100'000'000, 0.05, 0.01);
  EXPECT_EQ(meter.steady().bytes, 0);
  EXPECT_EQ(meter.steady().bytes_per_second(), 0);
}

TEST(LoadMeterTest, OneLateBlockAmongManyDoesNotHideTheDisk) {
  LoadMeter meter;
  meter.Add(100'000'000, 0.5, 0);
  for (int block = 0; block < 3; ++block) meter.Add(100'000'000, 0.5, 0.45);
  EXPECT_DOUBLE_EQ(meter.steady().bytes_per_second(), 200e6);
}

TEST(LoadMeterTest, NothingReadIsNothingSeen) {
  EXPECT_EQ(LoadMeter().steady().bytes_per_second(), 0);
}

}  // namespace
}  // namespace lime
