#include "daemon/weights/unused_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "daemon/stores/block_store.h"
#include "daemon/stores/quantize.h"
#include "daemon/weights/weight_store.h"
#include "nlohmann/json.hpp"
#include "testbed/make_model/make_model.h"
#include "tests/temp_dir.h"

namespace lime {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A model in one file, whose tensors and config.json are then changed.
class UnusedTensorsTest : public ::testing::Test {
 protected:
  void Make(bool tied) const {
    MakeModelOptions options;
    options.config.tie_embeddings = tied;
    ASSERT_TRUE(MakeModel(options, dir_.file("model")).ok());
  }

  std::string Model() const { return dir_.file("model"); }

  // `name` of a tensor to the name that it gets; what is given none is left out, and its bytes stay
  // in a tensor that nobody needs.
  void Rename(const std::function<std::string(const std::string&)>& name_of) const {
    Edit([&](json& header, std::string&) {
      json renamed;
      for (const auto& [name, tensor] : header.items()) {
        const std::string other = name == "__metadata__" ? name : name_of(name);
        renamed[other.empty() ? "of_nobody." + name : other] = tensor;
      }
      header = renamed;
    });
  }

  // A copy of tensor `from`; with `change`, another first byte.
  void Copy(const std::string& from, const std::string& to, bool change) const {
    Edit([&](json& header, std::string& data) {
      json copy = header.at(from);
      const uint64_t begin = copy.at("data_offsets")[0], end = copy.at("data_offsets")[1];
      copy["data_offsets"] = {data.size(), data.size() + end - begin};
      data += data.substr(begin, end - begin);
      if (change) data.back() = static_cast<char>(data.back() ^ 1);
      header[to] = copy;
    });
  }

  void Edit(const std::function<void(json&, std::string&)>& edit) const {
    const std::string bytes = dir_.Read("model/model.safetensors");
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof(length));
    json header = json::parse(bytes.substr(8, length));
    std::string data = bytes.substr(8 + length);
    edit(header, data);
    const std::string text = header.dump();
    length = text.size();
    dir_.Write("model/model.safetensors", std::string(reinterpret_cast<const char*>(&length), 8) + text + data);
  }

  void Configure(const std::string& field, const json& value) const {
    json config = json::parse(dir_.Read("model/config.json"));
    config[field] = value;
    dir_.Write("model/config.json", config.dump());
  }

  std::vector<std::string> Unused() const {
    const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(Model());
    const absl::StatusOr<ModelSpec> spec = checkpoint.ok() ? checkpoint->BuildModelSpec() : checkpoint.status();
    if (!spec.ok()) return {std::string(spec.status().message())};
    return DescribeUnused(*checkpoint, *spec).value_or(std::vector<std::string>{"error"});
  }

  TempDir dir_;
};

// The bytes of every block, in order.
std::string AllBytes(const std::string& model) {
  const Checkpoint checkpoint = *Checkpoint::Open(model);
  const ModelSpec spec = *checkpoint.BuildModelSpec();
  const auto store = *WeightStore::Open(checkpoint, spec, {});
  const std::vector<LoadedBlock> blocks = *store->LoadAll();
  std::string bytes;
  for (const LoadedBlock& block : blocks) {
    for (const LoadedTensor& tensor : block.tensors)
      bytes.append(reinterpret_cast<const char*>(tensor.data), static_cast<size_t>(tensor.bytes));
  }
  return bytes;
}

TEST_F(UnusedTensorsTest, OfAWholeModelNothingIsSaid) {
  Make(/*tied=*/false);
  EXPECT_THAT(Unused(), ElementsAre());
}

TEST_F(UnusedTensorsTest, AHeadBesideATiedEmbeddingIsMentionedWhereItDiffers) {
  Make(/*tied=*/true);
  Copy("model.embed_tokens.weight", "lm_head.weight", /*change=*/false);
  EXPECT_THAT(Unused(), ElementsAre());
  Rename([](const std::string& name) { return name == "lm_head.weight" ? "" : name; });
  Copy("model.embed_tokens.weight", "lm_head.weight", /*change=*/true);
  EXPECT_THAT(Unused(), ElementsAre(AllOf(HasSubstr("lm_head.weight is not used"), HasSubstr("tie_word_embeddings"))));
  Configure("tie_word_embeddings", false);
  EXPECT_THAT(Unused(), ElementsAre());
}

