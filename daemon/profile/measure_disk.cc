#include "daemon/profile/measure_disk.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/steady_clock.h"
#include "daemon/machine/block_device.h"
#include "daemon/machine/huge_buffer.h"

namespace lime {
namespace {

constexpr double kWarmShare = 0.25;  // of a point's time; reads in it do not count
constexpr size_t kMinRounds = 6;     // counted requests of every channel
// In seconds. A limit stops a group for a while and lets it go on, several times in this time.
constexpr double kLeastPoint = 0.5;
constexpr double kDrainSeconds = 0.5;
constexpr double kLongestPoint = 20;  // in seconds; then a point ends with what the disk has done

struct ReadFile {
  std::string path;
  Bytes bytes = 0;
};

// Goes through whole requests of all files, again and again.
class Cursor {
 public:
  // REQUIRES: one of the files holds a request.
  Cursor(const std::vector<ReadFile>& files, Bytes read_bytes) : files_(files), read_bytes_(read_bytes) {}

  std::pair<int, int64_t> Next() {
    while (offset_ + read_bytes_ > files_[file_].bytes) {
      file_ = (file_ + 1) % files_.size();
      offset_ = 0;
    }
    return {static_cast<int>(file_), std::exchange(offset_, offset_ + read_bytes_)};
  }

 private:
  const std::vector<ReadFile>& files_;
  const Bytes read_bytes_;
  size_t file_ = 0;
  int64_t offset_ = 0;
};

// Requests per second: the slope of the line through the times at which requests ended. Requests
// that a limit holds back end in bunches, so a plain count could be wrong by a bunch at either end.
// REQUIRES: two ends at different times.
double EndsPerSecond(const std::vector<double>& ends) {
  const double count = static_cast<double>(ends.size()), middle = (count - 1) / 2;
  double sum = 0;
  for (const double end : ends) sum += end;
  double covariance = 0, variance = 0;
  for (size_t i = 0; i < ends.size(); ++i) {
    const double off = ends[i] - sum / count;
    covariance += off * (static_cast<double>(i) - middle);
    variance += off * off;
  }
  return covariance / variance;
}

// Keeps `depth` requests in flight until enough is read.
//
// Thread: the device's, except Run.
class DiskRateMeter {
 public:
  DiskRateMeter(BlockDevice& device, Cursor& cursor, Bytes read_bytes, double seconds, const std::atomic<bool>* cancelled,
                const HugeBuffer& memory)
      : device_(device), cursor_(cursor), read_bytes_(read_bytes), seconds_(seconds), cancelled_(cancelled), memory_(memory) {}

  absl::StatusOr<DiskPoint> Run() {
    device_.Post([this] {
      start_ = last_ = SteadyMs();
      in_flight_ = device_.num_channels();
      for (int channel = 0; channel < device_.num_channels(); ++channel) Start(channel);
    });
    done_.WaitForNotification();
    if (!status_.ok()) return status_;
    std::ranges::sort(latencies_ms_);
    return DiskPoint{.read_bytes = read_bytes_,
                     .depth = device_.num_channels(),
                     .bytes_per_second = EndsPerSecond(ends_) * static_cast<double>(read_bytes_),
                     .latency_ms = latencies_ms_[latencies_ms_.size() / 2]};
  }

 private:
  void Start(int channel) {
    const auto [file, offset] = cursor_.Next();
    const double begin = SteadyMs();
    if (place_ + read_bytes_ > memory_.bytes()) place_ = 0;
    device_.StartRead(channel, file, offset, memory_.data() + std::exchange(place_, place_ + read_bytes_), read_bytes_,
                      [this, channel, file = file, begin](BlockDevice::Result result) { OnRead(channel, file, begin, result); });
  }

  void OnRead(int channel, int file, double begin, BlockDevice::Result result) {
    if (status_.ok() && (result.error != 0 || result.bytes != read_bytes_)) {
      const std::string why =
          result.error != 0 ? std::strerror(result.error) : "a read returned too few bytes; check whether the file was truncated";
      status_ = absl::UnavailableError(absl::StrCat(device_.paths()[file], ": ", why));
    }
    last_ = SteadyMs();
    Count(begin);
    if (!Ends()) return Start(channel);
    if (--in_flight_ == 0) done_.Notify();
  }

  // Counts requests from the first one that ends after the warm part.
  void Count(double begin) {
    if (warmed_) {
      latencies_ms_.push_back(last_ - begin);
      ends_.push_back((last_ - start_) / 1000);
    }
    const int channels = device_.num_channels();
    if (!warmed_ && ++unwarmed_ >= channels && SteadyMs() - start_ >= 1000 * kWarmShare * seconds_) warmed_ = true;
  }

