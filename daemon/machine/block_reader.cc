#include "daemon/machine/block_reader.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "planner/base/check.h"

namespace lime {

struct BlockReader::Request {
  Completion done;
  int64_t tag = 0;
  int64_t reads_left = 0;
  absl::Status status;  // first error; the remaining reads are not started
};

// One read, or the rest of it.
struct BlockReader::Read {
  std::shared_ptr<Request> request;
  int file = 0;
  int64_t offset = 0;  // aligned
  std::byte* destination = nullptr;
  Bytes bytes = 0;   // aligned; may extend beyond the end of the file
  Bytes needed = 0;  // the part of `bytes` before the extent's end
  int attempts = 0;
  std::span<const BlockDevice::Segment> segments;  // of a scattered read, instead of `destination`
};

BlockReader::BlockReader(std::unique_ptr<BlockDevice> device, const Options& options) : options_(options), device_(std::move(device)) {
  LIME_CHECK(options_.read_bytes > 0 && options_.read_bytes % device_->alignment() == 0) << options_.read_bytes;
  for (int channel = device_->num_channels() - 1; channel >= 0; --channel) idle_channels_.push_back(channel);
}

BlockReader::~BlockReader() {
  Cancel();
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(
      +[](int* open) { return *open == 0; }, &open_requests_));
}

Bytes BlockReader::BufferOffset(const Extent& extent) const {
  return extent.offset % device_->alignment();
}

Bytes BlockReader::BufferBytes(const Extent& extent) const {
  return RoundUp(BufferOffset(extent) + extent.bytes, device_->alignment());
}

void BlockReader::StartRead(const Extent& extent, std::byte* buffer, Completion done, int64_t tag) {
  {
    absl::MutexLock lock(&mutex_);
    ++open_requests_;
  }
  device_->Post([this, extent, buffer, tag, done = std::move(done)] {
    auto request = std::make_shared<Request>();
    request->done = done, request->tag = tag;
    const Bytes total = BufferBytes(extent), needed = BufferOffset(extent) + extent.bytes;
    const int64_t begin = extent.offset - BufferOffset(extent);
    for (Bytes at = 0; at < std::max<Bytes>(total, 1); at += options_.read_bytes) {
      queue_.push_back({.request = request,
                        .file = extent.file,
                        .offset = begin + at,
                        .destination = buffer + at,
                        .bytes = std::min(options_.read_bytes, total - at),
                        .needed = std::min(options_.read_bytes, needed - at)});
      ++request->reads_left;
    }
    FillChannels();
  });
}

void BlockReader::StartScatteredRead(int file, int64_t offset, std::span<const BlockDevice::Segment> segments, Completion done) {
  {
    absl::MutexLock lock(&mutex_);
    ++open_requests_;
  }
  device_->Post([this, file, offset, segments, done = std::move(done)] {
    auto request = std::make_shared<Request>();
    request->done = done, request->reads_left = 1;
    Bytes bytes = 0;
    for (const BlockDevice::Segment& segment : segments) bytes += segment.bytes;
    queue_.push_back({.request = request, .file = file, .offset = offset, .bytes = bytes, .needed = bytes, .segments = segments});
    FillChannels();
  });
}

void BlockReader::Cancel() {
  device_->Post([this] {
    for (const Read& read : queue_) read.request->status.Update(absl::CancelledError("reading weights was cancelled"));
    FillChannels();
  });
}

void BlockReader::Cancel(int64_t tag) {
  device_->Post([this, tag] {
    for (const Read& read : queue_) {
      if (read.request->tag == tag) read.request->status.Update(absl::CancelledError("the read was cancelled"));
    }
    FillChannels();
  });
}

void BlockReader::FillChannels() {
  while (!queue_.empty() && (!idle_channels_.empty() || !queue_.front().request->status.ok())) {
    Read read = std::move(queue_.front());
    queue_.pop_front();
    if (!read.request->status.ok() || read.needed <= 0) {
      FinishRead(read);
      continue;
    }
    const int channel = idle_channels_.back();
    idle_channels_.pop_back();
    Submit(channel, std::move(read));
  }
}

void BlockReader::Submit(int channel, Read read) {
  const int file = read.file;
  const int64_t offset = read.offset;
  std::byte* const destination = read.destination;
  const Bytes bytes = read.bytes;
  if (!read.segments.empty()) {
    const std::span<const BlockDevice::Segment> segments = read.segments;
    return device_->StartScatteredRead(
        channel, file, offset, segments,
        [this, channel, read = std::move(read)](BlockDevice::Result result) { OnRead(channel, read, result); });
  }
  device_->StartRead(channel, file, offset, destination, bytes,
                     [this, channel, read = std::move(read)](BlockDevice::Result result) { OnRead(channel, read, result); });
}

void BlockReader::OnRead(int channel, Read read, BlockDevice::Result result) {
  bytes_read_.fetch_add(std::min(result.bytes, read.needed), std::memory_order_relaxed);
  const bool complete = result.error == 0 && result.bytes >= read.needed;
  if (!complete) {
    // Keeps whole aligned units of a short read; reads the rest again.
    const Bytes kept = result.error == 0 && read.segments.empty() ? result.bytes / device_->alignment() * device_->alignment() : 0;
    bytes_read_.fetch_sub(std::min(result.bytes, read.needed) - kept, std::memory_order_relaxed);
    read.offset += kept, read.destination += kept, read.bytes -= kept, read.needed -= kept;
    read.attempts = kept > 0 ? 0 : read.attempts + 1;
    if (read.attempts < options_.max_attempts && read.request->status.ok()) return Submit(channel, std::move(read));
  }
  idle_channels_.push_back(channel);
  // The queued reads of this request are not started any more.
  if (!complete) read.request->status.Update(FinalError(read, result));
  // Start the next reads first: completing a request takes a while (checksums).
  FillChannels();
  FinishRead(read);
}

absl::Status BlockReader::FinalError(const Read& read, BlockDevice::Result result) const {
  const std::string where = absl::StrCat(device_->paths()[static_cast<size_t>(read.file)], ": ");
  if (result.error == 0) {
    return absl::DataLossError(absl::StrCat(where, "ends at or before offset ", read.offset + result.bytes,
                                            ", but weights reach to offset ", read.offset + read.needed,
                                            "; the file was truncated after it was opened"));
  }
  return absl::UnavailableError(absl::StrCat(where, "reading ", read.bytes, " bytes at offset ", read.offset, " failed ",
                                             options_.max_attempts, " times: ", std::strerror(result.error), "; check the disk"));
}

void BlockReader::FinishRead(const Read& read) {
  Request& request = *read.request;
  if (--request.reads_left > 0) return;
  request.done(request.status);
  absl::MutexLock lock(&mutex_);
  --open_requests_;
}

BlockReader::Completion AwaitedReads::Add() {
  absl::MutexLock lock(&mutex_);
  ++remaining_;
  return [this](const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    status_.Update(status);
    --remaining_;
  };
}

bool AwaitedReads::Await(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(
                                     +[](int64_t* remaining) { return *remaining == 0; }, &remaining_),
                                 timeout);
}

absl::Status AwaitedReads::Await() {
  (void)Await(absl::InfiniteDuration());
  absl::MutexLock lock(&mutex_);
  return status_;
}

}  // namespace lime
