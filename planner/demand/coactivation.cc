#include "planner/demand/coactivation.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <numeric>
#include <utility>

#include "planner/demand/mask_window.h"

namespace lime {
namespace {

constexpr int32_t kNone = -1;
constexpr int32_t kMostRank = *std::ranges::max_element(kFriendRanks);
constexpr int32_t kPiece = 256;       // neurons whose friends one thread counts at once
constexpr int64_t kMostActive = 100;  // one in so many neurons is among the most active

// The friends of one neuron that have any step with it, the closest ones first.
struct Friends {
  int64_t uses = 0;                                               // steps of the neuron
  std::array<int32_t, static_cast<size_t>(kMostRank)> neurons{};  // kNone behind the last one
  std::array<int64_t, static_cast<size_t>(kMostRank)> together{};
};

// Counts friends in a sample of the masks.
class FriendCounter {
 public:
  FriendCounter(Masks masks, int32_t neurons) : masks_(masks), steps_of_(static_cast<size_t>(neurons)) {
    for (size_t step = 0; step < masks.size(); ++step) {
      for (const int32_t neuron : masks[step]) steps_of_[static_cast<size_t>(neuron)].push_back(static_cast<int32_t>(step));
    }
  }

  int64_t Uses(int32_t neuron) const { return std::ssize(steps_of_[static_cast<size_t>(neuron)]); }

  // The first `most` friends of a neuron, in order. `together` has a zero for every neuron, and has them again
  // at the end.
  std::vector<std::pair<int64_t, int32_t>> Closest(int32_t neuron, size_t most, std::vector<int32_t>& together) const {
    std::vector<std::pair<int64_t, int32_t>> found;  // steps with both, neuron
    for (const int32_t step : steps_of_[static_cast<size_t>(neuron)]) {
      for (const int32_t other : masks_[static_cast<size_t>(step)]) {
        if (other != neuron && together[static_cast<size_t>(other)]++ == 0) found.emplace_back(0, other);
      }
    }
    for (auto& [both, other] : found) both = std::exchange(together[static_cast<size_t>(other)], 0);
    const auto closer = [](const auto& a, const auto& b) { return a.first != b.first ? a.first > b.first : a.second < b.second; };
    const auto end = found.begin() + std::min(std::ssize(found), static_cast<std::ptrdiff_t>(most));
    std::partial_sort(found.begin(), end, found.end(), closer);
    found.erase(end, found.end());
    return found;
  }

 private:
  const Masks masks_;
  std::vector<std::vector<int32_t>> steps_of_;  // by neuron
};

class FriendStudy {
 public:
  FriendStudy(std::span<const SequenceMasks> sequences, const CoactivationOptions& options)
      : sequences_(sequences), options_(options), sample_(SampledMasks(sequences)), counter_(sample_, options.neurons) {}

  absl::StatusOr<Coactivation> Run() {
    Coactivation out{.steps = std::ssize(sample_)};
    LIME_RETURN_IF_ERROR(CountFriends());
    OfOneNeuron(out);
    for (const int32_t rank : kFriendRanks) out.ranks.push_back(OfRank(rank));
    CountHubs(out);
    LIME_ASSIGN_OR_RETURN(out.reads, ReplayReads());
    return out;
  }

 private:
  absl::Status CountFriends() {
    friends_.resize(static_cast<size_t>(options_.neurons));
    std::atomic<bool> ended = false;
    options_.for_each((options_.neurons + kPiece - 1) / kPiece, [&](int64_t piece) {
      std::vector<int32_t> together(friends_.size());
      const auto begin = static_cast<int32_t>(piece * kPiece);
      for (int32_t neuron = begin; neuron < std::min(begin + kPiece, options_.neurons); ++neuron) {
        if (ended || options_.ends()) return ended.store(true);
        Friends& friends = friends_[static_cast<size_t>(neuron)];
        friends.uses = counter_.Uses(neuron);
        friends.neurons.fill(kNone);
        size_t rank = 0;
        for (const auto& [both, other] : counter_.Closest(neuron, friends.neurons.size(), together))
          friends.neurons[rank] = other, friends.together[rank++] = both;
      }
    });
    return ended ? absl::CancelledError("interrupted") : absl::OkStatus();
  }

  void OfOneNeuron(Coactivation& out) const {
    std::vector<int32_t> used;
    for (int32_t neuron = 0; neuron < options_.neurons; ++neuron) {
      if (counter_.Uses(neuron) > 0) used.push_back(neuron);
    }
    if (used.empty()) return;
    std::ranges::stable_sort(used, {}, [this](int32_t neuron) { return counter_.Uses(neuron); });
    out.neuron = used[used.size() / 2];
    std::vector<int32_t> together(friends_.size());
    for (const auto& [both, other] : counter_.Closest(out.neuron, kMostFriends, together))
      out.with_neuron.push_back(static_cast<double>(both) / static_cast<double>(counter_.Uses(out.neuron)));
  }

