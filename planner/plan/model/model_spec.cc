#include "planner/plan/model/model_spec.h"

#include <algorithm>
#include <initializer_list>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/base/check.h"
#include "planner/base/float_bits.h"
#include "planner/base/strings.h"
#include "planner/plan/model/block_roles.h"
#include "planner/plan/model/family.h"
#include "planner/plan/model/kv_window.h"

namespace lime {
namespace {

constexpr char kMissingTensorMark[] = "lime/missing-tensor";
constexpr std::string_view kNestedPrefix = "language_model.model.";  // its head is "language_model.lm_head"
constexpr char kExpertNumber = '#';                                  // its place in a name (family.h)

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// The name for one expert. A name without a place for the number is for all of them.
std::string OfExpert(std::string_view stem, int64_t expert) {
  const size_t at = stem.find(kExpertNumber);
  if (at == std::string_view::npos) return std::string(stem);
  return absl::StrCat(Text(stem.substr(0, at)), expert, Text(stem.substr(at + 1)));
}

std::string LayerPrefix(std::string_view prefix, int32_t layer) {
  return absl::StrCat(Text(prefix), "layers.", layer, ".");
}

double Rounded(double x, DType dtype) {
  double rounded = 0;
  WithWorkingType(dtype, [&](auto type) { rounded = ToFloat(FromFloat<decltype(type)>(static_cast<float>(x))); });
  return rounded;
}

// Rows of a tensor that one role uses. A tensor may have rows of several roles, and of all experts:
// then its first dimension counts them.
struct Slice {
  int64_t first = 0;
  int64_t rows = 0;
  int64_t all = 0;
  int64_t stack = 0;  // experts in the tensor; 0: it has no such dimension

  // Of the tensor, with these sizes of a row.
  std::vector<int64_t> Shape(std::initializer_list<int64_t> row) const {
    std::vector<int64_t> shape = {all};
    if (stack > 0) shape = {stack, all / stack};
    shape.insert(shape.end(), row);
    return shape;
  }
};

// A matrix that every expert has, and where a checkpoint has it.
struct ExpertMatrix {
  const BlockRole* role = nullptr;
  std::string stem;  // with kExpertNumber if each expert has a tensor
  Slice slice;       // of expert 0
  int64_t cols = 0;
  bool bias = false;

  bool is_stacked() const { return stem.find(kExpertNumber) == std::string::npos; }
  std::string StemOf(int64_t expert) const { return OfExpert(stem, expert); }
  Slice SliceOf(int64_t expert, int64_t experts) const {
    if (!is_stacked()) return slice;
    return {slice.first + expert * slice.all, slice.rows, experts * slice.all, experts};
  }
};

// Collects the blocks of one checkpoint, and checks every tensor against the geometry.
class SpecBuilder {
 public:
  SpecBuilder(const ModelConfig& config, const TensorIndex& index, std::string_view name)
      : config_(config), family_(FamilyOf(config.model_type)), index_(index), name_(name) {}

  // For a model without a checkpoint: every tensor is as config.json implies, in `dtype`.
  SpecBuilder(const ModelConfig& config, DType dtype, std::string_view name)
      : config_(config), family_(FamilyOf(config.model_type)), index_(implied_), name_(name), implied_dtype_(dtype) {}

  absl::StatusOr<ModelSpec> Build() {
    FindNames();
    FindAlternation();
    AddBlock({BlockKind::kEmbedding, 0});
    for (int32_t layer = 0; layer < config_.num_layers(); ++layer) {
      AddBlock(AttentionBlockOf(config_, layer));
      AddBlock(MlpBlockOf(config_, layer));
      if (!status_.ok()) return status_;
    }
    AddBlock({BlockKind::kHead, 0});
    if (!working_) working_ = small_;
    CheckFormat();
    if (!status_.ok()) return status_;
    if (stored_offset_) config_.norm_offset = *stored_offset_;
    if (family_.scales_embedding) config_.embedding_multiplier = Rounded(config_.embedding_multiplier, *working_);
    return ModelSpec{config_, *working_, std::move(blocks_), prefix_, head_};
  }

 private:
  bool HasLayers(const std::string& prefix) const {
    const std::string begin = absl::StrCat(prefix, Text(family_.layer_list));
    const auto at = index_.lower_bound(begin);
    return at != index_.end() && at->first.starts_with(begin);
  }

