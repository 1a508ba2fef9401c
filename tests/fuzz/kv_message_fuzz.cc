// Whatever the other side of a loan of KV sends: no message may do harm, what is accepted returns
// through the wire as it is, and what a host, or an owner to whom it goes back, then does with it
// keeps its bounds.

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <vector>

#include "daemon/logic/hosting/kv_fetcher.h"
#include "daemon/logic/hosting/kv_host.h"
#include "daemon/logic/hosting/kv_message.h"
#include "planner/base/check.h"

namespace {

constexpr lime::KvHost::Shape kShape{.layers = 2, .sequences = 2, .pieces_per_sequence = 3, .piece_bytes = 4, .places = 4};

void CheckBounds(const lime::KvHost& host) {
  int64_t stored = 0;
  for (int32_t sequence = 0; sequence < kShape.sequences; ++sequence) stored += host.stored(sequence);
  const int64_t held = kShape.places - host.free_places();
  LIME_CHECK(held == stored || held == stored + 1) << held << " slots for " << stored << " pieces";
}

void CheckPlace(const lime::KvChunk& chunk, const lime::KvHost::Placed& placed) {
  const lime::Bytes offset = placed.offset.value_or(0);
  LIME_CHECK(offset >= 0 && offset + std::ssize(chunk.bytes) <= kShape.bytes()) << offset;
}

void Deliver(const lime::KvChunk& chunk, lime::KvHost& host) {
  const auto placed = host.OnChunk(chunk);
  if (placed.ok()) CheckPlace(chunk, *placed);
}

void Deliver(const lime::KvFree& free, lime::KvHost& host) {
  (void)host.OnFree(free.sequence, free.life);
}

void Deliver(const lime::KvQuery& query, lime::KvHost& host) {
  for (const lime::KvQuery::Sequence& sequence : query.sequences) {
    const auto offsets = host.Pieces(sequence.sequence, sequence.life, query.layer, sequence.pieces);
    if (!offsets.ok()) continue;
    LIME_CHECK_EQ(std::ssize(*offsets), sequence.pieces);
    for (const lime::Bytes offset : *offsets) LIME_CHECK(offset >= 0 && offset + kShape.piece_bytes <= kShape.bytes()) << offset;
  }
}

void Deliver(const lime::KvFetch& fetch, lime::KvHost& host) {
  const auto offsets = host.Pieces(fetch.sequence, fetch.life, fetch.layer, fetch.piece + 1);
  if (!offsets.ok()) return;
  LIME_CHECK(offsets->back() >= 0 && offsets->back() + kShape.piece_bytes <= kShape.bytes()) << offsets->back();
}

void Deliver(const lime::KvStored&, lime::KvHost&) {}
void Deliver(const lime::KvFetched&, lime::KvHost&) {}
void Deliver(const lime::KvRecords&, lime::KvHost&) {}

// What an owner wants, and whatever its host sends of it, of two bytes each.
void Fetch(std::span<const std::byte> bytes) {
  constexpr lime::KvFetcher::Shape kRoom{.layers = 3, .sequences = 2, .piece_bytes = 4, .places = 5};
  static constexpr std::byte kContent[8] = {};
  lime::KvFetcher fetcher(kRoom);
  for (; bytes.size() >= 2; bytes = bytes.subspan(2)) {
    const int what = std::to_integer<int>(bytes[0]), where = std::to_integer<int>(bytes[1]);
    if (what % 4 == 0) fetcher.SetSequence(what / 4 % 2, what / 8 % 4, where % 4, where % 4 + where / 4 % 4);
    if (what % 4 == 1) fetcher.SetLayers(where % 4);
    if (what % 4 == 2) fetcher.SetNext(where % 3), fetcher.SetAwaited(where / 4 % 4 == 0 ? std::nullopt : std::optional(where / 16 % 3));
    while (fetcher.Begin()) continue;
    if (what % 4 != 3) continue;
    const size_t count = static_cast<size_t>(where % 8);
    const auto placed = fetcher.On({.number = what / 4, .offset = where / 8 % 4, .bytes = std::span(kContent).first(count)});
    if (!placed.ok()) continue;
    LIME_CHECK(placed->offset >= 0 && placed->offset + static_cast<lime::Bytes>(count) <= kRoom.bytes()) << placed->offset;
  }
}

// Messages, each behind a byte with its length.
void Convert(std::span<const std::byte> bytes) {
  lime::KvHost host(kShape);
  while (!bytes.empty()) {
    const size_t length = std::min(std::to_integer<size_t>(bytes[0]), bytes.size() - 1);
    const std::vector<std::byte> one(bytes.begin() + 1, bytes.begin() + 1 + static_cast<int64_t>(length));  // ends where it ends
    bytes = bytes.subspan(1 + length);
    const auto message = lime::ParseKvMessage(one);
    if (!message.ok()) continue;
    LIME_CHECK(lime::Encode(*message) == one) << "what was accepted returns otherwise";
    LIME_CHECK(lime::ParseKvMessage(lime::Encode(*message)).ok()) << "what was accepted is refused the second time";
    std::visit([&](const auto& kind) { Deliver(kind, host); }, *message);
    CheckBounds(host);
  }
}

// Chunks, whose numbers are right, and words that lives have ended, of two bytes each.
void Lend(std::span<const std::byte> bytes) {
  lime::KvHost host(kShape);
  static constexpr std::byte kContent[5] = {};
  int64_t number = 0;
  for (; bytes.size() >= 2; bytes = bytes.subspan(2)) {
    const int what = std::to_integer<int>(bytes[0]), where = std::to_integer<int>(bytes[1]);
    const int32_t sequence = what / 2 % 4 - 1;
    const int64_t life = what / 8 % 8 - 1;
    if (what % 2 == 0) {
      (void)host.OnFree(sequence, life);
    } else {
      const lime::KvChunk chunk{.number = number,
                                .sequence = sequence,
                                .life = life,
                                .layer = where % 4 - 1,
                                .piece = where / 4 % 4,
                                .offset = where / 16 % 4,
                                .bytes = std::span(kContent).first(static_cast<size_t>(where) / 64 + (what / 64 == 3 ? 2 : 1))};
      const auto placed = host.OnChunk(chunk);
      if (placed.ok()) {
        ++number;
        CheckPlace(chunk, *placed);
      }
    }
    CheckBounds(host);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size)).subspan(1);
  constexpr void (*kWays[])(std::span<const std::byte>) = {Convert, Lend, Fetch};
  kWays[data[0] % std::size(kWays)](bytes);
  return 0;
}
