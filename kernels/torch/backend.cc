// The backend "torch": decoder blocks with ATen's operators, and the module's two exported
// functions.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/check_batch.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/rope.h"
#include "kernels/registry/registry.h"
#include "kernels/torch/ops.h"
#include "planner/base/check.h"

namespace lime::torch_ops {
namespace {

// ---- The blocks of a decoder: the forward pass of kernels/cpu_backend/decoder.h, written for
// comparison, not for speed

// The rows of a micro-batch, [rows] int32 each.
struct BatchRows {
  at::Tensor tokens, slots, positions;
};

// cos and sin of every position, [positions, half] fp32 each; undefined if a layer has no rotation.
struct RopeTensors {
  at::Tensor cos, sin;
};

// RMSNorm, or LayerNorm for families that have it.
struct Norm {
  at::Tensor weight;  // [width]; undefined in a LayerNorm without affine parameters
  at::Tensor bias;    // [width]; LayerNorm only
  double eps = 0;
  double offset = 0;     // RMSNorm: added to the weights
  bool centred = false;  // LayerNorm

  at::Tensor Forward(const at::Tensor& x) const {
    return centred ? LayerNorm(x, weight, bias, eps) : RmsNorm(x, weight.to(at::kFloat) + offset, eps);
  }
};

// x + multiplier y, rounded once.
at::Tensor Add(const at::Tensor& x, const at::Tensor& y, double multiplier) {
  return (x.to(at::kFloat) + y * multiplier).to(x.scalar_type());
}

// x: [rows, hidden] working dtype: the residual stream. Every block returns a new one.
struct EmbeddingBlock {
  LinearWeight table;         // [vocab, hidden]
  at::Tensor position_table;  // [positions + offset, hidden], or undefined
  int64_t position_offset = 0;
  double multiplier = 1;

  at::Tensor Forward(const BatchRows& batch, int64_t hidden, at::ScalarType working) const {
    const at::Tensor x = Embed(batch.tokens, table, hidden, batch.positions, position_table, position_offset);
    return (x * multiplier).to(working);  // [tokens, hidden]
  }
};

struct AttentionBlock {
  Norm norm;
  LinearWeight q, k, v, o;
  at::Tensor q_norm, k_norm;  // [head_dim], or undefined
  LayerConfig sizes;
  double score_scale = 0;  // 0: 1 / sqrt(head_dim)
  double residual_multiplier = 1;

  // Appends this step's K and V to `kv`.
  at::Tensor Forward(const at::Tensor& x, const BatchRows& batch, const KvLayer& kv, const RopeTensors& rope) const {
    const at::Tensor normed = norm.Forward(x);                         // [tokens, hidden]
    at::Tensor queries = Linear(normed, q), keys = Linear(normed, k);  // [tokens, heads * head_dim], [tokens, kv_heads * head_dim]
    if (q_norm.defined()) {
      queries = HeadRmsNorm(queries, q_norm.to(at::kFloat) + norm.offset, norm.eps);
      keys = HeadRmsNorm(keys, k_norm.to(at::kFloat) + norm.offset, norm.eps);
    }
    if (rope.cos.defined()) {
      queries = Rope(queries, sizes.head_dim, batch.positions, rope.cos, rope.sin);
      keys = Rope(keys, sizes.head_dim, batch.positions, rope.cos, rope.sin);
    }
    KvAppend(keys, Linear(normed, v), batch.slots, batch.positions, kv);
    const at::Tensor attended = Attend(queries, batch.slots, batch.positions, kv, sizes.window, score_scale);
    return Add(x, Linear(attended, o), residual_multiplier);  // [tokens, hidden]
  }
};

struct MlpBlock {
  Norm norm;
  std::optional<LinearWeight> gate;  // nothing in a two-matrix MLP
  LinearWeight up, down;
  Activation activation = Activation::kSilu;
  double activation_limit = 0;
  double residual_multiplier = 1;

  at::Tensor Forward(const at::Tensor& x) const {
    const at::Tensor normed = norm.Forward(x), wide = Linear(normed, up);  // [tokens, hidden], [tokens, intermediate]
    const at::Tensor mixed =
        gate ? GatedActivation(Linear(normed, *gate), wide, activation, activation_limit) : PlainActivation(wide, activation);
    return Add(x, Linear(mixed.to(x.scalar_type()), down), residual_multiplier);
  }
};

struct HeadBlock {
  std::optional<Norm> norm;
  LinearWeight output;  // [vocab, hidden]
  double divisor = 1;   // of the logits

