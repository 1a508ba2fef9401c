// OrderWriter: KV that requests share.
#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/logic/order_writer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cases.h"

namespace lime {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::IsEmpty;

OrderWriter::Options Sharing(int32_t sequences = 2) {
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
std::vector<int32_t> GroupIds(int32_t first, int64_t count) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

std::vector<int32_t> JoinIds(std::vector<int32_t> ids, const std::vector<int32_t>& more) {
  ids.insert(ids.end(), more.begin(), more.end());
  return ids;
}

Request AskOfGroup(std::vector<int32_t> prompt, int64_t max_new_tokens = 1, int64_t group = 0) {
  return {.prompt = std::move(prompt), .max_new_tokens = max_new_tokens, .end_tokens = {}, .cache_prompt = true, .cache_group = group};
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
std::vector<int32_t> Answer(std::vector<int32_t> prompt, int64_t count) {
  std::vector<int32_t> answer;
  for (int64_t i = 0; i < count; ++i) answer.push_back(CachedDevice::Next(prompt)), prompt.push_back(answer.back());
  return answer;
}

TEST(OrderWriterCacheTest, TheNextTurnContinuesInTheSlotOfTheTurnBefore) {
  OrderWriter writer(Sharing());
  CachedDevice device(writer);
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 30), 20)).ok());
  device.RunAll();
  EXPECT_THAT(device.Said(), ElementsAre("0=0", "keep 0:48")) << "49 of 50 positions are computed";
  const int64_t before = device.rows();
  ASSERT_TRUE(writer.Add(AskOfGroup(JoinIds(JoinIds(GroupIds(100, 30), Answer(GroupIds(100, 30), 20)), GroupIds(0, 10)), 3)).ok());
  device.RunAll();
  EXPECT_THAT(device.Said(), ElementsAre("0=1 from -1:48", "keep 0:48"));
  EXPECT_LE(device.rows() - before, 12 + 3 + 1) << "60 ids, of which 48 are not computed, and the answer";
}

// ---- Models with a state

OrderWriter::Options SharingStates(int32_t sequences = 2, int32_t snapshots = 3) {
  OrderWriter::Options options = Sharing(sequences);
  options.snapshots = snapshots, options.cache.needs_snapshot = true;
  return options;
}

TEST(OrderWriterCacheTest, TheNextTurnGoesOnFromTheLastSnapshotOfTheAnswer) {
  OrderWriter writer(SharingStates());
  CachedDevice device(writer, 3);
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 30), 40)).ok());
  device.RunAll();
  EXPECT_THAT(device.Said(), ElementsAre("0=0", "keep 0:64")) << "69 of 70 positions are computed";
  EXPECT_EQ(device.taken(), 4) << "at 16, near the end of the prompt, and at 32, 48 and 64";
  const std::vector<int32_t> all = JoinIds(GroupIds(100, 30), Answer(GroupIds(100, 30), 40));
  ASSERT_TRUE(writer.Add(AskOfGroup(JoinIds(all, GroupIds(0, 10)), 3)).ok());
  device.RunAll();
  EXPECT_THAT(device.Said(), ElementsAre("0=1 from -1:64", "keep 0:80"));
}

// As after a template that leaves out what the model thought.
TEST(OrderWriterCacheTest, AnAnswerThatIsWrittenDifferentlyGoesOnFromTheSnapshotOfThePrompt) {
  OrderWriter writer(SharingStates());
  CachedDevice device(writer, 3);
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 100), 60)).ok());
  device.RunAll();
  EXPECT_THAT(device.Said(), ElementsAre("0=0", "keep 0:144"));
  ASSERT_TRUE(writer.Add(AskOfGroup(JoinIds(GroupIds(100, 94), GroupIds(0, 40)), 3)).ok());
  device.RunAll();
  EXPECT_THAT(device.Said(), ElementsAre("0=1 from -1:80", "keep 0:128")) << "80: the last unit that leaves 8 ids of the prompt";
}

