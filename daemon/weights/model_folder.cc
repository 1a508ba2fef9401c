#include "daemon/weights/model_folder.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <optional>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/input/model_file.h"
#include "planner/base/strings.h"
#include "planner/plan/model/family.h"

namespace lime {
namespace {

namespace fs = std::filesystem;

constexpr int kMostShards = 10'000;

struct ShardNumber {
  int number = 0, of = 0;
};

// Parses a name such as "model-00001-of-00002.safetensors".
std::optional<ShardNumber> ParseShardName(std::string_view name) {
  constexpr std::string_view kBegin = "model-", kMiddle = "-of-", kEnd = ".safetensors";
  constexpr size_t kDigits = 5;
  if (name.size() != kBegin.size() + kMiddle.size() + kEnd.size() + 2 * kDigits) return std::nullopt;
  if (!name.starts_with(kBegin) || !name.ends_with(kEnd) || name.substr(kBegin.size() + kDigits, kMiddle.size()) != kMiddle)
    return std::nullopt;
  const auto digits = [&](size_t at, int& number) {
    const char* const begin = name.data() + at;
    return std::from_chars(begin, begin + kDigits, number).ptr == begin + kDigits;
  };
  ShardNumber shard;
  if (!digits(kBegin.size(), shard.number) || !digits(kBegin.size() + kDigits + kMiddle.size(), shard.of)) return std::nullopt;
  return shard;
}

std::string ShardName(int number, int of) {
  return absl::StrFormat("model-%05d-of-%05d.safetensors", number, of);
}

// A model's name on a hub: "org/name".
bool IsHubName(std::string_view path) {
  const size_t slash = path.find('/');
  if (slash == 0 || slash == std::string_view::npos || slash + 1 == path.size() || path.find('/', slash + 1) != std::string_view::npos)
    return false;
  return path.front() != '.' && path.front() != '~' && std::ranges::all_of(path, [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '/' || c == '-' || c == '_' || c == '.';
         });
}

// Explains why a folder without an index and without a complete set of shards is no model.
absl::Status NoWeights(const std::string& folder, std::vector<std::string> weights) {
  const std::string nothing = absl::StrCat(folder, ": holds neither model.safetensors nor model.safetensors.index.json");
  std::ranges::sort(weights);
  const auto ends = [&](std::string_view suffix) {
    return std::ranges::any_of(weights, [&](const std::string& name) { return name.ends_with(suffix); });
  };
  if (weights.empty()) return absl::NotFoundError(absl::StrCat(nothing, "; download the whole folder of the model"));
  if (std::ranges::find(weights, "adapter_model.safetensors") != weights.end())
    return absl::NotFoundError(absl::StrCat(nothing, ", only adapter_model.safetensors; merge the adapter into its model first"));
  if (ends(".safetensors"))
    return absl::NotFoundError(absl::StrCat(nothing, ", only ", SomeOf(weights), "; use the file names of a Hugging Face folder"));
  return absl::NotFoundError(absl::StrCat(nothing, "; convert ", SomeOf(weights), " to safetensors"));
}

// Names of all weight files in the folder, in any form.
std::vector<std::string> WeightFiles(const std::string& folder) {
  constexpr std::array<std::string_view, 6> kEndings = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".npz"};
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    const bool is_weights = std::ranges::any_of(kEndings, [&](std::string_view ending) { return name.ends_with(ending); });
    std::error_code ignored;
    const bool is_dead_link = at->is_symlink(ignored) && !at->exists(ignored);
    if (is_weights && (is_dead_link || at->is_regular_file(ignored))) names.push_back(name);
  }
  return names;
}

}  // namespace

std::string SomeOf(const std::vector<std::string>& names, size_t most) {
  const size_t named = std::min(names.size(), most);
  const std::string list = absl::StrJoin(names.begin(), names.begin() + static_cast<ptrdiff_t>(named), ", ");
  return names.size() > named ? absl::StrCat(list, " and ", names.size() - named, " more") : list;
}

absl::Status NoModelFolder(const std::string& path) {
  std::error_code ignored;
  if (fs::exists(path, ignored)) {
    const std::string_view kind = path.ends_with(".gguf") ? "is a GGUF file, which LIME does not read" : "is a file, not a folder";
    return absl::NotFoundError(
        absl::StrCat(path, ": ", Text(kind), "; give the folder of a Hugging Face model, which holds config.json and safetensors"));
  }
  if (IsHubName(path)) {
    return absl::NotFoundError(absl::StrCat(path,
                                            ": is not a folder, and LIME downloads no models; download it, for example with `git clone "
                                            "https://huggingface.co/",
                                            path, "` (git-lfs installed), and give that folder"));
  }
  return absl::NotFoundError(
      absl::StrCat(path, ": is not a folder; give the folder of a Hugging Face model, which holds config.json and safetensors"));
}