  // x: [logit rows, hidden].   Returns [logit rows, rows of `weight`] fp32; `weight` is the output,
  // or some rows of it.
  at::Tensor Forward(const at::Tensor& x, const LinearWeight& weight) const {
    return Linear(norm ? norm->Forward(x) : x, weight) / divisor;
  }
};

// ----

at::ScalarType ToTorch(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return at::kBFloat16;
    case DType::kF16:
      return at::kHalf;
    case DType::kU32:
      return at::kInt;
    default:
      return at::kFloat;
  }
}

// A view of memory that `storage` keeps alive. With null data it has only a size.
at::Tensor View(const TensorInfo& info, const std::byte* data, const std::shared_ptr<const void>& storage) {
  return at::from_blob(
      const_cast<std::byte*>(data), info.shape, [storage](void*) {}, at::TensorOptions().dtype(ToTorch(info.dtype)));
}

// Rows of the same kind as `like`, at `data`. Undefined if `like` is.
at::Tensor RowsLike(const at::Tensor& like, const std::byte* data, int64_t rows) {
  return like.defined() ? at::from_blob(const_cast<std::byte*>(data), {rows, like.size(1)}, like.options()) : at::Tensor();
}

// A layer of only the rows that have arrived.
LinearWeight PartOf(const LinearWeight& whole, const RowsInMemory& from) {
  const int64_t begin = from.rows.begin, end = from.rows.end, rows = end - begin;
  return {.weight = RowsLike(whole.weight, from.weight, rows),
          .bias = whole.bias.defined() ? whole.bias.slice(0, begin, end) : whole.bias,
          .scales = RowsLike(whole.scales, from.scales, rows),
          .biases = RowsLike(whole.biases, from.biases, rows),
          .bits = whole.bits,
          .group_size = whole.group_size};
}

// Copies rows of a streamed layer into memory of its own, until the block has all of them. The
// first rows allocate that memory.
void Gather(const RowsInMemory& from, LinearWeight& into) {
  const LinearWeight part = PartOf(into, from);
  const auto gather = [&](const at::Tensor& rows, at::Tensor& whole) {
    if (!whole.defined()) return;
    if (from.rows.begin == 0) whole = at::empty(whole.sizes(), whole.options());
    whole.slice(0, from.rows.begin, from.rows.end).copy_(rows);
  };
  gather(part.weight, into.weight);
  gather(part.scales, into.scales);
  gather(part.biases, into.biases);
}

// Finds the tensors of one block by role.
class BlockBinder {
 public:
  BlockBinder(const BlockSpec& spec, const BlockWeights& weights) : spec_(spec), weights_(weights) {}

  bool Has(TensorRole role) const { return spec_.Find(role, TensorPart::kWeight).has_value(); }

  at::Tensor Get(TensorRole role, TensorPart part = TensorPart::kWeight) const {
    const std::optional<size_t> i = spec_.Find(role, part);
    return i ? View(spec_.tensors[*i].info, weights_.tensors[*i], weights_.storage) : at::Tensor();
  }

  // `cols`: number of input features, which a packed weight does not state.
  LinearWeight Layer(TensorRole role, int64_t cols) const {
    LinearWeight layer{.weight = Get(role), .bias = Get(role, TensorPart::kBias)};
    if (const std::optional<size_t> scales = spec_.Find(role, TensorPart::kScales)) {
      const absl::StatusOr<Quantization> packing =
          PackingOf(spec_.tensors[*spec_.Find(role, TensorPart::kWeight)].info, spec_.tensors[*scales].info, cols);
      LIME_CHECK(packing.ok()) << packing.status().message();  // ModelSpec::Build has checked it
      layer.scales = Get(role, TensorPart::kScales);
      layer.biases = Get(role, TensorPart::kGroupBiases);
      layer.bits = packing->bits;
      layer.group_size = packing->group_size;
    }
    return layer;
  }

  Norm ReadNorm(const ModelConfig& config) const {
    return {.weight = Get(TensorRole::kNorm),
            .bias = Get(TensorRole::kNorm, TensorPart::kBias),
            .eps = config.norm_eps,
            .offset = config.norm_offset,
            .centred = config.norm == NormKind::kLayer};
  }

