#include "testbed/train/model_files.h"

#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>
#include <torch/utils.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "planner/base/status.h"
#include "testbed/train/dialogue.h"

namespace lime::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kDataAlignment = 4096;
// Keeps the choice among stories that are about as likely, and no unlikely word of an answer.
constexpr double kChatTemperature = 0.4;

// The tokens that end a text: in a chat the end of a message, and EOS behind the last one.
Json EndIds(const ByteBpe& tokenizer) {
  for (size_t i = 0; i < tokenizer.added().size(); ++i) {
    if (tokenizer.added()[i].content == kMessageEnd) return {tokenizer.first_added_id() + static_cast<int>(i), kEosId};
  }
  return kEosId;
}

Json ConfigJson(const LlamaConfig& c, const ByteBpe& tokenizer) {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_act", c.hidden_act},
          {"hidden_size", c.hidden_size},
          {"intermediate_size", c.intermediate_size},
          {"num_hidden_layers", c.num_hidden_layers},
          {"num_attention_heads", c.num_attention_heads},
          {"num_key_value_heads", c.num_key_value_heads},
          {"head_dim", c.head_dim},
          {"vocab_size", c.vocab_size},
          {"max_position_embeddings", c.max_position_embeddings},
          {"rms_norm_eps", c.rms_norm_eps},
          {"rope_theta", c.rope_theta},
          {"rope_scaling", nullptr},
          {"tie_word_embeddings", true},
          {"attention_bias", false},
          {"mlp_bias", false},
          {"bos_token_id", kBosId},
          {"eos_token_id", EndIds(tokenizer)},
          {"initializer_range", 0.02},
          {"use_cache", true},
          {"torch_dtype", "bfloat16"}};
}

LlamaConfig ParseConfig(const Json& j) {
  LlamaConfig c;
  c.hidden_act = j.at("hidden_act");
  c.hidden_size = j.at("hidden_size");
  c.intermediate_size = j.at("intermediate_size");
  c.num_hidden_layers = j.at("num_hidden_layers");
  c.num_attention_heads = j.at("num_attention_heads");
  c.num_key_value_heads = j.at("num_key_value_heads");
  c.head_dim = j.at("head_dim");
  c.vocab_size = j.at("vocab_size");
  c.max_position_embeddings = j.at("max_position_embeddings");
  c.rms_norm_eps = j.at("rms_norm_eps");
  c.rope_theta = j.at("rope_theta");
  return c;
}

Json TokenizerConfigJson(const LlamaConfig& c, bool chats) {
  return {{"add_bos_token", true},
          {"add_eos_token", false},
          {"bos_token", "<s>"},
          {"eos_token", chats ? kMessageEnd : "</s>"},
          {"clean_up_tokenization_spaces", false},
          {"model_max_length", c.max_position_embeddings},
          {"tokenizer_class", "PreTrainedTokenizerFast"}};
}

