// A device that carries out the orders of an OrderWriter whose requests share KV, for its tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/logic/order_writer.h"
#include "gtest/gtest.h"

namespace lime {

inline OrderWriter::Options Sharing(int32_t sequences = 2) {
  return {.sequences = sequences,
          .context = 400,
          .batch = sequences,
          .microbatches = 1,
          .max_rows = 32,
          .chunk = 32,
          .chunks = 1,
          .look_ahead = 2,
          .prompts_ahead = 2,
          .cache = {.most_pages = 1000, .unit = 16},
          .copies_kv = true};
}

// `count` ids from `first` on.
inline std::vector<int32_t> GroupIds(int32_t first, int64_t count) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

inline std::vector<int32_t> JoinIds(std::vector<int32_t> ids, const std::vector<int32_t>& more) {
  ids.insert(ids.end(), more.begin(), more.end());
  return ids;
}

inline Request AskOfGroup(std::vector<int32_t> prompt, int64_t max_new_tokens = 1, int64_t group = 0) {
  return {.prompt = std::move(prompt), .max_new_tokens = max_new_tokens, .end_tokens = {}, .cache_prompt = true, .cache_group = group};
}

// Of a model with a state.
inline OrderWriter::Options SharingStates(int32_t sequences = 2, int32_t snapshots = 3) {
  OrderWriter::Options options = Sharing(sequences);
  options.snapshots = snapshots, options.cache.needs_snapshot = true;
  return options;
}

// Carries out orders as devices do. Knows from which ids the KV of every slot was computed, so it
// notices KV of other ids. A sampled token is a hash of the ids before it.
class CachedDevice {
 public:
  // `snapshots`: of the states of each slot, if the model has a state.
  explicit CachedDevice(OrderWriter& writer, std::optional<int32_t> snapshots = std::nullopt) : writer_(writer), snapshots_(snapshots) {}

  static int32_t Next(const std::vector<int32_t>& ids) {
    uint64_t hash = 7;
    for (const int32_t id : ids) hash = (hash ^ static_cast<uint64_t>(id)) * 0xff51afd7ed558ccd, hash ^= hash >> 29;
    return static_cast<int32_t>(hash % 50);
  }

  // "0=3 from 1:32" for an AdmitOrder with KV, "keep 0:48", "free 0": the orders since the last
  // call, without steps.
  std::vector<std::string> Said() { return std::exchange(said_, {}); }

  // Gets the orders that may be sent now.
  void Order() {
    for (const lime::Order& order : writer_.NextOrders()) {
      ASSERT_EQ(order.number, orders_++);
      std::visit([this](const auto& what) { On(what); }, order.what);
    }
  }
  // The oldest step ends.
  void EndStep() {
    ASSERT_FALSE(sampled_.empty());
    const int64_t step = writer_.steps_ordered() - writer_.steps_under_way();
    ASSERT_TRUE(writer_.OnTokens(step, sampled_.front()).ok());
    ASSERT_TRUE(writer_.OnStepEnded(step).ok());
    sampled_.pop_front();
  }
  void RunAll() {
    for (Order(); !sampled_.empty(); Order()) ASSERT_NO_FATAL_FAILURE(EndStep());
  }
  bool has_step() const { return !sampled_.empty(); }
  // Another plan is in use. Sequences that continue have their slots.
  void Change(const std::vector<OrderWriter::Continued>& continued) {
    std::map<int32_t, Slot> next;
    for (const OrderWriter::Continued& each : continued) {
      Slot& slot = next[each.sequence.to] = slots_.at(each.sequence.from);
      ASSERT_GE(std::ssize(slot.kv), each.sequence.positions);
      slot.kv.resize(static_cast<size_t>(each.sequence.positions));
      ASSERT_NO_FATAL_FAILURE(ContinueStates(each.sequence.states, slot));
      CheckWindow(slot, each.sequence.positions / 16 * 16);
      slot.gone = window.FirstPageTaken(each.sequence.positions);
      slot.idle = true;
    }
    slots_ = std::move(next);
    sampled_.clear(), orders_ = 0;
  }
  int64_t rows() const { return rows_; }
  int64_t taken() const { return taken_; }  // snapshots
  int64_t shared() const { return shared_; }
  int64_t begun_at_snapshots() const { return begun_at_snapshots_; }  // of windows
  // KV pages of a layer that are in use.
  int64_t pages() const {
    int64_t pages = 0;
    for (const auto& [s, slot] : slots_) pages += (std::ssize(slot.kv) + 15) / 16;
    return pages;
  }
  int64_t most_pages = std::numeric_limits<int64_t>::max();
  KvWindow window = {};          // a layer has it, and gives pages back
  int32_t window_snapshots = 0;  // of its pages, for each slot

