#include "kernels/cpu_backend/cpu_backend.h"

#include <algorithm>
#include <exception>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/check_batch.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu_backend/decoder.h"
#include "kernels/cpu_backend/kv_pool.h"
#include "kernels/cpu_backend/workspace.h"
#include "planner/base/check.h"

namespace lime::cpu {
namespace {

// Finds the tensors of one block by role. ModelSpec::Build has checked their dtypes and shapes.
class BlockBinder {
 public:
  BlockBinder(const BlockSpec& spec, const BlockWeights& weights) : spec_(spec), weights_(weights) {}

  const std::byte* Data(TensorRole role, TensorPart part = TensorPart::kWeight) const {
    const std::optional<size_t> i = spec_.Find(role, part);
    return i ? weights_.tensors[*i] : nullptr;
  }

  // `cols`: number of input features, which a packed weight does not state.
  LinearLayer Linear(TensorRole role, int64_t cols) const {
    const std::optional<size_t> weight = spec_.Find(role, TensorPart::kWeight);
    if (!weight) return {};
    const TensorInfo& info = spec_.tensors[*weight].info;
    LinearLayer layer{.weight = {.rows = info.shape[0], .cols = cols, .dtype = info.dtype, .data = Data(role)},
                      .bias = Data(role, TensorPart::kBias),
                      .outputs = info.shape[0]};
    if (const std::optional<size_t> i = spec_.Find(role, TensorPart::kScales)) {
      const TensorInfo& scales = spec_.tensors[*i].info;
      const absl::StatusOr<Quantization> packing = PackingOf(info, scales, cols);
      LIME_CHECK(packing.ok()) << packing.status().message();
      layer.weight.bits = packing->bits;
      layer.weight.group_size = packing->group_size;
      layer.weight.scale_dtype = scales.dtype;
      layer.weight.scales = Data(role, TensorPart::kScales);
      layer.weight.biases = Data(role, TensorPart::kGroupBiases);
    }
    return layer;
  }

  Norm ReadNorm(const ModelConfig& config) const {
    return {.weight = Data(TensorRole::kNorm),
            .bias = Data(TensorRole::kNorm, TensorPart::kBias),
            .dtype = DTypeOf(TensorRole::kNorm),
            .eps = config.norm_eps,
            .centred = config.family == ModelFamily::kOpt};
  }

  HeadNorm ReadHeadNorm(TensorRole role) const { return {.weight = Data(role), .dtype = DTypeOf(role)}; }

 private:
  // fp32 if there is no such tensor.
  DType DTypeOf(TensorRole role) const {
    const std::optional<size_t> i = spec_.Find(role, TensorPart::kWeight);
    return i ? spec_.tensors[*i].info.dtype : DType::kF32;
  }

  const BlockSpec& spec_;
  const BlockWeights& weights_;
};

// Whether a linear layer of the model has weights of that dtype.
bool HasLayerOf(const ModelSpec& spec, DType dtype) {
  const auto is_layer = [&](const TensorSpec& tensor) {
    return tensor.part == TensorPart::kWeight && tensor.info.dtype == dtype && tensor.info.shape.size() == 2;
  };
  return std::ranges::any_of(spec.blocks, [&](const BlockSpec& block) {
    return block.id.kind != BlockKind::kEmbedding && std::ranges::any_of(block.tensors, is_layer);
  });
}

// The order for a model. Without a linear layer of bf16 or packed weights and bf16 activations, all
// orders are the portable one.
Numerics NumericsOf(const ModelSpec& spec, const std::string& numerics) {
  if (numerics == "portable" || spec.working_dtype != DType::kBF16) return Numerics::kPortable;
  if (!HasLayerOf(spec, DType::kBF16) && !HasLayerOf(spec, DType::kU32)) return Numerics::kPortable;
  return numerics == "emulated-bf16" ? Numerics::kEmulatedBf16 : Numerics::kAuto;
}

absl::Status CheckSize(const char* what, int64_t size, int64_t expected) {
  return size == expected ? absl::OkStatus() : Invalid(what, ": ", size, " floats, need ", expected);
}

absl::Status CheckBehind(int32_t position, int64_t pieces) {
  if (position >= 0 && pieces >= 0 && position / kPiecePositions >= pieces) return absl::OkStatus();
  return Invalid("position ", position, " does not follow ", pieces, " pieces of KV");
}

class CpuBackend final : public Backend {
 public:
  // Throws std::bad_alloc.
  CpuBackend(const ModelSpec& spec, const BackendOptions& options)
      : spec_(spec),
        options_(options),
        numerics_(NumericsOf(spec, options.numerics)),
        workspace_(spec, options, numerics_),
        kv_(spec, options),
        attention_(static_cast<size_t>(spec.config.num_layers)),
        mlp_(static_cast<size_t>(spec.config.num_layers)),
        storage_(spec.blocks.size()) {}