// The newest snapshot may have taken ids that come after the end.
TEST(OrderWriterCacheTest, AnEndThatNobodyKnewLeavesTheSnapshotBefore) {
  OrderWriter::Options options = SharingStates();
  options.look_ahead = 4;
  OrderWriter writer(options);
  CachedDevice device(writer, 3);
  const std::vector<int32_t> answer = Answer(GroupIds(100, 30), 40);
  for (size_t last = 14; last < 22; ++last) {
    const int32_t end = answer[last];
    if (std::find(answer.begin(), answer.begin() + static_cast<std::ptrdiff_t>(last), end) !=
        answer.begin() + static_cast<std::ptrdiff_t>(last))
      continue;
    Request request = AskOfGroup(GroupIds(100, 30), 40);
    request.end_tokens = {end}, request.cache_group = static_cast<int64_t>(last);
    ASSERT_TRUE(writer.Add(std::move(request)).ok());
    device.RunAll();
    const auto known = static_cast<int64_t>(30 + last + 1);
    EXPECT_EQ(std::ssize(writer.cache().idle().back().ids), known / 16 * 16) << "ends at " << last;
  }
}

TEST(OrderWriterCacheTest, ChoicesShareThePromptUpToASnapshot) {
  OrderWriter writer(SharingStates(4));
  CachedDevice device(writer, 3);
  for (int choice = 0; choice < 4; ++choice) ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 100), 5)).ok());
  device.RunAll();
  EXPECT_EQ(device.shared(), 3 * 96) << "the snapshot behind the prompt's own: these prompts are the same to the end";
}

TEST(OrderWriterCacheTest, WithoutSnapshotsNoStateIsShared) {
  OrderWriter::Options options = SharingStates(2, 0);
  OrderWriter writer(options);
  CachedDevice device(writer, 0);
  for (int turn = 0; turn < 2; ++turn) {
    ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 60), 20)).ok());
    device.RunAll();
    EXPECT_THAT(device.Said(), ElementsAre(absl::StrCat("0=", turn), "free 0"));
  }
}

// ----

TEST(OrderWriterCacheTest, TheLastIdOfAPromptIsComputedAlways) {
  OrderWriter writer(Sharing());
  CachedDevice device(writer);
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 48))).ok());
  device.RunAll();
  EXPECT_THAT(device.Said(), ElementsAre("0=0", "keep 0:48"));
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 48))).ok());
  device.RunAll();
  EXPECT_THAT(device.Said(), ElementsAre("0=1 from -1:32", "keep 0:48"));
}

TEST(OrderWriterCacheTest, ARequestThatSharesLittleOfAnIdleSlotCopiesItAndTheSlotStays) {
  OrderWriter writer(Sharing());
  CachedDevice device(writer);
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 80))).ok());
  device.RunAll();
  ASSERT_TRUE(writer.Add(AskOfGroup(JoinIds(GroupIds(100, 20), GroupIds(0, 20)))).ok());
  device.RunAll();
  EXPECT_THAT(device.Said(), ElementsAre("0=0", "keep 0:80", "1=1 from 0:16", "keep 1:32"));
  // No other slot is free, so the oldest idle one gives way; the one that is used does not.
  ASSERT_TRUE(writer.Add(AskOfGroup(JoinIds(GroupIds(100, 35), GroupIds(200, 20)))).ok());
  device.RunAll();
  EXPECT_THAT(device.Said(), ElementsAre("free 1", "1=2 from 0:32", "keep 1:48"));
}

TEST(OrderWriterCacheTest, ThePromptOfChoicesIsComputedOnce) {
  OrderWriter writer(Sharing(4));
  CachedDevice device(writer);
  for (int choice = 0; choice < 4; ++choice) ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 100), 5)).ok());
  device.Order();
  EXPECT_THAT(writer.started(), ElementsAre(0, 1, 2, 3)) << "all have slots";
  EXPECT_THAT(device.Said(), ElementsAre("0=0")) << "64 rows of the prompt are ordered";
  device.EndStep();
  device.Order();
  EXPECT_THAT(writer.started(), IsEmpty());
  EXPECT_THAT(device.Said(), ElementsAre("1=1 from 0:96", "2=2 from 0:96", "3=3 from 0:96")) << "behind the step with the 96th row";
  device.RunAll();
  EXPECT_LE(device.rows(), 100 + 3 * 4 + 4 * (5 + 1));
}

TEST(OrderWriterCacheTest, ARunningRequestIsSharedAsFarAsItIsOrdered) {
  OrderWriter writer(Sharing());
  CachedDevice device(writer);
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 50), 200)).ok());
  device.Order();
  for (int step = 0; step < 5; ++step) {
    device.EndStep();
    device.Order();
  }
  (void)device.Said();
  ASSERT_TRUE(writer.Add(AskOfGroup(JoinIds(GroupIds(100, 50), GroupIds(0, 9)), 5)).ok());
  device.Order();
  EXPECT_THAT(device.Said(), ElementsAre("1=1 from 0:48"));
}