TEST_F(UnusedTensorsTest, AHeadOfAnotherShapeIsAnotherHead) {
  Make(/*tied=*/true);
  Copy("model.norm.weight", "lm_head.weight", /*change=*/false);
  EXPECT_THAT(Unused(), ElementsAre(HasSubstr("lm_head.weight is not used")));
}

TEST_F(UnusedTensorsTest, FurtherLayersAreMentionedInOneSentence) {
  Make(/*tied=*/false);
  Configure("num_hidden_layers", 1);
  EXPECT_THAT(Unused(),
              ElementsAre("layer 1 of the weights is not used, because config.json says num_hidden_layers 1 (they count from 0)"));
  Copy("model.norm.weight", "model.layers.4.input_layernorm.weight", false);
  EXPECT_THAT(Unused(), ElementsAre(HasSubstr("layers 1 to 4 of the weights are not used")));
  Configure("num_hidden_layers", 2);
  EXPECT_THAT(Unused(), ElementsAre(HasSubstr("layer 4 of the weights is not used")));
}

TEST_F(UnusedTensorsTest, RotaryTablesMakeNoLayer) {
  Make(/*tied=*/false);
  Copy("model.norm.weight", "model.layers.2.self_attn.rotary_emb.inv_freq", false);
  EXPECT_THAT(Unused(), ElementsAre());
}

TEST_F(UnusedTensorsTest, ABaseModelHasTheSameTensorsOfItsOwn) {
  Make(/*tied=*/false);
  const std::string before = AllBytes(Model());
  Rename([](const std::string& name) { return name.starts_with("model.") ? name.substr(6) : name; });
  EXPECT_EQ(AllBytes(Model()), before);
  Copy("norm.weight", "layers.0.self_attn.q_proj.bias", false);
  Copy("norm.weight", "layers.2.input_layernorm.weight", false);
  EXPECT_THAT(Unused(), ElementsAre(HasSubstr("layers.0.self_attn.q_proj.bias"), HasSubstr("layer 2 of the weights")));
}

TEST_F(UnusedTensorsTest, ScalesOfInputsAndOfKvAreMentionedUnlessConfigJsonAnnouncesThem) {
  MakeModelOptions options;
  options.config.quantization = kFp8;
  options.config.quantization->scales = ScaleShape::kMatrix;
  ASSERT_TRUE(MakeModel(options, Model()).ok());
  EXPECT_THAT(Unused(), ElementsAre());
  const std::string layer = "model.layers.0.self_attn.";
  Copy("model.norm.weight", layer + "q_proj.input_scale", false);
  for (const char* scale : {"k_scale", "attn.v_scale", "k_proj.k_scale", "v_proj.output_scale"})
    Copy("model.norm.weight", layer + scale, false);
  EXPECT_THAT(Unused(), ElementsAre(HasSubstr("5 tensors are not used")));
  json method = json::parse(dir_.Read("model/config.json"))["quantization_config"];
  method["activation_scheme"] = "static";
  Configure("quantization_config", method);
  EXPECT_THAT(Unused(), ElementsAre(HasSubstr("4 tensors are not used")));
  method["kv_cache_scheme"] = "static";
  Configure("quantization_config", method);
  EXPECT_THAT(Unused(), ElementsAre());
  Copy("model.norm.weight", layer + "q_proj.bias", false);  // what a model may need is still mentioned
  EXPECT_THAT(Unused(), ElementsAre(HasSubstr("1 tensor is not used")));
}

TEST_F(UnusedTensorsTest, ATiedModelThatStoresItsHeadIsPreparedAndQuantisedAsTheOther) {
  Make(/*tied=*/true);
  const auto make_both = [&](const std::string& to) {
    ASSERT_TRUE(PrepareBlockStore(Model(), dir_.file(to + ".store")).ok());
    const auto packed = QuantizeCheckpoint(Model(), dir_.file(to + ".packed"), {.bits = 4, .group_size = 32});
    ASSERT_TRUE(packed.ok()) << packed.status();
  };
  const std::string before = AllBytes(Model());
  make_both("before");
  Rename([](const std::string& name) { return name == "model.embed_tokens.weight" ? "lm_head.weight" : name; });
  EXPECT_THAT(Unused(), ElementsAre());
  EXPECT_EQ(AllBytes(Model()), before);
  make_both("after");
  for (const char* form : {".store", ".packed"}) {
    EXPECT_EQ(AllBytes(dir_.file(std::string("after") + form)), AllBytes(dir_.file(std::string("before") + form))) << form;
  }
}

}  // namespace
}  // namespace lime
