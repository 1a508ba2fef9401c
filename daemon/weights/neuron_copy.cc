#include "daemon/weights/neuron_copy.h"

#include <algorithm>
#include <cstring>

#include "planner/base/check.h"

namespace lime {
namespace {

constexpr int64_t kRowsOfWords = 32;  // whose codes fill whole words of a column, whatever their bits

// A row after the other: the ends of a few thousand columns fit into the cache.
template <typename Element>
void CopyElements(const MatrixPiece& piece, std::span<const NeuronTarget> targets) {
  constexpr auto kBytes = static_cast<Bytes>(sizeof(Element));
  for (int64_t row = piece.begin; row < piece.end; ++row) {
    const std::byte* const from = piece.rows + (row - piece.begin) * piece.row_bytes;
    for (const NeuronTarget& target : targets) std::memcpy(target.memory + row * kBytes, from + target.neuron * kBytes, sizeof(Element));
  }
}

void CopyCodes(const MatrixPiece& piece, int bits, std::span<const NeuronTarget> targets) {
  const uint32_t mask = (uint32_t{1} << bits) - 1;
  for (const NeuronTarget& target : targets) {
    const Bytes at = Bytes{target.neuron} * bits / 8;
    const int shift = static_cast<int>(int64_t{target.neuron} * bits % 8);
    const auto window = static_cast<size_t>((shift + bits + 7) / 8);  // bytes that have the code
    std::byte* to = target.memory + piece.begin * bits / 8;
    uint64_t pending = 0;
    int held = 0;
    for (int64_t row = piece.begin; row < piece.end; ++row) {
      uint32_t code = 0;
      std::memcpy(&code, piece.rows + (row - piece.begin) * piece.row_bytes + at, window);
      pending |= uint64_t{(code >> shift) & mask} << held;
      held += bits;
      if (held < 32) continue;
      const auto word = static_cast<uint32_t>(pending);
      std::memcpy(to, &word, sizeof(word));
      to += sizeof(word), pending >>= 32, held -= 32;
    }
    LIME_CHECK_EQ(held, 0);
  }
}

}  // namespace

void CopyNeuronRows(const MatrixPiece& piece, std::span<const NeuronTarget> targets) {
  const auto first = std::ranges::lower_bound(targets, piece.begin, {}, [](const NeuronTarget& target) { return int64_t{target.neuron}; });
  for (auto target = first; target != targets.end() && target->neuron < piece.end; ++target)
    std::memcpy(target->memory, piece.rows + (target->neuron - piece.begin) * piece.row_bytes, static_cast<size_t>(piece.row_bytes));
}

void CopyNeuronColumns(const MatrixPiece& piece, int bits, std::span<const NeuronTarget> targets) {
  LIME_CHECK_EQ(piece.begin % kRowsOfWords, 0);
  if (bits == 16) return CopyElements<uint16_t>(piece, targets);
  if (bits == 32) return CopyElements<uint32_t>(piece, targets);
  LIME_CHECK_EQ((piece.end - piece.begin) % kRowsOfWords, 0);
  CopyCodes(piece, bits, targets);
}

}  // namespace lime
