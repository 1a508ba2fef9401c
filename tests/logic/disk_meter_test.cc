#include "daemon/logic/rates/disk_meter.h"

#include <algorithm>

#include "gtest/gtest.h"

namespace lime {
namespace {

// A disk of 100 bytes a millisecond that, when it has rested, reads so many at once.
class Disk {
 public:
  explicit Disk(double burst) : burst_(burst) {}

  // Loads of 5,000 bytes for so long, the next beginning as one ends; then it rests for as long.
  void Work(double ms) {
    double saved = burst_;
    const double end_ms = now_ms_ + ms;
    meter_.LoadBegun(now_ms_);
    while (true) {
      const bool last = now_ms_ >= end_ms;
      if (!last) meter_.LoadBegun(now_ms_);
      const double free = std::min(saved, kLoad);
      saved -= free;
      now_ms_ += (kLoad - free) / kRate + 0.01;
      read_ += static_cast<Bytes>(kLoad);
      meter_.LoadEnded(now_ms_, read_);
      if (last) break;
    }
    now_ms_ += ms;
  }
  double rate() const { return static_cast<double>(meter_.bytes()) / meter_.ms(); }
  const DiskMeter& meter() const { return meter_; }

  static constexpr double kRate = 100, kLoad = 5'000;

 private:
  const double burst_;
  double now_ms_ = 0;
  Bytes read_ = 0;
  DiskMeter meter_;
};

TEST(DiskMeterTest, WhatARestedDiskReadsAtOnceDoesNotCount) {
  Disk disk(/*burst=*/10'000);  // a tenth of a second's
  for (int i = 0; i < 20; ++i) disk.Work(800);
  EXPECT_NEAR(disk.rate(), Disk::kRate, 0.01 * Disk::kRate);
  EXPECT_NEAR(disk.meter().ms(), 20 * (800 - DiskMeter::kBeginningMs), 20 * 60) << "but for the beginnings";
}

TEST(DiskMeterTest, BehindAShortRestLittleIsLeftOut) {
  DiskMeter meter;
  double now_ms = 0;
  Bytes read = 0;
  for (int i = 0; i < 100; ++i, now_ms += 3) {  // a full ring
    meter.LoadBegun(now_ms);
    meter.LoadBegun(now_ms);
    for (int load = 0; load < 10; ++load) {
      if (load < 8) meter.LoadBegun(now_ms);
      meter.LoadEnded(now_ms += 10, read += 1000);
    }
  }
  EXPECT_GT(meter.ms(), 100 * 80);
  EXPECT_NEAR(static_cast<double>(meter.bytes()) / meter.ms(), 100, 1e-6);
}

TEST(DiskMeterTest, ShortWorkBehindALongRestMeasuresNothing) {
  Disk disk(0);
  for (int i = 0; i < 20; ++i) disk.Work(DiskMeter::kBeginningMs - 60);
  EXPECT_EQ(disk.meter().ms(), 0);
  EXPECT_EQ(disk.meter().bytes(), 0);
}

TEST(DiskMeterTest, EndsThatAreReportedOutOfTurnAddNoTime) {
  DiskMeter meter;
  for (int i = 0; i < 3; ++i) meter.LoadBegun(0);
  meter.LoadEnded(300, 1000);
  meter.LoadEnded(290, 1500);
  EXPECT_EQ(meter.ms(), 0);
  meter.LoadEnded(310, 2500);
  EXPECT_EQ(meter.ms(), 10);
  EXPECT_EQ(meter.bytes(), 1500);
}

}  // namespace
}  // namespace lime