// A layer with a window of 20 positions: 8 pages of a sequence.
OrderWriter::Options SharingWithWindow(int32_t sequences = 2, int32_t snapshots = 0) {
  OrderWriter::Options options = Sharing(sequences);
  options.snapshots = snapshots;
  options.window = {.positions = 20, .pages = WindowPages(20, 32)};
  EXPECT_EQ(options.window.pages, 8);
  return options;
}

TEST(OrderWriterCacheTest, OfASlotThatHasGivenPagesBackOnlyTheEndIsShared) {
  OrderWriter writer(SharingWithWindow());
  CachedDevice device(writer);
  device.window = SharingWithWindow().window;
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 200), 20)).ok());
  device.RunAll();
  ASSERT_TRUE(writer.Add(AskOfGroup(JoinIds(JoinIds(GroupIds(100, 200), Answer(GroupIds(100, 200), 20)), GroupIds(0, 10)), 3)).ok());
  device.RunAll();
  EXPECT_THAT(device.Said(), ElementsAre("0=0", "keep 0:208", "0=1 from -1:208", "keep 0:224")) << "the next turn has all of it";
  ASSERT_TRUE(writer.Add(AskOfGroup(JoinIds(GroupIds(100, 100), GroupIds(0, 10)), 3)).ok());
  device.RunAll();
  EXPECT_THAT(device.Said(), ElementsAre("1=2", "keep 1:112")) << "96 positions are equal, but a layer has lost theirs";
  ASSERT_TRUE(writer.Add(AskOfGroup(JoinIds(GroupIds(100, 100), GroupIds(50, 10)), 3)).ok());
  device.RunAll();
  EXPECT_THAT(device.Said(), ElementsAre("1=3 from -1:96", "keep 1:112")) << "of a short sequence nothing is lost";
}

TEST(OrderWriterCacheTest, APromptIsSharedBehindTheWindowOfItsRequestIfItHasASnapshot) {
  OrderWriter writer(SharingWithWindow(3, 1));
  CachedDevice device(writer);
  device.window = SharingWithWindow().window, device.window_snapshots = 1;
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 200), 150)).ok());
  for (int step = 0; step < 100; ++step) {
    device.Order();
    ASSERT_NO_FATAL_FAILURE(device.EndStep());
  }
  ASSERT_TRUE(writer.Add(AskOfGroup(JoinIds(GroupIds(100, 198), GroupIds(0, 10)), 3)).ok());
  device.Order();
  EXPECT_THAT(device.Said(), ElementsAre("0=0", "1=1 from 0:192")) << "the first request is far behind its prompt";
  device.RunAll();
  EXPECT_EQ(device.begun_at_snapshots(), 1);
  EXPECT_EQ(device.taken(), 1) << "none in answers";
  (void)device.Said();
  // The next turn of the chat, whose template writes the answer in another way.
  ASSERT_TRUE(writer.Add(AskOfGroup(JoinIds(GroupIds(100, 195), GroupIds(300, 50)), 3)).ok());
  device.RunAll();
  EXPECT_EQ(device.Said().front().substr(4), "from -1:192");
}

// Of a long beginning that prompts have in common, the second one takes a snapshot for the third.
TEST(OrderWriterCacheTest, WherePromptsPartTheNextOnesBegin) {
  OrderWriter writer(SharingWithWindow(3, 2));
  CachedDevice device(writer);
  device.window = SharingWithWindow().window, device.window_snapshots = 2;
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(writer.Add(AskOfGroup(JoinIds(GroupIds(100, 150), GroupIds(400 + 100 * i, 180)), 5)).ok());
    device.RunAll();
  }
  EXPECT_THAT(device.Said(), ElementsAre("0=0", "keep 0:320", "1=1", "keep 1:320", "2=2 from 1:144", "keep 2:320", "free 0",
                                         "0=3 from 1:144", "keep 0:320"));
  EXPECT_EQ(device.begun_at_snapshots(), 2);
}