 private:
  const BlockSpec& spec_;
  const BlockWeights& weights_;
};

// One for each of ModelConfig::ropes.
std::vector<RopeTensors> MakeRopes(const ModelConfig& config, int64_t positions) {
  std::vector<RopeTensors> ropes;
  for (const RopeConfig& rope : config.ropes) {
    const cpu::RopeTable table(rope, positions);
    const auto copy = [&](const float* data) {
      return at::from_blob(const_cast<float*>(data), {positions, table.half()}, at::kFloat).clone();
    };
    ropes.push_back({.cos = copy(table.cos()), .sin = copy(table.sin())});
  }
  return ropes;
}

absl::Status Unsupported(const char* what) {
  return absl::UnimplementedError(absl::StrCat("the backend torch does not compute ", what, "; use --backend cpu"));
}

// Refuses by name what the blocks here do not compute.
absl::Status CheckFormats(const ModelSpec& spec) {
  for (const BlockSpec& block : spec.blocks) {
    for (const TensorSpec& tensor : block.tensors) {
      const bool is_mxfp4 = tensor.part == TensorPart::kScales && tensor.info.dtype == DType::kU8;
      if (is_mxfp4 || tensor.part == TensorPart::kPinnedScales) return Unsupported(is_mxfp4 ? "weights of mxfp4" : "weights of FP8");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSupported(const ModelConfig& config, const BackendOptions& options) {
  if (config.experts) return Unsupported("experts");
  if (config.latent_attention) return Unsupported("attention over latents");
  if (config.value_norm) return Unsupported("norms of values");
  if (config.sinks) return Unsupported("attention with sinks");
  if (config.after_norms) return Unsupported("norms after a block");
  if (config.parallel_halves) return Unsupported("halves of a layer that read the same input");
  if (config.score_cap != 0 || config.logits_cap != 0) return Unsupported("caps of scores or logits");
  if (config.qk_norm_all_heads) return Unsupported("norms over all heads of q and k");
  if (config.activation != Activation::kSilu && !MakesZeros(config.activation)) return Unsupported("activations other than SiLU and ReLU");
  for (const RopeConfig& rope : config.ropes) {
    if (rope.query_beta != 0) return Unsupported("queries that grow with the position");
    if (rope.type == RopeType::kLongRope) return Unsupported("the rotation longrope");
  }
  for (size_t layer = 0; layer < config.layers.size(); ++layer) {
    if (config.layers[layer].attention == AttentionKind::kLinear)
      return absl::UnimplementedError(
          absl::StrCat("the backend torch does not compute linear attention (layer ", layer, "); use --backend cpu"));
  }
  for (const RopeConfig& rope : config.ropes) {
    if (rope.query_beta != 0)
      return absl::UnimplementedError("the backend torch does not compute queries that grow with the position; use --backend cpu");
  }
  if (config.attention_gate) return absl::UnimplementedError("the backend torch does not compute attention with gates; use --backend cpu");
  if (options.attends_pieces || options.attends_for_others)
    return absl::UnimplementedError(
        "the backend \"torch\" computes attention only over KV in its own memory; plan without KV on a disk or on another device, or use "
        "the backend "
        "\"cpu\"");
  return absl::OkStatus();
}

// Approximate peak memory of a step: its tensors in fp32, an operator's input and output, some rows
// of a weight, and a streamed block that is being collected.
Bytes StepBytes(const ModelSpec& spec, const BackendOptions& options) {
  const ModelConfig& config = spec.config;
  const int64_t q_cols = config.num_heads * config.MostHeadDim(), intermediate = config.MostIntermediate();
  Bytes block_bytes = 0, rope_bytes = 0;
  for (const BlockSpec& block : spec.blocks) {
    if (IsLayered(block.id.kind)) block_bytes = std::max(block_bytes, block.bytes);
  }
  for (const RopeConfig& rope : config.ropes) rope_bytes += cpu::RopeTable::BytesFor(rope, options.context);
  const int64_t row = 4 * config.hidden_size + 4 * q_cols + 4 * intermediate;
  return static_cast<Bytes>(sizeof(float)) * (options.max_rows * row + 2 * options.max_logit_rows * config.vocab_size) + rope_bytes +
         block_bytes + LinearScratchBytes(std::max({config.hidden_size, intermediate, q_cols}));
}

class TorchBackend final : public Backend {
 public:
  TorchBackend(const ModelSpec& spec, const BackendOptions& options)
      : spec_(spec),
        options_(options),
        working_(ToTorch(spec.working_dtype)),
        page_bytes_(spec.KvPageBytes()),
        kv_bytes_((options.present_kv_pages >= 0 ? options.present_kv_pages : options.num_kv_pages) * page_bytes_),
        positions_(static_cast<size_t>(options.max_sequences), options.num_kv_pages == 0 ? options.context : 0),
        ropes_(MakeRopes(spec.config, options.context)),
        attention_(spec.config.layers.size()),
        mlp_(spec.config.layers.size()) {
    at::set_num_threads(options.num_threads);
    const int64_t page = page_bytes_ / ElementBytes(spec.working_dtype);
    const int64_t table_cols = RoundUp(options.context, cpu::kPagePositions) / cpu::kPagePositions;
    const at::Tensor pages = at::zeros({options.num_kv_pages, page}, working_);
    for (const LayerConfig& layer : spec.config.layers) {
      kv_.push_back({.pages = pages,
                     .page_table = at::zeros({options.max_sequences, table_cols}, at::kInt),
                     .kv_heads = layer.num_kv_heads,
                     .head_dim = layer.head_dim});
    }
  }

  std::string numerics_id() const override { return "torch"; }
  std::string description() const override { return absl::StrCat("libtorch, CPU, ", options_.num_threads, " threads"); }

  absl::Status BindBlock(const BlockSpec& block, BlockWeights weights) override {
    return Guarded([&] { Bind(block, weights); });
  }

  void SetPages(int32_t sequence, int64_t layer, std::span<const int32_t> pages) override {
    const at::Tensor& table = kv_[static_cast<size_t>(layer)].page_table;
    LIME_CHECK_LE(std::ssize(pages), table.size(1));
    for (const int32_t page : pages) LIME_CHECK(page >= -1 && page < options_.num_kv_pages) << page;
    std::ranges::copy(pages, table.data_ptr<int32_t>() + sequence * table.size(1));
    positions_[static_cast<size_t>(sequence)] = std::ssize(pages) * cpu::kPagePositions;
  }

  std::byte* KvPage(int32_t page) override { return PoolData() + page * page_bytes_; }
  std::shared_ptr<const std::byte> ShareKv() override { return {std::make_shared<at::Tensor>(kv_.front().pages), PoolData()}; }
  // Nothing to allocate: the system allocates a page of the pool when it is first written.
  absl::Status ResizeKv(int64_t pages) override {
    LIME_CHECK(pages >= 0 && pages <= options_.num_kv_pages) << pages;
    kv_bytes_ = pages * page_bytes_;
    return absl::OkStatus();
  }

  absl::Status Begin(const MicroBatch& batch) override {
    LIME_ASSIGN_OR_RETURN(const int64_t logit_rows, CheckBatch(batch, spec_, options_, positions_));
    return Guarded([&] { Fill(batch, logit_rows); });
  }

  absl::Status Compute(BlockId block) override {
    return Guarded([&] { Forward(block); });
  }

  absl::Status ComputeRows(BlockId block, const RowsInMemory& rows) override {
    return Guarded([&] { ForwardRows(block, rows); });
  }

  absl::Status EmbedRows(const RowsInMemory& rows) override {
    return Guarded([&] {
      EmbeddingBlock block = embedding_;
      block.table = PartOf(embedding_.table, rows);
      BatchRows batch = batch_;
      batch.tokens = at::arange(batch_.tokens.size(0), at::kInt);
      SetX(block.Forward(batch, spec_.config.hidden_size, working_));
    });
  }

  int64_t RecordFloats() const override { return cpu::PackedRecordFloats(spec_.config.num_heads, spec_.config.MostHeadDim()); }

  std::span<std::byte> Hidden() override { return {static_cast<std::byte*>(x_.data_ptr()), static_cast<size_t>(x_.nbytes())}; }
  std::span<float> Logits() override { return {logits_.data_ptr<float>(), static_cast<size_t>(logits_.numel())}; }

  Bytes ActivationBytes() const override { return StepBytes(spec_, options_); }
  Bytes KvBytes() const override { return kv_bytes_; }

 private:
  // Exceptions of torch end here.
  template <typename Fn>
  static absl::Status Guarded(Fn&& fn) {
    try {
      const at::AutoDispatchBelowAutograd below_autograd;
      fn();
      return absl::OkStatus();
    } catch (const std::exception& error) {
      const std::string message = error.what();
      return absl::InternalError(absl::StrCat("torch: ", message.substr(0, message.find('\n'))));
    }
  }

  std::byte* PoolData() const { return static_cast<std::byte*>(kv_.front().pages.data_ptr()); }

  // Copies in place, so that the memory of Hidden() does not move.
  void SetX(const at::Tensor& x) { x_.copy_(x); }

  void Fill(const MicroBatch& batch, int64_t logit_rows) {
    const int64_t rows = std::ssize(batch.rows);
    batch_ = {.tokens = at::empty({rows}, at::kInt), .slots = at::empty({rows}, at::kInt), .positions = at::empty({rows}, at::kInt)};
    head_rows_.clear();
    for (int64_t i = 0; i < rows; ++i) {
      const BatchRow& row = batch.rows[static_cast<size_t>(i)];
      batch_.tokens.data_ptr<int32_t>()[i] = row.token;
      batch_.slots.data_ptr<int32_t>()[i] = row.sequence;
      batch_.positions.data_ptr<int32_t>()[i] = row.position;
      if (row.wants_logits) head_rows_.push_back(i);
    }
    x_ = at::empty({rows, spec_.config.hidden_size}, working_);
    logits_ = at::empty({logit_rows, spec_.config.vocab_size}, at::kFloat);
  }

  RopeTensors RopeOf(const LayerConfig& layer) const { return layer.rope < 0 ? RopeTensors() : ropes_[static_cast<size_t>(layer.rope)]; }

  at::Tensor HeadX() const { return x_.index_select(0, at::tensor(head_rows_, at::kLong)); }

  void Bind(const BlockSpec& block, const BlockWeights& weights) {
    const ModelConfig& config = spec_.config;
    const BlockBinder reader(block, weights);
    const size_t layer = static_cast<size_t>(block.id.layer);
    switch (block.id.kind) {
      case BlockKind::kEmbedding:
        embedding_ = {.table = reader.Layer(TensorRole::kTokenEmbedding, config.hidden_size),
                      .position_table = reader.Get(TensorRole::kPositionEmbedding),
                      .position_offset = config.position_offset,
                      .multiplier = config.embedding_multiplier};
        break;
      case BlockKind::kAttention:
        attention_[layer] = {.norm = reader.ReadNorm(config),
                             .q = reader.Layer(TensorRole::kQ, config.hidden_size),
                             .k = reader.Layer(TensorRole::kK, config.hidden_size),
                             .v = reader.Layer(TensorRole::kV, config.hidden_size),
                             .o = reader.Layer(TensorRole::kO, config.q_cols(block.id.layer)),
                             .q_norm = reader.Get(TensorRole::kQNorm),
                             .k_norm = reader.Get(TensorRole::kKNorm),
                             .sizes = config.layer(block.id.layer),
                             .score_scale = config.score_scale,
                             .residual_multiplier = config.residual_multiplier};
        break;
      case BlockKind::kMlp:
        mlp_[layer] = {.norm = reader.ReadNorm(config),
                       .up = reader.Layer(TensorRole::kUp, config.hidden_size),
                       .down = reader.Layer(TensorRole::kDown, config.layer(block.id.layer).intermediate_size),
                       .activation = config.activation,
                       .activation_limit = config.activation_limit,
                       .residual_multiplier = config.residual_multiplier};
        if (reader.Has(TensorRole::kGate)) mlp_[layer].gate = reader.Layer(TensorRole::kGate, config.hidden_size);
        break;
      case BlockKind::kHead:
        head_ = {.output = reader.Layer(TensorRole::kOutput, config.hidden_size), .divisor = config.logits_divisor};
        if (config.final_norm) head_.norm = reader.ReadNorm(config);
        break;
      case BlockKind::kLinearAttention:
      case BlockKind::kExperts:
        break;  // CheckSupported refuses it
    }
  }

  void Forward(BlockId block) {
    const size_t layer = static_cast<size_t>(block.layer);
    switch (block.kind) {
      case BlockKind::kEmbedding:
        return SetX(embedding_.Forward(batch_, spec_.config.hidden_size, working_));
      case BlockKind::kAttention:
        return SetX(attention_[layer].Forward(x_, batch_, kv_[layer], RopeOf(spec_.config.layer(block.layer))));
      case BlockKind::kMlp:
        return SetX(mlp_[layer].Forward(x_));
      case BlockKind::kHead:
        if (logits_.size(0) > 0) logits_.copy_(head_.Forward(HeadX(), head_.output));
        return;
      case BlockKind::kLinearAttention:
      case BlockKind::kExperts:
        return;
    }
  }

  // Collects the rows of a block until all are here. Then computes it like a resident block and
  // releases the rows.
  void ForwardRows(BlockId block, const RowsInMemory& rows) {
    const TensorRole role = rows.rows.role;
    switch (block.kind) {
      case BlockKind::kEmbedding:
      case BlockKind::kLinearAttention:
      case BlockKind::kExperts:
        return;
      case BlockKind::kAttention: {
        AttentionBlock& whole = attention_[static_cast<size_t>(block.layer)];
        Gather(rows, role == TensorRole::kQ ? whole.q : role == TensorRole::kK ? whole.k : role == TensorRole::kV ? whole.v : whole.o);
        if (role != TensorRole::kO || rows.rows.end < whole.o.weight.size(0)) return;
        Forward(block);
        for (LinearWeight* const layer : {&whole.q, &whole.k, &whole.v, &whole.o}) LetGo(*layer);
        return;
      }
      case BlockKind::kMlp: {
        MlpBlock& whole = mlp_[static_cast<size_t>(block.layer)];
        Gather(rows, role == TensorRole::kGate ? *whole.gate : role == TensorRole::kUp ? whole.up : whole.down);
        if (role != TensorRole::kDown || rows.rows.end < whole.down.weight.size(0)) return;
        Forward(block);
        if (whole.gate) LetGo(*whole.gate);
        LetGo(whole.up), LetGo(whole.down);
        return;
      }
      case BlockKind::kHead:
        if (logits_.size(0) == 0) return;
        logits_.slice(1, rows.rows.begin, rows.rows.end).copy_(head_.Forward(HeadX(), PartOf(head_.output, rows)));
    }
  }

  // Releases the data; keeps only sizes.
  static void LetGo(LinearWeight& layer) {
    for (at::Tensor* const tensor : {&layer.weight, &layer.scales, &layer.biases}) {
      if (tensor->defined()) *tensor = at::from_blob(nullptr, tensor->sizes(), tensor->options());
    }
  }

  const ModelSpec& spec_;
  const BackendOptions options_;
  const at::ScalarType working_;
  const Bytes page_bytes_;
  std::atomic<Bytes> kv_bytes_;     // present
  std::vector<int64_t> positions_;  // by sequence slot, positions that have pages
  std::vector<RopeTensors> ropes_;
  std::vector<KvLayer> kv_;
  EmbeddingBlock embedding_;
  std::vector<AttentionBlock> attention_;
  std::vector<MlpBlock> mlp_;
  HeadBlock head_;
  // Of the current batch.
  BatchRows batch_;
  std::vector<int64_t> head_rows_;
  at::Tensor x_;       // [rows, hidden] working dtype
  at::Tensor logits_;  // [logit rows, vocab] fp32
};

}  // namespace
}  // namespace lime::torch_ops

extern "C" __attribute__((visibility("default"))) void lime_create_backend(const lime::ModelSpec& spec, const lime::BackendOptions& options,
                                                                           absl::StatusOr<std::unique_ptr<lime::Backend>>* result) {
  using lime::torch_ops::TorchBackend;
  if (absl::Status supported = lime::torch_ops::CheckSupported(spec.config, options); !supported.ok()) {
    *result = std::move(supported);
    return;
  }
  if (absl::Status supported = lime::torch_ops::CheckFormats(spec); !supported.ok()) {
    *result = std::move(supported);
    return;
  }
  try {
    *result = std::make_unique<TorchBackend>(spec, options);
  } catch (const std::exception& error) {
    *result = absl::ResourceExhaustedError(absl::StrCat("the backend \"torch\" cannot be set up: ", error.what()));
  }
}

extern "C" __attribute__((visibility("default"))) lime::Bytes lime_activation_bytes(const lime::ModelSpec& spec,
                                                                                    const lime::BackendOptions& options) {
  return lime::torch_ops::StepBytes(spec, options);
}
