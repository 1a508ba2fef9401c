#include "bench/flash/flash.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <tuple>
#include <utility>

#include "bench/flash/replay.h"
#include "planner/base/check.h"
#include "planner/base/median.h"
#include "planner/base/random.h"
#include "planner/demand/mask_statistics.h"
#include "planner/demand/neuron_path.h"

namespace lime::flash {
namespace {

constexpr int32_t kUnionMasks = 6;  // the paper's window of 5, and one more
constexpr int kFirstCall = 1000;    // of MeasureDisk, behind those of a run
constexpr int kSequentialRuns = 3;
constexpr Bytes kSequentialBytes = 1 * kGiB;  // of a measurement beside a rung

// The `call`th measurement, of offsets of its own: a disk may have those of an earlier one in a cache.
absl::StatusOr<DiskCost> DiskNow(const FlashOptions& options, const FlashDisks& disks, std::span<const Extent> mlps, int call) {
  if (options.cancelled != nullptr && options.cancelled->load()) return absl::CancelledError("interrupted");
  LIME_ASSIGN_OR_RETURN(
      const std::vector<BurstPoint> points,
      MeasureBursts(disks.bundles, options.quick ? BurstGrid::kQuick : BurstGrid::kBeside, options.seed + 1 + static_cast<uint64_t>(call)));
  DiskCost cost;
  LIME_ASSIGN_OR_RETURN(cost.burst, FitBursts(points));
  std::vector<Extent> extents;
  Bytes left = kSequentialBytes, bytes = 0;
  for (const Extent& extent : mlps) {
    if (left <= 0) break;
    extents.push_back({extent.file, extent.offset, std::min(extent.bytes, left)});
    left -= extents.back().bytes, bytes += extents.back().bytes;
  }
  LIME_ASSIGN_OR_RETURN(const double ms, disks.blocks.Sequential(extents));
  cost.sequential_bytes_per_ms = static_cast<double>(bytes) / ms;
  return cost;
}

// One run of the benchmark, over an open store.
class FlashRun {
 public:
  FlashRun(const FlashOptions& options, const Checkpoint& checkpoint, const ModelSpec& spec, const FlashFiles& files)
      : options_(options), checkpoint_(checkpoint), spec_(spec), files_(files), shape_(files.shape()) {}

  absl::StatusOr<FlashReport> Run() {
    LIME_RETURN_IF_ERROR(TakeMasks());
    LIME_ASSIGN_OR_RETURN(bundles_, FlashDisk::Open(files_.bundle_paths(), options_.channels));
    LIME_ASSIGN_OR_RETURN(blocks_, FlashDisk::Open(checkpoint_.FilePaths(), options_.channels));
    report_.disk = bundles_->Describe();
    report_.of_text = !options_.ids.empty();
    report_.shape = shape_;
    report_.memory = Budget();
    report_.window = options_.window;
    report_.bundle_bytes = files_.layers().front().shape().layout.stride;
    LIME_RETURN_IF_ERROR(MeasureDisks());
    LIME_RETURN_IF_ERROR(Ladder());
    LIME_RETURN_IF_ERROR(Placements());
    LIME_RETURN_IF_ERROR(Sweep());
    return std::move(report_);
  }

 private:
  // Says what comes now.
  absl::Status At(const std::string& what) const {
    if (options_.cancelled != nullptr && options_.cancelled->load()) return absl::CancelledError("interrupted");
    if (options_.at) options_.at(what);
    return absl::OkStatus();
  }

  Bytes ShareOf(double share) const { return static_cast<Bytes>(share * static_cast<double>(shape_.weights)); }
  Bytes Budget() const { return options_.memory > 0 ? options_.memory : ShareOf(0.5); }
  size_t first() const { return static_cast<size_t>(options_.learn + options_.warm); }

