// The Backend of the CPU: decoder blocks over the operators, behind the module's one exported function.

#include <ATen/ATen.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/linear.h"
#include "kernels/registry.h"
#include "kernels/torch/decoder.h"
#include "kernels/torch/kv_pool.h"
#include "kernels/torch/ops.h"
#include "kernels/torch/workspace.h"
#include "planner/base/check.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

at::ScalarType StorageType(DType dtype) {
  return dtype == DType::kU32 ? at::kInt : ToTorch(dtype);
}

// A view of weights that `storage` keeps alive.
at::Tensor View(const TensorSpec& spec, const std::byte* data, const std::shared_ptr<const void>& storage) {
  return at::from_blob(
      const_cast<std::byte*>(data), spec.info.shape, [storage](void*) {}, at::TensorOptions().dtype(StorageType(spec.info.dtype)));
}

// Points a tensor at other memory, in place: nothing is allocated.
void PointAt(const void* data, at::IntArrayRef sizes, at::Tensor& tensor) {
  const at::Device device = tensor.device();
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(const_cast<void*>(data), device));
}

// To be pointed at memory.
at::Tensor Pointer(at::ScalarType dtype) {
  static int64_t nothing = 0;
  return at::from_blob(&nothing, {1}, at::dtype(dtype));
}

void PointAt(const RowsInMemory& from, ops::LinearWeight& linear) {
  const int64_t rows = from.rows.end - from.rows.begin;
  linear.row_begin = from.rows.begin;
  PointAt(from.weight, {rows, linear.weight.size(1)}, linear.weight);
  if (linear.bits == 0) return;
  PointAt(from.scales, {rows, linear.scales.size(1)}, linear.scales);
  PointAt(from.biases, {rows, linear.biases.size(1)}, linear.biases);
}

// Takes the tensors of one block by role.
class BlockReader {
 public:
  BlockReader(const BlockSpec& spec, const BlockWeights& weights) : spec_(spec), weights_(weights) {}

  at::Tensor Get(TensorRole role, TensorPart part = TensorPart::kWeight) const {
    const std::optional<size_t> i = Find(role, part);
    return i ? View(spec_.tensors[*i], weights_.tensors[*i], weights_.storage) : at::Tensor();
  }

  // cols: input features, which a packed weight does not state.
  ops::LinearWeight Linear(TensorRole role, int64_t cols) const {
    ops::LinearWeight linear;
    linear.weight = Get(role);
    linear.bias = Get(role, TensorPart::kBias);
    if (const std::optional<size_t> scales = Find(role, TensorPart::kScales)) {
      const absl::StatusOr<Quantization> packing =
          PackingOf(spec_.tensors[*Find(role, TensorPart::kWeight)].info, spec_.tensors[*scales].info, cols);
      LIME_CHECK(packing.ok()) << packing.status().message();  // ModelSpec::Build has checked it
      linear.scales = Get(role, TensorPart::kScales);
      linear.biases = Get(role, TensorPart::kGroupBiases);
      linear.bits = packing->bits;
      linear.group_size = packing->group_size;
    }
    return linear;
  }

  Norm ReadNorm(const ModelConfig& config) const {
    return {.weight = Get(TensorRole::kNorm),
            .bias = Get(TensorRole::kNorm, TensorPart::kBias),
            .eps = config.norm_eps,
            .centred = config.family == ModelFamily::kOpt};
  }

 private:
  std::optional<size_t> Find(TensorRole role, TensorPart part) const {
    for (size_t i = 0; i < spec_.tensors.size(); ++i) {
      if (spec_.tensors[i].role == role && spec_.tensors[i].part == part) return i;
    }
    return std::nullopt;
  }

  const BlockSpec& spec_;
  const BlockWeights& weights_;
};

// The orders that a model can follow: without a linear layer of bf16 by bf16 they are all the portable one.
cpu::Numerics NumericsOf(const ModelSpec& spec, const std::string& numerics) {
  if (numerics == "portable" || spec.working_dtype != DType::kBF16) return cpu::Numerics::kPortable;
  const auto is_bf16_layer = [](const TensorSpec& tensor) {
    return tensor.part == TensorPart::kWeight && tensor.info.dtype == DType::kBF16 && tensor.info.shape.size() == 2;
  };
  const bool bf16 = std::ranges::any_of(spec.blocks, [&](const BlockSpec& block) {
    return block.id.kind != BlockKind::kEmbedding && std::ranges::any_of(block.tensors, is_bf16_layer);
  });
  if (!bf16) return cpu::Numerics::kPortable;
  return numerics == "emulated-bf16" ? cpu::Numerics::kEmulatedBf16 : cpu::Numerics::kAuto;
}

