// make_model: writes a seeded random checkpoint. See README.md.
#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <exception>

#include "daemon/machine/files.h"
#include "daemon/stores/output_file.h"
#include "testbed/make_model/make_model.h"

namespace lime {
namespace {

struct Flags {
  std::string out, dtype = "BF16", rope = "default", activation, scales = "blocks", routes = "random";
  int bits = 0, group_size = 64;
  MakeModelOptions options;
};

void AddFlags(CLI::App& app, Flags& flags) {
  ModelShape& config = flags.options.config;
  app.add_option("--out", flags.out, "Folder to write")->required();
  app.add_option("--family", config.family,
                 "llama, mistral, qwen2, qwen3, opt, qwen3_5, smollm3, granite, phi3, ministral3, qwen3_moe, qwen3_5_moe, qwen3_next, "
                 "mixtral, minimax_m2, glm4_moe, gpt_oss (in mxfp4), gemma4, glm4_moe_lite, sparsellama (FATReLU) or bamboo (dReLU)")
      ->capture_default_str();
  app.add_option("--layers", config.num_layers)->capture_default_str();
  app.add_option("--hidden", config.hidden_size)->capture_default_str();
  app.add_option("--heads", config.num_heads)->capture_default_str();
  app.add_option("--kv-heads", config.num_kv_heads)->capture_default_str();
  app.add_option("--head-dim", config.head_dim, "Columns of a head; 0: hidden / heads")->capture_default_str();
  app.add_option("--intermediate", config.intermediate_size)->capture_default_str();
  app.add_option("--vocab", config.vocab_size)->capture_default_str();
  app.add_option("--positions", config.max_positions, "Longest context")->capture_default_str();
  app.add_option("--sliding-window", config.sliding_window, "Window of all layers; 0 for none")->capture_default_str();
  app.add_option("--activation", flags.activation, "silu or relu");
  app.add_flag("--tie", config.tie_embeddings, "Use the embedding as head");
  app.add_flag("--attention-bias", config.qkv_bias, "Biases of q, k, v and o, if the family may have them");
  app.add_flag("--mlp-bias", config.mlp_bias, "Biases of the MLP, if the family may have them");
  app.add_option("--full-attention-interval", config.full_attention_interval,
                 "Families with linear attention: each so many-th layer has none")
      ->capture_default_str();
  app.add_option("--linear-key-heads", config.linear_attention.key_heads)->capture_default_str();
  app.add_option("--linear-value-heads", config.linear_attention.value_heads)->capture_default_str();
  app.add_option("--linear-key-dim", config.linear_attention.key_dim)->capture_default_str();
  app.add_option("--linear-value-dim", config.linear_attention.value_dim)->capture_default_str();
  app.add_option("--partial-rotation", config.partial_rotation, "Share of a head that rotates, if it may be a part")->capture_default_str();
  app.add_option("--experts", config.num_experts, "Experts of a layer, if the family has them")->capture_default_str();
  app.add_option("--experts-per-token", config.experts_per_token)->capture_default_str();
  app.add_option("--expert-intermediate", config.expert_intermediate_size)->capture_default_str();
  app.add_option("--shared-experts", config.shared_experts, "Size of the shared expert, in experts")->capture_default_str();
  app.add_option("--first-dense-layers", config.first_dense_layers, "glm4_moe: layers without experts")->capture_default_str();
  app.add_option("--routes", flags.routes, "Experts that sampled text chooses: random, or planted as in recorded routes")
      ->capture_default_str();
  app.add_flag("--planted", flags.options.planted_neurons,
               "opt: few neurons are active, mostly those of the tokens before, as in trained models; prints how many");
  app.add_option("--dtype", flags.dtype, "BF16, F16 or F32")->capture_default_str();
  app.add_option("--bits", flags.bits, "Bits of quantised weights: 3, 4, 6 or 8; 0: dense")->capture_default_str();
  app.add_option("--group-size", flags.group_size, "32, 64 or 128")->capture_default_str();
  app.add_option("--quantization", config.quantization_method, "fp8 or compressed-tensors: weights in FP8, instead of --bits");
  app.add_option("--scales", flags.scales, "What shares a scale of FP8: blocks, rows or matrix")->capture_default_str();
  app.add_flag("--widened", flags.options.widened, "Of a model in FP8, the same values in F32");
  app.add_option("--rope", flags.rope, "default, linear, dynamic, llama3, yarn or longrope (phi3)")->capture_default_str();
  app.add_option("--rope-theta", config.rope.theta)->capture_default_str();
  app.add_option("--rope-factor", config.rope.factor)->capture_default_str();
  app.add_option("--rope-original-positions", config.rope.original_max_position, "0: --positions")->capture_default_str();
  app.add_option("--shards", flags.options.shards)->capture_default_str();
  app.add_option("--seed", flags.options.seed)->capture_default_str();
  app.add_flag("!--no-tokenizer", flags.options.tokenizer, "Write no tokenizer.json");
}

absl::StatusOr<std::optional<Quantization>> QuantizationOf(const Flags& flags) {
  if (flags.options.config.quantization_method.empty()) {
    if (flags.bits == 0) return std::nullopt;
    return Quantization{.bits = flags.bits, .group_size = flags.group_size};
  }
  if (flags.bits != 0) return absl::InvalidArgumentError("--bits and --quantization exclude each other");
  Quantization fp8 = kFp8;
  for (const auto& [name, scales] :
       {std::pair{"blocks", ScaleShape::kBlocks}, std::pair{"rows", ScaleShape::kRows}, std::pair{"matrix", ScaleShape::kMatrix}}) {
    if (flags.scales != name) continue;
    fp8.scales = scales;
    return fp8;
  }
  return absl::InvalidArgumentError("--scales " + flags.scales + " is unknown; use blocks, rows or matrix");
}

constexpr char kMarkName[] = "made_by_make_model";

absl::Status Run(Flags& flags) {
  ModelShape& config = flags.options.config;
  LIME_ASSIGN_OR_RETURN(config.rope.type, ParseRopeTypeName(flags.rope));
  for (char& c : flags.dtype) c = static_cast<char>(std::toupper(c));
  const std::optional<DType> dtype = kDTypeNames.Find(flags.dtype);
  if (!dtype) return absl::InvalidArgumentError("--dtype " + flags.dtype + " is unknown; use BF16, F16 or F32");
  flags.options.dtype = *dtype;
  LIME_ASSIGN_OR_RETURN(config.quantization, QuantizationOf(flags));
  if (flags.routes != "random" && flags.routes != "planted")
    return absl::InvalidArgumentError("--routes " + flags.routes + " is unknown; use random or planted");
  flags.options.planted_routes = flags.routes == "planted";
  if (flags.activation == "relu") config.activation = Activation::kRelu;

  // What is replaced is what this program wrote.
  const std::string mark = flags.out + "/" + kMarkName;
  if (!FileExists(mark)) LIME_RETURN_IF_ERROR(CheckOutputFolder(flags.out, {.what = "model that make_model wrote"}));
  const auto begin = std::chrono::steady_clock::now();
  std::atomic<Bytes> written = 0;
  LIME_RETURN_IF_ERROR(MakeModel(flags.options, flags.out, [&](Bytes bytes) { written += bytes; }));
  LIME_RETURN_IF_ERROR(WriteTextFile(mark, "This model is random: make_model wrote it, and may replace it.\n"));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf("%s: %s in %.2f s, %.0f MB/s\n", flags.out.c_str(), FormatBytes(written).c_str(), seconds,
              static_cast<double>(written) / seconds / 1e6);
  if (!flags.options.planted_neurons) return absl::OkStatus();
  LIME_ASSIGN_OR_RETURN(const PlantedStatistics statistics, MeasurePlantedNeurons(flags.options));
  std::printf("%s", StatisticsText(statistics).c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace lime

int main(int argc, char** argv) try {
  CLI::App app("Writes a seeded random checkpoint for tests and benchmarks");
  lime::Flags flags;
  lime::AddFlags(app, flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const absl::Status status = lime::Run(flags);
  if (status.ok()) return 0;
  std::fprintf(stderr, "make_model: %s\n", std::string(status.message()).c_str());
  return absl::IsInvalidArgument(status) ? 2 : 1;
} catch (const std::exception& error) {  // no memory
  std::fprintf(stderr, "make_model: %s\n", error.what());
  return 1;
}
