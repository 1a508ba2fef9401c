// The compiled form of all answers that are allowed: values of schemas, with text around them.
//
//   steps   what follows what outside of JSON values: texts, values, alternatives
//   values  what a JSON value may be: scalars (automata over bytes), objects, arrays
//
// Immutable, so any thread may read it. Matcher (matcher.h) runs it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/json_schema/dfa/byte_dfa.h"
#include "planner/base/bytes.h"

namespace lime::json_schema {

// Brackets inside each other, at most, as in ParseJson.
inline constexpr int kMaxDepth = 64;

inline constexpr int kNone = -1;

// An index as vectors take it; not of kNone.
inline size_t At(int index) {
  return static_cast<size_t>(index);
}

// A string, a number or a literal, or text outside of JSON.
struct Scalar {
  static constexpr int32_t kNoMax = INT32_MAX;

  ByteDfaPtr dfa;
  // Characters of the string. Only automata with a boundary() count them.
  int32_t min = 0, max = kNoMax;

  bool Counts() const { return min > 0 || max != kNoMax; }
  // False if `byte` is not allowed. `chars`: characters so far.
  bool Advance(uint16_t& state, int32_t& chars, uint8_t byte) const;
  // Fewest bytes until the scalar may end.
  int32_t Least(uint16_t state, int32_t chars) const;
};

// The answer of fewest bytes, and its brackets inside each other.
struct Shortest {
  int32_t bytes = kEndless;
  int32_t depth = 0;
  bool operator==(const Shortest&) const = default;
};

struct Value {
  std::vector<int> scalars, objects, arrays;
  Shortest shortest;
};

// Members come in their order, then those without a name.
struct Object {
  struct Member {
    std::string key;  // as JSON, with both quotes
    int value = kNone;
    bool is_required = false;
  };
  // The keys as a tree of bytes, without the quote that begins them. The next node has the ends of
  // the two ranges.
  struct KeyNode {
    uint32_t first_child = 0, first_member = 0;
    int member = kNone;  // that ends here
    int32_t depth = 0;
  };

  std::vector<Member> members;
  std::vector<KeyNode> keys;  // and one behind them
  std::vector<std::pair<uint8_t, int>> key_children;
  std::vector<int> key_members;  // that go on from a node, ascending
  int others = kNone;            // value of members without a name
  int others_key = kNone;        // scalar of their names

  // For each position, the number of members that are behind:
  std::vector<int> last;             // the last member that may come next
  std::vector<int32_t> rest;         // fewest bytes to the end, after a member
  std::vector<int32_t> after_comma;  // fewest bytes to the end, after a comma; kEndless: no comma
  int32_t deepest = 0;               // brackets inside each other, in the shortest answers of its members
  Shortest shortest;

  int Count() const { return static_cast<int>(members.size()); }
  std::span<const std::pair<uint8_t, int>> Children(int node) const {
    const auto i = At(node);
    return std::span(key_children).subspan(keys[i].first_child, keys[i + 1].first_child - keys[i].first_child);
  }
  std::span<const int> MembersFrom(int node) const {
    const auto i = At(node);
    return std::span(key_members).subspan(keys[i].first_member, keys[i + 1].first_member - keys[i].first_member);
  }
  // Only members without a name, or the end, may follow.
  bool NeedsNoMore(int position) const { return rest[At(position)] == 1; }
  // Fewest bytes to the end from within a key. kEndless: no member fits. `only_required`: members
  // that may be left out are not offered.
  int32_t LeastFromKey(int node, int position, bool only_required, const std::vector<Value>& values) const;
  // The same after a comma.
  int32_t LeastFromComma(int position, bool only_required) const;
};

struct Array {
  std::vector<int> prefix;
  int items = kNone;
  int32_t min = 0, max = INT32_MAX;

  std::vector<int32_t> rest;  // fewest bytes to the end after so many items, as far as the prefix goes
  int32_t item_bytes = 0;     // of an item behind the prefix, with its comma
  Shortest shortest;

  int ItemAt(int32_t count) const { return count < static_cast<int32_t>(prefix.size()) ? prefix[At(count)] : items; }
  int32_t Rest(int32_t count) const;
  // Counts beyond this one make no difference.
  int32_t Clamp(int32_t count) const;
};

// What comes outside of JSON values.
struct AnswerStep {
  enum class Kind : uint8_t {
    kText,    // `text`, then next[0]
    kValue,   // a JSON value, then next[0]
    kScalar,  // text by an automaton, then next[0]
    kSplit,   // any of `next`
    kEnd,     // the answer may end
  };
  Kind kind = Kind::kEnd;
  std::string text;
  int id = kNone;  // of the value or scalar
  std::vector<int> next;
  int32_t least = kEndless;  // bytes to the end of the answer
};

// Memory of the scalars, values, objects and arrays of a grammar, at most.
inline constexpr Bytes kMaxGrammarBytes = 4 * kMiB;

struct Grammar {
  ByteSet writable = ByteSet().set();  // bytes that are tokens by themselves
  std::vector<Scalar> scalars;
  std::vector<Value> values;
  std::vector<Object> objects;
  std::vector<Array> arrays;
  std::vector<AnswerStep> steps;
  int start = kNone;  // a step

  Bytes memory = 0;  // an upper bound

  int32_t LeastBytes() const { return steps[static_cast<size_t>(start)].least; }
};

using GrammarPtr = std::shared_ptr<const Grammar>;

// Computes what follows from the rest: fewest bytes, trees of keys. Members and items that have no
// end are not offered.
void Complete(Grammar& grammar);

}  // namespace lime::json_schema