  std::string numerics_id() const override { return NumericsId(numerics_, HasLayerOf(spec_, DType::kU32)); }
  std::string description() const override { return absl::StrCat("CPU, ", InstructionSet(), ", ", options_.num_threads, " threads"); }

  absl::Status BindBlock(const BlockSpec& block, BlockWeights weights) override {
    const ModelConfig& config = spec_.config;
    const BlockBinder reader(block, weights);
    const size_t layer = static_cast<size_t>(block.id.layer);
    switch (block.id.kind) {
      case BlockKind::kEmbedding:
        embedding_ = {.table = reader.Linear(TensorRole::kTokenEmbedding, config.hidden_size),
                      .position_table = reader.Data(TensorRole::kPositionEmbedding),
                      .position_offset = config.position_offset};
        break;
      case BlockKind::kAttention:
        attention_[layer] = ReadAttention(reader);
        break;
      case BlockKind::kMlp:
        mlp_[layer] = {.norm = reader.ReadNorm(config),
                       .gate = reader.Linear(TensorRole::kGate, config.hidden_size),
                       .up = reader.Linear(TensorRole::kUp, config.hidden_size),
                       .down = reader.Linear(TensorRole::kDown, config.intermediate_size),
                       .activation = config.activation};
        break;
      case BlockKind::kHead:
        head_ = {.norm = reader.ReadNorm(config),
                 .has_norm = config.final_norm,
                 .output = reader.Linear(TensorRole::kOutput, config.hidden_size)};
        break;
    }
    storage_[PlaceOf(block.id)] = std::move(weights.storage);
    return absl::OkStatus();
  }

  void SetPages(int32_t sequence, int64_t layer, std::span<const int32_t> pages) override { kv_.SetPages(sequence, layer, pages); }

  std::byte* KvPage(int32_t page) override { return kv_.page(page); }
  std::shared_ptr<const std::byte> ShareKv() override { return kv_.Share(); }

  absl::Status ResizeKv(int64_t pages) override { return kv_.Resize(pages); }

  absl::Status Begin(const MicroBatch& batch) override {
    LIME_ASSIGN_OR_RETURN(const int64_t logit_rows, CheckBatch(batch, spec_, options_, kv_.positions()));
    workspace_.SetRows(std::ssize(batch.rows), logit_rows);
    FillRows(batch);
    return absl::OkStatus();
  }

  absl::Status Compute(BlockId block) override {
    switch (block.kind) {
      case BlockKind::kEmbedding:
        embedding_.Forward(workspace_);
        break;
      case BlockKind::kAttention:
        return attention(block.layer).Forward(workspace_, kv_.layer(block.layer));
      case BlockKind::kMlp:
        mlp_[static_cast<size_t>(block.layer)].Forward(workspace_);
        break;
      case BlockKind::kHead:
        if (workspace_.logit_rows > 0) head_.Forward(workspace_);
        break;
    }
    return absl::OkStatus();
  }

