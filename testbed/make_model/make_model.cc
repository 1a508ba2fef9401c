#include "testbed/make_model/make_model.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/machine/files.h"
#include "daemon/machine/parallel.h"
#include "daemon/stores/safetensors_writer.h"
#include "planner/base/check.h"
#include "planner/base/strings.h"
#include "planner/plan/model/family.h"
#include "testbed/make_model/model_tensors.h"
#include "testbed/make_model/planted_routes.h"

namespace lime {
namespace {

using ordered_json = nlohmann::ordered_json;

constexpr Bytes kChunkBytes = 2 * kMiB;  // drawn and written at once by one thread
constexpr double kNormEps = 1e-5;

constexpr std::pair<std::string_view, RopeType> kRopeTypes[] = {{"default", RopeType::kDefault}, {"linear", RopeType::kLinear},
                                                                {"dynamic", RopeType::kDynamic}, {"llama3", RopeType::kLlama3},
                                                                {"yarn", RopeType::kYarn},       {"longrope", RopeType::kLongRope}};

template <typename T, size_t N>
std::string_view NameOf(const std::pair<std::string_view, T> (&names)[N], T value) {
  for (const auto& [name, known] : names) {
    if (known == value) return name;
  }
  return "?";
}

template <typename T, size_t N>
absl::StatusOr<T> ValueOf(const std::pair<std::string_view, T> (&names)[N], std::string_view name, std::string_view what) {
  std::string known_names;
  for (const auto& [known, value] : names) {
    if (known == name) return value;
    absl::StrAppend(&known_names, known_names.empty() ? "" : ", ", Text(known));
  }
  return absl::InvalidArgumentError(absl::StrCat("\"", Text(name), "\" is not a ", Text(what), "; use one of ", known_names));
}

bool Knows(std::string_view family) {
  return std::ranges::any_of(Families(), [&](const Family* known) { return known->name == family; });
}

absl::Status UnknownFamily(std::string_view family) {
  std::string names;
  for (const Family* const known : Families()) absl::StrAppend(&names, names.empty() ? "" : ", ", Text(known->name));
  return absl::InvalidArgumentError(absl::StrCat("\"", Text(family), "\" is not a model family; use one of ", names));
}

// Adds an option if the family has it. It is on if the class of the family has it on.
void AddOption(const Family& family, const char* name, bool is_on, ordered_json& json) {
  const auto field = std::ranges::find_if(family.options, [&](const BoolField& option) { return std::string_view(option.name) == name; });
  if (field != family.options.end()) json[name] = is_on || field->fallback;
}

// The dimensions of a head that rotate, where part of a head does: an even number.
int64_t RotatedDims(const ModelShape& config) {
  const int64_t head_dim = config.head_dim != 0 ? config.head_dim : config.hidden_size / std::max<int64_t>(1, config.num_heads);
  return std::max<int64_t>(2, static_cast<int64_t>(static_cast<double>(head_dim) * config.partial_rotation) / 2 * 2);
}

// A factor for each frequency, up to `most` for the lowest one.
std::vector<double> LongRopeFactors(const ModelShape& config, double most) {
  std::vector<double> factors;
  const auto pairs = static_cast<double>(RotatedDims(config) / 2);
  for (double pair = 1; pair <= pairs; ++pair) factors.push_back(1 + (most - 1) * pair / pairs);
  return factors;
}

void AddRope(const ModelShape& config, ordered_json& json) {
  const RopeConfig& rope = config.rope;
  json["rope_theta"] = rope.theta;
  if (rope.type == RopeType::kDefault) return;
  ordered_json scaling = {{"rope_type", NameOf(kRopeTypes, rope.type)}};
  if (rope.type == RopeType::kLongRope) {
    scaling["short_factor"] = LongRopeFactors(config, 1.25);
    scaling["long_factor"] = LongRopeFactors(config, rope.factor);
  } else {
    scaling["factor"] = rope.factor;
  }
  if (rope.original_max_position > 0) scaling["original_max_position_embeddings"] = rope.original_max_position;
  if (rope.type == RopeType::kLlama3) {
    scaling["low_freq_factor"] = rope.low_freq_factor;
    scaling["high_freq_factor"] = rope.high_freq_factor;
  }
  if (rope.type == RopeType::kYarn) {
    scaling["beta_fast"] = rope.beta_fast;
    scaling["beta_slow"] = rope.beta_slow;
  }
  json["rope_scaling"] = scaling;
}

// The family's own activation instead of silu, if it has one.
const char* ActivationName(const ModelShape& config, const Family& family) {
  if (config.activation == Activation::kRelu) return "relu";
  if (family.name == "bamboo") return "relu";  // of gate and up
  return family.defaults.activation != nullptr ? family.defaults.activation : "silu";
}

void AddOptFields(const ModelShape& config, ordered_json& json) {
  json["activation_function"] = "relu";
  json["ffn_dim"] = config.intermediate_size;
  json["word_embed_proj_dim"] = config.hidden_size;
  json["do_layer_norm_before"] = true;
  json["_remove_final_layer_norm"] = false;
  json["layer_norm_elementwise_affine"] = true;
  json["enable_bias"] = true;
}

void AddFalconFields(const ModelShape& config, const Family& family, ordered_json& json) {
  json["new_decoder_architecture"] = true;
  json["num_kv_heads"] = config.num_kv_heads;
  json["bias"] = config.mlp_bias;
  json["activation"] = ActivationName(config, family);
  json["ffn_hidden_size"] = config.intermediate_size;
  json["layer_norm_epsilon"] = kNormEps;
  AddRope(config, json);
}

void AddLinearAttention(const ModelShape& config, ordered_json& json) {
  const LinearAttentionConfig& linear = config.linear_attention;
  json["full_attention_interval"] = config.full_attention_interval;
  json["linear_num_key_heads"] = linear.key_heads;
  json["linear_num_value_heads"] = linear.value_heads;
  json["linear_key_head_dim"] = linear.key_dim;
  json["linear_value_head_dim"] = linear.value_dim;
  json["linear_conv_kernel_dim"] = linear.conv_width;
}

// After the fields of dense models, which may have the same name.
void AddExperts(const ModelShape& config, const ExpertsFields& fields, ordered_json& json) {
  const auto add = [&](const char* name, const auto& value) {
    if (name != nullptr) json[name] = value;
  };
  add(fields.count, config.num_experts);
  add(fields.per_token, config.experts_per_token);
  add(fields.intermediate_size, config.expert_intermediate_size);
  add(fields.shared_intermediate_size, config.shared_experts * config.expert_intermediate_size);
  add(fields.shared_count, config.shared_experts);
  add(fields.normalized, true);
  add(fields.first_dense, config.first_dense_layers);
}

// Heads of full layers are twice as wide. With experts, those layers have one KV head and no matrix of
// values; without, every layer has an embedding of its own, and the layers after the first
// full_attention_interval ones take keys and values of those.
void AddGemma4Fields(const ModelShape& config, ordered_json& json) {
  const bool experts = config.num_experts > 0;
  json["global_head_dim"] = 2 * json["head_dim"].get<int64_t>();
  json["attention_k_eq_v"] = experts;
  if (experts) json["num_global_key_value_heads"] = 1;
  json["enable_moe_block"] = experts;
  json["hidden_size_per_layer_input"] = experts ? 0 : std::max<int64_t>(1, config.hidden_size / 8);
  json["num_kv_shared_layers"] = experts ? 0 : std::max<int64_t>(0, config.num_layers - config.full_attention_interval);
  json["use_double_wide_mlp"] = true;
  json["rope_parameters"] = {
      {"full_attention", {{"rope_type", "proportional"}, {"rope_theta", config.rope.theta}, {"partial_rotary_factor", 0.25}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", config.rope.theta}}}};
}

// Half of a head's dimensions rotate.
void AddLatents(const ModelShape& config, ordered_json& json) {
  const int64_t head_dim = json["head_dim"].get<int64_t>();
  json["q_lora_rank"] = config.hidden_size / 2;
  json["kv_lora_rank"] = 2 * head_dim;
  json["qk_rope_head_dim"] = head_dim / 2;
  json["qk_nope_head_dim"] = head_dim / 2;
  json["v_head_dim"] = head_dim;
}

void AddGatedFields(const ModelShape& config, const Family& family, ordered_json& json) {
  json[family.activation] = ActivationName(config, family);
  if (json[family.activation] == "fatrelu") json["hidden_act_param"] = 0.01;
  json["intermediate_size"] = config.intermediate_size;
  json["num_key_value_heads"] = config.num_kv_heads;
  json["head_dim"] = config.head_dim != 0 ? config.head_dim : config.hidden_size / std::max<int64_t>(1, config.num_heads);
  json["rms_norm_eps"] = kNormEps;
  AddRope(config, json);
  if (family.global_heads) {
    AddGemma4Fields(config, json);
  } else if (family.needs_rope_parameters && config.rope.type == RopeType::kDefault)
    json["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", config.rope.theta}};
  if (family.rotated_dims != nullptr) {
    json[family.rotated_dims] = RotatedDims(config);
  } else if (family.rotates_part_of_heads) {
    json["partial_rotary_factor"] = config.partial_rotation;
  }
  for (const NumberField& factor : family.factors) {
    if (const auto stated = config.factors.find(factor.name); stated != config.factors.end()) json[factor.name] = stated->second;
  }
  if (family.skips_rotation) json["no_rope_layer_interval"] = config.no_rope_layer_interval;
  AddOption(family, "attention_bias", config.qkv_bias, json);
  AddOption(family, "mlp_bias", config.mlp_bias, json);
  // Without the field transformers' class may have a window.
  if (family.layers == LayerPattern::kWindow) json["sliding_window"] = nullptr;
  if (family.layers == LayerPattern::kWindow && config.sliding_window > 0) json["sliding_window"] = config.sliding_window;
  if (family.layers == LayerPattern::kWindowExcept) {
    json["sliding_window"] = config.sliding_window > 0 ? ordered_json(config.sliding_window) : ordered_json();
    json["sliding_window_pattern"] = config.full_attention_interval;
  }
  if (family.layers == LayerPattern::kLinear) AddLinearAttention(config, json);
  if (family.latent_attention) AddLatents(config, json);
  if (family.experts != nullptr) AddExperts(config, *family.experts, json);
}

// ---- Quantisation

// How the model's matrices are packed, and the method in "quantization_config"; empty: that of MLX.
struct Packing {
  std::optional<Quantization> quantization;
  std::string method;
};

// Rows of gate and up alternate in mxfp4 alone.
Packing PackingOf(const ModelShape& shape, const Family& family) {
  const bool is_published_in_mxfp4 = family.experts != nullptr && family.experts->defaults.alternates;
  if (!shape.quantization && is_published_in_mxfp4) return {kMxfp4, "mxfp4"};
  if (!shape.quantization || shape.quantization->code != WeightCode::kFp8 || !shape.quantization_method.empty())
    return {shape.quantization, shape.quantization_method};
  return {shape.quantization, shape.quantization->scales == ScaleShape::kRows ? "compressed-tensors" : "fp8"};
}

ordered_json MlxFields(const Quantization& quantization) {
  ordered_json fields = {{"group_size", quantization.group_size}, {"bits", quantization.bits}};
  if (quantization.code == WeightCode::kMxfp4) fields["mode"] = "mxfp4";
  return fields;
}

ordered_json Fp8Fields(const Quantization& quantization) {
  ordered_json fields = {{"quant_method", "fp8"}, {"fmt", "e4m3"}, {"activation_scheme", "dynamic"}};
  if (quantization.scales == ScaleShape::kBlocks) fields["weight_block_size"] = {kFp8Block, kFp8Block};
  fields["modules_to_not_convert"] = {"lm_head"};
  return fields;
}

ordered_json CompressedTensorsFields(const Quantization& quantization) {
  ordered_json weights = {{"num_bits", 8}, {"type", "float"}, {"symmetric", true}, {"dynamic", false}};
  weights["strategy"] = quantization.scales == ScaleShape::kRows     ? "channel"
                        : quantization.scales == ScaleShape::kMatrix ? "tensor"
                                                                     : "block";
  if (quantization.scales == ScaleShape::kBlocks) weights["block_structure"] = {kFp8Block, kFp8Block};
  ordered_json inputs = {{"num_bits", 8}, {"type", "float"}, {"symmetric", true}, {"dynamic", true}, {"strategy", "token"}};
  ordered_json group = {{"targets", {"Linear"}}, {"weights", weights}, {"input_activations", inputs}};
  return {{"quant_method", "compressed-tensors"},
          {"format", "float-quantized"},
          {"kv_cache_scheme", nullptr},
          {"config_groups", {{"group_0", group}}},
          {"ignore", {"lm_head"}}};
}

ordered_json Mxfp4Fields() {
  const auto dense = {"model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"};
  return {{"modules_to_not_convert", dense}, {"quant_method", "mxfp4"}};
}

void AddQuantization(const Packing& packing, ordered_json& json) {
  if (!packing.quantization) return;
  if (packing.method.empty()) {
    json["quantization"] = MlxFields(*packing.quantization);
  } else if (packing.method == "mxfp4") {
    json["quantization_config"] = Mxfp4Fields();
  } else {
    const bool is_fp8 = packing.method == "fp8";
    json["quantization_config"] = is_fp8 ? Fp8Fields(*packing.quantization) : CompressedTensorsFields(*packing.quantization);
  }
}

absl::Status CheckPacking(const MakeModelOptions& options) {
  const Packing packing = PackingOf(options.config, FamilyOf(options.config.family));
  const std::string& method = options.config.quantization_method;  // the one asked for
  const bool is_fp8 = packing.quantization && packing.quantization->code == WeightCode::kFp8;
  if (options.widened && !is_fp8) return absl::InvalidArgumentError("only a model in FP8 can be widened");
  if (!method.empty() && (!is_fp8 || (method != "fp8" && method != "compressed-tensors"))) {
    return absl::InvalidArgumentError(
        absl::StrCat("quantisation method \"", method, "\" is not one of these weights; FP8 has fp8 and compressed-tensors"));
  }
  if (is_fp8 && method == "fp8" && packing.quantization->scales == ScaleShape::kRows)
    return absl::InvalidArgumentError("method \"fp8\" has no scales of rows; use compressed-tensors");
  return absl::OkStatus();
}

absl::Status CheckGeometry(const MakeModelOptions& options) {
  if (!Knows(options.config.family)) return UnknownFamily(options.config.family);
  if (options.tokenizer && options.config.vocab_size < kByteTokenizerEos + 1) {
    return absl::InvalidArgumentError(absl::StrCat("a vocabulary of ", options.config.vocab_size,
                                                   " cannot hold the byte-level tokenizer's ", kByteTokenizerEos + 1,
                                                   "; give a larger --vocab, or --no-tokenizer"));
  }
  if (options.shards < 1) return absl::InvalidArgumentError("the number of shards must be at least 1");
  if (!IsWorkingDType(options.dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("dtype ", Text(DTypeName(options.dtype)), " is not supported; BF16, F16 and F32 are supported"));
  }
  return CheckPacking(options);
}

// A stretch of one tensor.
struct Chunk {
  size_t tensor = 0;
  Bytes begin = 0;
  Bytes bytes = 0;
};

std::vector<Chunk> ChunksOf(const SafetensorsWriter& writer) {
  std::vector<Chunk> chunks;
  for (size_t tensor = 0; tensor < writer.num_tensors(); ++tensor) {
    for (Bytes at = 0; at < writer.tensor_bytes(tensor); at += kChunkBytes) {
      chunks.push_back({tensor, at, std::min(kChunkBytes, writer.tensor_bytes(tensor) - at)});
    }
  }
  return chunks;
}

absl::Status WriteShard(const std::string& path, std::span<const RandomTensor> tensors, uint64_t seed, std::atomic<Bytes>& written,
                        const std::function<void(Bytes)>& progress) {
  std::vector<SafetensorsWriter::Tensor> list;
  for (const RandomTensor& tensor : tensors) list.push_back({tensor.name, tensor.dtype, tensor.shape});
  LIME_ASSIGN_OR_RETURN(const auto writer, SafetensorsWriter::Create(path, list));
  const std::vector<Chunk> chunks = ChunksOf(*writer);
  LIME_RETURN_IF_ERROR(ParallelFor(static_cast<int64_t>(chunks.size()), [&](int64_t i) -> absl::Status {
    const Chunk& chunk = chunks[static_cast<size_t>(i)];
    const RandomTensor& tensor = tensors[chunk.tensor];
    std::vector<std::byte> bytes(static_cast<size_t>(chunk.bytes));
    FillRandom(tensor, seed, chunk.begin / ElementBytes(tensor.dtype), bytes);
    LIME_RETURN_IF_ERROR(writer->Write(chunk.tensor, chunk.begin, bytes));
    written += chunk.bytes;
    if (progress) progress(chunk.bytes);
    return absl::OkStatus();
  }));
  return writer->Finish();
}

// Splits the tensors into runs of about equal bytes; first tensor of every shard, then the end.
std::vector<size_t> ShardBounds(const std::vector<RandomTensor>& tensors, int shards) {
  Bytes total = 0, sum = 0;
  for (const RandomTensor& tensor : tensors) total += TensorBytes(tensor.dtype, tensor.shape);
  std::vector<size_t> bounds = {0};
  for (size_t i = 0; i < tensors.size(); ++i) {
    sum += TensorBytes(tensors[i].dtype, tensors[i].shape);
    const bool more = static_cast<int>(bounds.size()) < shards && i + 1 < tensors.size();
    if (more && sum >= total / shards * static_cast<Bytes>(bounds.size())) bounds.push_back(i + 1);
  }
  bounds.push_back(tensors.size());
  return bounds;
}

absl::Status WriteWeights(const MakeModelOptions& options, const std::vector<RandomTensor>& tensors, const std::string& dir,
                          const std::function<void(Bytes)>& progress) {
  std::atomic<Bytes> written = 0;
  if (options.shards == 1) return WriteShard(dir + "/model.safetensors", tensors, options.seed, written, progress);
  const std::vector<size_t> bounds = ShardBounds(tensors, options.shards);
  ordered_json weight_map = ordered_json::object();
  for (size_t shard = 0; shard + 1 < bounds.size(); ++shard) {
    const std::string name = absl::StrFormat("model-%05d-of-%05d.safetensors", shard + 1, bounds.size() - 1);
    const auto part = std::span(tensors).subspan(bounds[shard], bounds[shard + 1] - bounds[shard]);
    LIME_RETURN_IF_ERROR(WriteShard(absl::StrCat(dir, "/", name), part, options.seed, written, progress));
    for (const RandomTensor& tensor : part) weight_map[tensor.name] = name;
  }
  const ordered_json index = {{"metadata", {{"total_size", written.load()}}}, {"weight_map", weight_map}};
  return WriteTextFile(dir + "/model.safetensors.index.json", index.dump(2));
}

// The tensors of the model asked for.
absl::StatusOr<std::vector<RandomTensor>> Describe(const MakeModelOptions& options) {
  LIME_RETURN_IF_ERROR(CheckGeometry(options));
  MakeModelOptions packed = options;
  packed.widened = false;
  LIME_ASSIGN_OR_RETURN(const ModelConfig config, ParseModelConfig(ConfigJson(packed), "the model asked for"));
  if (options.planted_routes) LIME_RETURN_IF_ERROR(CheckPlantedRoutes(config));
  if (options.planted_neurons) LIME_RETURN_IF_ERROR(CheckPlantedNeurons(config));
  return TensorsOf(config, {.dtype = options.dtype,
                            .norm_dtype = options.norm_dtype,
                            .widened = options.widened,
                            .planted_routes = options.planted_routes,
                            .planted_neurons = options.planted_neurons});
}

}  // namespace

absl::StatusOr<PlantedStatistics> MeasurePlantedNeurons(const MakeModelOptions& options) {
  LIME_CHECK(options.planted_neurons);
  LIME_ASSIGN_OR_RETURN(const std::vector<RandomTensor> tensors, Describe(options));
  return MeasurePlantedNeurons(tensors, options.seed);
}

absl::StatusOr<RopeType> ParseRopeTypeName(std::string_view name) {
  return ValueOf(kRopeTypes, name, "rope_scaling type");
}

std::string ConfigJson(const MakeModelOptions& options) {
  const ModelShape& config = options.config;
  const Family& family = FamilyOf(config.family);
  ordered_json json;
  json["architectures"] = {family.architectures.front()};
  json["model_type"] = family.model_types.front();
  json["hidden_size"] = config.hidden_size;
  json["num_hidden_layers"] = config.num_layers;
  json["num_attention_heads"] = config.num_heads;
  json["vocab_size"] = config.vocab_size;
  json["max_position_embeddings"] = config.max_positions;
  if (family.falcon_heads) {
    AddFalconFields(config, family, json);
  } else {
    family.grouped_queries ? AddGatedFields(config, family, json) : AddOptFields(config, json);
  }
  json["tie_word_embeddings"] = config.tie_embeddings;
  if (options.tokenizer) json["bos_token_id"] = kByteTokenizerBos, json["eos_token_id"] = kByteTokenizerEos;
  if (!options.widened) AddQuantization(PackingOf(config, family), json);
  const DType dtype = options.widened ? DType::kF32 : options.dtype;
  json["torch_dtype"] = dtype == DType::kBF16 ? "bfloat16" : dtype == DType::kF16 ? "float16" : "float32";
  return json.dump(2) + "\n";
}

absl::Status MakeModel(const MakeModelOptions& options, const std::string& dir, const std::function<void(Bytes)>& progress) {
  LIME_ASSIGN_OR_RETURN(const std::vector<RandomTensor> tensors, Describe(options));
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) return absl::UnavailableError(absl::StrCat(dir, ": cannot make the folder: ", error.message()));
  for (const char* stale : {"config.json", "model.safetensors", "model.safetensors.index.json"}) {
    std::filesystem::remove(std::filesystem::path(dir) / stale, error);
  }
  LIME_RETURN_IF_ERROR(WriteWeights(options, tensors, dir, progress));
  if (options.tokenizer) {
    LIME_RETURN_IF_ERROR(WriteTextFile(dir + "/tokenizer.json", ByteTokenizerJson(options.config.vocab_size)));
    const ordered_json generation = {{"bos_token_id", kByteTokenizerBos}, {"eos_token_id", kByteTokenizerEos}};
    LIME_RETURN_IF_ERROR(WriteTextFile(dir + "/generation_config.json", generation.dump(2) + "\n"));
  }
  return WriteTextFile(dir + "/config.json", ConfigJson(options));
}

}  // namespace lime
