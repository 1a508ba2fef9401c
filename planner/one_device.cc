#include "planner/one_device.h"

#include <algorithm>
#include <array>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/base/check.h"
#include "planner/base/names.h"
#include "planner/base/strings.h"
#include "planner/evaluation/evaluator.h"
#include "planner/evaluation/first_token.h"
#include "planner/kv/kv_growth.h"
#include "planner/kv/kv_levels.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_residency.h"

namespace lime {
namespace {

// Ring sizes to try besides one, two and kSteadyParts parts.
constexpr std::array<Bytes, 5> kRings = {64 * kMiB, 128 * kMiB, 256 * kMiB, 512 * kMiB, 1024 * kMiB};
// Two parts suffice if the disk and the computation always take the same time. Four allow for
// variation.
constexpr int64_t kSteadyParts = 4;
constexpr double kAsGood = 1.005;    // times within this factor are equal
constexpr double kTightRing = 1.02;  // expected cost of a small ring beyond the evaluation
// The same for a resident part in every block, each with its own memory and its own read.
constexpr double kScattered = 1.01;

double ToMb(Bytes bytes) {
  return (static_cast<double>(bytes) - 0.5) / 1e6;  // as devices in PlanProblem
}

// The choice of streamed parts.
struct ResidencyDraft {
  std::vector<uint8_t> streamed;  // by part
  Bytes resident = 0;             // of parts
  bool scattered = false;
};
struct Choice {
  ResidencyDraft draft;
  Bytes ring = 0;
  double ms = 0;  // of a step, with the expected costs beyond the evaluation
};

class Planner {
 public:
  Planner(const PlanProblem& problem, const OneDeviceRequest& request)
      : problem_(problem), request_(request), grows_(GrowsKv(problem.head)), instance_(problem.instance), evaluator_(instance_) {
    LIME_CHECK_EQ(problem.head.NumDevices(), 1);
    LIME_CHECK(!grows_ || (request.placement == Placement::kAuto && !request.ring && !request.share));
    const PlanDevice& device = problem.head.devices.front();
    Bytes fixed = device.memory.total() + problem.head.embedding_pinned_bytes;
    for (const PlanPart& part : problem.head.parts) {
      fixed += part.pinned_bytes + part.kv_pages * problem.head.page_bytes + part.state_bytes;
      if (part.on_demand()) fixed += MemoryOf(part);
      parts_ += MovableBytes(part);
      largest_ = std::max(largest_, MovableBytes(part));
    }
    if (request.spills != nullptr) largest_ = std::max(largest_, problem.head.sequences * KvPieceBytes(problem.head));  // streams too
    all_ = parts_ + (problem.tied_embedding ? 0 : problem.head.embedding_bytes);
    fixed_ = fixed - device.memory.total();
    room_ = device.budget - fixed;
    for (const double ms : instance_.devices.front().comp_ms) compute_ms_ += ms;
  }

