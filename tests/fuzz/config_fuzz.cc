// Any text as config.json: an error or a geometry within bounds.
#include <string_view>

#include "planner/base/check.h"
#include "planner/plan/model/model_config.h"
#include "planner/plan/model/model_spec.h"

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
  for (const RopeConfig& rope : config->ropes) LIME_CHECK(rope.dims > 0 && rope.dims % 2 == 0 && rope.dims <= config->MostHeadDim());
  if (config->num_layers() > 64) return 0;  // only larger
  const absl::StatusOr<ModelSpec> spec = ModelSpec::FromConfig(*config, DType::kBF16, "fuzz");
  LIME_CHECK(!spec.ok() || spec->KvBytesPerToken() > 0);
  // Without tensors every architecture is incomplete, and says so.
  LIME_CHECK(!ModelSpec::Build(*config, {}, "fuzz").ok());
  return 0;
}
