#include "planner/plan/device/device_profile.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/base/strings.h"
#include "planner/plan/device/interpolation.h"

namespace lime {
namespace {

struct KindTotals {
  int64_t blocks = 0;
  Bytes bytes = 0;

  double MeanBytes() const { return blocks > 0 ? static_cast<double>(bytes) / static_cast<double>(blocks) : 0; }
};

KindTotals KindTotalsOf(const ModelSpec& spec, BlockKind kind) {
  KindTotals totals;
  for (const BlockSpec& block : spec.blocks) {
    if (block.id.kind == kind) totals = {totals.blocks + 1, totals.bytes + block.bytes};
  }
  return totals;
}

// Operations of the block's matrices for one row. A multiply-add counts two.
double LinearOperations(const ModelConfig& c, BlockKind kind) {
  const auto product = [](int64_t a, int64_t b) { return static_cast<double>(a) * static_cast<double>(b); };
  switch (kind) {
    case BlockKind::kEmbedding:
      return 0;
    case BlockKind::kAttention:
      return 2 * product(c.hidden_size, 2 * (c.num_heads + c.num_kv_heads) * c.head_dim);
    case BlockKind::kMlp:
      return (c.gated_mlp() ? 6 : 4) * product(c.hidden_size, c.intermediate_size);
    case BlockKind::kHead:
      return 2 * product(c.hidden_size, c.vocab_size);
  }
  return 0;
}

// Pairs of a row and a position that it attends to.
double AttendedPairs(const ModelConfig& config, int64_t rows, int64_t context) {
  const int64_t seen = config.sliding_window > 0 ? std::min(context, config.sliding_window) : context;
  return static_cast<double>(rows) * static_cast<double>(seen);
}

double BlockBytes(const ModelSpec& spec, BlockKind kind, int64_t rows, int64_t context) {
  const double weights = KindTotalsOf(spec, kind).MeanBytes();
  if (kind == BlockKind::kEmbedding)
    return weights * std::min(1.0, static_cast<double>(rows) / static_cast<double>(spec.config.vocab_size));
  if (kind != BlockKind::kAttention) return weights;
  const double layer_kv = static_cast<double>(spec.KvBytesPerToken()) / static_cast<double>(spec.config.num_layers);
  return weights + AttendedPairs(spec.config, rows <= kMaxDecodeRows ? rows : 1, context) * layer_kv;
}

double BlockOperations(const ModelSpec& spec, BlockKind kind, int64_t rows, int64_t context) {
  const ModelConfig& c = spec.config;
  const double linear = static_cast<double>(rows) * LinearOperations(c, kind);
  if (kind != BlockKind::kAttention) return linear;
  return linear + 4 * AttendedPairs(c, rows, context) * static_cast<double>(c.num_heads * c.head_dim);
}

auto OrderOf(const ComputePoint& point) {
  return std::tuple(point.kind, point.rows, point.context);
}

auto CoordinatesOf(const DiskPoint& point) {
  return std::pair(point.read_bytes, point.depth);
}

double OnDisk(const std::vector<DiskPoint>& disk, Bytes read_bytes, int64_t depth, double DiskPoint::*value) {
  if (disk.empty()) return 0;
  const auto log = [](int64_t n) { return std::log2(static_cast<double>(std::max<int64_t>(n, 1))); };
  std::vector<GridPoint> points;
  points.reserve(disk.size());
  for (const DiskPoint& point : disk) points.push_back({log(point.read_bytes), log(point.depth), point.*value});
  return Interpolate(points, log(read_bytes), log(depth), Outside::kNearest);
}

}  // namespace

const ModelCompute* DeviceProfile::FindModel(std::string_view key) const {
  const auto found = std::ranges::find(models, key, &ModelCompute::key);
  return found == models.end() ? nullptr : &*found;
}

void DeviceProfile::SetModel(ModelCompute model) {
  std::ranges::sort(model.points, {}, OrderOf);
  const auto place = std::ranges::lower_bound(models, model.key, {}, &ModelCompute::key);
  if (place != models.end() && place->key == model.key) {
    *place = std::move(model);
  } else {
    models.insert(place, std::move(model));
  }
}

void DeviceProfile::SetDisk(std::vector<DiskPoint> points) {
  disk = std::move(points);
  std::ranges::sort(disk, {}, CoordinatesOf);
}

double DeviceProfile::DiskRate(Bytes read_bytes, int64_t depth) const {
  return OnDisk(disk, read_bytes, depth, &DiskPoint::bytes_per_second);
}

double DeviceProfile::DiskLatencyMs(Bytes read_bytes, int64_t depth) const {
  return OnDisk(disk, read_bytes, depth, &DiskPoint::latency_ms);
}

double DeviceProfile::ComputeMs(const ModelSpec& spec, BlockKind kind, int64_t rows, int64_t context) const {
  if (rows <= 0) return 0;
  std::vector<GridPoint> points;
  if (const ModelCompute* const model = FindModel(ModelKey(spec))) {
    for (const ComputePoint& point : model->points) {
      if (point.kind == kind) points.push_back({static_cast<double>(point.rows), static_cast<double>(point.context), point.ms});
    }
  }
  if (points.empty()) return RooflineMs(*this, spec, kind, rows, context);
  return Interpolate(points, static_cast<double>(rows), static_cast<double>(std::max<int64_t>(context, 0)), Outside::kLinear);
}

double DeviceProfile::StepMs(const ModelSpec& spec, const Step& step) const {
  const ModelCompute* const model = FindModel(ModelKey(spec));
  double ms = model != nullptr ? model->step_overhead_ms : 0;
  for (const BlockKind kind : {BlockKind::kEmbedding, BlockKind::kAttention, BlockKind::kMlp, BlockKind::kHead}) {
    const int64_t rows = kind == BlockKind::kHead ? step.logit_rows : step.rows;
    ms += static_cast<double>(KindTotalsOf(spec, kind).blocks) * ComputeMs(spec, kind, rows, step.context);
  }
  return ms;
}

std::string ModelKey(const ModelSpec& spec) {
  const ModelConfig& c = spec.config;
  const auto bytes = [&](BlockKind kind) { return KindTotalsOf(spec, kind).bytes; };
  return absl::StrCat(c.architecture.substr(0, 64), " layers=", c.num_layers, " hidden=", c.hidden_size, " heads=", c.num_heads, "/",
                      c.num_kv_heads, "x", c.head_dim, " inner=", c.intermediate_size, " vocab=", c.vocab_size,
                      " window=", c.sliding_window, " ", Text(DTypeName(spec.working_dtype)), " bytes=", bytes(BlockKind::kEmbedding), "+",
                      bytes(BlockKind::kAttention), "+", bytes(BlockKind::kMlp), "+", bytes(BlockKind::kHead));
}

double RooflineMs(const DeviceProfile& profile, const ModelSpec& spec, BlockKind kind, int64_t rows, int64_t context) {
  if (rows <= 0) return 0;
  double seconds = 0;
  if (profile.read_bytes_per_second > 0) seconds = BlockBytes(spec, kind, rows, context) / profile.read_bytes_per_second;
  if (profile.flops > 0) seconds = std::max(seconds, BlockOperations(spec, kind, rows, context) / profile.flops);
  return seconds * 1000 + profile.block_overhead_ms;
}

}  // namespace lime