  // The prefix with the embedding. A tied model may store its head alone: then that with layers.
  void FindNames() {
    const std::string_view embed = StemOf(BlockKind::kEmbedding, TensorRole::kTokenEmbedding);
    prefix_ = family_.prefixes.front();
    const auto choose = [&](const auto& matches) {
      for (const std::string_view prefix : family_.prefixes) {
        if (!matches(std::string(prefix))) continue;
        prefix_ = prefix;
        return true;
      }
      return false;
    };
    if (!choose([&](const std::string& prefix) { return index_.contains(absl::StrCat(prefix, Text(embed), ".weight")); }))
      choose([&](const std::string& prefix) { return HasLayers(prefix); });
    head_ = absl::StrCat(prefix_ == kNestedPrefix ? "language_model." : "", "lm_head");
    // As in transformers 5: if only the head is stored, the embedding uses its tensor.
    embedding_ = absl::StrCat(prefix_, Text(embed));
    if (config_.tie_embeddings && !index_.contains(embedding_ + ".weight") && index_.contains(head_ + ".weight")) embedding_ = head_;
  }

  // The family's name for a role, relative to the layer or to the prefix.
  std::string_view StemOf(BlockKind kind, TensorRole role) const {
    for (const TensorName& tensor : family_.tensors) {
      if (tensor.block == kind && tensor.role == role && (tensor.when == nullptr || config_.*tensor.when)) return tensor.stem;
    }
    LIME_CHECK(false) << family_.name << " has no name for role " << static_cast<int>(role);
    return {};
  }

  std::string NameOf(BlockId id, TensorRole role) const {
    if (role == TensorRole::kTokenEmbedding) return embedding_;
    if (role == TensorRole::kOutput) return config_.tie_embeddings ? embedding_ : head_;
    const std::string base = IsLayered(id.kind) ? absl::StrCat(prefix_, Text(family_.layer_list), id.layer, ".") : prefix_;
    return absl::StrCat(base, Text(StemOf(id.kind, role)));
  }

  // Of the family's names for a matrix of experts, the one that the checkpoint uses; if there is
  // none, the usual one.
  std::string ExpertStem(BlockId id, TensorRole role) const {
    std::string usual;
    bool usual_fits = false;
    for (const TensorName& tensor : family_.tensors) {
      if (tensor.block != id.kind || tensor.role != role) continue;
      std::string stem = absl::StrCat(LayerPrefix(prefix_, id.layer), Text(tensor.stem));
      const std::string first = OfExpert(stem, 0);
      const bool is_stack = first == stem;
      if (index_.contains(first + ".weight") || (is_stack && (index_.contains(stem) || index_.contains(stem + "_blocks")))) return stem;
      const bool fits = is_stack == family_.stacks_experts;
      if (usual.empty() || (fits && !usual_fits)) usual = std::move(stem), usual_fits = fits;
    }
    LIME_CHECK(!usual.empty()) << family_.name << " has no name for role " << static_cast<int>(role);
    return usual;
  }

  void AddBlock(BlockId id) {
    static const LayerConfig kNoLayer;
    const LayerConfig& layer = IsLayered(id.kind) ? config_.layer(id.layer) : kNoLayer;
    blocks_.push_back({.id = id, .tensors = {}});
    for (const BlockRole& role : RolesOf(id.kind)) {
      if (!role.per_expert && IsPresent(role, layer)) AddRole(id, role, layer);
    }
    if (id.kind == BlockKind::kExperts) AddExperts(ExpertMatrices(id, layer));
  }

  bool IsPresent(const BlockRole& role, const LayerConfig& layer) const {
    return (role.present == nullptr || role.present(config_)) && (role.of_layer == nullptr || role.of_layer(layer));
  }

  // The matrices of an expert. Those with one name share a tensor, as in SliceOf.
  std::vector<ExpertMatrix> ExpertMatrices(BlockId id, const LayerConfig& layer) const {
    std::vector<ExpertMatrix> matrices;
    for (const BlockRole& role : RolesOf(id.kind)) {
      if (!role.per_expert || !IsPresent(role, layer)) continue;
      const int64_t rows = role.rows(config_, layer);
      ExpertMatrix& matrix = matrices.emplace_back();
      matrix = {&role, ExpertStem(id, role.role), {0, rows, rows}, role.cols(config_, layer), role.has_bias && role.has_bias(config_)};
      for (ExpertMatrix& other : matrices) {
        if (&other == &matrix || other.stem != matrix.stem) continue;
        matrix.slice.first += other.slice.rows;
        matrix.slice.all = other.slice.all += rows;
      }
    }
    return matrices;
  }

  void AddExperts(const std::vector<ExpertMatrix>& matrices) {
    const int64_t experts = config_.experts->count;
    for (int64_t expert = 0; expert < experts && status_.ok(); ++expert) {
      expert_ = static_cast<int32_t>(expert);
      for (const ExpertMatrix& matrix : matrices) {
        AddLinear(matrix.role->role, matrix.StemOf(expert), matrix.SliceOf(expert, experts), matrix.cols, matrix.bias);
      }
    }
    expert_ = -1;
  }