// 8 bytes of header length, the header padded with spaces so that data begins on kDataAlignment,
// then the tensors in order.
std::string Safetensors(const Llama& model) {
  Json header{{"__metadata__", {{"format", "pt"}}}};
  std::string data;
  for (const auto& [name, weight] : model.weights()) {
    const at::Tensor narrow = weight.detach().to(at::kBFloat16).contiguous();  // ATen rounds to nearest even
    const size_t begin = data.size();
    data.append(static_cast<const char*>(narrow.data_ptr()), narrow.nbytes());
    header[name] = {{"dtype", "BF16"}, {"shape", narrow.sizes().vec()}, {"data_offsets", {begin, data.size()}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 8 + kDataAlignment - 1) / kDataAlignment * kDataAlignment - 8, ' ');
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + text + data;
}

Llama ParseSafetensors(const LlamaConfig& config, const std::string& file) {
  uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  const Json header = Json::parse(file.substr(8, length));
  Llama::Named weights;
  for (const auto& [name, shape] : Llama::Shapes(config)) {
    at::Tensor narrow = torch::empty(shape, at::kBFloat16);
    const uint64_t begin = header.at(name).at("data_offsets").at(0);
    std::memcpy(narrow.data_ptr(), file.data() + 8 + length + begin, narrow.nbytes());
    weights.emplace_back(name, narrow.to(at::kFloat));
  }
  return Llama(config, std::move(weights));
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  if (!in || !(text << in.rdbuf())) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  return text.str();
}

absl::Status WriteFile(const std::string& path, absl::string_view text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  if (!out) return absl::UnavailableError(absl::StrCat(path, ": cannot be written"));
  return absl::OkStatus();
}

absl::Status WriteModelFolder(const std::string& folder, const Llama& model, const ByteBpe& tokenizer) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const bool chats = !tokenizer.added().empty();
  Json generation{{"bos_token_id", kBosId}, {"eos_token_id", EndIds(tokenizer)}, {"do_sample", chats}};
  if (chats) generation["temperature"] = kChatTemperature;
  LIME_RETURN_IF_ERROR(WriteFile(folder + "/config.json", ConfigJson(model.config(), tokenizer).dump(2) + "\n"));
  LIME_RETURN_IF_ERROR(WriteFile(folder + "/generation_config.json", generation.dump(2) + "\n"));
  LIME_RETURN_IF_ERROR(WriteFile(folder + "/tokenizer_config.json", TokenizerConfigJson(model.config(), chats).dump(2) + "\n"));
  if (chats) LIME_RETURN_IF_ERROR(WriteFile(folder + "/chat_template.jinja", kChatTemplate));
  LIME_RETURN_IF_ERROR(WriteFile(folder + "/tokenizer.json", tokenizer.ToJson().dump(1) + "\n"));
  return WriteFile(folder + "/model.safetensors", Safetensors(model));
}

absl::StatusOr<ModelFolder> ReadModelFolder(const std::string& folder) try {
  LIME_ASSIGN_OR_RETURN(const std::string config, ReadFile(folder + "/config.json"));
  LIME_ASSIGN_OR_RETURN(const std::string tokenizer_text, ReadFile(folder + "/tokenizer.json"));
  LIME_ASSIGN_OR_RETURN(const std::string weights, ReadFile(folder + "/model.safetensors"));
  LIME_ASSIGN_OR_RETURN(ByteBpe tokenizer, ByteBpe::FromJson(nlohmann::json::parse(tokenizer_text)));
  return ModelFolder{ParseSafetensors(ParseConfig(Json::parse(config)), weights), std::move(tokenizer)};
} catch (const nlohmann::json::exception& e) {
  return absl::InvalidArgumentError(absl::StrCat(folder, ": is not a folder that train_model wrote: ", e.what()));
}

absl::Status WriteCheckpoint(const std::string& path, const Llama& model, const torch::optim::Optimizer& optimizer, int64_t steps) try {
  torch::serialize::OutputArchive archive, state;
  optimizer.save(state);
  archive.write("optimizer", state);
  archive.write("steps", torch::tensor(steps));
  for (const auto& [name, weight] : model.weights()) archive.write(absl::StrCat("weight_", name), weight.detach());
  archive.save_to(path + ".new");
  std::filesystem::rename(path + ".new", path);
  return absl::OkStatus();
} catch (const std::exception& e) {
  return absl::UnavailableError(absl::StrCat(path, ": cannot be written: ", e.what()));
}

absl::StatusOr<int64_t> ReadCheckpoint(const std::string& path, Llama& model, torch::optim::Optimizer& optimizer) try {
  torch::NoGradGuard no_grad;
  torch::serialize::InputArchive archive, state;
  archive.load_from(path);
  archive.read("optimizer", state);
  optimizer.load(state);
  for (const auto& [name, weight] : model.weights()) {
    at::Tensor saved;
    archive.read(absl::StrCat("weight_", name), saved);
    weight.copy_(saved);
  }
  at::Tensor steps;
  archive.read("steps", steps);
  return steps.item<int64_t>();
} catch (const std::exception& e) {
  return absl::DataLossError(absl::StrCat(path, ": the training cannot be resumed from this file; remove it to start again: ", e.what()));
}

}  // namespace lime::train
