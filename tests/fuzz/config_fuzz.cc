// Any text as config.json: an error or a geometry within bounds, whose rotations are numbers.
#include <algorithm>
#include <cmath>
#include <string_view>

#include "kernels/cpu/rope.h"
#include "planner/base/check.h"
#include "planner/plan/model/model_config.h"
#include "planner/plan/model/model_spec.h"

namespace {

// The table of the first positions, and of some behind those of the training if these are few.
void CheckTable(const lime::RopeConfig& rope, int64_t max_positions) {
  constexpr int64_t kRows = 8, kFew = 256;
  const int64_t original = rope.original_max_position, rows = original > 0 && original <= kFew ? original + kRows : kRows;
  const lime::cpu::RopeTable table(rope, std::min(rows, max_positions));
  const int64_t values = rope.TableRows(table.positions()) * table.half();
  for (int64_t i = 0; i < values; ++i) LIME_CHECK(std::isfinite(table.cos()[i]) && std::isfinite(table.sin()[i])) << i;
  for (int64_t p = 0; table.query_factors() != nullptr && p < table.positions(); ++p)
    LIME_CHECK(std::isfinite(table.query_factors()[p])) << p;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lime;
  const absl::StatusOr<ModelConfig> config = ParseModelConfig({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!config.ok()) return 0;
  LIME_CHECK_GT(config->num_layers(), 0);
  LIME_CHECK_GT(config->num_heads, 0);
  LIME_CHECK_GT(config->max_positions, 0);
  LIME_CHECK_GT(config->MostHeadDim(), 0);
  for (const LayerConfig& layer : config->layers) {
    LIME_CHECK(layer.experts ? config->experts.has_value() : layer.intermediate_size > 0);
    LIME_CHECK(layer.window >= 0 && layer.window < config->max_positions);
    LIME_CHECK_LT(layer.rope, static_cast<int32_t>(config->ropes.size()));
    LIME_CHECK(layer.has_kv() || config->linear_attention);
    if (!layer.has_kv()) continue;
    LIME_CHECK_EQ(config->num_heads % layer.num_kv_heads, 0);
    LIME_CHECK_GT(layer.head_dim, 0);
  }
  for (const RopeConfig& rope : config->ropes) {
    LIME_CHECK(rope.dims > 0 && rope.dims % 2 == 0 && rope.dims <= config->MostHeadDim());
    CheckTable(rope, config->max_positions);
  }
  if (config->num_layers() > 64) return 0;  // only larger
  const absl::StatusOr<ModelSpec> spec = ModelSpec::FromConfig(*config, DType::kBF16, "fuzz");
  LIME_CHECK(!spec.ok() || spec->KvBytesPerToken() > 0);
  // Without tensors every architecture is incomplete, and says so.
  LIME_CHECK(!ModelSpec::Build(*config, {}, "fuzz").ok());
  return 0;
}
