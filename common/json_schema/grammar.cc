#include "common/json_schema/grammar.h"

#include <algorithm>
#include <string_view>

namespace lime::json_schema {
namespace {

// The bytes of a text; kEndless if one of them cannot be written.
int32_t TextBytes(const ByteSet& writable, std::string_view text) {
  const bool can_write = std::ranges::all_of(text, [&](char c) { return writable[static_cast<uint8_t>(c)]; });
  return can_write ? static_cast<int32_t>(text.size()) : kEndless;
}

// Fewest bytes by repetition until nothing changes. A value is made after the value that holds it,
// so going backwards needs few rounds.
class ShortestAnswers {
 public:
  explicit ShortestAnswers(Grammar& grammar)
      : grammar_(grammar),
        has_braces_(TextBytes(grammar.writable, "{}:,\"") < kEndless),
        has_brackets_(TextBytes(grammar.writable, "[],") < kEndless) {}

  void Run() {
    while (Round()) {
    }
  }

 private:
  bool Round() {
    bool changes = false;
    for (size_t i = grammar_.arrays.size(); i-- > 0;) changes |= Set(grammar_.arrays[i].shortest, OfArray(grammar_.arrays[i]));
    for (size_t i = grammar_.objects.size(); i-- > 0;) changes |= Set(grammar_.objects[i].shortest, OfObject(grammar_.objects[i]));
    for (size_t i = grammar_.values.size(); i-- > 0;) changes |= Set(grammar_.values[i].shortest, OfValue(grammar_.values[i]));
    return changes;
  }

  static bool Set(Shortest& shortest, const Shortest& found) {
    const bool changes = !(shortest == found);
    shortest = found;
    return changes;
  }

  Shortest OfValue(const Value& value) const {
    Shortest best;
    const auto add = [&best](const Shortest& other) {
      if (std::pair(other.bytes, other.depth) < std::pair(best.bytes, best.depth)) best = other;
    };
    for (const int id : value.scalars) {
      const Scalar& scalar = grammar_.scalars[At(id)];
      add({.bytes = scalar.Least(scalar.dfa->start(), 0)});
    }
    for (const int id : value.objects) add(grammar_.objects[At(id)].shortest);
    for (const int id : value.arrays) add(grammar_.arrays[At(id)].shortest);
    return best;
  }

  void Add(int value, int32_t more, Shortest& sum) const {
    const Shortest& part = grammar_.values[At(value)].shortest;
    sum.bytes = AddLeast(sum.bytes, AddLeast(part.bytes, more));
    sum.depth = std::min(std::max(sum.depth, part.depth + 1), kMaxDepth + 1);
  }

  Shortest OfObject(const Object& object) const {
    Shortest sum{.bytes = has_braces_ ? 2 : kEndless, .depth = 1};
    bool is_first = true;
    for (const Object::Member& member : object.members) {
      if (!member.is_required) continue;
      Add(member.value, AddLeast(TextBytes(grammar_.writable, member.key), is_first ? 1 : 2), sum);
      is_first = false;
    }
    return sum;
  }

  Shortest OfArray(const Array& array) const {
    Shortest sum{.bytes = has_brackets_ ? 2 : kEndless, .depth = 1};
    if (array.min > array.max) return {.bytes = kEndless, .depth = 1};
    const int32_t in_prefix = std::min(array.min, static_cast<int32_t>(array.prefix.size()));
    for (int32_t i = 0; i < in_prefix; ++i) Add(array.prefix[At(i)], i == 0 ? 0 : 1, sum);
    const int32_t others = array.min - in_prefix;
    if (others == 0) return sum;
    if (array.items == kNone) return {.bytes = kEndless, .depth = 1};
    const int64_t each = grammar_.values[At(array.items)].shortest.bytes + 1;
    const int64_t all = each * others - (in_prefix == 0 ? 1 : 0);
    Add(array.items, 0, sum);
    sum.bytes = AddLeast(sum.bytes, static_cast<int32_t>(std::min<int64_t>(all - (each - 1), kEndless)));
    return sum;
  }