  absl::StatusOr<Plan> Make() {
    const Bytes most = MostResident();
    if (!grows_ && all_ <= std::min(room_, most)) return MakeWith({}, /*by_rows=*/problem_.tied_embedding, 0);
    room_ -= request_.rows;
    if (!grows_ && parts_ <= std::min(room_, most)) return MakeWith({}, /*by_rows=*/true, 0);
    room_ -= request_.streaming_margin + largest_;
    const Bytes least = request_.ring ? std::max(*request_.ring, 2 * largest_) : largest_;
    if (least > room_) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "weights would have ", FormatBytes(std::max<Bytes>(0, room_ + largest_)), ", but a ring of two parts needs ",
          FormatBytes(2 * largest_), request_.ring ? absl::StrCat(", and --pool asks for ", FormatBytes(*request_.ring)) : ""));
    }
    for (const Bytes ring : Rings()) {
      for (ResidencyDraft& draft : Drafts(std::min(room_ - ring, most))) Consider(std::move(draft), ring);
    }
    const Choice& best = Best();
    absl::StatusOr<Plan> plan = MakeWith(best.draft.streamed, /*by_rows=*/true, best.ring);
    if (!plan.ok() || !grows_) return plan;
    if (request_.spills == nullptr) return PlanToGrow(*plan);
    LIME_ASSIGN_OR_RETURN(const Plan cut, CutForKv(*plan, *request_.spills));
    return PlanToSpill(cut);
  }

 private:
  Bytes MostResident() const {
    if (!request_.share || *request_.share >= 1) return std::numeric_limits<Bytes>::max();
    return static_cast<Bytes>(*request_.share * static_cast<double>(all_));
  }

  std::vector<Bytes> Rings() const {
    if (request_.ring) return {std::max(*request_.ring, 2 * largest_)};
    std::vector<Bytes> rings = {largest_};
    const auto add = [&](Bytes ring) {
      if (ring > rings.back() && ring <= room_) rings.push_back(ring);
    };
    add(2 * largest_);
    add(kSteadyParts * largest_);
    for (const Bytes ring : kRings) add(ring);
    return rings;
  }

  // ---- Which parts are resident in `room`

  std::vector<ResidencyDraft> Drafts(Bytes room) const {
    std::vector<ResidencyDraft> drafts;
    const auto wanted = [&](Placement placement) { return request_.placement == Placement::kAuto || request_.placement == placement; };
    if (wanted(Placement::kFirstN)) drafts.push_back(InOrder(room, /*backwards=*/false));
    if (wanted(Placement::kLastN)) drafts.push_back(InOrder(room, /*backwards=*/true));
    if (wanted(Placement::kInterleaved)) {
      drafts.push_back(Spread(room, /*by_parts=*/false));
      drafts.push_back(Spread(room, /*by_parts=*/true));
    }
    if (request_.placement == Placement::kAttentionFirst) drafts.push_back(AttentionFirst(room));
    return drafts;
  }

  ResidencyDraft AllStreamed() const {
    ResidencyDraft draft;
    for (const PlanPart& part : problem_.head.parts) draft.streamed.push_back(part.on_demand() ? 0 : 1);
    return draft;
  }
  Bytes BytesOf(int begin, int end) const {
    Bytes bytes = 0;
    for (int p = begin; p < end; ++p) bytes += MovableBytes(problem_.head.parts[p]);
    return bytes;
  }
  static void MakeResident(int begin, int end, Bytes bytes, ResidencyDraft& draft) {
    std::fill(draft.streamed.begin() + begin, draft.streamed.begin() + end, 0);
    draft.resident += bytes;
  }

  // Parts in order of use while they fit.
  ResidencyDraft InOrder(Bytes room, bool backwards) const {
    ResidencyDraft draft = AllStreamed();
    const int parts = problem_.head.NumParts();
    for (int i = 0; i < parts; ++i) {
      const int p = backwards ? parts - 1 - i : i;
      const Bytes bytes = MovableBytes(problem_.head.parts[p]);
      if (draft.resident + bytes > room) break;
      MakeResident(p, p + 1, bytes, draft);
    }
    return draft;
  }

  // Parts of the attention halves in order of use, then all others, while they fit.
  ResidencyDraft AttentionFirst(Bytes room) const {
    ResidencyDraft draft = AllStreamed();
    for (const bool attention : {true, false}) {
      for (int p = 0; p < problem_.head.NumParts(); ++p) {
        const PlanPart& part = problem_.head.parts[p];
        if (IsAttentionHalf(part.block.kind) != attention) continue;
        if (draft.resident + MovableBytes(part) > room) return draft;
        MakeResident(p, p + 1, MovableBytes(part), draft);
      }
    }
    return draft;
  }

  // About the same share of each region of the model, in whole blocks or parts. Then more parts
  // while they fit.
  ResidencyDraft Spread(Bytes room, bool by_parts) const {
    ResidencyDraft draft = AllStreamed();
    draft.scattered = by_parts;
    const double share = static_cast<double>(std::max<Bytes>(0, room)) / static_cast<double>(parts_);
    const int parts = problem_.head.NumParts();
    Bytes seen = 0;
    for (int begin = 0, end = 0; begin < parts; begin = end) {
      end = by_parts ? begin + 1 : PartsOf(problem_.head, problem_.head.parts[begin].block).second;
      const Bytes bytes = BytesOf(begin, end);
      seen += bytes;
      if (static_cast<double>(draft.resident + bytes) <= share * static_cast<double>(seen) && draft.resident + bytes <= room)
        MakeResident(begin, end, bytes, draft);
    }
    for (int p = 0; p < parts; ++p) {
      const Bytes bytes = MovableBytes(problem_.head.parts[p]);
      if (draft.streamed[p] != 0 && draft.resident + bytes <= room) MakeResident(p, p + 1, bytes, draft);
    }
    return draft;
  }

  // ---- Which choice is best

  // The disk and the computation bound any schedule. Skips drafts that cannot be chosen.
  void Consider(ResidencyDraft draft, Bytes ring) {
    const double factor = (ring < kSteadyParts * largest_ ? kTightRing : 1) * (draft.scattered ? kScattered : 1);
    const double read_ms = static_cast<double>(parts_ - draft.resident) / 1e6 / instance_.devices.front().disk_mb_per_ms;
    if (factor * std::max(compute_ms_, read_ms) > kAsGood * best_ms_) return;
    instance_.devices.front().mem_mb = ToMb(fixed_ + draft.resident + ring);
    const Stage all{0, 0, problem_.head.NumParts()};
    const double ms = factor * evaluator_.MsPerStep({&all, 1}, draft.streamed, /*embedding_by_rows=*/true);
    best_ms_ = std::min(best_ms_, ms);
    choices_.push_back({.draft = std::move(draft), .ring = ring, .ms = ms});
  }

  // Among the fastest within kAsGood: the one that reads least, then the smallest ring.
  const Choice& Best() const {
    const Choice* best = nullptr;
    const auto rank = [](const Choice& choice) { return std::tuple(-choice.draft.resident, choice.ring, choice.ms); };
    for (const Choice& choice : choices_) {
      if (choice.ms <= kAsGood * best_ms_ && (best == nullptr || rank(choice) < rank(*best))) best = &choice;
    }
    LIME_CHECK(best != nullptr) << "no ring of " << room_ << " bytes";
    return *best;
  }

  // ---- The plan

  absl::StatusOr<Plan> MakeWith(const std::vector<uint8_t>& streamed, bool by_rows, Bytes ring) const {
    PlanProblem problem = problem_;
    StagePlan stages{.stages = {{0, 0, problem.head.NumParts()}}, .embedding_by_rows = by_rows};
    Bytes resident = parts_, largest = grows_ ? largest_ : 0;
    for (size_t p = 0; p < streamed.size(); ++p) {
      if (streamed[p] == 0) continue;
      stages.streamed.push_back(static_cast<int32_t>(p));
      resident -= problem.head.parts[p].bytes;
      largest = std::max(largest, problem.head.parts[p].bytes);
    }
    PlanDevice& device = problem.head.devices.front();
    PlanMemory& memory = device.memory;
    if (by_rows && !EmbeddingIsWithHead(problem, stages)) memory.activations += request_.rows;
    memory.activations += largest;
    if (largest > 0) memory.margin += request_.streaming_margin, device.least_margin += request_.streaming_margin;
    SetRoom(largest > 0 ? fixed_ + resident + ring : device.budget - memory.total(), problem);
    PlanChoice choice{.stages = stages, .batch = problem.head.sequences};
    // Several chunks per sweep would keep streamed parts in the ring.
    if (grows_ && problem.first_token) problem.first_token->max_chunks_per_sweep = 1;
    if (problem.first_token) choice.first_token = FirstTokenPredictor(*problem.first_token).Predict(stages);
    LIME_ASSIGN_OR_RETURN(Plan plan, MakePlan(problem, choice));
    PlanMemory& divided = plan.devices.front().memory;
    if (!request_.ring) ring = std::min(ring, divided.ring);
    divided.margin += divided.ring - ring;
    divided.ring = ring;
    LIME_RETURN_IF_ERROR(plan.Validate());
    return plan;
  }

  // The ring gets the memory that is left.
  static void SetRoom(Bytes room, PlanProblem& problem) {
    problem.instance.devices.front().mem_mb = ToMb(room);
    if (!problem.first_token) return;
    for (PrefillChunk& chunk : problem.first_token->chunks) chunk.instance.devices.front().mem_mb = ToMb(room);
  }

  const PlanProblem& problem_;
  const OneDeviceRequest& request_;
  const bool grows_;  // KV grows, so any part may stream later
  Instance instance_;
  Evaluator evaluator_;
  Bytes parts_ = 0;    // of all parts that are not on demand
  Bytes all_ = 0;      // of these and the embedding
  Bytes largest_ = 0;  // of these
  Bytes fixed_ = 0;    // KV, states, places of parts on demand, and pinned tensors of parts and embedding
  Bytes room_ = 0;     // for resident parts and the ring
  double compute_ms_ = 0;

  std::vector<Choice> choices_;
  double best_ms_ = std::numeric_limits<double>::infinity();
};

}  // namespace