 private:
  struct Slot {
    std::vector<int32_t> kv;                            // ids of the positions
    std::vector<int32_t> known;                         // of the request
    std::vector<int32_t> state;                         // the ids that the states have taken
    bool continues = false;                             // it comes from the plan before
    std::map<int32_t, std::vector<int32_t>> snapshots;  // ids of each: of the states, or of the window's pages
    bool idle = false;
    int64_t gone = 0;  // pages that a window has given back, from the first on
  };

  // The layer with the window has all that a row behind these positions attends to.
  void CheckWindow(const Slot& slot, int64_t position) const {
    if (window.positions > 0) ASSERT_GE(window.FirstPage(position), slot.gone) << "at position " << position;
  }

  void On(const AdmitOrder& admit) {
    Slot& slot = slots_[admit.sequence];
    ASSERT_TRUE(slot.known.empty() || slot.idle) << "the slot is taken";
    ASSERT_LT(admit.computed, std::ssize(admit.prompt)) << "one token must be computed";
    ASSERT_TRUE(admit.source >= 0 || !slot.idle || admit.computed > 0) << "the slot still has KV";
    if (admit.source >= 0) {
      ASSERT_FALSE(slot.idle);
      ASSERT_NE(admit.source, admit.sequence);
      slot.kv = slots_.at(admit.source).kv, slot.gone = slots_.at(admit.source).gone;
    }
    ASSERT_NO_FATAL_FAILURE(window.positions > 0 ? BeginWindow(admit, slot) : BeginStates(admit, slot));
    if (admit.computed == 0) slot.gone = 0;
    ASSERT_LE(admit.computed, std::ssize(slot.kv));
    slot.kv.resize(static_cast<size_t>(admit.computed));
    ASSERT_TRUE(std::equal(slot.kv.begin(), slot.kv.end(), admit.prompt.begin())) << "KV of other ids";
    slot.known = admit.prompt;
    slot.idle = false;
    shared_ += admit.computed;
    std::string text = absl::StrCat(admit.sequence, "=", admit.request);
    if (admit.computed > 0) absl::StrAppend(&text, " from ", admit.source, ":", admit.computed);
    said_.push_back(text);
    ASSERT_LE(pages(), most_pages);
  }
  void ContinueStates(const std::vector<int64_t>& states, Slot& slot) {
    ASSERT_EQ(states.empty(), !snapshots_.has_value());
    if (!snapshots_) return slot.snapshots.clear();
    slot.continues = states[0] > 0;
    if (slot.continues) ASSERT_EQ(std::ssize(slot.state), states[0]);
    std::map<int32_t, std::vector<int32_t>> snapshots;
    for (size_t i = 1; i < states.size(); ++i) {
      if (states[i] == 0) continue;
      snapshots[static_cast<int32_t>(i) - 1] = slot.snapshots.at(static_cast<int32_t>(i) - 1);
      ASSERT_EQ(std::ssize(snapshots[static_cast<int32_t>(i) - 1]), states[i]);
    }
    slot.snapshots = std::move(snapshots);
  }
  // A snapshot with as many positions has the pages that the window needs to go on.
  void BeginWindow(const AdmitOrder& admit, Slot& slot) {
    if (admit.snapshot >= 0) {
      const Slot& from = slots_.at(admit.source >= 0 ? admit.source : admit.sequence);
      ASSERT_EQ(std::ssize(from.snapshots.at(admit.snapshot)), admit.computed);
      ASSERT_GT(from.gone, window.FirstPage(admit.computed)) << "the pages are there";
      slot.gone = window.FirstPage(admit.computed);
      ++begun_at_snapshots_;
    }
    if (admit.source >= 0) slot.snapshots.clear();
    std::erase_if(slot.snapshots, [&](const auto& each) { return std::ssize(each.second) > admit.computed; });
  }
  // A copy of a snapshot with as many positions, or what the plan before has left; snapshots of the
  // slot that its KV no longer has are gone.
  void BeginStates(const AdmitOrder& admit, Slot& slot) {
    if (!snapshots_) {
      ASSERT_EQ(admit.snapshot, -1);
      return;
    }
    if (admit.snapshot >= 0) {
      slot.state = slots_.at(admit.source >= 0 ? admit.source : admit.sequence).snapshots.at(admit.snapshot);
    } else if (admit.computed == 0) {
      slot.state.clear();
    } else {
      ASSERT_TRUE(slot.continues) << "the states have other positions";
      ASSERT_EQ(admit.source, -1);
    }
    slot.continues = false;
    ASSERT_EQ(std::ssize(slot.state), admit.computed);
    if (admit.source >= 0) slot.snapshots.clear();
    std::erase_if(slot.snapshots, [&](const auto& each) { return std::ssize(each.second) > admit.computed; });
  }
  void On(const RetireOrder& retire) {
    ASSERT_TRUE(slots_.contains(retire.sequence)) << "the slot is free already";
    if (retire.kept == 0) {
      slots_.erase(retire.sequence);
      return said_.push_back(absl::StrCat("free ", retire.sequence));
    }
    Slot& slot = slots_.at(retire.sequence);
    ASSERT_FALSE(slot.idle);
    ASSERT_EQ(retire.kept % 16, 0);
    ASSERT_LE(retire.kept, std::ssize(slot.kv));
    slot.kv.resize(static_cast<size_t>(retire.kept));
    slot.known.clear();
    std::erase_if(slot.snapshots, [&](const auto& each) { return std::ssize(each.second) > retire.kept; });
    slot.idle = true;
    said_.push_back(absl::StrCat("keep ", retire.sequence, ":", retire.kept));
  }
  void On(const RollbackOrder&) { FAIL() << "no request goes back"; }
  void On(const ResidencyOrder& residency) { said_.push_back(absl::StrCat("to ", residency.to.layer_pages, " pages")); }
  void On(const StepOrder& step) {
    std::vector<SampledToken>& sampled = sampled_.emplace_back();
    for (const MicroBatch& batch : step.microbatches) {
      for (const BatchRow& row : batch.rows) {  // all are written before the first one attends
        int64_t& gone = slots_.at(row.sequence).gone;
        if (window.positions > 0) gone = std::max(gone, KvPagesFor(row.position + 1) - window.pages);
      }
      for (const BatchRow& row : batch.rows) {
        Slot& slot = slots_.at(row.sequence);
        ASSERT_FALSE(slot.idle);
        ASSERT_EQ(row.position, std::ssize(slot.kv)) << "positions of a sequence follow one another";
        const int32_t id = slot.known.at(static_cast<size_t>(row.position));
        ASSERT_TRUE(row.token == kSampledToken || row.token == id);
        slot.kv.push_back(id);
        CheckWindow(slot, row.position);
        ++rows_;
        if (snapshots_) {
          ASSERT_EQ(row.position, std::ssize(slot.state)) << "a state takes each position once";
          slot.state.push_back(id);
        }
        if (row.snapshot >= 0) {
          ASSERT_LT(row.snapshot, snapshots_.value_or(window_snapshots));
          CheckWindow(slot, row.position + 1);
          slot.snapshots[row.snapshot] = snapshots_ ? slot.state : slot.kv;
          ++taken_;
        }
        if (!row.wants_logits) continue;
        if (row.position + 1 == std::ssize(slot.known)) slot.known.push_back(Next(slot.known));
        sampled.push_back({row.sequence, row.position + 1, slot.known.at(static_cast<size_t>(row.position) + 1)});
      }
    }
    ASSERT_LE(pages(), most_pages);
  }

  OrderWriter& writer_;
  const std::optional<int32_t> snapshots_;
  int64_t orders_ = 0, rows_ = 0, shared_ = 0, taken_ = 0, begun_at_snapshots_ = 0;
  std::map<int32_t, Slot> slots_;
  std::deque<std::vector<SampledToken>> sampled_;  // of steps under way, oldest first
  std::vector<std::string> said_;
};

// The ids of an answer.
inline std::vector<int32_t> Answer(std::vector<int32_t> prompt, int64_t count) {
  std::vector<int32_t> answer;
  for (int64_t i = 0; i < count; ++i) answer.push_back(CachedDevice::Next(prompt)), prompt.push_back(answer.back());
  return answer;
}

}  // namespace lime
