// Chooses the loader that ends a run soonest and needs no more memory than is available. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "planner/base/bytes.h"

namespace lime {

enum class LoaderKind {
  kAuto,  // LIME chooses from size, memory and page cache
  kRead,  // reads into anonymous 2 MiB pages
  kMmap,  // views of the files
};

std::string_view LoaderName(LoaderKind kind);
// Returns nothing if no loader has that name.
std::optional<LoaderKind> LoaderNamed(std::string_view name);

struct LoaderFacts {
  Bytes weight_bytes = 0;      // of all tensors to load
  Bytes available_memory = 0;  // clean page cache included
  double cached = 0;           // share of the files in the page cache
  int64_t passes = 1;          // times the run will read all weights: 1 for load to first token
};

struct LoaderChoice {
  LoaderKind kind = LoaderKind::kRead;  // never kAuto
  bool populate = true;                 // kMmap: make all pages present before the first token
  std::string reason;                   // one clause for the user
};

// A `wanted` other than kAuto is obeyed; the reason then says so.
LoaderChoice ChooseLoader(LoaderKind wanted, const LoaderFacts& facts);

}  // namespace lime
