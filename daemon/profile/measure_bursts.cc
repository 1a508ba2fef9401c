#include "daemon/profile/measure_bursts.h"

#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <numeric>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/steady_clock.h"
#include "daemon/machine/block_device.h"
#include "daemon/weights/neuron_reader.h"
#include "planner/base/median.h"

namespace lime {
namespace {

constexpr Bytes kPage = 4 * kKiB;
constexpr int kMostRounds = 25;

struct Kind {
  int64_t reads = 0;
  Bytes bytes = 0;
  std::vector<double> ms;
};

}  // namespace

absl::StatusOr<std::vector<Bytes>> FileSizes(const std::vector<std::string>& paths) {
  std::vector<Bytes> sizes;
  for (const std::string& path : paths) {
    std::error_code error;
    const auto bytes = std::filesystem::file_size(path, error);
    if (error) return absl::NotFoundError(absl::StrCat(path, ": ", error.message()));
    sizes.push_back(static_cast<Bytes>(bytes));
  }
  return sizes;
}

absl::StatusOr<double> BurstMeter::Measure(int64_t reads, Bytes bytes, bool checksums, Random& random) {
  std::vector<int64_t> ends;  // of the offsets of each file, among those of all
  for (const Bytes size : sizes_) ends.push_back((ends.empty() ? 0 : ends.back()) + (size < bytes ? 0 : (size - bytes) / kPage + 1));
  if (ends.empty() || ends.back() == 0) return Invalid("bursts: no file has ", bytes, " bytes; make a larger model");
  const auto offsets = [&random](int64_t count) { return static_cast<int64_t>(random.Uniform() * static_cast<double>(count)); };
  const auto file = static_cast<size_t>(std::ranges::upper_bound(ends, offsets(ends.back())) - ends.begin());
  const int64_t pages = (sizes_[file] - bytes) / kPage + 1;
  if (memory_.bytes() < bytes) {
    LIME_ASSIGN_OR_RETURN(memory_, HugeBuffer::AllocatePresent(std::max(spread_, bytes)));
  }
  if (place_ + reads * bytes > memory_.bytes()) place_ = 0;  // reads of one burst share memory only if they must
  AwaitedReads awaited;
  const double begin = SteadyMs();
  for (int64_t read = 0; read < reads; ++read) {
    if (place_ + bytes > memory_.bytes()) place_ = 0;
    std::byte* const memory = memory_.data() + std::exchange(place_, place_ + bytes);
    reader_.StartRead({static_cast<int>(file), offsets(pages) * kPage, bytes}, memory,
                      [this, memory, bytes, checksums, done = awaited.Add()](const absl::Status& status) {
                        if (checksums && status.ok())
                          sums_.fetch_xor(XXH3_64bits(memory, static_cast<size_t>(bytes)), std::memory_order_relaxed);
                        done(status);
                      });
  }
  LIME_RETURN_IF_ERROR(awaited.Await());
  return SteadyMs() - begin;
}

absl::StatusOr<std::optional<BurstCost>> MeasureBursts(const std::vector<std::string>& files, const MeasureBurstsOptions& options) {
  LIME_ASSIGN_OR_RETURN(std::vector<Bytes> sizes, FileSizes(files));
  if (std::accumulate(sizes.begin(), sizes.end(), Bytes{0}) < options.least_bytes || options.memory < kLeastBurstMemory)
    return std::nullopt;
  LIME_ASSIGN_OR_RETURN(std::unique_ptr<BlockDevice> device, OpenBlockDevice(files, {.channels = NeuronReader::Options().channels}));
  BlockReader reader(std::move(device), {});
  BurstMeter meter(reader, std::move(sizes), std::min(options.memory, MeasureBurstsOptions().memory));
  std::vector<Kind> kinds;
  for (const int64_t reads : options.reads) {
    for (const Bytes bytes : options.read_bytes) kinds.push_back({.reads = reads, .bytes = bytes, .ms = {}});
  }
  const size_t least = std::min(kinds.size(), options.read_bytes.size() + 1);  // two numbers of reads
  Random random(1);
  const double end = SteadyMs() + 1000 * options.seconds;
  bool over = false;
  for (int round = 0; round < kMostRounds && !over; ++round) {
    for (size_t i = 0; i < kinds.size() && !over; ++i) {
      if (options.cancelled != nullptr && options.cancelled->load(std::memory_order_relaxed)) return absl::CancelledError("interrupted");
      LIME_ASSIGN_OR_RETURN(const double ms, meter.Measure(kinds[i].reads, kinds[i].bytes, /*checksums=*/true, random));
      kinds[i].ms.push_back(ms);
      over = SteadyMs() >= end && (round > 0 || i + 1 >= least);
    }
  }
  std::vector<BurstPoint> points;
  for (Kind& kind : kinds) {
    if (!kind.ms.empty()) points.push_back({.reads = kind.reads, .bytes = kind.bytes, .ms = Median(kind.ms)});
  }
  return FitBursts(points);
}

}  // namespace lime