// The next plan has memory of its own for them, and maybe for fewer.
TEST(OrderWriterCacheTest, SnapshotsOfWindowsEndWithTheirPlan) {
  for (const bool interrupted : {false, true}) {
    OrderWriter writer(SharingWithWindow(3, 2));
    CachedDevice device(writer);
    device.window = SharingWithWindow().window, device.window_snapshots = 2;
    ASSERT_TRUE(writer.Add(AskOfGroup(JoinIds(GroupIds(100, 250), GroupIds(600, 60)), 5)).ok());
    device.RunAll();
    EXPECT_EQ(device.taken(), 1) << "at 288";
    ASSERT_TRUE(writer.Add(AskOfGroup(JoinIds(GroupIds(100, 210), GroupIds(0, 40)), 5)).ok());
    for (int step = 0; step < 2; ++step) {
      device.Order();
      ASSERT_NO_FATAL_FAILURE(device.EndStep());
    }
    while (!interrupted && writer.steps_under_way() > 0) ASSERT_NO_FATAL_FAILURE(device.EndStep());
    const OrderWriter::Options next = SharingWithWindow(3, 1);
    const auto continued = interrupted ? writer.GoOnInterrupted(next) : writer.GoOn(next);
    ASSERT_TRUE(continued.ok()) << continued.status();
    ASSERT_EQ(continued->size(), interrupted ? 1u : 2u);
    for (const OrderWriter::Continued& each : *continued) EXPECT_THAT(each.sequence.states, IsEmpty());
    ASSERT_NO_FATAL_FAILURE(device.Change(*continued));
    device.window_snapshots = 1, (void)device.Said();
    device.RunAll();
    EXPECT_EQ(device.Said().front().substr(0, 11), "0=1 from -1") << "in its prompt, before the place where it parts from the other";
    EXPECT_EQ(device.taken(), 2);
    ASSERT_TRUE(writer.Add(AskOfGroup(JoinIds(JoinIds(GroupIds(100, 250), GroupIds(600, 45)), GroupIds(0, 9)), 3)).ok());
    device.RunAll();
    EXPECT_THAT(device.Said(), Contains(EndsWith(":208"))) << "not 288";
  }
}

TEST(OrderWriterCacheTest, ARequestThatAwaitsAPromptBeginsBeforeItsWindowHasPassed) {
  OrderWriter::Options options = SharingWithWindow(3);
  options.microbatches = options.chunks = 8;  // a step has more rows than the window's pages have room for
  OrderWriter writer(options);
  CachedDevice device(writer);
  device.window = options.window;
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 350), 5)).ok());
  ASSERT_TRUE(writer.Add(AskOfGroup(JoinIds(GroupIds(100, 70), GroupIds(0, 10)), 5)).ok());
  device.RunAll();
  const std::vector<std::string> said = device.Said();
  ASSERT_GE(said.size(), 2u);
  EXPECT_EQ(said[0], "0=0");
  EXPECT_EQ(said[1], "1=1 from 0:64");
}

TEST(OrderWriterCacheTest, ANextPlanTakesOverWhatTheWindowStillSees) {
  OrderWriter writer(SharingWithWindow());
  CachedDevice device(writer);
  device.window = SharingWithWindow().window;
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 90))).ok());
  device.RunAll();
  const auto continued = writer.GoOn(SharingWithWindow());
  ASSERT_TRUE(continued.ok()) << continued.status();
  device.Change(*continued);
  (void)device.Said();
  ASSERT_TRUE(writer.Add(AskOfGroup(JoinIds(GroupIds(100, 70), GroupIds(0, 10)))).ok());
  device.RunAll();
  EXPECT_THAT(device.Said(), ElementsAre("1=1", "keep 1:80")) << "the pages before the window were not read";
  ASSERT_TRUE(writer.Add(AskOfGroup(JoinIds(GroupIds(100, 90), GroupIds(0, 10)))).ok());
  device.RunAll();
  EXPECT_THAT(device.Said(), ElementsAre("0=2 from -1:80", "keep 0:96"));
}

TEST(OrderWriterCacheTest, AnotherGroupAndARequestThatDoesNotAskShareNothing) {
  OrderWriter writer(Sharing(4));
  CachedDevice device(writer);
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 60), 1, /*group=*/1)).ok());
  device.RunAll();
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 60), 1, /*group=*/2)).ok());
  Request quiet = AskOfGroup(GroupIds(100, 60), 1, /*group=*/1);
  quiet.cache_prompt = false;
  ASSERT_TRUE(writer.Add(quiet).ok());
  device.RunAll();
  EXPECT_THAT(device.Said(), ElementsAre("0=0", "keep 0:48", "1=1", "2=2", "keep 1:48", "free 2"));
  EXPECT_EQ(device.shared(), 0);
}