ops::ComputeContext::Options ContextOptions(const ModelSpec& spec, const BackendOptions& options, cpu::Numerics numerics) {
  const ModelConfig& config = spec.config;
  return {.num_threads = options.num_threads,
          .max_rows = options.max_rows,
          .max_cols = std::max({config.intermediate_size, config.hidden_size, config.num_heads * config.head_dim}),
          .heads = config.num_heads,
          .head_dim = config.head_dim,
          .max_positions = options.context,
          .carries = options.attends_pieces,
          .attends_for_others = options.attends_for_others,
          .numerics = numerics};
}

class CpuBackend final : public Backend {
 public:
  CpuBackend(const ModelSpec& spec, const BackendOptions& options)
      : spec_(spec),
        options_(options),
        numerics_(NumericsOf(spec, options.numerics)),
        context_(ContextOptions(spec, options, numerics_)),
        workspace_(spec, options),
        kv_(spec, options),
        attention_(spec.config.num_layers),
        mlp_(spec.config.num_layers) {
    if (spec.config.rope.type != RopeType::kNone) rope_.emplace(spec.config.rope, spec.config.head_dim, options.context);
  }

  std::string numerics_id() const override { return cpu::NumericsId(numerics_); }
  std::string description() const override { return absl::StrCat("CPU, ", cpu::InstructionSet(), ", ", options_.num_threads, " threads"); }

  absl::Status BindBlock(const BlockSpec& block, BlockWeights weights) override {
    return Guarded([&] { Bind(block, weights); });
  }

  void SetPages(int32_t sequence, int64_t layer, std::span<const int32_t> pages) override { kv_.SetPages(sequence, layer, pages); }

  std::byte* KvPage(int32_t page) override { return kv_.page(page); }
  std::shared_ptr<const std::byte> TakeKv() override { return kv_.Take(); }

  absl::Status ResizeKv(int64_t pages) override { return kv_.Resize(pages); }

  absl::Status Begin(const MicroBatch& batch) override {
    LIME_RETURN_IF_ERROR(Check(batch));
    int64_t logit_rows = 0;
    for (const BatchRow& row : batch.rows) logit_rows += row.wants_logits ? 1 : 0;
    if (logit_rows > options_.max_logit_rows) {
      return absl::InvalidArgumentError(
          absl::StrCat("a batch asks for logits of ", logit_rows, " rows, at most ", options_.max_logit_rows, " were planned"));
    }
    workspace_.SetRows(static_cast<int64_t>(batch.rows.size()), logit_rows);
    FillRows(batch);
    return absl::OkStatus();
  }

  absl::Status Embed() override {
    return Guarded([&] { embedding_.Forward(workspace_); });
  }
  absl::Status Attention(int64_t layer) override {
    return Guarded([&] { attention_[layer].Forward(workspace_, kv_.layer(layer), rope_ ? &*rope_ : nullptr); });
  }
  absl::Status Mlp(int64_t layer) override {
    return Guarded([&] { mlp_[layer].Forward(workspace_); });
  }
  absl::Status Head() override {
    if (workspace_.logits.size(0) == 0) return absl::OkStatus();
    return Guarded([&] { head_.Forward(workspace_); });
  }

  absl::Status ComputeRows(BlockId block, const RowsInMemory& rows) override {
    return Guarded([&] { ForwardRows(block, rows); });
  }

  absl::Status AttendPieces(int64_t layer, int64_t begin, int64_t end, std::span<const std::byte* const> places) override {
    LIME_CHECK(begin < end && static_cast<int64_t>(places.size()) == options_.max_sequences * (end - begin)) << begin << " to " << end;
    return Guarded([&] {
      PointAt(places.data(), {options_.max_sequences, end - begin}, pieces_.places);
      pieces_.begin = begin, pieces_.end = end;
      attention_[layer].AttendPieces(workspace_, kv_.layer(layer), rope_ ? &*rope_ : nullptr, pieces_);
    });
  }

  absl::StatusOr<std::span<const float>> Queries(int64_t layer) override {
    LIME_RETURN_IF_ERROR(Guarded([&] { attention_[layer].Queries(workspace_, kv_.layer(layer), rope_ ? &*rope_ : nullptr); }));
    return std::span<const float>(workspace_.q.data_ptr<float>(), static_cast<size_t>(workspace_.q.numel()));
  }

  int64_t RecordFloats() const override { return cpu::PackedRecordFloats(spec_.config.num_heads, spec_.config.head_dim); }

