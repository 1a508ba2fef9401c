// A block device with reads that fail or return too few bytes.
#pragma once

#include <memory>
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
  };
  struct Fault {
    int error = 0;            // if not 0: the answer, without a read
    Bytes shortened_to = -1;  // if not negative: the read gets only so many bytes
  };
  using Plan = std::function<Fault(const Read&)>;

  FaultyDevice(std::unique_ptr<BlockDevice> device, Plan plan) : device_(std::move(device)), plan_(std::move(plan)) {}

  int num_channels() const override { return device_->num_channels(); }
  Bytes alignment() const override { return device_->alignment(); }
  const std::vector<std::string>& paths() const override { return device_->paths(); }
  std::string Describe() const override { return "faulty " + device_->Describe(); }
  void Post(std::function<void()> task) override { device_->Post(std::move(task)); }
  void StartRead(int channel, int file, int64_t offset, std::byte* destination, Bytes bytes, Completion done) override {
    const Fault fault = plan_({channel, file, offset, bytes});
    if (fault.error != 0) return device_->Post([done = std::move(done), fault] { done({.error = fault.error, .bytes = 0}); });
    const Bytes length = fault.shortened_to >= 0 ? std::min(bytes, fault.shortened_to) : bytes;
    if (length == 0) return device_->Post([done = std::move(done)] { done({.error = 0, .bytes = 0}); });
    device_->StartRead(channel, file, offset, destination, length, std::move(done));
  }
  // Passed on as it is.
  void StartScatteredRead(int channel, int file, int64_t offset, std::span<const Segment> segments, Completion done) override {
    device_->StartScatteredRead(channel, file, offset, segments, std::move(done));
  }

 private:
  std::unique_ptr<BlockDevice> device_;
  Plan plan_;
};

}  // namespace lime