TEST(OrderWriterCacheTest, RowsWhoseLogitsAreAskedForAreComputed) {
  OrderWriter writer(Sharing());
  CachedDevice device(writer);
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 60))).ok());
  device.RunAll();
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 60), 0), OrderWriter::Logits::kAll).ok());
  device.Order();
  EXPECT_EQ(device.shared(), 0) << "a scored prompt";
}

TEST(OrderWriterCacheTest, IdleSlotsGiveWayBeforeARequestWaits) {
  OrderWriter writer(Sharing());
  CachedDevice device(writer);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(1000 * (i + 1), 40))).ok());
    device.RunAll();
  }
  (void)device.Said();
  for (int i = 2; i < 4; ++i) ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(1000 * (i + 1), 40), 50)).ok());
  device.Order();
  EXPECT_THAT(device.Said(), ElementsAre("free 0", "0=2", "free 1", "1=3")) << "the oldest first";
  EXPECT_TRUE(writer.cache().empty());
}

TEST(OrderWriterCacheTest, IdleSlotsKeepNoMoreThanTheBound) {
  OrderWriter::Options options = Sharing(4);
  options.cache.most_pages = 5;
  OrderWriter writer(options);
  CachedDevice device(writer);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(1000 * i, 40))).ok());
    device.RunAll();
  }
  EXPECT_THAT(device.Said(), ElementsAre("0=0", "keep 0:32", "1=1", "keep 1:32", "2=2", "keep 2:32", "free 0"));
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(9000, 100))).ok());
  device.RunAll();
  EXPECT_THAT(device.Said(), ElementsAre("0=3", "free 0")) << "6 pages are more than the bound";
}

TEST(OrderWriterCacheTest, WithoutABoundNothingIsKeptOrShared) {
  OrderWriter::Options options = Sharing();
  options.cache = {};
  OrderWriter writer(options);
  CachedDevice device(writer);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 60), 5)).ok());
  device.RunAll();
  EXPECT_THAT(device.Said(), ElementsAre("0=0", "1=1", "free 0", "free 1"));
}

// Pieces of 256 positions may be on a disk.
TEST(OrderWriterCacheTest, WithoutCopiesOnlyAnIdleSlotItselfIsUsed) {
  OrderWriter::Options options = Sharing();
  options.context = 1000, options.cache.unit = 256, options.copies_kv = false;
  OrderWriter writer(options);
  CachedDevice device(writer);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 600), 1)).ok());
  device.RunAll();
  EXPECT_EQ(device.shared(), 0);
  EXPECT_THAT(device.Said(), ElementsAre("0=0", "1=1", "keep 0:512", "keep 1:512", "free 0"));
  ASSERT_TRUE(writer.Add(AskOfGroup(JoinIds(GroupIds(100, 400), GroupIds(0, 20)), 1)).ok());
  device.Order();
  EXPECT_THAT(device.Said(), ElementsAre("1=2 from -1:256"));
}

TEST(OrderWriterCacheTest, ARequestThatAwaitedAnotherGoesOnWhenThatOneStops) {
  OrderWriter writer(Sharing(3));
  CachedDevice device(writer);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 200), 5)).ok());
  device.Order();
  EXPECT_THAT(device.Said(), ElementsAre("0=0"));
  writer.Stop(0);
  device.Order();
  EXPECT_THAT(device.Said(), ElementsAre("keep 0:64", "1=1 from 0:64")) << "the third awaits the second now";
  writer.Stop(2);
  device.RunAll();
  EXPECT_THAT(device.Said(), ElementsAre("keep 1:192", "free 0")) << "devices know nothing of the third";
  EXPECT_TRUE(writer.idle());
}

TEST(OrderWriterCacheTest, ARestartDropsIdleSlots) {
  OrderWriter writer(Sharing());
  CachedDevice device(writer);
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 60))).ok());
  device.RunAll();
  ASSERT_TRUE(writer.Restart(Sharing()).ok());
  EXPECT_TRUE(writer.cache().empty());
  device.Change({});
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 60))).ok());
  device.RunAll();
  EXPECT_EQ(device.shared(), 0);
}

