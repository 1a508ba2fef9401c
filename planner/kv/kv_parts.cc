#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/kv/kv_growth.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_residency.h"
#include "planner/plan/plan_rows.h"

namespace lime {
namespace {

class Cutter {
 public:
  Cutter(const Plan& plan, const ModelSpec& spec, bool for_hosts) : plan_(plan), spec_(spec), for_hosts_(for_hosts), cut_(plan) {
    cut_.parts.clear();
    cut_.chunks_per_sweep = std::min(plan.chunks_per_sweep, 1);
    layer_pages_ = ResidencyOf(plan).layer_pages;
    Bytes largest = 0;
    for (const PlanPart& part : plan.parts) largest = std::max(largest, MovableBytes(part));
    const Bytes piece_bytes = plan.sequences * KvPieceBytes(plan);
    const int64_t pieces = (plan.context + kKvPiece - 1) / kKvPiece;
    positions_ = std::clamp<int64_t>(largest / piece_bytes, 1, pieces) * kKvPiece;
  }

  Plan Cut() {
    for (Stage& stage : cut_.stages) {
      const int lo = std::exchange(stage.lo, cut_.NumParts());
      for (int p = lo; p < stage.hi; ++p) AddPart(p, for_hosts_ || plan_.devices[stage.device].disk_mb_per_ms >= kMinDiskRate);
      stage.hi = cut_.NumParts();
    }
    if (!MayKeepSnapshots(cut_)) cut_.state_snapshots = 0;
    AddActivations();
    return std::move(cut_);
  }

 private:
  void AddPart(int p, bool may_leave) {
    const PlanPart& part = plan_.parts[p];
    const auto o = std::ranges::find(part.rows, TensorRole::kO, &MatrixRows::role);
    const bool begins_o = o != part.rows.end() && o->begin == 0;
    if (!may_leave || !HasKv(part.block.kind) || !begins_o) {
      cut_.parts.push_back(part);
      KeepAllPages(cut_.parts.back());
      return;
    }
    if (o != part.rows.begin()) AddRows(part, {part.rows.begin(), o}, /*first=*/true);
    AddKv(part.block);
    AddRows(part, {o, part.rows.end()}, o == part.rows.begin());
  }

  // Pieces have all positions, so no layer gives pages back, and none needs snapshots of them.
  void KeepAllPages(PlanPart& part) const {
    if (part.window.positions > 0) part.kv_pages = layer_pages_, part.state_bytes = 0;
    part.window = {};
  }

  // Adds some rows of a part. Its time is divided by bytes; its other values stay with its first
  // rows.
  void AddRows(const PlanPart& part, std::vector<MatrixRows> rows, bool first) {
    PlanPart cut = part;
    KeepAllPages(cut);
    cut.rows = std::move(rows);
    cut.bytes = PartBytes(spec_.block(part.block), cut.rows);
    const double share = cut.rows.size() == part.rows.size() ? 1 : static_cast<double>(cut.bytes) / static_cast<double>(part.bytes);
    cut.decode_ms *= share;
    cut.prefill_ms *= share;
    if (!first) cut.pinned_bytes = 0, cut.kv_pages = 0;
    cut_.parts.push_back(std::move(cut));
  }

  void AddKv(BlockId block) {
    const int64_t most = RoundUp(plan_.context, kKvPiece);
    for (int64_t begin = 0; begin < most; begin += positions_) {
      PlanPart part{.block = block, .kv_begin = begin, .kv_end = std::min(begin + positions_, most)};
      part.bytes = KvPartBytes(plan_, part);
      cut_.parts.push_back(std::move(part));
    }
  }

  // Memory that attention carries between calls: per row and head a record of 16 floats and the
  // values. And a piece on its way to the disk.
  void AddActivations() {
    const ModelConfig& config = spec_.config;
    const Bytes bytes = OwnRows(plan_) * config.num_heads * (16 + RoundUp(config.MostHeadDim(), 16)) * 4 + KvPieceBytes(plan_);
    for (const Stage& stage : plan_.stages) {
      PlanDevice& device = cut_.devices[stage.device];
      device.memory.activations = plan_.devices[stage.device].memory.activations + bytes;
    }
  }

  const Plan& plan_;
  const ModelSpec& spec_;
  const bool for_hosts_;
  Plan cut_;
  int64_t positions_ = 0;  // of each sequence, per KV part
  int64_t layer_pages_ = 0;
};

}  // namespace

absl::StatusOr<Plan> CutForKv(const Plan& plan, const ModelSpec& spec, bool for_hosts) {
  LIME_RETURN_IF_ERROR(plan.Validate(spec));
  if (!plan.reads_once) return absl::InvalidArgumentError("KV can leave memory only if a step reads every part once");
  Plan cut = Cutter(plan, spec, for_hosts).Cut();
  if (cut.NumParts() > kMaxPlanBlocks)
    return absl::ResourceExhaustedError(
        absl::StrCat("KV would make ", cut.NumParts(), " parts, the limit is ", kMaxPlanBlocks, "; plan a shorter context"));
  return cut;
}

}  // namespace lime