  void AddRole(BlockId id, const BlockRole& role, const LayerConfig& layer) {
    const std::string stem = NameOf(id, role.role);
    const int64_t rows = role.rows(config_, layer), cols = role.cols == nullptr ? 0 : role.cols(config_, layer);
    switch (role.form) {
      case RoleForm::kMatrix:
        return AddLinear(role.role, stem, SliceOf(id, role, layer), cols, role.has_bias != nullptr && role.has_bias(config_));
      case RoleForm::kTable:
        return AddDense(role.role, TensorPart::kWeight, stem + ".weight", {0, rows, rows}, {rows, cols});
      case RoleForm::kNorm:
        return AddNorm(role.role, stem, rows);
      case RoleForm::kFilter:
        return AddFilter(role.role, stem + ".weight", rows, cols);
      case RoleForm::kVector:
        return AddSmall(role.role, TensorPart::kWeight, stem, {rows});
    }
  }

  // The rows of a matrix within its tensor: roles with the same name follow each other.
  Slice SliceOf(BlockId id, const BlockRole& role, const LayerConfig& layer) const {
    Slice slice;
    const std::string stem = NameOf(id, role.role);
    for (const BlockRole& other : RolesOf(id.kind)) {
      if (other.form != RoleForm::kMatrix || other.per_expert || !IsPresent(other, layer)) continue;
      if (NameOf(id, other.role) != stem) continue;
      const int64_t rows = other.rows(config_, layer);
      if (other.role == role.role) slice.first = slice.all, slice.rows = rows;
      slice.all += rows;
    }
    return slice;
  }

  void Fail(const std::string& message) {
    if (status_.ok()) status_ = Invalid(name_, ": ", message);
  }

  void CheckIsFloat(const std::string& tensor, DType dtype) {
    if (IsWorkingDType(dtype)) return;
    Fail(absl::StrCat("tensor ", tensor, " is ", Text(DTypeName(dtype)),
                      "; BF16, F16, F32, MLX affine groups, mxfp4 and FP8 with scales are supported"));
  }

  // The first matrix sets the working dtype, by its scales if it has affine groups. All other
  // matrices, their biases and tables must have the same. mxfp4 and FP8 fit to every working dtype.
  void CheckWorkingDType(const std::string& tensor, DType dtype) {
    CheckIsFloat(tensor, dtype);
    if (!working_) working_ = dtype;
    if (*working_ != dtype) {
      Fail(absl::StrCat("tensor ", tensor, " is ", Text(DTypeName(dtype)), ", but earlier tensors are ", Text(DTypeName(*working_)),
                        "; one dtype for all is supported"));
    }
  }

  // The remedy for a missing tensor.
  std::string Remedy(std::string_view tensor) const {
    if (tensor == head_ + ".weight")
      return ", because config.json does not set tie_word_embeddings; a checkpoint of the base model alone has no head: download the "
             "checkpoint of the whole model";
    const std::string_view inner = tensor.substr(std::min(prefix_.size(), tensor.size()));
    for (const auto& [name, info] : index_) {
      if (!name.ends_with(absl::StrCat(".", Text(inner))) || name == tensor) continue;
      return absl::StrCat(", but the file has ", absl::CEscape(name.substr(0, 120)), "; save the weights with the names of that class");
    }
    return "; download all files of the weights again";
  }

  const TensorInfo* Find(const std::string& tensor) {
    const auto found = index_.find(tensor);
    if (found != index_.end()) return &found->second;
    const bool first = status_.ok();
    Fail(absl::StrCat("tensor ", tensor, " is missing; ", config_.architecture, " needs it", Remedy(tensor)));
    if (first) status_.SetPayload(kMissingTensorMark, absl::Cord(tensor));
    return nullptr;
  }

  // Adds the rows of `slice`. `info` is of the whole tensor.
  void Push(TensorRole role, TensorPart part, const std::string& tensor, TensorInfo info, const Slice& slice) {
    BlockSpec& block = blocks_.back();
    const Bytes row_bytes = slice.all == 0 ? 0 : info.bytes / slice.all;
    if (slice.stack > 0) info.shape.erase(info.shape.begin());
    if (slice.rows != slice.all) info.shape[0] = slice.rows, info.bytes = slice.rows * row_bytes;
    block.bytes += info.bytes;
    block.tensors.push_back({role, part, tensor, std::move(info), slice.first * row_bytes, expert_});
  }

  void Imply(const std::string& tensor, DType dtype, std::vector<int64_t> shape) {
    Bytes bytes = ElementBytes(dtype);
    for (const int64_t n : shape) bytes *= n;
    implied_[tensor] = {dtype, std::move(shape), bytes};
  }