TEST(OrderWriterCacheTest, APlanThatTakesKvOverKeepsIdleSlotsAsFarAsItHasSlotsAndPages) {
  const auto kept = [](const OrderWriter::Options& next, int64_t most_pages = 1000) {
    OrderWriter writer(Sharing(4));
    CachedDevice device(writer);
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(writer.Add(AskOfGroup(GroupIds(1000 * i, 60))).ok());
      device.RunAll();
    }
    EXPECT_TRUE(writer.Add(AskOfGroup(GroupIds(5000, 20), 100)).ok());
    device.Order();
    while (writer.steps_under_way() > 0) device.EndStep();
    const auto continued = writer.GoOn(next, most_pages);
    EXPECT_TRUE(continued.ok()) << continued.status();
    device.Change(*continued);
    std::vector<std::string> all;
    for (const OrderWriter::Continued& each : *continued)
      all.push_back(
          absl::StrCat(each.request.value_or(-1), ": ", each.sequence.from, " to ", each.sequence.to, ", ", each.sequence.positions));
    // The newest one is used in its new slot.
    EXPECT_TRUE(writer.Add(AskOfGroup(GroupIds(1000, 60))).ok());
    (void)device.Said();
    device.RunAll();
    return all;
  };
  EXPECT_THAT(kept(Sharing(4)), ElementsAre("2: 2 to 0, 21", "-1: 1 to 1, 48", "-1: 0 to 2, 48"));
  EXPECT_THAT(kept(Sharing(2)), ElementsAre("2: 2 to 0, 21", "-1: 1 to 1, 48"));
  EXPECT_THAT(kept(Sharing(4), 7), ElementsAre("2: 2 to 0, 21", "-1: 1 to 1, 48")) << "2 and 3 of 7 pages";
  OrderWriter::Options few = Sharing(4);
  few.levels = {{.layer_pages = 5}, {.layer_pages = 100}};
  EXPECT_THAT(kept(few), ElementsAre("2: 2 to 0, 21", "-1: 1 to 1, 48"));
  OrderWriter::Options pieces = Sharing(4);
  pieces.cache.unit = 256, pieces.copies_kv = false;
  EXPECT_THAT(kept(pieces), ElementsAre("2: 2 to 0, 21"));
}

TEST(OrderWriterCacheTest, StatesAndSnapshotsGoOnUnderAPlanThatTakesThemOver) {
  const auto continued = [](const OrderWriter::Options& next, size_t* taken_over = nullptr) {
    OrderWriter writer(SharingStates(4));
    CachedDevice device(writer, 3);
    EXPECT_TRUE(writer.Add(AskOfGroup(GroupIds(1000, 60))).ok());
    device.RunAll();
    EXPECT_TRUE(writer.Add(AskOfGroup(GroupIds(5000, 20), 100)).ok());
    device.Order();
    while (writer.steps_under_way() > 0) device.EndStep();
    const auto goes_on = writer.GoOn(next);
    EXPECT_TRUE(goes_on.ok()) << goes_on.status();
    device.Change(*goes_on);
    std::vector<std::vector<int64_t>> states;
    for (const OrderWriter::Continued& each : *goes_on) states.push_back(each.sequence.states);
    EXPECT_TRUE(writer.Add(AskOfGroup(GroupIds(1000, 60))).ok());
    EXPECT_TRUE(writer.Add(AskOfGroup(GroupIds(5000, 30))).ok());
    (void)device.Said();
    device.RunAll();
    if (taken_over != nullptr) *taken_over = static_cast<size_t>(device.shared());
    return states;
  };
  size_t shared = 0;
  EXPECT_THAT(continued(SharingStates(4), &shared), ElementsAre(ElementsAre(21, 0, 0, 16), ElementsAre(0, 48)));
  EXPECT_EQ(shared, 21 + 48 + 16) << "the running request, the idle slot, and a snapshot of the running one";
  EXPECT_THAT(continued(SharingStates(4, 1)), ElementsAre(ElementsAre(21), ElementsAre(0, 48)));
  EXPECT_THAT(continued(SharingStates(4, 0)), ElementsAre(ElementsAre(21))) << "an idle slot without snapshots is of no use";
}