absl::StatusOr<Placement> ParsePlacement(std::string_view name) {
  constexpr Names<Placement, 5> kNames = {{{Placement::kAuto, "auto"},
                                           {Placement::kFirstN, "first_n"},
                                           {Placement::kLastN, "last_n"},
                                           {Placement::kInterleaved, "interleaved"},
                                           {Placement::kAttentionFirst, "attention_first"}}};
  if (const std::optional<Placement> placement = kNames.Find(name)) return *placement;
  return Invalid("\"", Text(name), "\" is not a placement; use auto, first_n, last_n, interleaved or attention_first");
}

absl::StatusOr<Plan> PlanOneDevice(const PlanProblem& problem, const OneDeviceRequest& request) {
  return Planner(problem, request).Make();
}

PlanMemory LeastMemory(const PlanProblem& problem, const OneDeviceRequest& request) {
  PlanMemory memory = problem.head.devices.front().memory;
  memory.embedding = problem.head.embedding_pinned_bytes;
  Bytes largest = 0;
  for (const PlanPart& part : problem.head.parts) {
    memory.weights += part.pinned_bytes + (part.on_demand() ? MemoryOf(part) : 0);
    memory.kv += part.kv_pages * problem.head.page_bytes;
    memory.state += part.state_bytes;
    largest = std::max(largest, MovableBytes(part));
  }
  memory.ring = request.ring ? std::max(*request.ring, 2 * largest) : largest;
  memory.activations += request.rows + largest;
  return memory;
}

double MsPerStepAt(const Plan& plan, double disk_bytes_per_second) {
  Plan at = plan;
  PlanDevice& device = at.devices.front();
  const double rate = std::max(kMinDiskRate, disk_bytes_per_second / 1e9);
  for (PlanPart& part : at.parts) {
    if (part.demand_reads == 0) part.demand_ms *= device.disk_mb_per_ms / rate;  // bursts of small reads have a rate of their own
  }
  device.disk_mb_per_ms = rate;
  return FirstLevelMs(at);
}

}  // namespace lime
