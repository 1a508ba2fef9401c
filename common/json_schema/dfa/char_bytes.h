// Edges of a byte automaton that spell ranges of characters.
#pragma once

#include <map>
#include <tuple>
#include <vector>

#include "common/json_schema/dfa/byte_dfa.h"
#include "common/json_schema/dfa/char_dfa.h"

namespace lime::json_schema {

std::vector<CharRange> WithoutCode(const std::vector<CharRange>& ranges, uint32_t code);

// Adds edges and the states between the bytes of a character. States with equal edges are shared.
class CharBytes {
 public:
  CharBytes(Spelling spelling, ByteDfaBuilder& builder) : spelling_(spelling), builder_(builder) {}

  // `ranges`: ascending, with states of the builder. A raw character of one byte must not be the
  // byte of another edge of `from`.
  void AddEdges(int from, const std::vector<CharRange>& ranges);

 private:
  struct Edge {
    int first = 0, last = 0, to = 0;
    auto operator<=>(const Edge&) const = default;  // NOLINT(modernize-use-nullptr): no pointer is compared
  };
  using Edges = std::vector<Edge>;

  void AddAscii(const std::vector<CharRange>& ranges, Edges& edges);
  void AddEscapes(const std::vector<CharRange>& ranges, Edges& edges);
  void AddMultiByte(const std::vector<CharRange>& ranges, Edges& edges);
  int Continuation(const std::vector<CharRange>& ranges, uint32_t base, int bytes_left);
  static void Append(Edges& edges, int first, int last, int to);
  int StateWith(Edges edges);

  const Spelling spelling_;
  ByteDfaBuilder& builder_;
  std::map<Edges, int> states_;
};

}  // namespace lime::json_schema