  absl::Status ComputeRows(BlockId block, const RowsInMemory& rows) override {
    const TensorRole role = rows.rows.role;
    switch (block.kind) {
      case BlockKind::kEmbedding:
        break;
      case BlockKind::kAttention:
        attention(block.layer).linear(role).PointAt(rows);
        return attention(block.layer).ForwardRows(role, workspace_, kv_.layer(block.layer));
      case BlockKind::kMlp: {
        MlpBlock& mlp = mlp_[static_cast<size_t>(block.layer)];
        mlp.linear(role).PointAt(rows);
        mlp.ForwardRows(role, workspace_);
        break;
      }
      case BlockKind::kHead:
        if (workspace_.logit_rows == 0) break;
        head_.output.PointAt(rows);
        head_.ForwardRows(workspace_);
        break;
    }
    return absl::OkStatus();
  }

  absl::Status AttendToPieces(int64_t layer, int64_t begin, int64_t end, std::span<const std::byte* const> places) override {
    LIME_CHECK(options_.attends_pieces);
    LIME_CHECK(0 <= begin && begin < end && std::ssize(places) == options_.max_sequences * (end - begin)) << begin << " to " << end;
    return attention(layer).AttendToPieces(workspace_, kv_.layer(layer), {.begin = begin, .end = end, .places = places.data()});
  }

  absl::StatusOr<std::span<const float>> Queries(int64_t layer) override {
    LIME_RETURN_IF_ERROR(attention(layer).Queries(workspace_, kv_.layer(layer)));
    return std::span<const float>(workspace_.q, static_cast<size_t>(workspace_.rows * q_cols()));
  }

  int64_t RecordFloats() const override { return PackedRecordFloats(spec_.config.num_heads, spec_.config.head_dim); }

  absl::Status AttendFor(std::span<const int32_t> positions, std::span<const float> queries, std::span<const std::byte* const> pieces,
                         std::span<float> records) override {
    LIME_CHECK(options_.attends_for_others);
    const AttentionRows rows{.positions = positions.data(), .count = std::ssize(positions)};
    const int64_t count = std::ssize(pieces), head_dim = spec_.config.head_dim;
    LIME_RETURN_IF_ERROR(CheckForOthers(positions, count));
    LIME_RETURN_IF_ERROR(CheckSize("queries", std::ssize(queries), rows.count * q_cols()));
    LIME_RETURN_IF_ERROR(CheckSize("records", std::ssize(records), rows.count * RecordFloats()));
    const AttentionShape shape = AttentionShapeOf(spec_.config.num_heads, head_dim, spec_.config.sliding_window);
    AttentionWorkspace& scratch = *workspace_.for_others;
    Attend(workspace_.pool, scratch, kv_.layer(0), rows, queries.data(), shape, nullptr, {.end = count, .places = pieces.data()});
    GetCarried(scratch, rows, shape, head_dim, count, records.data());
    return absl::OkStatus();
  }

  absl::Status ContinueFromRecords(int64_t layer, std::span<const int32_t> covered, std::span<const float> records) override {
    LIME_CHECK(options_.attends_pieces && std::ssize(covered) == options_.max_sequences) << covered.size();
    LIME_RETURN_IF_ERROR(CheckSize("records", std::ssize(records), workspace_.rows * RecordFloats()));
    for (int64_t row = 0; row < workspace_.rows; ++row)
      LIME_RETURN_IF_ERROR(CheckBehind(workspace_.positions[row], covered[static_cast<size_t>(workspace_.slots[row])]));
    std::ranges::copy(covered, workspace_.covered);
    return attention(layer).ContinueFromRecords(workspace_, records.data());
  }

  absl::Status EmbedRows(const RowsInMemory& rows) override {
    if (rows.rows.end - rows.rows.begin < workspace_.rows)
      return Invalid(rows.rows.end - rows.rows.begin, " rows of the embedding were given for a batch of ", workspace_.rows);
    std::iota(workspace_.tokens, workspace_.tokens + workspace_.rows, 0);
    embedding_.table.PointAt(rows);
    embedding_.Forward(workspace_);
    return absl::OkStatus();
  }

