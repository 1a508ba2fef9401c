#include "common/json_schema/dfa/byte_dfa.h"

#include <algorithm>
#include <deque>

namespace lime::json_schema {

int ByteDfaBuilder::AddState(bool accepts) {
  if (states_.size() <= kMaxStates) states_.push_back({.accepts = accepts});
  return static_cast<int>(states_.size()) - 1;
}

void ByteDfaBuilder::AddEdge(int from, uint8_t first, uint8_t last, int to) {
  states_[static_cast<size_t>(from)].edges.push_back({first, last, to});
}

bool ByteDfaBuilder::HasWritable(const Edge& edge, const ByteSet& writable) {
  for (int byte = edge.first; byte <= edge.last; ++byte) {
    if (writable[static_cast<size_t>(byte)]) return true;
  }
  return false;
}

// Breadth first from the accepting states, against the edges.
std::vector<int32_t> ByteDfaBuilder::LeastBytes(const ByteSet& writable) const {
  std::vector<std::vector<int>> before(states_.size());
  std::vector<int32_t> least(states_.size(), kEndless);
  std::deque<int> queue;
  for (size_t i = 0; i < states_.size(); ++i) {
    for (const Edge& edge : states_[i].edges) {
      if (HasWritable(edge, writable)) before[static_cast<size_t>(edge.to)].push_back(static_cast<int>(i));
    }
    if (states_[i].accepts) least[i] = 0, queue.push_back(static_cast<int>(i));
  }
  for (const auto& [from, to] : tokens_) before[static_cast<size_t>(to)].push_back(from);
  for (; !queue.empty(); queue.pop_front()) {
    for (const int state : before[static_cast<size_t>(queue.front())]) {
      int32_t& found = least[static_cast<size_t>(state)];
      if (found != kEndless) continue;
      found = least[static_cast<size_t>(queue.front())] + 1;
      queue.push_back(state);
    }
  }
  return least;
}

// Bytes that no edge tells apart are in one class.
ByteDfaBuilder::Classes ByteDfaBuilder::SplitBytes() const {
  std::bitset<257> begins;
  for (const State& state : states_) {
    for (const Edge& edge : state.edges) begins.set(edge.first), begins.set(size_t{edge.last} + 1);
  }
  Classes classes;
  for (size_t byte = 1; byte < 256; ++byte) {
    if (begins[byte]) ++classes.count;
    classes.of[byte] = static_cast<uint8_t>(classes.count - 1);
  }
  return classes;
}

absl::StatusOr<ByteDfaPtr> ByteDfaBuilder::Finish(int start, const ByteSet& writable, int boundary) const {
  const Classes classes = SplitBytes();
  if (states_.size() > kMaxStates || states_.size() * classes.count > kMaxCells)
    return absl::ResourceExhaustedError(absl::StrCat("needs more than ", kMaxStates, " states"));
  auto dfa = std::make_shared<ByteDfa>();
  dfa->classes_ = classes.of;
  dfa->num_classes_ = classes.count;
  dfa->least_ = LeastBytes(writable);
  dfa->next_.assign(states_.size() * classes.count, ByteDfa::kDead);
  dfa->is_end_.assign(states_.size(), 0);
  for (size_t i = 0; i < states_.size(); ++i) {
    bool goes_on = false;
    for (const Edge& edge : states_[i].edges) {
      if (dfa->least_[static_cast<size_t>(edge.to)] == kEndless) continue;
      goes_on = true;
      for (size_t c = classes.of[edge.first]; c <= classes.of[edge.last]; ++c)
        dfa->next_[i * classes.count + c] = static_cast<uint16_t>(edge.to);
    }
    dfa->is_end_[i] = states_[i].accepts && !goes_on ? 1 : 0;
    if (dfa->least_[i] != kEndless) dfa->largest_least_ = std::max(dfa->largest_least_, dfa->least_[i]);
  }
  dfa->start_ = static_cast<uint16_t>(dfa->least_[static_cast<size_t>(start)] == kEndless ? 0 : start);
  dfa->boundary_ = static_cast<uint16_t>(boundary);
  const auto is_character = [&](const Edge& edge) { return edge.to == boundary && HasWritable(edge, writable); };
  if (!std::ranges::any_of(states_[static_cast<size_t>(boundary)].edges, is_character)) dfa->character_bytes_ = kEndless;
  return ByteDfaPtr(std::move(dfa));
}

}  // namespace lime::json_schema
