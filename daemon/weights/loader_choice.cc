#include "daemon/weights/loader_choice.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace lime {
namespace {

// Left for the rest of the system and for this process's KV pages and activations, when weights are
// copied into memory that cannot be dropped.
constexpr Bytes kReserveBytes = 512 * kMiB;

// Seconds per GB of loading, measured with bench/load_bench on two x86 cores with a virtual NVMe
// disk. Mapping a cached page takes a fifth of the time of copying it. From the disk, reads past
// the page cache are faster than page faults; the busier the cores, the smaller the difference.
constexpr double kMapCached = 0.08;
constexpr double kReadCached = 0.40;
constexpr double kMapCold = 1.10;
constexpr double kReadCold = 0.85;
// Extra seconds per GB of a later pass over 4 KiB pages, compared with 2 MiB pages: decode of 2.3
// GiB takes 176 instead of 128 ms.
constexpr double kMappedPass = 0.02;

std::string Percent(double share) {
  return absl::StrCat(std::lround(share * 100), " %");
}

}  // namespace

std::string_view LoaderName(LoaderKind kind) {
  switch (kind) {
    case LoaderKind::kAuto:
      return "auto";
    case LoaderKind::kRead:
      return "read";
    case LoaderKind::kMmap:
      return "mmap";
  }
  return "?";
}

std::optional<LoaderKind> LoaderNamed(std::string_view name) {
  for (const LoaderKind kind : {LoaderKind::kAuto, LoaderKind::kRead, LoaderKind::kMmap}) {
    if (LoaderName(kind) == name) return kind;
  }
  return std::nullopt;
}

LoaderChoice ChooseLoader(LoaderKind wanted, const LoaderFacts& facts) {
  const bool fits = facts.weight_bytes + kReserveBytes <= facts.available_memory;
  if (wanted != LoaderKind::kAuto) return {.kind = wanted, .populate = fits, .reason = "as asked"};
  if (!fits) {
    return {.kind = LoaderKind::kMmap,
            .populate = false,
            .reason = absl::StrCat(FormatBytes(facts.weight_bytes), " of weights do not fit into the ", FormatBytes(facts.available_memory),
                                   " available, and mapped pages can be dropped")};
  }
  const double map = facts.cached * kMapCached + (1 - facts.cached) * kMapCold + static_cast<double>(facts.passes - 1) * kMappedPass;
  const double read = facts.cached * kReadCached + (1 - facts.cached) * kReadCold;
  if (map < read) {
    return {.kind = LoaderKind::kMmap, .reason = absl::StrCat(Percent(facts.cached), " of the files are cached, and need no copy")};
  }
  if (facts.cached > 0.5) {
    return {.kind = LoaderKind::kRead,
            .reason = absl::StrCat("a copy on 2 MiB pages is read faster, and ", facts.passes, " planned steps make up for the copying")};
  }
  return {.kind = LoaderKind::kRead,
          .reason = absl::StrCat("only ", Percent(facts.cached), " of the files are cached, and direct reads are faster than page faults")};
}

}  // namespace lime