  absl::Status TakeMasks() {
    LIME_RETURN_IF_ERROR(At("masks of real tokens"));
    const int64_t all = options_.learn + options_.warm + options_.tokens;
    if (all > spec_.config.max_positions)
      return Invalid(options_.store, ": ", all, " tokens are more than its ", spec_.config.max_positions,
                     " positions; give fewer --learn and --tokens");
    const std::vector<int32_t> ids = FlashIds(options_, spec_.config.vocab_size);
    const absl::StatusOr<PredictorStore> trained = PredictorStore::Open(options_.store, spec_);
    if (options_.predict && !trained.ok() && !absl::IsNotFound(trained.status())) return trained.status();
    LIME_ASSIGN_OR_RETURN(masks_, MasksOf(checkpoint_, spec_, ids,
                                          {.predict = options_.predict,
                                           .trained = trained.ok() ? &*trained : nullptr,
                                           .learn = options_.learn,
                                           .bundles = shape_.copies > 0 ? &files_.bundles() : nullptr,
                                           .num_threads = options_.num_threads,
                                           .cancelled = options_.cancelled}));
    LIME_CHECK_EQ(masks_.size(), files_.layers().size());
    report_.shares = SharesOf(masks_, first());
    for (const LayerMasks& layer : masks_) {
      if (!options_.predict) break;
      const int64_t rank = trained.ok() ? trained->RankOf(layer.layer) : PredictorRank(spec_);
      report_.predictor_rank = std::max(report_.predictor_rank, rank);
      shape_.predictor += PredictorBytes(spec_, rank);
    }
    if (options_.predict && trained.ok()) report_.predictor = trained->hash();
    LIME_RETURN_IF_ERROR(At("order of neurons"));
    for (const LayerMasks& layer : masks_) unproven_.push_back(&layer.unproven);
    const auto lacks = [](const LayerMasks& layer) { return layer.unproven.size() != layer.active.size(); };
    if (std::ranges::any_of(masks_, lacks)) shape_.copies = 0;  // the order of sums of this machine has no proofs, or too many tokens
    for (const LayerMasks& layer : masks_) {
      LIME_RETURN_IF_ERROR(LearnPath(layer.active, layer.neurons, active_, active_paths_));
      LIME_RETURN_IF_ERROR(LearnPath(options_.predict ? layer.predicted : layer.active, layer.neurons, wanted_, paths_));
    }
    return Unions();
  }

  // The path comes from the tokens before those that are read.
  absl::Status LearnPath(const TokenMasks& masks, int32_t neurons, std::vector<const TokenMasks*>& all,
                         std::vector<std::vector<int32_t>>& paths) const {
    LIME_ASSIGN_OR_RETURN(paths.emplace_back(), PathPlaces(Masks(masks).first(static_cast<size_t>(options_.learn)), neurons));
    all.push_back(&masks);
    return absl::OkStatus();
  }

  absl::Status Unions() {
    const auto most = static_cast<int32_t>(std::min<int64_t>(kUnionMasks, options_.tokens));
    report_.unions.assign(static_cast<size_t>(most), 0);
    for (size_t layer = 0; layer < wanted_.size(); ++layer) {
      LIME_ASSIGN_OR_RETURN(const std::vector<double> shares,
                            UnionShares(Masks(*wanted_[layer]).subspan(first()), masks_[layer].neurons, most));
      for (size_t k = 0; k < shares.size(); ++k) report_.unions[k] += shares[k] / static_cast<double>(wanted_.size());
    }
    return absl::OkStatus();
  }

  absl::Status MeasureDisks() {
    LIME_RETURN_IF_ERROR(At("bursts of reads"));
    LIME_ASSIGN_OR_RETURN(report_.bursts, MeasureBursts(*bundles_, options_.quick ? BurstGrid::kQuick : BurstGrid::kWhole, options_.seed));
    LIME_ASSIGN_OR_RETURN(report_.burst, FitBursts(report_.bursts));
    report_.fit_error = MeanError(report_.bursts, report_.burst);
    std::vector<double> rates;
    for (int run = 0; run < kSequentialRuns; ++run) {
      LIME_ASSIGN_OR_RETURN(const double ms, blocks_->Sequential(files_.mlps()));
      rates.push_back(static_cast<double>(shape_.mlps) / ms / 1e6);
    }
    report_.sequential_gb_per_s = Median(rates);
    if (options_.rates) {
      LIME_RETURN_IF_ERROR(At("rates by size and depth"));
      LIME_ASSIGN_OR_RETURN(report_.rates, MeasureRates(files_.bundle_paths(), options_.quick, options_.seed));
    }
    return MeasureNow();
  }

