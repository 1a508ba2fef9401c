#include "planner/residency.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/base/check.h"
#include "planner/evaluator.h"

namespace lime {
namespace {

using Kind = ResidencyProblem::Kind;

constexpr double kBytesPerMb = 1e6;
constexpr std::array<Bytes, 5> kRingShares = {64 * kMiB, 128 * kMiB, 256 * kMiB, 512 * kMiB, 1024 * kMiB};
constexpr double kTightRing = 1.02;  // what a ring of two pieces is expected to cost beside the evaluation
constexpr size_t kMixes = 6;         // of block counts that are evaluated, from the fewest streamed bytes up

Bytes StreamedOf(const ResidencyProblem::Block& block) {
  return std::accumulate(block.pieces.begin(), block.pieces.end(), Bytes{0});
}

// How many blocks of each kind stay, and what then streams.
struct Mix {
  std::array<int64_t, 4> resident = {};  // by Kind
  Bytes streamed = 0;
};

class Planner {
 public:
  explicit Planner(const ResidencyProblem& problem) : problem_(problem) {
    for (size_t i = 0; i < problem.blocks.size(); ++i) by_kind_[static_cast<size_t>(problem.blocks[i].kind)].push_back(i);
    for (const auto& block : problem.blocks) {
      total_ += block.resident;
      compute_ms_ += block.comp_ms;
      for (const Bytes piece : block.pieces) largest_ = std::max(largest_, piece);
    }
  }

  absl::StatusOr<ResidencyPlan> Plan() {
    if (total_ <= problem_.memory && problem_.share.value_or(1) >= 1 && !problem_.ring) return AllResident();
    if (const Bytes least = std::max(2 * largest_, problem_.ring.value_or(0)); least > problem_.memory) {
      return absl::ResourceExhaustedError(
          absl::StrCat("weights would have ", FormatBytes(std::max<Bytes>(0, problem_.memory)), ", and a ring of two pieces takes ",
                       FormatBytes(2 * largest_), problem_.ring ? absl::StrCat(", --pool asks for ", FormatBytes(*problem_.ring)) : ""));
    }
    ResidencyPlan best;
    for (const Bytes ring : Rings()) {
      for (std::vector<bool>& resident : Candidates(problem_.memory - ring)) Consider(std::move(resident), ring, best);
    }
    LIME_CHECK(best.streams());
    return best;
  }

  double MsPerStep(const ResidencyPlan& plan) const { return plan.streams() ? Evaluate(plan) : compute_ms_; }

 private:
  ResidencyPlan AllResident() const {
    return {.resident = std::vector<bool>(problem_.blocks.size(), true),
            .resident_bytes = total_,
            .ms_per_step = compute_ms_,
            .limit_ms = compute_ms_};
  }

  std::vector<Bytes> Rings() const {
    if (problem_.ring) return {std::max(*problem_.ring, 2 * largest_)};
    std::vector<Bytes> rings = {2 * largest_};
    if (SteadyRing() <= problem_.memory) rings.push_back(SteadyRing());
    for (const Bytes ring : kRingShares) {
      if (ring > rings.back() && ring <= problem_.memory) rings.push_back(ring);
    }
    return rings;
  }

  // Two pieces are enough for a disk and a computation that take the same time every time. Four bridge what real ones differ by.
  Bytes SteadyRing() const { return 4 * largest_; }

  // Sets of resident blocks that fit into `room`.
  std::vector<std::vector<bool>> Candidates(Bytes room) const {
    if (problem_.share) room = std::min(room, static_cast<Bytes>(std::llround(*problem_.share * static_cast<double>(total_))));
    std::vector<std::vector<bool>> sets;
    const auto wanted = [&](Placement placement) { return problem_.placement == Placement::kAuto || problem_.placement == placement; };
    if (wanted(Placement::kFirstN)) sets.push_back(InOrder(room, /*backwards=*/false));
    if (wanted(Placement::kLastN)) sets.push_back(InOrder(room, /*backwards=*/true));
    if (wanted(Placement::kInterleaved)) {
      for (const Mix& mix : Mixes(room)) sets.push_back(Spread(mix));
    }
    return sets;
  }

  // Blocks in order of use as long as they fit; rows last, they cost least when they are read.
  std::vector<bool> InOrder(Bytes room, bool backwards) const {
    std::vector<size_t> order(problem_.blocks.size());
    std::iota(order.begin(), order.end(), size_t{0});
    if (backwards) std::ranges::reverse(order);
    std::stable_partition(order.begin(), order.end(), [&](size_t i) { return problem_.blocks[i].kind != Kind::kRows; });
    std::vector<bool> resident(problem_.blocks.size(), false);
    for (const size_t i : order) {
      if (problem_.blocks[i].resident > room) break;
      resident[i] = true;
      room -= problem_.blocks[i].resident;
    }
    return resident;
  }

  // All blocks of a kind are about equal: counts decide how much streams.
  Bytes SizeOf(Kind kind) const {
    Bytes size = 0;
    for (const size_t i : Of(kind)) size = std::max(size, problem_.blocks[i].resident);
    return size;
  }
  const std::vector<size_t>& Of(Kind kind) const { return by_kind_[static_cast<size_t>(kind)]; }
  int64_t CountOf(Kind kind) const { return static_cast<int64_t>(Of(kind).size()); }

