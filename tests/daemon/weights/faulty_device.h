// A block device with reads that fail, return too few bytes, wrong ones, or come late.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "daemon/machine/block_device.h"

namespace lime {

// Passes reads on to a real device. `plan` sees each read first, and may shorten it or answer it
// with an error.
class FaultyDevice : public BlockDevice {
 public:
  struct Read {
    int channel;
    int file;
    int64_t offset;
    Bytes bytes;
    const std::byte* memory;  // where its bytes begin
  };
  struct Fault {
    int error = 0;            // if not 0: the answer, without a read
    Bytes shortened_to = -1;  // if not negative: the read gets only so many bytes; of a scattered read, it only says so
    bool wrong = false;       // of a scattered read: every byte differs from the file
    int late_turns = 0;       // of a scattered read: its answer comes so many turns of the device's thread later
  };
  using Plan = std::function<Fault(const Read&)>;

  FaultyDevice(std::unique_ptr<BlockDevice> device, Plan plan) : device_(std::move(device)), plan_(std::move(plan)) {}

  int num_channels() const override { return device_->num_channels(); }
  Bytes alignment() const override { return device_->alignment(); }
  const std::vector<std::string>& paths() const override { return device_->paths(); }
  std::string Describe() const override { return "faulty " + device_->Describe(); }
  void Post(std::function<void()> task) override { device_->Post(std::move(task)); }
  void StartRead(int channel, int file, int64_t offset, std::byte* destination, Bytes bytes, Completion done) override {
    const Fault fault = plan_({channel, file, offset, bytes, destination});
    if (fault.error != 0) return device_->Post([done = std::move(done), fault] { done({.error = fault.error, .bytes = 0}); });
    const Bytes length = fault.shortened_to >= 0 ? std::min(bytes, fault.shortened_to) : bytes;
    if (length == 0) return device_->Post([done = std::move(done)] { done({.error = 0, .bytes = 0}); });
    device_->StartRead(channel, file, offset, destination, length, std::move(done));
  }
  void StartScatteredRead(int channel, int file, int64_t offset, std::span<const Segment> segments, Completion done) override {
    Bytes bytes = 0;
    for (const Segment& segment : segments) bytes += segment.bytes;
    const Fault fault = plan_({channel, file, offset, bytes, segments.front().memory});
    if (fault.error != 0) return device_->Post([done = std::move(done), fault] { done({.error = fault.error, .bytes = 0}); });
    device_->StartScatteredRead(channel, file, offset, segments,
                                [this, copy = std::vector(segments.begin(), segments.end()), fault, done = std::move(done)](Result result) {
                                  for (const Segment& segment : copy) {
                                    for (Bytes i = 0; fault.wrong && i < segment.bytes; ++i) segment.memory[i] ^= std::byte{1};
                                  }
                                  if (fault.shortened_to >= 0) result.bytes = std::min(result.bytes, fault.shortened_to);
                                  After(fault.late_turns, [done, result] { done(result); });
                                });
  }

 private:
  void After(int turns, std::function<void()> what) {
    if (turns == 0) return what();
    device_->Post([this, turns, what = std::move(what)] { After(turns - 1, what); });
  }

  std::unique_ptr<BlockDevice> device_;
  Plan plan_;
};

}  // namespace lime