  absl::Status MeasureNow() {
    LIME_ASSIGN_OR_RETURN(disk_, DiskNow(options_, {*bundles_, *blocks_}, files_.mlps(), disks_measured_++));
    return absl::OkStatus();
  }

  absl::StatusOr<MeasuredRung> MeasureRung(const RungRule& rule, Bytes budget, RowPlacement placement) {
    MeasuredRung rung{.rule = rule};
    LIME_ASSIGN_OR_RETURN(rung.memory, SplitMemory(shape_, budget, rule));
    const size_t all = masks_.front().active.size();
    const bool whole = !rule.neurons;
    const size_t begin = whole ? std::max(first(), all - static_cast<size_t>(std::min<int64_t>(options_.whole, options_.tokens))) : first();
    LIME_ASSIGN_OR_RETURN(const RungCounts counts, Replay(files_, {*bundles_, *blocks_},
                                                          rule.decider ? active_
                                                          : rule.copy  ? unproven_
                                                                       : wanted_,
                                                          rule.decider || rule.copy ? active_paths_ : paths_,
                                                          {.rule = rule,
                                                           .memory = rung.memory,
                                                           .masks = options_.window,
                                                           .placement = placement,
                                                           .warm = static_cast<size_t>(options_.learn),
                                                           .first = begin,
                                                           .burst = report_.burst}));
    const DiskCost before = disk_;
    LIME_RETURN_IF_ERROR(MeasureNow());
    rung.figures = FiguresOf(counts, {before, disk_});
    return rung;
  }

  absl::Status Ladder() {
    for (const RungRule& rule : kLadder) {
      if (rule.copy && shape_.copies == 0) continue;
      LIME_RETURN_IF_ERROR(At(std::string(rule.name)));
      LIME_ASSIGN_OR_RETURN(report_.ladder.emplace_back(), MeasureRung(rule, Budget(), RowPlacement::kStable));
    }
    return absl::OkStatus();
  }

  absl::Status Placements() {
    const RungRule& rule = kLadder[static_cast<size_t>(Rung::kBundles)];
    for (const RowPlacement placement : {RowPlacement::kStable, RowPlacement::kCompact}) {
      const std::string name(kRowPlacementNames.Of(placement));
      LIME_RETURN_IF_ERROR(At("memory management, " + name));
      LIME_ASSIGN_OR_RETURN(const MeasuredRung rung, MeasureRung(rule, Budget(), placement));
      report_.placements.push_back({.placement = name, .figures = rung.figures, .row_bytes = shape_.slot});
    }
    return absl::OkStatus();
  }

  absl::Status Sweep() {
    const RungRule& rule = kLadder[static_cast<size_t>(Rung::kPath)];
    for (const double share : options_.sweep) {
      LIME_RETURN_IF_ERROR(At(absl::StrCat("memory of ", std::lround(100 * share), " %")));
      LIME_ASSIGN_OR_RETURN(const MeasuredRung rung, MeasureRung(rule, ShareOf(share), RowPlacement::kStable));
      report_.sweep.push_back({.share = share, .rung = rung});
    }
    return absl::OkStatus();
  }

