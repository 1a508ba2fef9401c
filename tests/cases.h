// The number of random cases that tests try.
#pragma once

#include <cstdlib>

namespace lime {

// Whether this is a long run, as scripts/soak makes it.
inline bool Soaking() {
  return std::getenv("LIME_SOAK") != nullptr;
}

// Built with a sanitizer, which slows everything down several times.
#ifdef LIME_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// Cases of one test: `gate` in every run, a quarter of them if kSanitized, `soak` while Soaking().
inline int Cases(int gate, int soak) {
  if (Soaking()) return soak;
  return kSanitized ? (gate + 3) / 4 : gate;
}

// Whether Cases() is large enough to expect that every possible event occurs.
inline bool ManyCases() {
  return Soaking() || !kSanitized;
}

}  // namespace lime
