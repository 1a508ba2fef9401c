#include "planner/plan/device/device_profile.h"

#include <algorithm>
#include <cmath>
#include <limits>
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

double Product(int64_t a, int64_t b) {
  return static_cast<double>(a) * static_cast<double>(b);
}

// Operations of linear attention for one row besides its matrices: the convolution, and the delta
// rule, which multiplies and adds each element of every head's state about four times.
double RecurrenceOperations(const LinearAttentionConfig& c) {
  return 2 * Product(c.conv_cols(), c.conv_width) + 8 * Product(c.value_heads, c.key_dim * c.value_dim);
}

double ExpertsOperations(const ModelConfig& c) {
  const ExpertsConfig& experts = *c.experts;
  const int64_t inner = experts.per_token * experts.intermediate_size + experts.shared_intermediate_size;
  return 2 * Product(c.hidden_size, experts.count + 3 * inner);
}

// Operations of attention over latents for one row, besides attending to positions.
double LatentOperations(const ModelConfig& c) {
  const LatentAttentionConfig& latent = *c.latent_attention;
  const int64_t heads = c.num_heads;
  const int64_t of_hidden = latent.query_rank + latent.kv_cols() + heads * latent.value_dim;
  return 2 * (Product(c.hidden_size, of_hidden) + Product(latent.query_rank, heads * (latent.plain + latent.rotated)) +
              Product(latent.rank, heads * (latent.plain + latent.value_dim)));
}

// Operations of the block for one row, besides attending to positions. A multiply-add counts two.
double LinearOperations(const ModelConfig& c, BlockId block) {
  switch (block.kind) {
    case BlockKind::kEmbedding:
      return 0;
    case BlockKind::kAttention: {
      if (c.latent_attention) return LatentOperations(c);
      const int64_t q = c.q_cols(block.layer), gate = c.attention_gate ? q : 0;
      return 2 * Product(c.hidden_size, 2 * (q + c.kv_cols(block.layer)) + gate);
    }
    case BlockKind::kMlp:
      return (c.gated_mlp ? 6 : 4) * Product(c.hidden_size, c.layer(block.layer).intermediate_size);
    case BlockKind::kHead:
      return 2 * Product(c.hidden_size, c.vocab_size);
    case BlockKind::kLinearAttention: {
      const LinearAttentionConfig& linear = *c.linear_attention;
      const int64_t cols = linear.conv_cols() + 2 * linear.value_cols() + 2 * linear.value_heads;
      return 2 * Product(c.hidden_size, cols) + RecurrenceOperations(linear);
    }
    case BlockKind::kExperts:
      return ExpertsOperations(c);
  }
  return 0;
}

// Pairs of a row and a position that it attends to.
double AttendedPairs(const LayerConfig& layer, int64_t rows, int64_t context) {
  return Product(rows, layer.window > 0 ? std::min(context, layer.window) : context);
}

// KV and state are read for every sequence: for each row of a decode step, or for one chunk.
double BlockBytes(const ModelSpec& spec, BlockId block, int64_t rows, int64_t context) {
  const ModelConfig& c = spec.config;
  const double weights = KindTotalsOf(spec, block.kind).MeanBytes() * ReadShare(spec, block, rows);
  const int64_t sequences = rows <= kMaxDecodeRows ? rows : 1;
  if (block.kind == BlockKind::kEmbedding) return weights * std::min(1.0, static_cast<double>(rows) / static_cast<double>(c.vocab_size));
  if (HasState(block.kind)) return weights + 2 * Product(sequences, spec.StateBytes(block.layer));  // it is written, too
  if (!HasKv(block.kind)) return weights;
  const auto layer_kv = static_cast<double>(c.kept_cols(block.layer) * ElementBytes(spec.working_dtype));
  return weights + AttendedPairs(c.layer(block.layer), sequences, context) * layer_kv;
}

double BlockOperations(const ModelSpec& spec, BlockId block, int64_t rows, int64_t context) {
  const ModelConfig& c = spec.config;
  const double linear = static_cast<double>(rows) * LinearOperations(c, block);
  if (!HasKv(block.kind)) return linear;
  return linear + 4 * AttendedPairs(c.layer(block.layer), rows, context) * static_cast<double>(c.q_cols(block.layer));
}