  // The paths by which config.json may mean a module: the checkpoint that it belongs to may have
  // another prefix.
  std::vector<std::string> PathsOf(const std::string& stem) const {
    const std::string_view inner = std::string_view(stem).substr(stem.starts_with(prefix_) ? prefix_.size() : 0);
    std::vector<std::string> paths;
    for (const std::string_view prefix : family_.prefixes) paths.push_back(absl::StrCat(Text(prefix), Text(inner)));
    return paths;
  }

  // What config.json states of this module alone; null: nothing.
  const std::optional<Quantization>* OwnPacking(const std::string& stem) const {
    for (const std::string& path : PathsOf(stem)) {
      const auto own = config_.quantization_of.find(path);
      if (own != config_.quantization_of.end()) return &own->second;
    }
    return nullptr;
  }

  std::optional<Quantization> ImpliedPacking(const std::string& stem) const {
    if (const std::optional<Quantization>* own = OwnPacking(stem)) return *own;
    const bool dense = std::ranges::any_of(PathsOf(stem), [this](const std::string& path) { return IsInDenseModule(path); });
    return dense ? std::nullopt : config_.quantization;
  }

  bool IsInDenseModule(std::string_view path) const {
    for (size_t dot = path.rfind('.'); dot != std::string_view::npos; dot = path.rfind('.')) {
      path = path.substr(0, dot);
      const auto module = config_.quantization_of.find(path);
      if (module != config_.quantization_of.end() && !module->second) return true;
    }
    return false;
  }

  // What the methods of Hugging Face pack of what config.json states: mxfp4 only experts, FP8 all but
  // tables, the head and routers.
  std::optional<Quantization> ImpliedFormat(TensorRole role, const std::string& stem) const {
    const std::optional<Quantization> packing = ImpliedPacking(stem);
    if (!packing || config_.quantization_method.empty()) return packing;
    if (packing->code == WeightCode::kMxfp4 && expert_ < 0) return std::nullopt;
    const bool stays_dense = role == TensorRole::kTokenEmbedding || role == TensorRole::kOutput || role == TensorRole::kRouter ||
                             role == TensorRole::kSharedScale;
    return stays_dense ? std::nullopt : packing;
  }

  // A stack of matrices may have its name without ".weight".
  std::string WeightOf(const std::string& stem, const Slice& slice) const {
    std::string weight = stem + ".weight";
    return slice.stack > 0 && !index_.contains(weight) ? stem : weight;
  }

  void ImplyMatrix(TensorRole role, const std::string& stem, const Slice& slice, int64_t cols) {
    const std::optional<Quantization> packing = ImpliedFormat(role, stem);
    if (!packing) return Imply(WeightOf(stem, slice), *implied_dtype_, slice.Shape({cols}));
    const int group_size = packing->code == WeightCode::kFp8 ? kFp8Columns : packing->group_size;
    if (cols % group_size != 0) {
      return Fail(
          absl::StrCat("tensor ", stem, ".weight has ", cols, " columns, not a multiple of the quantisation group of ", group_size));
    }
    switch (packing->code) {
      case WeightCode::kAffine:
        return ImplyAffine(stem, slice, cols, *packing);
      case WeightCode::kMxfp4:
        return ImplyMxfp4(stem, slice, cols);
      case WeightCode::kFp8:
        return ImplyFp8(stem, slice, cols, packing->scales);
    }
  }

  void ImplyAffine(const std::string& stem, const Slice& slice, int64_t cols, const Quantization& packing) {
    const int bits = packing.bits, group_size = packing.group_size;
    Imply(stem + ".weight", DType::kU32, slice.Shape({cols * bits / 32}));
    Imply(stem + ".scales", *implied_dtype_, slice.Shape({cols / group_size}));
    Imply(stem + ".biases", *implied_dtype_, slice.Shape({cols / group_size}));
  }

  void ImplyMxfp4(const std::string& stem, const Slice& slice, int64_t cols) {
    const int64_t groups = cols / kMxfp4.group_size;
    if (config_.quantization_method.empty()) {  // MLX
      Imply(stem + ".weight", DType::kU32, slice.Shape({cols / 8}));
      Imply(stem + ".scales", DType::kU8, slice.Shape({groups}));
    } else {
      Imply(stem + "_blocks", DType::kU8, slice.Shape({groups, kMxfp4.group_size / 2}));
      Imply(stem + "_scales", DType::kU8, slice.Shape({groups}));
    }
  }

