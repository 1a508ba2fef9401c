// Makes random checkpoints of any family, geometry and dtype from a seed, for tests and for
// benchmarks of models that cannot be downloaded.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "planner/base/bytes.h"
#include "planner/base/dtype.h"
#include "planner/base/status.h"
#include "planner/plan/model/model_config.h"

namespace lime {

// The defaults are a tiny Llama. `config` has the geometry. MakeModel sets the fields that a family
// fixes (qkv_bias of Qwen2, ...) from `config.family`.
struct MakeModelOptions {
  ModelConfig config = {.num_layers = 2,
                        .hidden_size = 64,
                        .num_heads = 4,
                        .num_kv_heads = 2,
                        .head_dim = 0,  // 0: hidden_size / num_heads
                        .intermediate_size = 160,
                        .vocab_size = 320,
                        .max_positions = 512};
  DType dtype = DType::kBF16;       // of dense weights, scales, norms and biases
  std::optional<DType> norm_dtype;  // of norms, if it differs from `dtype`
  uint64_t seed = 1;
  int shards = 1;         // files of weights; with more than 1 also an index
  bool tokenizer = true;  // a byte-level tokenizer.json; needs a vocabulary of at least 258
};

// Writes the checkpoint into `dir`, and makes that folder if it is missing. config.json is written
// last, so that an interrupted folder is no model. The same options give the same bytes on every
// machine. `progress` receives the number of bytes written since its last call, on any thread.
absl::Status MakeModel(const MakeModelOptions& options, const std::string& dir, const std::function<void(Bytes)>& progress = nullptr);

// The text of config.json for these options.
std::string ConfigJson(const MakeModelOptions& options);
// A byte-level tokenizer.json: token i is byte i, then <s> (256) and </s> (257), then words that
// occur in no text.
std::string ByteTokenizerJson(int64_t vocab_size);

inline constexpr int32_t kByteTokenizerBos = 256;
inline constexpr int32_t kByteTokenizerEos = 257;

// "llama", "mistral", "qwen2", "qwen3", "opt".
absl::StatusOr<ModelFamily> ParseFamily(std::string_view name);
// "none", "default", "linear", "dynamic", "llama3", "yarn".
absl::StatusOr<RopeType> ParseRopeTypeName(std::string_view name);

}  // namespace lime
