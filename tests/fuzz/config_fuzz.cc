// Any text as config.json: an error or a geometry within bounds.
#include <string_view>

#include "planner/base/check.h"
#include "planner/plan/model/model_config.h"
#include "planner/plan/model/model_spec.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lime;
  const absl::StatusOr<ModelConfig> config = ParseModelConfig({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!config.ok()) return 0;
  LIME_CHECK_GT(config->num_layers, 0);
  LIME_CHECK_GT(config->num_heads, 0);
  LIME_CHECK_EQ(config->num_heads % config->num_kv_heads, 0);
  LIME_CHECK_GT(config->head_dim, 0);
  LIME_CHECK_GT(config->max_positions, 0);
  LIME_CHECK(config->sliding_window >= 0 && config->sliding_window < config->max_positions);
  // Without tensors every architecture is incomplete, and says so.
  LIME_CHECK(!ModelSpec::Build(*config, {}, "fuzz").ok());
  return 0;
}
