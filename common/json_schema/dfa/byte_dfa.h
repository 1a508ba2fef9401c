// A deterministic automaton over bytes: the form of a JSON string, number or literal that a schema
// allows.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime::json_schema {

using ByteSet = std::bitset<256>;

// More bytes than any answer has: there is no end.
inline constexpr int32_t kEndless = 1 << 28;

inline int32_t AddLeast(int32_t a, int32_t b) {
  return a + b < kEndless ? a + b : kEndless;
}

// Immutable after ByteDfaBuilder::Finish.
class ByteDfa {
 public:
  static constexpr uint16_t kDead = 0;

  uint16_t start() const { return start_; }
  uint16_t Next(uint16_t state, uint8_t byte) const { return next_[size_t{state} * num_classes_ + classes_[byte]]; }
  bool Accepts(uint16_t state) const { return least_[state] == 0; }
  // No byte may follow. Such a state accepts.
  bool IsEnd(uint16_t state) const { return is_end_[state] != 0; }
  // Fewest bytes until the automaton accepts; kEndless for kDead.
  int32_t Least(uint16_t state) const { return least_[state]; }
  int32_t LargestLeast() const { return largest_least_; }
  size_t num_states() const { return least_.size(); }
  Bytes memory() const {
    return std::ssize(next_) * static_cast<Bytes>(sizeof(uint16_t)) + std::ssize(least_) * static_cast<Bytes>(sizeof(int32_t) + 1);
  }

  // The state between two characters, of automata that count them (string_dfa.h), otherwise kDead.
  uint16_t boundary() const { return boundary_; }
  // Fewest bytes of a character of such an automaton: 1, or kEndless if no character is writable.
  int32_t character_bytes() const { return character_bytes_; }

 private:
  friend class ByteDfaBuilder;
  std::array<uint8_t, 256> classes_{};
  size_t num_classes_ = 1;
  std::vector<uint16_t> next_;
  std::vector<int32_t> least_;
  std::vector<uint8_t> is_end_;
  int32_t largest_least_ = 0;
  uint16_t start_ = kDead;
  uint16_t boundary_ = kDead;
  int32_t character_bytes_ = 1;
};

using ByteDfaPtr = std::shared_ptr<const ByteDfa>;

class ByteDfaBuilder {
 public:
  static constexpr size_t kMaxStates = 65'000;
  static constexpr size_t kMaxCells = size_t{1} << 22;

  ByteDfaBuilder() { AddState(false); }

  // States above kMaxStates are counted but not kept: Finish returns the error.
  int AddState(bool accepts);
  void SetAccepts(int state) { states_[static_cast<size_t>(state)].accepts = true; }
  // REQUIRES: no other edge of `from` has one of these bytes.
  void AddEdge(int from, uint8_t first, uint8_t last, int to);
  void AddEdge(int from, char byte, int to) { AddEdge(from, static_cast<uint8_t>(byte), static_cast<uint8_t>(byte), to); }

  // A token of several bytes leads from one state to the other, so these bytes count as one.
  void AddToken(int from, int to) { tokens_.emplace_back(from, to); }

  // `writable`: bytes that are tokens by themselves. A state from which these bytes alone reach no
  // acceptance is left out. ResourceExhausted if the automaton is too large.
  absl::StatusOr<ByteDfaPtr> Finish(int start, const ByteSet& writable, int boundary = 0) const;

 private:
  struct Edge {
    uint8_t first = 0, last = 0;
    int to = 0;
  };
  struct State {
    bool accepts = false;
    std::vector<Edge> edges;
  };
  struct Classes {
    std::array<uint8_t, 256> of{};
    size_t count = 1;
  };

  std::vector<int32_t> LeastBytes(const ByteSet& writable) const;
  Classes SplitBytes() const;
  static bool HasWritable(const Edge& edge, const ByteSet& writable);

  std::vector<State> states_;
  std::vector<std::pair<int, int>> tokens_;
};

}  // namespace lime::json_schema