  Grammar& grammar_;
  const bool has_braces_, has_brackets_;
};

bool IsPossible(const Grammar& grammar, int value) {
  return value != kNone && grammar.values[At(value)].shortest.bytes < kEndless && grammar.values[At(value)].shortest.depth <= kMaxDepth;
}

void CompletePositions(const Grammar& grammar, Object& object) {
  const int count = object.Count();
  object.last.assign(At(count) + 1, count - 1);
  object.rest.assign(At(count) + 1, 1);
  object.after_comma.assign(At(count) + 1, kEndless);
  const bool has_others = IsPossible(grammar, object.others);
  if (has_others) object.deepest = grammar.values[At(object.others)].shortest.depth;
  if (has_others) {
    const Scalar& key = grammar.scalars[At(object.others_key)];
    const int32_t bytes = AddLeast(key.Least(key.dfa->start(), 0), 1 + grammar.values[At(object.others)].shortest.bytes);
    object.after_comma[At(count)] = AddLeast(bytes, 1);
  }
  for (int i = count - 1; i >= 0; --i) {
    const Object::Member& member = object.members[At(i)];
    if (IsPossible(grammar, member.value)) object.deepest = std::max(object.deepest, grammar.values[At(member.value)].shortest.depth);
    const int32_t bytes = AddLeast(TextBytes(grammar.writable, member.key), 1);
    const int32_t value = IsPossible(grammar, member.value) ? grammar.values[At(member.value)].shortest.bytes : kEndless;
    const int32_t with_member = AddLeast(AddLeast(bytes, value), object.rest[At(i) + 1]);
    object.last[At(i)] = member.is_required ? i : object.last[At(i) + 1];
    object.rest[At(i)] = member.is_required ? AddLeast(with_member, 1) : object.rest[At(i) + 1];
    object.after_comma[At(i)] = member.is_required ? with_member : std::min(with_member, object.after_comma[At(i) + 1]);
  }
  if (!has_others) object.others = kNone;
}

// A tree under construction.
struct GrowingNode {
  std::vector<std::pair<uint8_t, int>> children;
  std::vector<int> members;
  int member = kNone;
  int32_t depth = 0;
};

void AddKey(const std::string& key, int member, std::vector<GrowingNode>& nodes) {
  int at = 0;
  nodes[0].members.push_back(member);
  for (const char c : key.substr(1)) {
    const auto byte = static_cast<uint8_t>(c);
    auto& children = nodes[At(at)].children;
    const auto child = std::ranges::find(children, byte, &std::pair<uint8_t, int>::first);
    const int32_t depth = nodes[At(at)].depth + 1;
    const int next = child != children.end() ? child->second : static_cast<int>(nodes.size());
    if (child == children.end()) {
      children.emplace_back(byte, next);
      nodes.push_back({.depth = depth});
    }
    at = next;
    nodes[At(at)].members.push_back(member);
  }
  nodes[At(at)].member = member;
}

void CompleteKeys(const Grammar& grammar, Object& object) {
  std::vector<GrowingNode> nodes(1);
  for (int i = 0; i < object.Count(); ++i) {
    const Object::Member& member = object.members[At(i)];
    if (IsPossible(grammar, member.value) && TextBytes(grammar.writable, member.key) < kEndless) AddKey(member.key, i, nodes);
  }
  const auto end = [&object](int member, int32_t depth) {
    return Object::KeyNode{.first_child = static_cast<uint32_t>(object.key_children.size()),
                           .first_member = static_cast<uint32_t>(object.key_members.size()),
                           .member = member,
                           .depth = depth};
  };
  object.keys.reserve(nodes.size() + 1);
  for (const GrowingNode& node : nodes) {
    object.keys.push_back(end(node.member, node.depth));
    object.key_children.insert(object.key_children.end(), node.children.begin(), node.children.end());
    object.key_members.insert(object.key_members.end(), node.members.begin(), node.members.end());
  }
  object.keys.push_back(end(kNone, 0));
}

void CompleteArray(const Grammar& grammar, Array& array) {
  const auto count = static_cast<int32_t>(array.prefix.size());
  for (int32_t i = 0; i < count; ++i) {
    if (!IsPossible(grammar, array.prefix[At(i)])) array.max = std::min(array.max, i);
  }
  if (!IsPossible(grammar, array.items)) array.max = std::min(array.max, count);
  array.item_bytes = array.items == kNone ? kEndless : AddLeast(grammar.values[At(array.items)].shortest.bytes, 1);
  array.rest.assign(At(count), 1);
  for (int32_t i = count - 1; i >= 0; --i) {
    const int32_t item = AddLeast(grammar.values[At(array.prefix[At(i)])].shortest.bytes, 1);
    array.rest[At(i)] = i >= array.min ? 1 : AddLeast(item, array.Rest(i + 1));
  }
}

void CompleteSteps(Grammar& grammar) {
  const auto least = [&grammar](const AnswerStep& step) {
    int32_t next = step.kind == AnswerStep::Kind::kEnd ? 0 : kEndless;
    for (const int to : step.next) next = std::min(next, grammar.steps[At(to)].least);
    switch (step.kind) {
      case AnswerStep::Kind::kText:
        return AddLeast(next, TextBytes(grammar.writable, step.text));
      case AnswerStep::Kind::kValue:
        return IsPossible(grammar, step.id) ? AddLeast(next, grammar.values[At(step.id)].shortest.bytes) : kEndless;
      case AnswerStep::Kind::kScalar:
        return AddLeast(next, grammar.scalars[At(step.id)].Least(grammar.scalars[At(step.id)].dfa->start(), 0));
      case AnswerStep::Kind::kSplit:
      case AnswerStep::Kind::kEnd:
        break;
    }
    return next;
  };
  for (bool changes = true; changes;) {
    changes = false;
    for (AnswerStep& step : grammar.steps) {
      const int32_t found = least(step);
      changes |= found != step.least;
      step.least = found;
    }
  }
}

}  // namespace

bool Scalar::Advance(uint16_t& state, int32_t& chars, uint8_t byte) const {
  if (Counts() && state == dfa->boundary()) {
    if (byte == '"' ? chars < min : chars >= max) return false;
    if (byte != '"' && (max != kNoMax || chars < min)) ++chars;
  }
  state = dfa->Next(state, byte);
  return state != ByteDfa::kDead;
}

int32_t Scalar::Least(uint16_t state, int32_t chars) const {
  const int32_t least = dfa->Least(state);
  if (least == 0 || chars >= min) return least;
  if (dfa->character_bytes() == kEndless) return kEndless;
  return AddLeast(least, min - chars);
}

int32_t Object::LeastFromComma(int position, bool only_required) const {
  if (!only_required) return after_comma[At(position)];
  return NeedsNoMore(position) ? kEndless : rest[At(position)] - 1;
}

int32_t Object::LeastFromKey(int node, int position, bool only_required, const std::vector<Value>& values) const {
  const int32_t depth = keys[At(node)].depth;
  const std::span<const int> from = MembersFrom(node);
  int32_t least = kEndless;
  for (auto i = std::ranges::lower_bound(from, position); i != from.end() && *i <= last[At(position)]; ++i) {
    const Member& member = members[At(*i)];
    if (only_required && !member.is_required) continue;
    const int32_t bytes = static_cast<int32_t>(member.key.size()) - depth;  // with the colon, without the first quote
    least = std::min(least, AddLeast(AddLeast(bytes, values[At(member.value)].shortest.bytes), rest[At(*i) + 1]));
  }
  return least;
}

int32_t Array::Rest(int32_t count) const {
  if (count < static_cast<int32_t>(rest.size())) return rest[At(count)];
  if (count >= min) return 1;
  return static_cast<int32_t>(std::min<int64_t>(1 + int64_t{min - count} * item_bytes, kEndless));
}

int32_t Array::Clamp(int32_t count) const {
  return max != INT32_MAX ? count : std::min(count, std::max(min, static_cast<int32_t>(prefix.size())));
}

void Complete(Grammar& grammar) {
  ShortestAnswers(grammar).Run();
  for (Object& object : grammar.objects) {
    CompletePositions(grammar, object);
    CompleteKeys(grammar, object);
  }
  for (Array& array : grammar.arrays) CompleteArray(grammar, array);
  CompleteSteps(grammar);
}

}  // namespace lime::json_schema