  absl::Status AttendFor(std::span<const int32_t> positions, std::span<const float> queries, std::span<const std::byte* const> pieces,
                         std::span<float> records) override {
    LIME_CHECK(options_.attends_for_others);
    const int64_t rows = std::ssize(positions), q_cols = spec_.config.num_heads * spec_.config.head_dim;
    LIME_RETURN_IF_ERROR(CheckForOthers(positions, std::ssize(pieces)));
    LIME_RETURN_IF_ERROR(CheckSize("queries", std::ssize(queries), rows * q_cols));
    LIME_RETURN_IF_ERROR(CheckSize("records", std::ssize(records), rows * RecordFloats()));
    return Guarded([&] {
      PointAt(positions.data(), {rows}, remote_.positions);
      PointAt(queries.data(), {rows, q_cols}, remote_.queries);
      PointAt(pieces.data(), {1, std::ssize(pieces)}, remote_.places);
      PointAt(records.data(), {rows, RecordFloats()}, remote_.records);
      ops::AttendForOut(remote_.queries, remote_.positions, remote_.places, kv_.layer(0), spec_.config.sliding_window, remote_.records);
    });
  }

  absl::Status TakeRecords(int64_t layer, std::span<const int32_t> taken, std::span<const float> records) override {
    LIME_CHECK(options_.attends_pieces && std::ssize(taken) == options_.max_sequences) << taken.size();
    const int64_t rows = workspace_.positions.size(0);
    LIME_RETURN_IF_ERROR(CheckSize("records", std::ssize(records), rows * RecordFloats()));
    for (int64_t row = 0; row < rows; ++row) {
      LIME_RETURN_IF_ERROR(CheckBehind(workspace_.positions.data_ptr<int32_t>()[row], taken[workspace_.slots.data_ptr<int32_t>()[row]]));
    }
    return Guarded([&] {
      std::ranges::copy(taken, workspace_.taken.data_ptr<int32_t>());
      PointAt(records.data(), {rows, RecordFloats()}, remote_.records);
      attention_[layer].TakeRecords(workspace_, remote_.records);
    });
  }

  absl::Status EmbedRows(const RowsInMemory& rows) override {
    int32_t* const tokens = workspace_.tokens.data_ptr<int32_t>();
    std::iota(tokens, tokens + workspace_.tokens.size(0), 0);
    return Guarded([&] {
      PointAt(rows, embedding_.table);
      embedding_.Forward(workspace_);
    });
  }

  std::span<std::byte> Hidden() override {
    return {static_cast<std::byte*>(workspace_.x.data_ptr()), static_cast<size_t>(workspace_.x.nbytes())};
  }

  std::span<float> Logits() override { return {workspace_.logits.data_ptr<float>(), static_cast<size_t>(workspace_.logits.numel())}; }

  Bytes ActivationBytes() const override { return workspace_.bytes() + context_.bytes() + (rope_ ? rope_->bytes() : 0); }
  Bytes KvBytes() const override { return kv_.bytes(); }

 private:
  // Exceptions of torch end here.
  template <typename Fn>
  absl::Status Guarded(Fn&& fn) {
    try {
      const at::AutoDispatchBelowAutograd below_autograd;
      const ops::ContextScope scope(context_);
      fn();
      return absl::OkStatus();
    } catch (const std::exception& error) {
      const std::string message = error.what();
      return absl::InternalError(absl::StrCat("kernels: ", message.substr(0, message.find('\n'))));
    }
  }

