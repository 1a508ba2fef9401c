#include "planner/demand/bundle_reads.h"

#include <algorithm>
#include <cmath>

#include "planner/base/check.h"

namespace lime {
namespace {

double SecondsAt(const RateBySize& entry) {
  return static_cast<double>(entry.bytes) / entry.bytes_per_s;
}

double SecondsOfRead(Bytes bytes, std::span<const RateBySize> rates) {
  if (bytes <= rates.front().bytes) return SecondsAt(rates.front());
  const auto above = std::ranges::upper_bound(rates, bytes, {}, &RateBySize::bytes);
  if (above == rates.end()) return static_cast<double>(bytes) / rates.back().bytes_per_s;
  const RateBySize &a = *(above - 1), &b = *above;
  const double share = static_cast<double>(bytes - a.bytes) / static_cast<double>(b.bytes - a.bytes);
  return SecondsAt(a) + share * (SecondsAt(b) - SecondsAt(a));
}

}  // namespace

absl::Status CheckJoin(const JoinOptions& options) {
  if (options.bundle_bytes < 1 || options.bundle_bytes > kMostBundleBytes)
    return Invalid("reads of bundles: a bundle has ", options.bundle_bytes, " bytes, need 1 to ", kMostBundleBytes);
  if (options.gap_bytes < 0 || options.longest_bytes < 0)
    return Invalid("reads of bundles: gaps of ", options.gap_bytes, " bytes and reads of ", options.longest_bytes,
                   " bytes, neither may be negative");
  return absl::OkStatus();
}

void JoinReads(std::span<const int32_t> places, const JoinOptions& options, std::vector<BundleRead>& reads) {
  LIME_CHECK(CheckJoin(options).ok()) << CheckJoin(options).message();
  reads.clear();
  int32_t last = -1;
  for (const int32_t place : places) {
    LIME_CHECK_GT(place, last);
    last = place;
    const Bytes begin = place * options.bundle_bytes, end = begin + options.bundle_bytes;
    const bool joins = !reads.empty() && begin - (reads.back().offset + reads.back().bytes) <= options.gap_bytes &&
                       end - reads.back().offset <= options.longest_bytes;
    if (joins) {
      reads.back().bytes = end - reads.back().offset;
    } else {
      reads.push_back({.offset = begin, .bytes = options.bundle_bytes});
    }
  }
}

Bytes BytesOf(std::span<const BundleRead> reads) {
  Bytes bytes = 0;
  for (const BundleRead& read : reads) bytes += read.bytes;
  return bytes;
}

absl::Status CheckRates(std::span<const RateBySize> rates) {
  if (rates.empty()) return Invalid("rates of reads: there is no entry; measure the disk");
  for (size_t i = 0; i < rates.size(); ++i) {
    const RateBySize& entry = rates[i];
    if (entry.bytes < 1 || !std::isfinite(entry.bytes_per_s) || entry.bytes_per_s <= 0)
      return Invalid("rates of reads: entry ", i, " has ", entry.bytes, " bytes at ", entry.bytes_per_s,
                     " bytes a second, both must be positive and finite");
    if (i > 0 && entry.bytes <= rates[i - 1].bytes)
      return Invalid("rates of reads: entry ", i, " has ", entry.bytes, " bytes after ", rates[i - 1].bytes, "; sizes must ascend");
    if (i > 0 && SecondsAt(entry) < SecondsAt(rates[i - 1]))
      return Invalid("rates of reads: a read of ", entry.bytes, " bytes takes less time than one of ", rates[i - 1].bytes,
                     "; measure the disk again");
  }
  return absl::OkStatus();
}

double SecondsOf(std::span<const BundleRead> reads, std::span<const RateBySize> rates) {
  LIME_CHECK(CheckRates(rates).ok()) << CheckRates(rates).message();
  double seconds = 0;
  for (const BundleRead& read : reads) seconds += SecondsOfRead(read.bytes, rates);
  return seconds;
}

absl::Status CheckBurst(const BurstCost& cost) {
  const auto is_time = [](double ms) { return std::isfinite(ms) && ms >= 0; };
  if (!is_time(cost.burst_ms) || !is_time(cost.read_ms) || !std::isfinite(cost.bytes_per_ms) || cost.bytes_per_ms <= 0)
    return Invalid("time of bursts: ", cost.burst_ms, " ms, ", cost.read_ms, " ms a read and ", cost.bytes_per_ms,
                   " bytes a ms, times must not be negative and the rate must be positive");
  return absl::OkStatus();
}

double BurstCost::MsOf(double reads, double bytes) const {
  return reads > 0 ? burst_ms + reads * (read_ms + bytes / bytes_per_ms) : 0;
}

Bytes BurstCost::WorthReading() const {
  return static_cast<Bytes>(std::min(read_ms * bytes_per_ms, static_cast<double>(kMostBundleBytes)));
}

}  // namespace lime