  std::span<std::byte> Hidden() override {
    return {workspace_.x, static_cast<size_t>(workspace_.rows * workspace_.hidden * ElementBytes(workspace_.dtype))};
  }

  std::span<float> Logits() override { return {workspace_.logits, static_cast<size_t>(workspace_.logit_rows * workspace_.vocab)}; }

  Bytes ActivationBytes() const override { return workspace_.bytes(); }
  Bytes KvBytes() const override { return kv_.bytes(); }

 private:
  int64_t q_cols() const { return spec_.config.num_heads * spec_.config.head_dim; }
  AttentionBlock& attention(int64_t layer) { return attention_[static_cast<size_t>(layer)]; }

  // The index of the block in the spec.
  size_t PlaceOf(BlockId id) const {
    const auto found = std::ranges::find(spec_.blocks, id, &BlockSpec::id);
    LIME_CHECK(found != spec_.blocks.end()) << BlockName(id);
    return static_cast<size_t>(found - spec_.blocks.begin());
  }

  AttentionBlock ReadAttention(const BlockBinder& reader) const {
    const ModelConfig& config = spec_.config;
    return {.norm = reader.ReadNorm(config),
            .q = reader.Linear(TensorRole::kQ, config.hidden_size),
            .k = reader.Linear(TensorRole::kK, config.hidden_size),
            .v = reader.Linear(TensorRole::kV, config.hidden_size),
            .o = reader.Linear(TensorRole::kO, q_cols()),
            .q_norm = reader.ReadHeadNorm(TensorRole::kQNorm),
            .k_norm = reader.ReadHeadNorm(TensorRole::kKNorm),
            .norm_eps = config.norm_eps,
            .heads = config.num_heads,
            .kv_heads = config.num_kv_heads,
            .head_dim = config.head_dim,
            .window = config.sliding_window};
  }

  absl::Status CheckForOthers(std::span<const int32_t> positions, int64_t pieces) const {
    if (positions.empty() || std::ssize(positions) > options_.max_rows)
      return Invalid("another device sent ", positions.size(), " rows, the plan allows 1 to ", options_.max_rows);
    if (pieces < 1) return Invalid("another device asks for attention to no pieces of KV");
    for (const int32_t position : positions) LIME_RETURN_IF_ERROR(CheckBehind(position, pieces));
    return absl::OkStatus();
  }

  void FillRows(const MicroBatch& batch) {
    int32_t* head_row = workspace_.head_rows;
    for (size_t i = 0; i < batch.rows.size(); ++i) {
      workspace_.tokens[i] = batch.rows[i].token;
      workspace_.slots[i] = batch.rows[i].sequence;
      workspace_.positions[i] = batch.rows[i].position;
      if (batch.rows[i].wants_logits) *head_row++ = static_cast<int32_t>(i);
    }
  }

  const ModelSpec& spec_;
  const BackendOptions options_;
  const Numerics numerics_;
  Workspace workspace_;
  KvPool kv_;
  EmbeddingBlock embedding_;
  std::vector<AttentionBlock> attention_;
  std::vector<MlpBlock> mlp_;
  HeadBlock head_;
  std::vector<std::shared_ptr<const void>> storage_;  // of the weights; by block
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> OpenCpuBackend(const ModelSpec& spec, const BackendOptions& options) {
  try {
    auto backend = std::make_unique<CpuBackend>(spec, options);
    if (options.present_kv_pages >= 0 && options.num_kv_pages > 0) LIME_RETURN_IF_ERROR(backend->ResizeKv(options.present_kv_pages));
    return backend;
  } catch (const std::exception& error) {  // no memory or no thread
    return absl::ResourceExhaustedError(absl::StrCat("the kernels cannot be set up: ", error.what()));
  }
}

Bytes CpuActivationBytes(const ModelSpec& spec, const BackendOptions& options) {
  return Workspace::BytesFor(spec, options);
}

}  // namespace lime::cpu