  std::vector<Mix> Mixes(Bytes room) const {
    std::vector<Mix> mixes;
    const auto fitting = [](Bytes room, Bytes size, int64_t count) {
      return size <= 0 ? count : std::clamp<int64_t>(room / size, 0, count);
    };
    for (int64_t heads = 0; heads <= CountOf(Kind::kHead); ++heads) {
      for (int64_t mlps = 0; mlps <= CountOf(Kind::kMlp); ++mlps) {
        Bytes left = room - heads * SizeOf(Kind::kHead) - mlps * SizeOf(Kind::kMlp);
        if (left < 0) break;
        Mix mix;
        const int64_t attentions = fitting(left, SizeOf(Kind::kAttention), CountOf(Kind::kAttention));
        left -= attentions * SizeOf(Kind::kAttention);
        mix.resident = {fitting(left, SizeOf(Kind::kRows), CountOf(Kind::kRows)), attentions, mlps, heads};
        mix.streamed = total_ - (room - left);  // rows do not stream, so that they are the same in all mixes
        mixes.push_back(mix);
      }
    }
    std::ranges::stable_sort(mixes, {}, &Mix::streamed);
    if (mixes.size() > kMixes) mixes.resize(kMixes);
    return mixes;
  }

  // The streamed ones of every kind evenly over its blocks; attention half a turn behind the MLPs.
  std::vector<bool> Spread(const Mix& mix) const {
    std::vector<bool> resident(problem_.blocks.size(), true);
    for (const Kind kind : {Kind::kRows, Kind::kAttention, Kind::kMlp, Kind::kHead}) {
      const std::vector<size_t>& blocks = Of(kind);
      const int64_t count = CountOf(kind), streamed = count - mix.resident[static_cast<size_t>(kind)];
      for (int64_t i = 0; i < streamed; ++i) {
        const int64_t at = kind == Kind::kAttention ? i * count / streamed : (2 * i + 1) * count / (2 * streamed);
        resident[blocks[static_cast<size_t>(at)]] = false;
      }
    }
    return resident;
  }

  // Keeps the faster of two plans, a ring without slack counting as slower, or of equals the one that reads less, then the smaller ring.
  void Consider(std::vector<bool> resident, Bytes ring, ResidencyPlan& best) const {
    ResidencyPlan plan{.resident = std::move(resident), .ring = ring};
    if (problem_.tied) plan.resident[Of(Kind::kRows).front()] = plan.resident[Of(Kind::kHead).front()];
    double compute_ms = compute_ms_;
    for (size_t i = 0; i < problem_.blocks.size(); ++i) {
      (plan.resident[i] ? plan.resident_bytes : plan.streamed_bytes) +=
          plan.resident[i] ? problem_.blocks[i].resident : StreamedOf(problem_.blocks[i]);
      if (!plan.resident[i] && problem_.blocks[i].kind == Kind::kRows) compute_ms += problem_.row_ms;
    }
    plan.limit_ms = std::max(compute_ms, static_cast<double>(plan.streamed_bytes) / problem_.disk_bytes_per_ms);
    // No schedule beats the limit: what cannot win is not evaluated.
    if (best.streams() && plan.limit_ms > kTightRing * best.ms_per_step) return;
    plan.ms_per_step = Evaluate(plan);
    const auto rank = [this](const ResidencyPlan& p) {
      return std::tuple(p.ms_per_step * (p.ring < SteadyRing() ? kTightRing : 1), p.streamed_bytes, p.ring);
    };
    if (!best.streams() || rank(plan) < rank(best)) best = std::move(plan);
  }

  // The exact evaluation, of pieces as blocks of their own; runs of resident blocks are one.
  double Evaluate(const ResidencyPlan& plan) const {
    Instance instance;
    Instance::Device device{.name = "local",
                            .disk_mb_per_ms = problem_.disk_bytes_per_ms / kBytesPerMb,
                            .disk_lat_ms = problem_.disk_latency_ms,
                            .comp_ms = {},
                            .comp_ms_by_batch = {}};
    std::vector<uint8_t> streamed;
    const auto add = [&](double mb, double ms, bool streams) {
      if (!streams && !streamed.empty() && streamed.back() == 0) {
        device.comp_ms.back() += ms;
        return;
      }
      instance.blocks.push_back({.mb = streams ? mb : 0});
      device.comp_ms.push_back(ms);
      streamed.push_back(streams ? 1 : 0);
    };
    for (size_t i = 0; i < problem_.blocks.size(); ++i) {
      const ResidencyProblem::Block& block = problem_.blocks[i];
      const double all = static_cast<double>(StreamedOf(block));
      if (plan.resident[i]) {
        add(0, block.comp_ms, false);
      } else if (block.kind == Kind::kRows) {
        add(0, block.comp_ms + problem_.row_ms, false);
      } else {
        for (const Bytes piece : block.pieces) {
          add(static_cast<double>(piece) / kBytesPerMb, block.comp_ms * static_cast<double>(piece) / all, true);
        }
      }
    }
    device.mem_mb = static_cast<double>(plan.ring) / kBytesPerMb;
    instance.devices.push_back(std::move(device));
    if (!instance.Validate().ok()) return plan.limit_ms;  // rates beyond all bounds: a profile of nonsense
    const std::vector<Stage> stages = {{0, 0, instance.NumBlocks()}};
    return Evaluator(instance).MsPerStep(stages, streamed);
  }

  const ResidencyProblem& problem_;
  std::array<std::vector<size_t>, 4> by_kind_;
  Bytes total_ = 0;
  Bytes largest_ = 0;
  double compute_ms_ = 0;
};

}  // namespace

absl::StatusOr<ResidencyPlan> PlanResidency(const ResidencyProblem& problem) {
  return Planner(problem).Plan();
}

double ResidencyMsPerStep(const ResidencyProblem& problem, const ResidencyPlan& plan) {
  return Planner(problem).MsPerStep(plan);
}

}  // namespace lime
