#include "bench/flash/disk.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "common/steady_clock.h"
#include "planner/base/median.h"

namespace lime::flash {
namespace {

constexpr Bytes kPage = 4 * kKiB;
constexpr Bytes kPieceBytes = 4 * kMiB;  // as parts of blocks
constexpr size_t kPiecesInFlight = 2;    // as streaming has them
constexpr int kStreamChannels = 8;
constexpr Bytes kStreamRead = 1 * kMiB;

struct Grid {
  std::vector<Bytes> bytes;
  std::vector<int64_t> reads;
  Bytes most_bytes = 0;  // of a burst
  int repeats = 0;
};

Grid PointsOf(BurstGrid grid) {
  switch (grid) {
    case BurstGrid::kWhole:
      return {{4 * kKiB, 8 * kKiB, 16 * kKiB, 32 * kKiB, 64 * kKiB, 128 * kKiB}, {8, 32, 128, 512, 2048}, 64 * kMiB, 9};
    case BurstGrid::kBeside:
      return {{8 * kKiB, 16 * kKiB, 32 * kKiB, 128 * kKiB}, {8, 32, 128, 512, 2048}, 16 * kMiB, 3};
    case BurstGrid::kQuick:
      break;
  }
  return {{4 * kKiB, 16 * kKiB}, {4, 16}, 64 * kMiB, 3};
}

std::vector<Extent> PiecesOf(std::span<const Extent> extents) {
  std::vector<Extent> pieces;
  for (const Extent& extent : extents) {
    for (Bytes at = 0; at < extent.bytes; at += kPieceBytes)
      pieces.push_back({extent.file, extent.offset + at, std::min(kPieceBytes, extent.bytes - at)});
  }
  return pieces;
}

}  // namespace

absl::StatusOr<std::unique_ptr<FlashDisk>> FlashDisk::Open(const std::vector<std::string>& paths, int channels) {
  LIME_ASSIGN_OR_RETURN(std::vector<Bytes> sizes, FileSizes(paths));
  LIME_ASSIGN_OR_RETURN(std::unique_ptr<BlockDevice> many, OpenBlockDevice(paths, {.channels = channels}));
  LIME_ASSIGN_OR_RETURN(std::unique_ptr<BlockDevice> few, OpenBlockDevice(paths, {.channels = kStreamChannels}));
  return std::unique_ptr<FlashDisk>(
      new FlashDisk(std::move(sizes), std::make_unique<BlockReader>(std::move(many), BlockReader::Options{}),
                    std::make_unique<BlockReader>(std::move(few), BlockReader::Options{.read_bytes = kStreamRead})));
}

absl::Status FlashDisk::NeedMemory(Bytes bytes) {
  if (memory_.bytes() >= bytes) return absl::OkStatus();
  LIME_ASSIGN_OR_RETURN(memory_, HugeBuffer::AllocatePresent(bytes));
  return absl::OkStatus();
}

absl::StatusOr<double> FlashDisk::Burst(std::span<const Read> reads) {
  AwaitedReads awaited;
  const double begin = SteadyMs();
  for (const Read& read : reads) {
    BlockReader::Completion done = awaited.Add();
    if (read.check) {
      done = [&read, done = std::move(done)](const absl::Status& status) { done(status.ok() ? read.check() : status); };
    }
    if (read.segments.empty())
      bursts_->StartRead(read.extent, read.memory, std::move(done));
    else
      bursts_->StartScatteredRead(read.extent.file, read.extent.offset, read.segments, std::move(done));
  }
  LIME_RETURN_IF_ERROR(awaited.Await());
  return SteadyMs() - begin;
}

absl::StatusOr<double> FlashDisk::Sequential(std::span<const Extent> extents) {
  const std::vector<Extent> pieces = PiecesOf(extents);
  const Bytes place = kPieceBytes + 2 * kPage;
  LIME_RETURN_IF_ERROR(NeedMemory(place * static_cast<Bytes>(kPiecesInFlight)));
  std::deque<AwaitedReads> in_flight;  // oldest first
  absl::Status status;
  const double begin = SteadyMs();
  for (size_t i = 0; i < pieces.size() && status.ok(); ++i) {
    if (in_flight.size() == kPiecesInFlight) {
      status.Update(in_flight.front().Await());
      in_flight.pop_front();
    }
    std::byte* const memory = memory_.data() + static_cast<Bytes>(i % kPiecesInFlight) * place;
    sequential_->StartRead(pieces[i], memory, in_flight.emplace_back().Add());
  }
  for (AwaitedReads& reads : in_flight) status.Update(reads.Await());
  LIME_RETURN_IF_ERROR(status);
  return SteadyMs() - begin;
}

absl::StatusOr<BurstPoint> FlashDisk::MeasureBurst(int64_t reads, Bytes bytes, bool checksums, int repeats, Random& random) {
  std::vector<double> times;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    LIME_ASSIGN_OR_RETURN(times.emplace_back(), meter_.Measure(reads, bytes, checksums, random));
  }
  return BurstPoint{.reads = reads, .bytes = bytes, .ms = Median(times)};
}

absl::StatusOr<std::vector<BurstPoint>> MeasureBursts(FlashDisk& disk, BurstGrid grid, uint64_t seed) {
  Random random(seed);
  const Grid of = PointsOf(grid);
  std::vector<BurstPoint> points;
  for (const Bytes bytes : of.bytes) {
    for (const int64_t reads : of.reads) {
      if (reads * bytes > of.most_bytes) continue;
      LIME_ASSIGN_OR_RETURN(points.emplace_back(), disk.MeasureBurst(reads, bytes, /*checksums=*/true, of.repeats, random));
    }
  }
  return points;
}

absl::StatusOr<std::vector<RatePoint>> MeasureRates(const std::vector<std::string>& paths, bool quick, uint64_t seed) {
  Random random(seed);
  const std::vector<Bytes> sizes =
      quick ? std::vector<Bytes>{4 * kKiB, 16 * kKiB}
            : std::vector<Bytes>{4 * kKiB, 8 * kKiB, 16 * kKiB, 32 * kKiB, 64 * kKiB, 128 * kKiB, 256 * kKiB, 1024 * kKiB};
  const std::vector<int> depths = quick ? std::vector<int>{1, 4} : std::vector<int>{1, 4, 16, 32, 64};
  const Bytes in_burst = quick ? 256 * kKiB : 32 * kMiB;
  std::vector<RatePoint> points;
  for (const int depth : depths) {
    LIME_ASSIGN_OR_RETURN(const std::unique_ptr<FlashDisk> disk, FlashDisk::Open(paths, depth));
    for (const Bytes bytes : sizes) {
      const int64_t reads = std::clamp<int64_t>(in_burst / bytes, 16, depth == 1 ? 256 : 2048);
      LIME_ASSIGN_OR_RETURN(const BurstPoint point, disk->MeasureBurst(reads, bytes, /*checksums=*/false, quick ? 1 : 5, random));
      points.push_back({bytes, depth, static_cast<double>(reads * bytes) / point.ms / 1e6});
    }
  }
  return points;
}

}  // namespace lime::flash