  void Bind(const BlockSpec& block, const BlockWeights& weights) {
    const ModelConfig& config = spec_.config;
    const BlockReader reader(block, weights);
    switch (block.id.kind) {
      case BlockKind::kEmbedding:
        embedding_ = {.table = reader.Linear(TensorRole::kTokenEmbedding, config.hidden_size),
                      .position_table = reader.Get(TensorRole::kPositionEmbedding),
                      .position_offset = config.position_offset};
        break;
      case BlockKind::kAttention:
        attention_[block.id.layer] = ReadAttention(reader);
        break;
      case BlockKind::kMlp:
        mlp_[block.id.layer] = {.norm = reader.ReadNorm(config),
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
  }

  void ForwardRows(BlockId block, const RowsInMemory& rows) {
    const TensorRole role = rows.rows.role;
    switch (block.kind) {
      case BlockKind::kEmbedding:
        return;
      case BlockKind::kAttention: {
        AttentionBlock& attention = attention_[block.layer];
        PointAt(rows, attention.linear(role));
        return attention.ForwardRows(role, workspace_, kv_.layer(block.layer), rope_ ? &*rope_ : nullptr);
      }
      case BlockKind::kMlp:
        PointAt(rows, mlp_[block.layer].linear(role));
        return mlp_[block.layer].ForwardRows(role, workspace_);
      case BlockKind::kHead:
        if (workspace_.logits.size(0) == 0) return;
        PointAt(rows, head_.output);
        return head_.ForwardRows(workspace_);
    }
  }

  AttentionBlock ReadAttention(const BlockReader& reader) const {
    const ModelConfig& config = spec_.config;
    return {.norm = reader.ReadNorm(config),
            .q = reader.Linear(TensorRole::kQ, config.hidden_size),
            .k = reader.Linear(TensorRole::kK, config.hidden_size),
            .v = reader.Linear(TensorRole::kV, config.hidden_size),
            .o = reader.Linear(TensorRole::kO, config.num_heads * config.head_dim),
            .q_norm = reader.Get(TensorRole::kQNorm),
            .k_norm = reader.Get(TensorRole::kKNorm),
            .norm_eps = config.norm_eps,
            .heads = config.num_heads,
            .kv_heads = config.num_kv_heads,
            .head_dim = config.head_dim,
            .window = config.sliding_window};
  }

  absl::Status Check(const MicroBatch& batch) const {
    if (batch.rows.empty() || static_cast<int64_t>(batch.rows.size()) > options_.max_rows) {
      return absl::InvalidArgumentError(absl::StrCat("a batch of ", batch.rows.size(), " rows, 1 to ", options_.max_rows, " were planned"));
    }
    for (const BatchRow& row : batch.rows) {
      if (row.token < 0 || row.token >= spec_.config.vocab_size) {
        return absl::InvalidArgumentError(absl::StrCat("token id ", row.token, " is outside the vocabulary of ", spec_.config.vocab_size));
      }
      if (row.sequence < 0 || row.sequence >= options_.max_sequences || row.position < 0 || row.position >= kv_.positions(row.sequence)) {
        return absl::InvalidArgumentError(
            absl::StrCat("position ", row.position, " of sequence slot ", row.sequence, " has no KV page reserved"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckForOthers(std::span<const int32_t> positions, int64_t pieces) const {
    if (positions.empty() || std::ssize(positions) > options_.max_rows) {
      return absl::InvalidArgumentError(
          absl::StrCat(positions.size(), " rows for another device, 1 to ", options_.max_rows, " were planned"));
    }
    if (pieces < 1) return absl::InvalidArgumentError("no pieces of KV to attend to for another device");
    for (const int32_t position : positions) LIME_RETURN_IF_ERROR(CheckBehind(position, pieces));
    return absl::OkStatus();
  }

  static absl::Status CheckBehind(int32_t position, int64_t pieces) {
    if (position >= 0 && pieces >= 0 && position / cpu::kPiecePositions >= pieces) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("position ", position, " is not behind ", pieces, " pieces of KV"));
  }

  static absl::Status CheckSize(const char* what, int64_t size, int64_t expected) {
    if (size == expected) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(what, ": ", size, " floats, need ", expected));
  }

  void FillRows(const MicroBatch& batch) {
    int32_t* const tokens = workspace_.tokens.data_ptr<int32_t>();
    int32_t* const slots = workspace_.slots.data_ptr<int32_t>();
    int32_t* const positions = workspace_.positions.data_ptr<int32_t>();
    int32_t* head_row = workspace_.head_rows.data_ptr<int32_t>();
    for (size_t i = 0; i < batch.rows.size(); ++i) {
      tokens[i] = batch.rows[i].token;
      slots[i] = batch.rows[i].sequence;
      positions[i] = batch.rows[i].position;
      if (batch.rows[i].wants_logits) *head_row++ = static_cast<int32_t>(i);
    }
  }

  const ModelSpec& spec_;
  const BackendOptions options_;
  const cpu::Numerics numerics_;
  ops::ComputeContext context_;
  Workspace workspace_;
  KvPool kv_;
  std::optional<ops::RopeTables> rope_;
  EmbeddingBlock embedding_;
  std::vector<AttentionBlock> attention_;
  std::vector<MlpBlock> mlp_;
  HeadBlock head_;
  // Of AttendPieces: the places are those of its call.
  ops::KvPieces pieces_{.places = Pointer(at::kLong)};
  // Of AttendFor and TakeRecords: memory of their calls.
  struct {
    at::Tensor positions = Pointer(at::kInt), queries = Pointer(at::kFloat), places = Pointer(at::kLong), records = Pointer(at::kFloat);
  } remote_;
};

}  // namespace
}  // namespace lime

extern "C" __attribute__((visibility("default"))) void lime_create_backend(const lime::ModelSpec& spec, const lime::BackendOptions& options,
                                                                           absl::StatusOr<std::unique_ptr<lime::Backend>>* result) {
  try {
    *result = std::make_unique<lime::CpuBackend>(spec, options);
  } catch (const std::exception& error) {
    *result = absl::ResourceExhaustedError(absl::StrCat("the kernels cannot be set up: ", error.what()));
  }
}

extern "C" __attribute__((visibility("default"))) lime::Bytes lime_activation_bytes(const lime::ModelSpec& spec,
                                                                                    const lime::BackendOptions& options) {
  return lime::Workspace::BytesFor(spec, options) +
         lime::ops::ComputeContext::BytesFor(lime::ContextOptions(spec, options, lime::NumericsOf(spec, options.numerics))) +
         lime::ops::RopeTables::BytesFor(spec.config.rope, spec.config.head_dim, options.context);
}
