#include "planner/base/bytes.h"

#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

struct Unit {
  std::string_view suffix;
  double bytes;
};

constexpr Unit kUnits[] = {{"", 1},
                           {"b", 1},
                           {"k", 1024.0},
                           {"kib", 1024.0},
                           {"kb", 1e3},
                           {"m", 1048576.0},
                           {"mib", 1048576.0},
                           {"mb", 1e6},
                           {"g", 1073741824.0},
                           {"gib", 1073741824.0},
                           {"gb", 1e9},
                           {"t", 1099511627776.0},
                           {"tib", 1099511627776.0},
                           {"tb", 1e12}};

}  // namespace

absl::StatusOr<Bytes> ParseBytes(std::string_view text) {
  const std::string trimmed(absl::StripAsciiWhitespace(Text(text)));
  const size_t digits_end = trimmed.find_first_not_of("0123456789.");
  const std::string number = trimmed.substr(0, digits_end);
  const std::string suffix = digits_end == std::string::npos
                                 ? ""
                                 : absl::AsciiStrToLower(absl::StripAsciiWhitespace(Text(std::string_view(trimmed).substr(digits_end))));
  double value = 0;
  if (number.empty() || !absl::SimpleAtod(number, &value)) {
    return Invalid("\"", Text(text), "\" is not a size; write it like 2GiB or 1500MB");
  }
  for (const Unit& unit : kUnits) {
    if (suffix != unit.suffix) continue;
    const double bytes = std::round(value * unit.bytes);
    if (!(bytes < 9.2e18)) return Invalid("\"", Text(text), "\" is larger than any memory; give a smaller size");
    return static_cast<Bytes>(bytes);
  }
  return Invalid("\"", Text(text), "\" has an unknown unit; use KiB, MiB, GiB, TiB, KB, MB, GB or TB");
}

std::string FormatBytes(Bytes bytes) {
  const char* const names[] = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < kKiB) return absl::StrCat(bytes, " B");
  double value = static_cast<double>(bytes);
  int unit = -1;
  while (value >= 1024 && unit < 3) value /= 1024, ++unit;
  return absl::StrFormat("%.2f %s", value, names[unit]);
}

}  // namespace lime