// Steps are under way: a device has computed their rows, and their tokens have not come.
TEST(OrderWriterCacheTest, AfterAFailureARequestContinuesBehindWhatEveryDeviceHas) {
  for (const bool has_state : {false, true}) {
    const OrderWriter::Options options = has_state ? SharingStates(2) : Sharing();
    OrderWriter writer(options);
    CachedDevice device(writer, has_state ? std::optional(3) : std::nullopt);
    ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(1000, 20), 100)).ok());
    ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(2000, 390))).ok());
    for (int step = 0; step < 30; ++step) {
      device.Order();
      device.EndStep();
    }
    device.Order();
    ASSERT_EQ(writer.steps_under_way(), 2);
    ASSERT_EQ(writer.generated(0).size(), 30u);
    const auto continued = writer.GoOnInterrupted(options);
    ASSERT_TRUE(continued.ok()) << continued.status();
    ASSERT_EQ(continued->size(), 1u) << "the other request has ended, and its slot has nothing";
    const KvSequence& sequence = continued->front().sequence;
    EXPECT_EQ(sequence.positions, has_state ? 48 : 49) << "of 50 known ids; devices have computed some of the 2 rows behind them";
    EXPECT_EQ(sequence.states, has_state ? std::vector<int64_t>({0, 0, 32, 48}) : std::vector<int64_t>());
    device.Change(*continued);
    (void)device.Said();
    device.RunAll();
    EXPECT_THAT(device.Said(), ElementsAre(absl::StrCat("0=0 from -1:", sequence.positions), "keep 0:112"));
  }
}

TEST(OrderWriterCacheTest, OfARequestThatNoStepHasComputedADeviceMayKnowNothing) {
  OrderWriter writer(Sharing());
  CachedDevice device(writer);
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(1000, 60))).ok());
  device.RunAll();
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(1000, 70), 20)).ok());
  device.Order();
  EXPECT_EQ(device.shared(), 48) << "its order is on its way";
  const auto continued = writer.GoOnInterrupted(Sharing());
  ASSERT_TRUE(continued.ok()) << continued.status();
  EXPECT_THAT(*continued, IsEmpty());
}

// The logits of all generated tokens are computed again, for their hash; of a scored prompt, all.
TEST(OrderWriterCacheTest, AfterAFailureLogitsThatWereAskedForAreComputedAgain) {
  for (const auto& [logits, positions] : {std::pair(OrderWriter::Logits::kAgain, 39), std::pair(OrderWriter::Logits::kAll, 0)}) {
    OrderWriter writer(Sharing());
    CachedDevice device(writer);
    ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(1000, 40), 50), logits).ok());
    for (int step = 0; step < 50; ++step) {
      device.Order();
      device.EndStep();
    }
    const auto continued = writer.GoOnInterrupted(Sharing());
    ASSERT_TRUE(continued.ok()) << continued.status();
    EXPECT_EQ(continued->empty() ? 0 : continued->front().sequence.positions, positions);
  }
}

TEST(OrderWriterCacheTest, WithinALongPromptSnapshotsAreTakenForAFailure) {
  OrderWriter::Options options = SharingStates(1);
  options.context = 5000, options.rows_ahead = 96;
  OrderWriter writer(options);
  CachedDevice device(writer, 3);
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(0, 4000))).ok());
  for (int step = 0; step < 70; ++step) {
    device.Order();
    device.EndStep();
  }
  device.Order();
  const auto continued = writer.GoOnInterrupted(options);
  ASSERT_TRUE(continued.ok()) << continued.status();
  ASSERT_EQ(continued->size(), 1u);
  EXPECT_EQ(continued->front().sequence.positions, 2048) << "of 2,240";
  device.Change(*continued);
  const int64_t before = device.rows();
  device.RunAll();
  EXPECT_EQ(device.rows() - before, 4000 - 2048);
}

TEST(OrderWriterCacheTest, WhileKvGrowsIdleSlotsGiveWayBeforeALevelRises) {
  OrderWriter::Options options = Sharing(3);
  options.levels = {{.layer_pages = 8}, {.layer_pages = 40}};
  OrderWriter writer(options);
  CachedDevice device(writer);
  device.most_pages = 8;
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 60))).ok());
  device.RunAll();
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(1000, 20))).ok());
  device.RunAll();
  EXPECT_THAT(device.Said(), ElementsAre("0=0", "keep 0:48", "1=1", "keep 1:16"));
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(2000, 60), 20)).ok());
  device.RunAll();
  EXPECT_THAT(device.Said(), ElementsAre("free 0", "2=2", "keep 2:64"))
      << "5 pages of its own and 4 that are kept are too many, and no level rises";
}