  void ImplyFp8(const std::string& stem, const Slice& slice, int64_t cols, ScaleShape scales) {
    Imply(WeightOf(stem, slice), DType::kF8E4M3, slice.Shape({cols}));
    if (scales == ScaleShape::kBlocks) {
      const char* const name = config_.quantization_method == "compressed-tensors" ? ".weight_scale" : ".weight_scale_inv";
      return Imply(stem + name, DType::kF32, Fp8Blocks(slice).Shape({BlocksOf(cols)}));
    }
    const bool one = scales == ScaleShape::kMatrix && slice.stack == 0;
    Imply(stem + ".weight_scale", *implied_dtype_, one ? std::vector<int64_t>{1} : slice.Shape({1}));
  }

  // The tensor, or null after a failure.
  const TensorInfo* FindShaped(const std::string& tensor, const std::vector<int64_t>& shape) {
    if (implied_dtype_ && !index_.contains(tensor)) Imply(tensor, *implied_dtype_, shape);
    const TensorInfo* info = Find(tensor);
    if (info == nullptr || info->shape == shape) return info;
    Fail(absl::StrCat("tensor ", tensor, " has shape ", ShapeText(info->shape), ", but config.json implies ", ShapeText(shape)));
    return nullptr;
  }

  void AddDense(TensorRole role, TensorPart part, const std::string& tensor, const Slice& slice, const std::vector<int64_t>& shape) {
    const TensorInfo* info = FindShaped(tensor, shape);
    if (info == nullptr) return;
    CheckWorkingDType(tensor, info->dtype);
    Push(role, part, tensor, *info, slice);
  }

  // Adds rows of a matrix with `cols` columns, in the format that the checkpoint has.
  void AddMatrix(TensorRole role, const std::string& stem, const Slice& slice, int64_t cols) {
    if (implied_dtype_) ImplyMatrix(role, stem, slice, cols);
    if (index_.contains(stem + "_blocks")) return AddMxfp4Blocks(role, stem, slice, cols);
    const std::string fp8_scales = Fp8Scales(stem, slice);
    if (!fp8_scales.empty()) return AddFp8(role, WeightOf(stem, slice), fp8_scales, slice, cols);
    if (!index_.contains(stem + ".scales")) return AddDense(role, TensorPart::kWeight, WeightOf(stem, slice), slice, slice.Shape({cols}));
    AddGroups(role, stem, slice, cols);
  }

  // As MLX stores affine groups and mxfp4, which has no biases.
  void AddGroups(TensorRole role, const std::string& stem, const Slice& slice, int64_t cols) {
    const TensorInfo* packed = Find(stem + ".weight");
    const TensorInfo* scales = Find(stem + ".scales");
    if (packed == nullptr || scales == nullptr) return;
    const bool is_mxfp4 = scales->dtype == DType::kU8;
    const TensorInfo* biases = is_mxfp4 ? scales : Find(stem + ".biases");
    if (biases == nullptr) return;
    if (!HasRows(*packed, slice) || !HasRows(*scales, slice) || biases->shape != scales->shape) {
      return Fail(absl::StrCat("tensor ", stem, ".weight has shape ", ShapeText(packed->shape), " with scales ", ShapeText(scales->shape),
                               is_mxfp4 ? "" : absl::StrCat(" and biases ", ShapeText(biases->shape)), ", but config.json implies ",
                               RowsText(slice)));
    }
    const absl::StatusOr<Quantization> packing = PackingOf(*packed, *scales, cols);
    if (!packing.ok()) return Fail(absl::StrCat("tensor ", stem, ".weight: ", packing.status().message()));
    const std::optional<Quantization>* own = OwnPacking(stem);
    if (!is_mxfp4 && own != nullptr && *own && (*own)->code == WeightCode::kMxfp4)
      return Fail(absl::StrCat("config.json states the quantisation mode \"mxfp4\" of ", stem,
                               ", but its weights are affine groups; correct its \"mode\" in \"quantization\""));
    if (!is_mxfp4) CheckWorkingDType(stem + ".scales", scales->dtype), CheckWorkingDType(stem + ".biases", biases->dtype);
    found_codes_.insert(packing->code);
    Push(role, TensorPart::kWeight, stem + ".weight", *packed, slice);
    Push(role, TensorPart::kScales, stem + ".scales", *scales, slice);
    if (!is_mxfp4) Push(role, TensorPart::kGroupBiases, stem + ".biases", *biases, slice);
  }