// One block for each different time, and the number of blocks that take it. By kind.
std::vector<std::pair<BlockId, int64_t>> DistinctBlocks(const ModelSpec& spec) {
  std::vector<std::pair<BlockId, int64_t>> distinct;
  for (const BlockSpec& block : spec.blocks) {
    const auto same = std::ranges::find_if(distinct, [&](const auto& other) { return TakeSameTime(spec, other.first, block.id); });
    if (same != distinct.end()) {
      ++same->second;
    } else {
      distinct.emplace_back(block.id, 1);
    }
  }
  std::ranges::stable_sort(distinct, {}, [](const auto& each) { return each.first.kind; });
  return distinct;
}

// What the key of a model says of linear attention: its layers, sizes and bytes.
std::string LinearAttentionKey(const ModelSpec& spec) {
  if (!spec.config.linear_attention) return "";
  const LinearAttentionConfig& c = *spec.config.linear_attention;
  const KindTotals totals = KindTotalsOf(spec, BlockKind::kLinearAttention);
  return absl::StrCat("+", totals.bytes, " linear=", totals.blocks, ":", c.key_heads, "x", c.key_dim, "/", c.value_heads, "x", c.value_dim,
                      "/", c.conv_width);
}

// The same of experts.
std::string ExpertsKey(const ModelSpec& spec) {
  if (!spec.config.experts) return "";
  const ExpertsConfig& c = *spec.config.experts;
  const KindTotals totals = KindTotalsOf(spec, BlockKind::kExperts);
  return absl::StrCat("+", totals.bytes, " experts=", totals.blocks, ":", c.per_token, "/", c.count, "x", c.intermediate_size, "+",
                      c.shared_intermediate_size);
}

// The same of attention over latents.
std::string LatentKey(const ModelConfig& config) {
  if (!config.latent_attention) return "";
  const LatentAttentionConfig& c = *config.latent_attention;
  return absl::StrCat(" latents=", c.query_rank, "/", c.rank, "+", c.rotated, ":", c.plain, "/", c.value_dim);
}

bool SameAttention(const LayerConfig& a, const LayerConfig& b) {
  return a.num_kv_heads == b.num_kv_heads && a.head_dim == b.head_dim && a.window == b.window;
}

// What the key of a model says of layers with KV that differ: each kind of attention, and how many
// layers have it.
std::string DifferentLayersKey(const ModelConfig& config) {
  std::vector<std::pair<LayerConfig, int64_t>> kinds;
  for (const LayerConfig& layer : config.layers) {
    if (!layer.has_kv()) continue;
    const auto same = std::ranges::find_if(kinds, [&](const auto& kind) { return SameAttention(kind.first, layer); });
    if (same == kinds.end()) {
      kinds.emplace_back(layer, 1);
    } else {
      ++same->second;
    }
  }
  if (kinds.size() < 2) return "";
  std::string key;
  for (const auto& [layer, count] : kinds)
    absl::StrAppend(&key, key.empty() ? " attention=" : ",", count, ":", layer.num_kv_heads, "x", layer.head_dim, "/", layer.window);
  return key;
}

