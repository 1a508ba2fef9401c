// KV pages of layers whose rows attend to a window of positions. Such a layer gives the pages
// behind its window back: later positions use them in turn. Pure.
//
//   positions   0 ........................ reached
//   pages       [0][1][2] .. [n-1][0][1][2] ..        n pages of memory for a sequence of any length
#pragma once

#include <algorithm>
#include <cstdint>

namespace lime {

inline constexpr int64_t kPageTokens = 16;  // positions of one layer in a KV page

// Pages of a layer that keeps so many positions.
constexpr int64_t KvPagesFor(int64_t positions) {
  return (positions + kPageTokens - 1) / kPageTokens;
}

// Windows have room for micro-batches of so many rows in any case. So a plan without a prompt can
// get a chunk length later.
inline constexpr int64_t kLeastWindowRows = 64;

// The pages of a sequence in a layer with such a window. A micro-batch has at most `rows` rows of
// the sequence, and writes KV of all of them before the first one attends. These rows and the
// positions that the first one sees lie in one page less. The last page lets a later sequence begin
// with KV up to the last whole page.
constexpr int64_t WindowPages(int64_t window, int64_t rows) {
  return KvPagesFor(window + std::max(rows, kLeastWindowRows) - 2) + 2;
}

struct KvWindow {
  int64_t positions = 0;  // that a row attends to, itself included; 0: the layer keeps all pages
  int64_t pages = 0;      // of a sequence in the layer, at most

  // The first page that a row at `position` attends to.
  constexpr int64_t FirstPage(int64_t position) const {
    return positions == 0 ? 0 : std::max<int64_t>(0, position + 1 - positions) / kPageTokens;
  }
  // The fewest positions of a slot with which another sequence can begin, if pages before `page`
  // are gone. 0: it can begin with any number.
  constexpr int64_t LeastShared(int64_t page) const { return page > 0 ? page * kPageTokens + positions - 1 : 0; }
  // The same for a slot whose KV has reached so many positions.
  constexpr int64_t LeastSharedAt(int64_t reached) const { return positions == 0 ? 0 : LeastShared(KvPagesFor(reached) - pages); }
  // The same for a slot whose first `taken` positions came from the plan before. Of these a plan
  // reads the pages that a sequence needs to begin with all whole pages.
  constexpr int64_t FirstPageTaken(int64_t taken) const { return FirstPage(taken / kPageTokens * kPageTokens); }

  friend bool operator==(const KvWindow&, const KvWindow&) = default;
};

}  // namespace lime