  // mxfp4 as gpt-oss stores it: [experts, rows, groups, 16] bytes.
  void AddMxfp4Blocks(TensorRole role, const std::string& stem, const Slice& slice, int64_t cols) {
    const std::string blocks_name = stem + "_blocks", scales_name = stem + "_scales";
    if (cols % kMxfp4.group_size != 0)
      return Fail(absl::StrCat("tensor ", blocks_name, " has ", cols, " columns; mxfp4 with a multiple of 32 columns is supported"));
    const int64_t groups = cols / kMxfp4.group_size;
    const TensorInfo* blocks = FindShaped(blocks_name, slice.Shape({groups, kMxfp4.group_size / 2}));
    const TensorInfo* scales = FindShaped(scales_name, slice.Shape({groups}));
    if (blocks == nullptr || scales == nullptr) return;
    if (blocks->dtype != DType::kU8 || scales->dtype != DType::kU8) {
      return Fail(absl::StrCat("tensor ", blocks_name, " is ", Text(DTypeName(blocks->dtype)), " with scales of ",
                               Text(DTypeName(scales->dtype)), "; mxfp4 of U8 is supported"));
    }
    TensorInfo bytes = *blocks;
    bytes.shape = slice.Shape({cols / 2});
    found_codes_.insert(WeightCode::kMxfp4);
    Push(role, TensorPart::kWeight, blocks_name, std::move(bytes), slice);
    Push(role, TensorPart::kScales, scales_name, *scales, slice);
  }

  // The scales of an FP8 matrix; empty: it has none.
  std::string Fp8Scales(const std::string& stem, const Slice& slice) const {
    for (const char* name : {".weight_scale_inv", ".weight_scale"}) {
      if (index_.contains(stem + name)) return stem + name;
    }
    return slice.stack > 0 && index_.contains(stem + "_scale_inv") ? stem + "_scale_inv" : "";
  }

  static int64_t BlocksOf(int64_t size) { return (size + kFp8Block - 1) / kFp8Block; }

  // The rows of scales of blocks that belong to `slice`, which begins at a block.
  static Slice Fp8Blocks(const Slice& slice) {
    const int64_t matrices = std::max<int64_t>(1, slice.stack), rows = slice.all / matrices, blocks = BlocksOf(rows);
    return {slice.first / rows * blocks + slice.first % rows / kFp8Block, BlocksOf(slice.rows), matrices * blocks, slice.stack};
  }

  void AddFp8(TensorRole role, const std::string& weight, const std::string& scales_name, const Slice& slice, int64_t cols) {
    const TensorInfo* codes = FindShaped(weight, slice.Shape({cols}));
    const TensorInfo* scales = Find(scales_name);
    if (codes == nullptr || scales == nullptr) return;
    if (codes->dtype != DType::kF8E4M3)
      return Fail(
          absl::StrCat("tensor ", weight, " is ", Text(DTypeName(codes->dtype)), " beside ", scales_name, "; F8_E4M3 is supported"));
    if (role == TensorRole::kTokenEmbedding)
      return Fail(absl::StrCat("tensor ", weight, " is F8_E4M3; an embedding of FP8 is not supported"));
    const absl::StatusOr<Quantization> format = PackingOf(OneOf(*codes, slice), OneOf(*scales, slice), cols);
    if (!format.ok()) return Fail(absl::StrCat("tensor ", weight, " ", format.status().message()));
    const bool cuts_block =
        format->scales == ScaleShape::kBlocks && slice.first % (slice.all / std::max<int64_t>(1, slice.stack)) % kFp8Block != 0;
    if (cuts_block || (format->scales == ScaleShape::kMatrix && slice.stack > 0)) {
      return Fail(absl::StrCat("tensor ", scales_name,
                               " has scales that several matrices share; FP8 matrices with scales of their own are "
                               "supported"));
    }
    found_codes_.insert(WeightCode::kFp8);
    Push(role, TensorPart::kWeight, weight, *codes, slice);
    const bool of_blocks = format->scales == ScaleShape::kBlocks;
    Push(role, TensorPart::kPinnedScales, scales_name, *scales,
         format->scales == ScaleShape::kMatrix ? Slice{0, 1, 1}
         : of_blocks                           ? Fp8Blocks(slice)
                                               : slice);
  }

  // A tensor of a stack without the dimension of the matrices.
  static TensorInfo OneOf(TensorInfo info, const Slice& slice) {
    if (slice.stack > 0 && !info.shape.empty()) info.shape.erase(info.shape.begin());
    return info;
  }

  // Whether this is a model of MLX without a checkpoint.
  bool ImpliesMlx() const { return implied_dtype_ && config_.quantization && config_.quantization_method.empty(); }

  // gpt-oss of MLX has gate and up apart.
  void FindAlternation() {
    if (!config_.experts || !config_.experts->alternates) return;
    const auto sparse = std::ranges::find(config_.layers, true, &LayerConfig::experts);
    const BlockId first = {BlockKind::kExperts, static_cast<int32_t>(sparse - config_.layers.begin())};
    config_.experts->alternates = !ImpliesMlx() && !index_.contains(OfExpert(ExpertStem(first, TensorRole::kGate), 0) + ".weight");
  }

