#include "coordinator/cluster/units.h"

#include <cmath>
#include <cstddef>
#include <span>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

struct NamedUnit {
  std::string_view name;
  double factor;
};

constexpr NamedUnit kBandwidths[] = {{"bit/s", 1.0 / 8}, {"kbit/s", 1e3 / 8}, {"Mbit/s", 1e6 / 8},  {"Gbit/s", 1e9 / 8},
                                     {"B/s", 1},         {"KB/s", 1e3},       {"MB/s", 1e6},        {"GB/s", 1e9},
                                     {"KiB/s", 1024},    {"MiB/s", 1048576},  {"GiB/s", 1073741824}};
constexpr NamedUnit kTimes[] = {{"us", 1e-3}, {"ms", 1}, {"s", 1e3}};

// The text must end with a unit, and begin with a number.
absl::StatusOr<double> Parse(std::string_view text, std::span<const NamedUnit> units, std::string_view what, std::string_view example) {
  const size_t end = text.find_first_not_of("0123456789.+-eE ");
  double number = 0;
  for (const NamedUnit& unit : units) {
    if (end == std::string_view::npos || text.substr(end) != unit.name) continue;
    if (absl::SimpleAtod(Text(text.substr(0, end)), &number) && std::isfinite(number) && number >= 0) return number * unit.factor;
  }
  return Invalid("\"", absl::CHexEscape(Text(text.substr(0, 40))), "\" is not a ", Text(what), "; write one such as ", Text(example));
}

}  // namespace

absl::StatusOr<double> ParseBandwidth(std::string_view text) {
  return Parse(text, kBandwidths, "bandwidth", "100Mbit/s or 12.5MB/s");
}

absl::StatusOr<double> ParseMilliseconds(std::string_view text) {
  return Parse(text, kTimes, "time", "0.3ms or 300us");
}

std::string FormatBandwidth(double bytes_per_second) {
  const double mbit = bytes_per_second * 8 / 1e6;
  return mbit < 1000 ? absl::StrFormat("%.4g Mbit/s", mbit) : absl::StrFormat("%.4g Gbit/s", mbit / 1000);
}

}  // namespace lime