// The positions of the context that count for a layer, in times measured on MeasuredLayer.
int64_t MeasuredContext(const ModelConfig& config, BlockId block, int64_t context) {
  if (!HasKv(block.kind)) return context;
  const int64_t window = config.layer(block.layer).window, measured = config.layer(MeasuredLayer(config, block.kind)).window;
  return window == measured ? context : std::min(context, window);
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

void DeviceProfile::SetDisk(std::vector<DiskPoint> points, std::optional<BurstCost> small_reads) {
  disk = std::move(points);
  std::ranges::sort(disk, {}, CoordinatesOf);
  bursts = small_reads;
}

void DeviceProfile::ScaleDisk(double times) {
  for (DiskPoint& point : disk) point.bytes_per_second *= times, point.latency_ms /= times;
  if (bursts) bursts->bytes_per_ms *= times, bursts->burst_ms /= times, bursts->read_ms /= times;
}

double DeviceProfile::DiskRate(Bytes read_bytes, int64_t depth) const {
  return OnDisk(disk, read_bytes, depth, &DiskPoint::bytes_per_second);
}

double DeviceProfile::DiskLatencyMs(Bytes read_bytes, int64_t depth) const {
  return OnDisk(disk, read_bytes, depth, &DiskPoint::latency_ms);
}

double DeviceProfile::ComputeMs(const ModelSpec& spec, BlockId block, int64_t rows, int64_t context) const {
  if (rows <= 0) return 0;
  std::vector<GridPoint> points;
  if (const ModelCompute* const model = FindModel(ModelKey(spec))) {
    for (const ComputePoint& point : model->points) {
      if (point.kind == block.kind) points.push_back({static_cast<double>(point.rows), static_cast<double>(point.context), point.ms});
    }
  }
  if (points.empty()) return RooflineMs(*this, spec, block, rows, context);
  const int64_t counted = MeasuredContext(spec.config, block, std::max<int64_t>(context, 0));
  return Interpolate(points, static_cast<double>(rows), static_cast<double>(counted), Outside::kLinear);
}

double DeviceProfile::StepMs(const ModelSpec& spec, const Step& step) const {
  const ModelCompute* const model = FindModel(ModelKey(spec));
  double ms = model != nullptr ? model->step_overhead_ms : 0;
  for (const auto& [block, count] : DistinctBlocks(spec)) {
    const int64_t rows = block.kind == BlockKind::kHead ? step.logit_rows : step.rows;
    ms += static_cast<double>(count) * ComputeMs(spec, block, rows, step.context);
  }
  return ms;
}

std::string ModelKey(const ModelSpec& spec) {
  const ModelConfig& c = spec.config;
  const auto bytes = [&](BlockKind kind) { return KindTotalsOf(spec, kind).bytes; };
  const auto with_kv = std::ranges::find_if(c.layers, &LayerConfig::has_kv);
  return absl::StrCat(c.architecture.substr(0, 64), " layers=", c.num_layers(), " hidden=", c.hidden_size, " heads=", c.num_heads, "/",
                      c.MostKvHeads(), "x", c.MostHeadDim(), " inner=", c.MostIntermediate(), " vocab=", c.vocab_size,
                      " window=", with_kv == c.layers.end() ? 0 : with_kv->window, " ", Text(DTypeName(spec.working_dtype)),
                      " bytes=", bytes(BlockKind::kEmbedding), "+", bytes(BlockKind::kAttention), "+", bytes(BlockKind::kMlp), "+",
                      bytes(BlockKind::kHead), LinearAttentionKey(spec), ExpertsKey(spec), LatentKey(c), DifferentLayersKey(c));
}

bool TakeSameTime(const ModelSpec& spec, BlockId one, BlockId other) {
  if (one.kind != other.kind || !IsLayered(one.kind)) return one.kind == other.kind;
  const LayerConfig &a = spec.config.layer(one.layer), &b = spec.config.layer(other.layer);
  if (IsMlpHalf(one.kind)) return a.intermediate_size == b.intermediate_size;
  return SameAttention(a, b);
}

int32_t MeasuredLayer(const ModelConfig& config, BlockKind kind) {
  const auto reach = [](const LayerConfig& layer) { return layer.window > 0 ? layer.window : std::numeric_limits<int64_t>::max(); };
  int32_t found = -1;
  for (int32_t layer = 0; layer < config.num_layers(); ++layer) {
    if (AttentionBlockOf(config, layer).kind != kind) continue;
    if (found < 0 || reach(config.layer(layer)) > reach(config.layer(found))) found = layer;
  }
  return found;
}

double ReadShare(const ModelSpec& spec, BlockId block, int64_t rows) {
  if (block.kind != BlockKind::kExperts) return 1;
  const ExpertsConfig& c = *spec.config.experts;
  const auto count = static_cast<double>(c.count), size = static_cast<double>(3 * c.intermediate_size);
  const double missed = std::pow(1 - static_cast<double>(c.per_token) / count, static_cast<double>(rows));
  const double others = count + static_cast<double>(3 * c.shared_intermediate_size);
  return (others + count * size * (1 - missed)) / (others + count * size);
}

double RooflineMs(const DeviceProfile& profile, const ModelSpec& spec, BlockId block, int64_t rows, int64_t context) {
  if (rows <= 0) return 0;
  double seconds = 0;
  if (profile.read_bytes_per_second > 0) seconds = BlockBytes(spec, block, rows, context) / profile.read_bytes_per_second;
  if (profile.flops > 0) seconds = std::max(seconds, BlockOperations(spec, block, rows, context) / profile.flops);
  return seconds * 1000 + profile.block_overhead_ms;
}

}  // namespace lime