// Against a device that computes hashes of all ids, with random bounds.
enum class Shared { kPages, kStates, kWindows };
void ShareAtRandom(Shared what) {
  const bool has_state = what == Shared::kStates;
  int64_t rows = 0, shared = 0, at_snapshots = 0, interrupted = 0;
  for (uint32_t seed = 1; seed <= static_cast<uint32_t>(Cases(200, 2000)); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 random(seed);
    const auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
    OrderWriter::Options options = Sharing(draw(1, 5));
    // Windows give pages back in longer sequences only, and need snapshots when these have gone on.
    const int longer = what == Shared::kWindows ? 3 : 1;
    options.context = 160 * longer, options.chunk = options.max_rows = options.sequences + draw(0, 40);
    options.chunks = draw(1, 3), options.microbatches = std::max(1, options.chunks);
    options.look_ahead = draw(1, 4), options.prompts_ahead = draw(1, 8);
    options.cache.most_pages = draw(0, 3) == 0 ? draw(1, 12) : 1000;
    if (draw(0, 3) == 0) options.cache.unit = 32, options.copies_kv = false;
    if (has_state) options.snapshots = draw(0, 4), options.cache.needs_snapshot = true;
    if (const int64_t window = what == Shared::kPages ? draw(-30, 30) : longer > 1 ? draw(1, 60) : 0; window > 0)
      options.window = {.positions = window, .pages = WindowPages(window, options.max_rows)};
    if (what == Shared::kWindows) options.snapshots = draw(0, 3);
    OrderWriter writer(options);
    CachedDevice device(writer, has_state ? std::optional(options.snapshots) : std::nullopt);
    device.window = options.window;
    if (what == Shared::kWindows) device.window_snapshots = options.snapshots;
    std::vector<std::vector<int32_t>> prompts = {GroupIds(100, 60 * longer)};
    std::map<RequestId, std::vector<int32_t>> answers;
    int requests = 0;
    const int total = draw(2, 15);
    for (int turn = 0; turn < 100'000 && (requests < total || !writer.idle()); ++turn) {
      if (requests < total && draw(0, longer > 1 ? 40 : 2) == 0) {
        std::vector<int32_t> prompt = prompts[static_cast<size_t>(draw(0, static_cast<int>(prompts.size()) - 1))];
        if (draw(0, 1) == 0) prompt = JoinIds(prompt, Answer(prompt, draw(0, 40)));
        prompt.resize(static_cast<size_t>(std::min<int>(draw(1, 150 * longer), static_cast<int>(prompt.size()))));
        if (draw(0, 1) == 0) prompt.push_back(draw(0, 99));
        const int most = std::min<int>(longer > 1 ? 250 : 30, 160 * longer - static_cast<int>(prompt.size()));
        ASSERT_TRUE(writer.Add(AskOfGroup(prompt, draw(1, most), draw(0, 3) == 0 ? 1 : 0)).ok());
        prompts.push_back(std::move(prompt));
        ++requests;
      }
      if (const int id = draw(0, (longer > 1 ? 60 : 6) * total); id < requests && !writer.finished(id)) writer.Stop(id);
      ASSERT_NO_FATAL_FAILURE(device.Order());
      ASSERT_LE(writer.cache().pages(), options.cache.most_pages);
      if (device.has_step()) ASSERT_NO_FATAL_FAILURE(device.EndStep());
      if (draw(0, longer > 1 ? 200 : 40) > 0) continue;
      if (what == Shared::kWindows) device.window_snapshots = options.snapshots = draw(0, 3);
      const auto continued = writer.GoOnInterrupted(options);
      ASSERT_TRUE(continued.ok()) << continued.status();
      ASSERT_NO_FATAL_FAILURE(device.Change(*continued));
      interrupted += std::ssize(*continued);
    }
    EXPECT_EQ(requests, total);
    EXPECT_TRUE(writer.idle());
    rows += device.rows(), shared += device.shared(), at_snapshots += device.begun_at_snapshots();
  }
  EXPECT_GT(shared, rows / (what == Shared::kPages ? 5 : 10)) << "much is shared";
  EXPECT_EQ(at_snapshots > 0, what == Shared::kWindows);
  const int64_t expected = what == Shared::kWindows ? 30 : 50;
  EXPECT_GT(interrupted, ManyCases() ? expected : expected / 2);
}

TEST(OrderWriterCacheTest, RandomRequestsShareKvOfEqualIdsOnly) {
  ShareAtRandom(Shared::kPages);
}

TEST(OrderWriterCacheTest, RandomRequestsShareStatesOfEqualIdsOnly) {
  ShareAtRandom(Shared::kStates);
}

TEST(OrderWriterCacheTest, RandomRequestsShareWindowsOfEqualIdsOnly) {
  ShareAtRandom(Shared::kWindows);
}

}  // namespace
}  // namespace lime