  // Refuses a config.json that states a format by which no tensor is stored. Affine groups may be
  // others than stated, or none: the tensors show what they are.
  void CheckFormat() {
    if (!status_.ok() || !config_.quantization || config_.quantization->code == WeightCode::kAffine) return;
    if (found_codes_.contains(config_.quantization->code)) return;
    const std::string& method = config_.quantization_method;
    Fail(absl::StrCat(
        method.empty() ? "quantisation mode \"mxfp4" : absl::StrCat("quantisation method \"", method),
        "\" is not supported as config.json states it: no weights are ",
        config_.quantization->code == WeightCode::kFp8 ? "F8_E4M3 with weight_scale_inv or weight_scale" : "mxfp4 blocks",
        method.empty() ? "; correct \"mode\" in \"quantization\", or remove \"quantization\"" : "; remove \"quantization_config\"",
        " from config.json if the weights are dense"));
  }

  // Whether a matrix, or a stack of them, has these rows.
  static bool HasRows(const TensorInfo& info, const Slice& slice) {
    return !info.shape.empty() && slice.Shape({info.shape.back()}) == info.shape;
  }

  static std::string RowsText(const Slice& slice) {
    return slice.stack > 0 ? absl::StrCat(slice.stack, " matrices of ", slice.all / slice.stack, " rows")
                           : absl::StrCat(slice.all, " rows");
  }

  void AddLinear(TensorRole role, const std::string& stem, const Slice& slice, int64_t cols, bool bias) {
    AddMatrix(role, stem, slice, cols);
    // A stack may have its bias as "NAME_bias", but not that of MLX.
    const bool joined = slice.stack > 0 && !ImpliesMlx() && !index_.contains(stem + ".bias");
    if (bias) AddDense(role, TensorPart::kBias, stem + (joined ? "_bias" : ".bias"), slice, slice.Shape({}));
  }

  // A small tensor may have any floating dtype.
  void AddSmall(TensorRole role, TensorPart part, const std::string& tensor, const std::vector<int64_t>& shape) {
    const TensorInfo* info = FindShaped(tensor, shape);
    if (info == nullptr) return;
    CheckIsFloat(tensor, info->dtype);
    if (!small_) small_ = info->dtype;
    Push(role, part, tensor, *info, {0, shape[0], shape[0]});
  }

  void AddNorm(TensorRole role, const std::string& stem, int64_t size) {
    AddSmall(role, TensorPart::kWeight, stem + ".weight", {size});
    if (config_.norm != NormKind::kLayer || !status_.ok()) return;
    const DType dtype = blocks_.back().tensors.back().info.dtype;
    AddSmall(role, TensorPart::kBias, stem + ".bias", {size});
    if (!status_.ok()) return;
    const DType of_bias = blocks_.back().tensors.back().info.dtype;
    if (of_bias != dtype) {
      Fail(absl::StrCat("tensor ", stem, ".bias is ", Text(DTypeName(of_bias)), ", but its weight is ", Text(DTypeName(dtype)),
                        "; one dtype for both is supported"));
    }
  }

  // MLX turns the filters of a convolution, and adds the offset to the norms of the same files.
  void AddFilter(TensorRole role, const std::string& tensor, int64_t rows, int64_t width) {
    const auto found = index_.find(tensor);
    const bool turned = found != index_.end() && found->second.shape == std::vector<int64_t>{rows, width, 1};
    AddSmall(role, TensorPart::kWeight, tensor, turned ? std::vector<int64_t>{rows, width, 1} : std::vector<int64_t>{rows, 1, width});
    const double offset = turned ? 0 : config_.norm_offset;
    if (stored_offset_ && *stored_offset_ != offset)
      Fail(absl::StrCat("tensor ", tensor, " has another layout than those of other layers"));
    stored_offset_ = offset;
  }