  bool Ends() {
    if (ending_) return true;
    const double seconds = (SteadyMs() - start_) / 1000;
    const bool enough = latencies_ms_.size() >= kMinRounds * static_cast<size_t>(device_.num_channels()) && seconds >= seconds_;
    const bool too_long = seconds >= std::max(kLongestPoint, seconds_) && latencies_ms_.size() >= 2;
    const bool cancelled = cancelled_ != nullptr && cancelled_->load(std::memory_order_relaxed);
    if (status_.ok() && cancelled) status_ = absl::CancelledError("interrupted");
    return ending_ = enough || too_long || !status_.ok();
  }

  BlockDevice& device_;
  Cursor& cursor_;
  const Bytes read_bytes_;
  const double seconds_;
  const std::atomic<bool>* const cancelled_;
  const HugeBuffer& memory_;
  Bytes place_ = 0;  // of the next request, in turn: nobody looks at the bytes
  int in_flight_ = 0, unwarmed_ = 0;
  bool warmed_ = false, ending_ = false;
  double start_ = 0, last_ = 0;              // ms
  std::vector<double> latencies_ms_, ends_;  // of counted requests; ends in seconds since the start
  absl::Status status_;
  absl::Notification done_;
};

absl::StatusOr<std::vector<ReadFile>> Stat(const std::vector<std::string>& paths) {
  std::vector<ReadFile> files;
  for (const std::string& path : paths) {
    std::error_code error;
    const auto bytes = std::filesystem::file_size(path, error);
    if (error) return absl::NotFoundError(absl::StrCat(path, ": ", error.message()));
    files.push_back({path, static_cast<Bytes>(bytes)});
  }
  return files;
}

class DiskProfile {
 public:
  DiskProfile(std::vector<std::string> paths, std::vector<ReadFile> files, const MeasureDiskOptions& options)
      : paths_(std::move(paths)), files_(std::move(files)), options_(options) {}

  absl::StatusOr<std::vector<DiskPoint>> Run() {
    std::vector<std::pair<Bytes, int>> shapes;
    for (const Bytes read_bytes : options_.read_bytes) {
      for (const int depth : options_.depths) {
        if (read_bytes <= LargestFile() && read_bytes * depth <= options_.memory) shapes.emplace_back(read_bytes, depth);
      }
    }
    if (shapes.empty()) {
      return Invalid(paths_.empty() ? "no file" : paths_.front(),
                     " is too small to measure a disk with, or the memory does not hold one request");
    }
    LIME_ASSIGN_OR_RETURN(memory_, HugeBuffer::AllocatePresent(std::max(MostBytes(shapes), std::min(options_.spread, options_.memory))));
    LIME_RETURN_IF_ERROR(Measure(shapes.back().first, 1, kDrainSeconds).status());
    std::vector<DiskPoint> points;
    for (const auto& [read_bytes, depth] : shapes) {
      LIME_ASSIGN_OR_RETURN(const DiskPoint point,
                            Measure(read_bytes, depth, std::max(kLeastPoint, options_.seconds / static_cast<double>(shapes.size()))));
      points.push_back(point);
      if (options_.progress) options_.progress(static_cast<double>(points.size()), static_cast<double>(shapes.size()));
    }
    return points;
  }

 private:
  Bytes LargestFile() const {
    Bytes largest = 0;
    for (const ReadFile& file : files_) largest = std::max(largest, file.bytes);
    return largest;
  }

  static Bytes MostBytes(const std::vector<std::pair<Bytes, int>>& shapes) {
    Bytes most = 0;
    for (const auto& [read_bytes, depth] : shapes) most = std::max(most, read_bytes * depth);
    return most;
  }

  absl::StatusOr<DiskPoint> Measure(Bytes read_bytes, int depth, double seconds) {
    LIME_ASSIGN_OR_RETURN(const std::unique_ptr<BlockDevice> device, OpenBlockDevice(paths_, {.channels = depth}));
    DiskRateMeter meter(*device, CursorOf(read_bytes), read_bytes, seconds, options_.cancelled, memory_);
    return meter.Run();
  }

  // Requests of one size continue where the last ones of that size ended.
  Cursor& CursorOf(Bytes read_bytes) {
    for (auto& [bytes, cursor] : cursors_) {
      if (bytes == read_bytes) return *cursor;
    }
    return *cursors_.emplace_back(read_bytes, std::make_unique<Cursor>(files_, read_bytes)).second;
  }

  const std::vector<std::string> paths_;
  const std::vector<ReadFile> files_;
  const MeasureDiskOptions& options_;
  HugeBuffer memory_;
  std::vector<std::pair<Bytes, std::unique_ptr<Cursor>>> cursors_;
};

}  // namespace

absl::StatusOr<std::vector<DiskPoint>> MeasureDisk(const std::vector<std::string>& files, const MeasureDiskOptions& options) {
  LIME_ASSIGN_OR_RETURN(std::vector<ReadFile> opened, Stat(files));
  return DiskProfile(files, std::move(opened), options).Run();
}

}  // namespace lime