  FriendRank OfRank(int32_t rank) const {
    FriendRank out{.rank = rank, .neurons = std::vector<int64_t>(101)};
    int64_t counted = 0;
    double sum = 0;
    for (const Friends& friends : friends_) {
      if (friends.uses < kLeastFriendUses) continue;
      const int64_t together = friends.together[static_cast<size_t>(rank - 1)];
      ++out.neurons[static_cast<size_t>(100 * together / friends.uses)];
      sum += static_cast<double>(together) / static_cast<double>(friends.uses);
      ++counted;
    }
    out.mean = counted > 0 ? sum / static_cast<double>(counted) : 0;
    return out;
  }

  void CountHubs(Coactivation& out) const {
    std::vector<int32_t> by_uses(friends_.size());
    std::iota(by_uses.begin(), by_uses.end(), 0);
    std::ranges::stable_sort(by_uses, [this](int32_t a, int32_t b) { return counter_.Uses(a) > counter_.Uses(b); });
    std::vector<bool> most_active(friends_.size()), is_closest(friends_.size());
    for (size_t i = 0; i < (by_uses.size() + kMostActive - 1) / kMostActive; ++i) most_active[static_cast<size_t>(by_uses[i])] = true;
    int64_t of_most_active = 0, with_friend = 0;
    for (const Friends& friends : friends_) {
      if (friends.neurons.front() == kNone) continue;
      const auto closest = static_cast<size_t>(friends.neurons.front());
      is_closest[closest] = true;
      ++with_friend;
      of_most_active += most_active[closest] ? 1 : 0;
    }
    out.closest_friends = static_cast<int32_t>(std::ranges::count(is_closest, true));
    if (with_friend > 0) out.of_most_active = static_cast<double>(of_most_active) / static_cast<double>(with_friend);
  }

  struct Counts {
    int64_t steps = 0, loads = 0, bundles = 0, friends = 0, used = 0, already_there = 0;
  };

  absl::StatusOr<FriendReads> ReplayReads() const {
    Counts all;
    for (const SequenceMasks& sequence : sequences_) {
      if (options_.ends()) return absl::CancelledError("interrupted");
      LIME_RETURN_IF_ERROR(ReplaySequence(sequence, all));
    }
    const auto of = [](int64_t count, int64_t whole) { return whole > 0 ? static_cast<double>(count) / static_cast<double>(whole) : 0; };
    return FriendReads{.new_neurons = of(all.loads, all.steps),
                       .bundles = of(all.bundles, all.steps),
                       .used = of(all.used, all.friends),
                       .already_there = of(all.already_there, all.friends),
                       .not_needed = of(all.friends - all.used - all.already_there, all.friends)};
  }

  absl::Status ReplaySequence(const SequenceMasks& sequence, Counts& all) const {
    MaskWindow window({.neurons = options_.neurons, .rows = options_.neurons, .masks = options_.masks});
    std::vector<int64_t> came(friends_.size(), kNone);  // by neuron: the step in which it was last read, as itself or as a friend
    for (int64_t step = 0; step < std::ssize(sequence); ++step) {
      LIME_RETURN_IF_ERROR(window.BeginStep(sequence[static_cast<size_t>(step)]));
      window.NextRound();
      if (step < std::ssize(sequence) / 2) continue;
      ++all.steps, all.loads += std::ssize(window.coming());
      for (const int32_t neuron : window.coming()) {
        if (std::exchange(came[static_cast<size_t>(neuron)], step) == step) continue;
        ++all.bundles;
        const int32_t closest = friends_[static_cast<size_t>(neuron)].neurons.front();
        if (closest == kNone) continue;
        ++all.friends;
        const bool is_new = std::ranges::binary_search(window.coming(), closest);
        const bool had_come = std::exchange(came[static_cast<size_t>(closest)], step) == step;
        if (is_new && !had_come) ++all.used;
        if (had_come || (!is_new && window.InMemory(closest))) ++all.already_there;
      }
    }
    return absl::OkStatus();
  }

  const std::span<const SequenceMasks> sequences_;
  const CoactivationOptions& options_;
  const SequenceMasks sample_;
  const FriendCounter counter_;
  std::vector<Friends> friends_;  // by neuron
};

}  // namespace

absl::StatusOr<Coactivation> MeasureCoactivation(std::span<const SequenceMasks> sequences, const CoactivationOptions& options) {
  LIME_RETURN_IF_ERROR(MaskWindow::Check({.neurons = options.neurons, .rows = options.neurons, .masks = options.masks}));
  for (const SequenceMasks& sequence : sequences) {
    for (const std::vector<int32_t>& mask : sequence) LIME_RETURN_IF_ERROR(CheckAscending(mask, options.neurons));
  }
  return FriendStudy(sequences, options).Run();
}

}  // namespace lime