absl::StatusOr<std::vector<std::string>> FindNumberedShards(const std::string& folder) {
  const std::vector<std::string> files = WeightFiles(folder);
  std::set<int> totals;
  std::vector<std::string> there;
  for (const std::string& name : files) {
    const std::optional<ShardNumber> shard = ParseShardName(name);
    if (!shard || shard->of < 1 || shard->of > kMostShards) continue;
    totals.insert(shard->of), there.push_back(name);
  }
  if (totals.empty()) return NoWeights(folder, files);
  std::ranges::sort(there);
  const std::string no_index = absl::StrCat(folder, ": holds shards without model.safetensors.index.json, and ");
  if (totals.size() > 1)
    return absl::NotFoundError(absl::StrCat(no_index, "they are not all of one set: ", SomeOf(there), "; download the index"));
  std::vector<std::string> shards, missing;
  for (int number = 1; number <= *totals.begin(); ++number) {
    shards.push_back(ShardName(number, *totals.begin()));
    if (!std::ranges::binary_search(there, shards.back())) missing.push_back(shards.back());
  }
  if (missing.empty()) return shards;
  return absl::NotFoundError(absl::StrCat(no_index, missing.size(), " of ", shards.size(), " are missing: ", SomeOf(missing),
                                          "; download the missing files and the index"));
}

bool IsRotaryTable(std::string_view tensor) {
  return tensor.ends_with("rotary_emb.inv_freq") || tensor.ends_with("rotary_emb.cos_cached") || tensor.ends_with("rotary_emb.sin_cached");
}

namespace {

// A scale of FP8 for a computation that LIME does in the working dtype. The names are those that vLLM
// reads; the last two are older ones of compressed-tensors.
bool IsAnnouncedScale(std::string_view tensor, const ModelConfig& config) {
  if (config.has_input_scales && tensor.ends_with(".input_scale")) return true;
  constexpr std::string_view kOfKv[] = {".k_scale",           ".v_scale", ".q_scale", ".kv_scale", ".prob_scale", "k_proj.output_scale",
                                        "v_proj.output_scale"};
  return config.has_kv_scales && std::ranges::any_of(kOfKv, [&](std::string_view name) { return tensor.ends_with(name); });
}

}  // namespace

bool BelongsToModel(std::string_view tensor, const ModelSpec& spec) {
  if (IsRotaryTable(tensor) || IsAnnouncedScale(tensor, spec.config)) return false;
  if (tensor.starts_with(spec.head_module + ".")) return !spec.config.tie_embeddings || tensor == spec.head_module + ".bias";
  if (!tensor.starts_with(spec.tensor_prefix)) return false;
  tensor.remove_prefix(spec.tensor_prefix.size());
  const std::string_view layers = FamilyOf(spec.config.model_type).layer_list;
  if (tensor.starts_with(layers)) {
    int64_t layer = -1;
    std::from_chars(tensor.data() + layers.size(), tensor.data() + tensor.size(), layer);
    return layer >= 0 && layer < spec.config.num_layers();
  }
  for (const std::string_view module :
       {"embed_", "norm.", "word_embeddings", "ln_f.", "final_layer_norm.", "project_in.", "project_out.", "layernorm_embedding."}) {
    if (tensor.starts_with(module)) return true;
  }
  return false;
}

namespace {

constexpr std::string_view kNeeded[] = {"added_tokens.json",
                                        "chat_template.jinja",
                                        "chat_template.json",
                                        "generation_config.json",
                                        "merges.txt",
                                        "sentencepiece.bpe.model",
                                        "special_tokens_map.json",
                                        "spiece.model",
                                        "tekken.json",
                                        "tokenizer.json",
                                        "tokenizer.model",
                                        "tokenizer_config.json",
                                        "vocab.json",
                                        "vocab.txt"};

}  // namespace

bool IsSideFile(std::string_view name) {
  return std::ranges::find(kNeeded, name) != std::end(kNeeded);
}

absl::StatusOr<std::vector<std::string>> SideFiles(const std::string& dir) {
  std::vector<std::string> names;
  for (const std::string_view name : kNeeded) {
    LIME_ASSIGN_OR_RETURN(const bool is_here, FindModelFile(absl::StrCat(dir, "/", Text(name))));
    if (is_here) names.emplace_back(name);
  }
  return names;
}

}  // namespace lime