  const FlashOptions& options_;
  const Checkpoint& checkpoint_;
  const ModelSpec& spec_;
  const FlashFiles& files_;
  FlashShape shape_;  // with the predictor
  std::vector<LayerMasks> masks_;
  std::vector<const TokenMasks*> active_, unproven_, wanted_;  // by layer: of the rungs kExact and kCertified, and of the others
  std::vector<std::vector<int32_t>> active_paths_, paths_;
  std::unique_ptr<FlashDisk> bundles_, blocks_;
  DiskCost disk_;  // before the next rung
  int disks_measured_ = 0;
  FlashReport report_;
};

}  // namespace

absl::Status CheckFlash(const FlashOptions& options) {
  const auto in = [](auto value, auto least, auto most) { return value >= least && value <= most; };
  for (const auto& [name, value, least] : {std::tuple("--learn", options.learn, 16), std::tuple("--warm", options.warm, 0),
                                           std::tuple("--tokens", options.tokens, 1), std::tuple("--whole", options.whole, 1)}) {
    if (!in(value, least, 1 << 20)) return Invalid(name, " ", value, " is outside ", least, " to ", 1 << 20);
  }
  if (!in(options.window, 1, kMostWindowMasks)) return Invalid("--window ", options.window, " is outside 1 to ", kMostWindowMasks);
  if (const int64_t all = options.learn + options.warm + options.tokens; !options.ids.empty() && std::ssize(options.ids) < all)
    return Invalid("the text has ", options.ids.size(), " tokens, and ", all,
                   " are needed; give a longer text, or fewer --learn and --tokens");
  if (options.memory < 0) return Invalid("--memory ", options.memory, " is negative");
  if (!in(options.channels, 1, 256)) return Invalid("--channels ", options.channels, " is outside 1 to 256");
  for (const double share : options.sweep) {
    if (!in(share, 0.01, 1.5)) return Invalid("a memory of ", 100 * share, " % of the weights is outside 1 to 150 %");
  }
  return absl::OkStatus();
}

std::vector<int32_t> FlashIds(const FlashOptions& options, int64_t vocab_size) {
  const int64_t all = options.learn + options.warm + options.tokens;
  if (!options.ids.empty()) return {options.ids.begin(), options.ids.begin() + all};
  Random random(options.seed);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < all; ++i) ids.push_back(random.Below(static_cast<int>(vocab_size)));
  return ids;
}

EngineRung EngineFigures(const EngineCounts& counts, const DiskBeside& disk) {
  LIME_CHECK(counts.steps > 0);
  const auto each = [steps = static_cast<double>(counts.steps)](auto sum) { return static_cast<double>(sum) / steps; };
  return {.read_mb = each(counts.load.streamed + counts.load.neurons) / 1e6,
          .reads = each(counts.load.reads),
          .neurons = each(counts.neurons),
          .io_ms = each(counts.stream_ms + counts.neuron_ms),
          .predicted_ms = each(disk.PredictedMs(counts.load)),
          .whole_ms = each(counts.whole_ms)};
}

absl::StatusOr<DiskCost> MeasureDisk(const FlashOptions& options, int call) {
  LIME_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(options.store));
  LIME_ASSIGN_OR_RETURN(const ModelSpec spec, checkpoint.BuildModelSpec());
  LIME_ASSIGN_OR_RETURN(const FlashFiles files, FlashFiles::Open(checkpoint, spec));
  LIME_ASSIGN_OR_RETURN(const std::unique_ptr<FlashDisk> bundles, FlashDisk::Open(files.bundle_paths(), options.channels));
  LIME_ASSIGN_OR_RETURN(const std::unique_ptr<FlashDisk> blocks, FlashDisk::Open(checkpoint.FilePaths(), options.channels));
  return DiskNow(options, {*bundles, *blocks}, files.mlps(), kFirstCall + call);
}

absl::StatusOr<FlashReport> RunFlash(const FlashOptions& options) {
  LIME_RETURN_IF_ERROR(CheckFlash(options));
  LIME_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(options.store));
  LIME_ASSIGN_OR_RETURN(const ModelSpec spec, checkpoint.BuildModelSpec());
  LIME_ASSIGN_OR_RETURN(const FlashFiles files, FlashFiles::Open(checkpoint, spec));
  return FlashRun(options, checkpoint, spec, files).Run();
}

}  // namespace lime::flash