  ModelConfig config_;
  const Family& family_;
  TensorIndex implied_;
  const TensorIndex& index_;
  const std::string name_;
  const std::optional<DType> implied_dtype_;
  std::string prefix_, head_, embedding_;
  std::optional<DType> working_;
  std::optional<DType> small_;  // of the first small tensor: the working dtype if no matrix states one
  std::set<WeightCode> found_codes_;
  std::optional<double> stored_offset_;  // of the norms, as far as a tensor shows it
  std::vector<BlockSpec> blocks_;
  int32_t expert_ = -1;  // whose tensors are being added; -1: of none
  absl::Status status_;
};

// What follows the name of a parameter.
std::string_view SuffixOf(TensorPart part) {
  switch (part) {
    case TensorPart::kWeight:
      return ".weight";
    case TensorPart::kBias:
      return ".bias";
    case TensorPart::kScales:
      return ".scales";
    case TensorPart::kGroupBiases:
      return ".biases";
    case TensorPart::kPinnedScales:
      return ".weight_scale_inv";
  }
  return "";
}

}  // namespace

std::string BlockName(BlockId id) {
  const std::string name(InfoOf(id.kind).name);
  return IsLayered(id.kind) ? absl::StrCat(name, " ", id.layer) : name;
}

BlockId AttentionBlockOf(const ModelConfig& config, int32_t layer) {
  return {config.layer(layer).has_kv() ? BlockKind::kAttention : BlockKind::kLinearAttention, layer};
}

BlockId MlpBlockOf(const ModelConfig& config, int32_t layer) {
  return {config.layer(layer).experts ? BlockKind::kExperts : BlockKind::kMlp, layer};
}

std::span<const TensorSpec> BlockSpec::OfExpert(int32_t expert) const {
  const auto begin = std::ranges::lower_bound(tensors, expert, {}, &TensorSpec::expert);
  const auto end = std::ranges::upper_bound(begin, tensors.end(), expert, {}, &TensorSpec::expert);
  return {begin, end};
}

std::optional<size_t> BlockSpec::Find(TensorRole role, TensorPart part, int32_t expert) const {
  for (const TensorSpec& tensor : OfExpert(expert)) {
    if (tensor.role == role && tensor.part == part) return static_cast<size_t>(&tensor - tensors.data());
  }
  return std::nullopt;
}

const BlockSpec& ModelSpec::block(BlockId id) const {
  for (const BlockSpec& block : blocks) {
    if (block.id == id) return block;
  }
  LIME_CHECK(false) << "no block " << BlockName(id);
  return blocks.front();
}

Bytes ModelSpec::WeightBytes() const {
  Bytes bytes = 0;
  for (const BlockSpec& block : blocks) {
    for (const TensorSpec& tensor : block.tensors) {
      if (tensor.role != TensorRole::kOutput || !config.tie_embeddings) bytes += tensor.info.bytes;
    }
  }
  return bytes;
}

int64_t ModelSpec::NumKvLayers() const {
  return std::ranges::count_if(config.layers, &LayerConfig::has_kv);
}

Bytes ModelSpec::KvPageBytes() const {
  int64_t most_cols = 0;
  for (int64_t layer = 0; layer < config.num_layers(); ++layer) most_cols = std::max(most_cols, config.kept_cols(layer));
  return kPageTokens * most_cols * ElementBytes(working_dtype);
}

Bytes ModelSpec::KvBytesPerToken() const {
  return KvPageBytes() / kPageTokens * NumKvLayers();
}

int64_t ModelSpec::KvPages(int64_t positions, int64_t rows) const {
  int64_t pages = 0;
  for (const LayerConfig& layer : config.layers) {
    const int64_t all = KvPagesFor(positions);
    if (layer.has_kv()) pages += layer.window > 0 ? std::min(all, WindowPages(layer.window, rows)) : all;
  }
  return pages;
}

Bytes ModelSpec::StateBytes(int64_t layer) const {
  if (config.layer(layer).has_kv()) return 0;
  constexpr Bytes kLine = 64;
  const LinearAttentionConfig& linear = *config.linear_attention;
  const int64_t heads = linear.value_heads * linear.key_dim * linear.value_dim;
  const int64_t inputs = (linear.conv_width - 1) * linear.conv_cols();
  return kLine + RoundUp((heads + inputs) * ElementBytes(DType::kF32), kLine);
}

absl::StatusOr<ModelSpec> ModelSpec::Build(const ModelConfig& config, const TensorIndex& index, std::string_view name) {
  return SpecBuilder(config, index, name).Build();
}

absl::StatusOr<ModelSpec> ModelSpec::FromConfig(const ModelConfig& config, DType dtype, std::string_view name) {
  return SpecBuilder(config, dtype, name).Build();
}

std::string NameApart(const ModelSpec& spec, BlockId block, const TensorSpec& tensor) {
  if (tensor.expert < 0) return tensor.name;
  for (const TensorName& name : FamilyOf(spec.config.model_type).tensors) {
    if (name.block != block.kind || name.role != tensor.role || name.stem.find(kExpertNumber) == std::string_view::npos) continue;
    return absl::StrCat(LayerPrefix(spec.tensor_prefix, block.layer), OfExpert(name.stem, tensor.expert), Text(SuffixOf(tensor.part)));
  }
  return tensor.name;
}

std::string MissingTensor(const absl::Status& status) {
  const auto tensor = status.GetPayload(kMissingTensorMark);
  return tensor ? std::string(*tensor) : "";
}

}  // namespace lime
