#include "kernels/cpu_backend/cpu_backend.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/check_batch.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/experts.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu_backend/block.h"
#include "kernels/cpu_backend/decoder.h"
#include "kernels/cpu_backend/experts_block.h"
#include "kernels/cpu_backend/kv_pool.h"
#include "kernels/cpu_backend/state_pool.h"
#include "kernels/cpu_backend/workspace.h"
#include "planner/base/check.h"

namespace lime::cpu {
namespace {

// Whether a linear layer of the model has weights of that dtype.
bool HasLayerOf(const ModelSpec& spec, DType dtype) {
  const auto is_layer = [&](const TensorSpec& tensor) {
    return tensor.part == TensorPart::kWeight && tensor.info.dtype == dtype && tensor.info.shape.size() == 2;
  };
  return std::ranges::any_of(spec.blocks, [&](const BlockSpec& block) {
    return block.id.kind != BlockKind::kEmbedding && std::ranges::any_of(block.tensors, is_layer);
  });
}

// Layers whose weights have scales.
bool HasPackedLayer(const ModelSpec& spec) {
  return HasLayerOf(spec, DType::kU32) || HasLayerOf(spec, DType::kU8) || HasLayerOf(spec, DType::kF8E4M3);
}

// The order for a model. Without a linear layer of bf16 or packed weights and bf16 activations, all
// orders are the portable one.
// Besides the names that users have, tests name the dot product for all layers, "bf16-dot", and its
// emulation, "emulated-bf16".
Numerics NumericsOf(const ModelSpec& spec, const std::string& numerics) {
  if (numerics == "portable" || spec.working_dtype != DType::kBF16) return Numerics::kPortable;
  if (!HasLayerOf(spec, DType::kBF16) && !HasPackedLayer(spec)) return Numerics::kPortable;
  return numerics == "emulated-bf16" ? Numerics::kEmulatedBf16 : numerics == "bf16-dot" ? Numerics::kBf16Dot : Numerics::kAuto;
}

absl::Status CheckSize(const char* what, int64_t size, int64_t expected) {
  return size == expected ? absl::OkStatus() : Invalid(what, ": ", size, " floats, need ", expected);
}

absl::Status CheckBehind(int32_t position, int64_t pieces) {
  if (position >= 0 && pieces >= 0 && position / kPiecePositions >= pieces) return absl::OkStatus();
  return Invalid("position ", position, " does not follow ", pieces, " pieces of KV");
}

int64_t FirstKvLayer(const ModelConfig& config) {
  const auto found = std::ranges::find_if(config.layers, &LayerConfig::has_kv);
  LIME_CHECK(found != config.layers.end()) << "no layer has KV";
  return found - config.layers.begin();
}

absl::Status CheckExperts(const ExpertsConfig& experts) {
  const auto [count, per_token] = std::pair(experts.count, experts.per_token);
  if (per_token < 1 || per_token > std::min(count, kMaxExpertsPerToken) || count > kMaxExperts)
    return Invalid(per_token, " of ", count, " experts for each token: the backend \"cpu\" computes at most ", kMaxExpertsPerToken, " of ",
                   kMaxExperts);
  if (experts.groups < 1 || count % experts.groups != 0 || experts.groups_kept > experts.groups ||
      count / experts.groups * experts.groups_kept < per_token)
    return Invalid(experts.groups_kept, " of ", experts.groups, " groups of experts do not give ", per_token, " of ", count, " experts");
  return absl::OkStatus();
}

// Refuses what the operators cannot compute.
absl::Status CheckSupported(const ModelConfig& config, const BackendOptions& options) {
  if (config.linear_attention && config.linear_attention->conv_width > kMaxConvWidth)
    return Invalid("the convolution of linear attention has a width of ", config.linear_attention->conv_width,
                   ", the backend \"cpu\" computes at most ", kMaxConvWidth);
  if (config.experts) LIME_RETURN_IF_ERROR(CheckExperts(*config.experts));
  if (config.MostHeadDim() > kMaxHeadDim)
    return Invalid("heads of ", config.MostHeadDim(), " dimensions: the backend \"cpu\" computes at most ", kMaxHeadDim);
  if (options.attends_for_others && !config.HasAlikeKv())
    return Invalid("the layers of this model differ in heads or windows, or keep latents, so this device cannot have KV of other devices");
  return absl::OkStatus();
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
        states_(spec, options),
        storage_(spec.blocks.size()) {
    for (const BlockSpec& block : spec.blocks) blocks_.push_back(MakeBlock(block.id, spec.config));
  }

  std::string numerics_id() const override { return NumericsId(numerics_, HasPackedLayer(spec_)); }
  std::string description() const override { return absl::StrCat("CPU, ", InstructionSet(), ", ", options_.num_threads, " threads"); }

  absl::Status BindBlock(const BlockSpec& block, BlockWeights weights) override {
    const size_t place = PlaceOf(block.id);
    blocks_[place]->Bind(BlockBinder(block, weights));
    storage_[place] = std::move(weights.storage);
    return absl::OkStatus();
  }

  void SetPages(int32_t sequence, int64_t layer, std::span<const int32_t> pages) override { kv_.SetPages(sequence, layer, pages); }

  std::byte* KvPage(int32_t page) override { return kv_.page(page); }
  std::shared_ptr<const std::byte> ShareKv() override { return kv_.Share(); }
  std::shared_ptr<const std::byte> ShareStates() override { return states_.Share(); }

  absl::Status ResizeKv(int64_t pages) override { return kv_.Resize(pages); }

  std::span<std::byte> State(int32_t sequence, int64_t layer) override { return states_.state(sequence, layer); }
  std::span<std::byte> Snapshot(int32_t sequence, int32_t snapshot, int64_t layer) override {
    return states_.snapshot(sequence, snapshot, layer);
  }

  absl::Status Begin(const MicroBatch& batch) override {
    LIME_ASSIGN_OR_RETURN(const int64_t logit_rows, CheckBatch(batch, spec_, options_, kv_.positions()));
    return workspace_.SetBatch(batch, logit_rows);
  }

  absl::Status Compute(BlockId block) override {
    LIME_RETURN_IF_ERROR(CheckComplete(block));
    return blocks_[PlaceOf(block)]->Forward(memory());
  }

  absl::Status ComputeRows(BlockId block, const RowsInMemory& rows) override {
    LIME_RETURN_IF_ERROR(CheckComplete(block));
    return blocks_[PlaceOf(block)]->ForwardRows(rows, memory());
  }

  std::span<const int32_t> ChosenUnits(BlockId block) const override { return blocks_[PlaceOf(block)]->ChosenUnits(workspace_); }

  size_t GuessUnits(BlockId block, BlockId next, std::span<const RowsInMemory> router, std::span<int32_t> units) override {
    if (block.kind != BlockKind::kExperts || next.kind != BlockKind::kExperts || ChosenUnits(block).empty()) return 0;
    return static_cast<const ExpertsBlock&>(*blocks_[PlaceOf(next)]).GuessUnits(workspace_, router, units);
  }

  absl::Status ComputeUnits(BlockId block, std::span<const RowsInMemory> rows) override {
    LIME_RETURN_IF_ERROR(CheckComplete(block));
    return blocks_[PlaceOf(block)]->ForwardUnits(rows, memory());
  }

  absl::StatusOr<UnitInputs> InputsOfUnits(BlockId block) override {
    LIME_ASSIGN_OR_RETURN(const ExpertsBlock* const experts, Open(block));
    return experts->InputsOfUnits(workspace_);
  }
  absl::StatusOr<Bytes> UnitResultBytes(BlockId block, int32_t unit) override {
    LIME_ASSIGN_OR_RETURN(const ExpertsBlock* const experts, Open(block));
    return experts->UnitResultBytes(workspace_, unit);
  }
  absl::Status TakeUnitResult(BlockId block, int32_t unit, std::span<const std::byte> result) override {
    LIME_ASSIGN_OR_RETURN(const ExpertsBlock* const experts, Open(block));
    return experts->TakeUnitResult(workspace_, unit, result);
  }
  absl::Status UseUnitResults(BlockId block, std::span<const int32_t> units) override {
    LIME_ASSIGN_OR_RETURN(const ExpertsBlock* const experts, Open(block));
    return experts->UseUnitResults(workspace_, units);
  }
  absl::Status ComputeUnitsFor(BlockId block, std::span<const std::byte> inputs, std::span<const UnitForRows> units,
                               std::span<float> results) override {
    LIME_CHECK(options_.computes_for_others && block.kind == BlockKind::kExperts);
    return static_cast<const ExpertsBlock&>(*blocks_[PlaceOf(block)]).ForwardUnitsFor(workspace_, inputs, units, results);
  }

  absl::StatusOr<std::span<const int32_t>> DecideNeurons(BlockId block) override {
    LIME_RETURN_IF_ERROR(CheckComplete(block));
    LIME_ASSIGN_OR_RETURN(MlpBlock* const mlp, Mlp(block));
    return mlp->DecideNeurons(workspace_);
  }
  absl::StatusOr<std::span<const int32_t>> ActiveNeurons(BlockId block, int64_t row) override {
    LIME_ASSIGN_OR_RETURN(MlpBlock* const mlp, Mlp(block));
    return mlp->ActiveNeurons(workspace_, row);
  }
  absl::Status ComputeNeurons(BlockId block, std::span<const NeuronInMemory> neurons) override {
    LIME_ASSIGN_OR_RETURN(const MlpBlock* const mlp, Mlp(block));
    return mlp->ForwardNeurons(workspace_, neurons);
  }

  absl::Status BindCopy(BlockId block, const DeciderView& copy, std::shared_ptr<const void> storage) override {
    LIME_ASSIGN_OR_RETURN(MlpBlock* const mlp, Mlp(block));
    return mlp->BindCopy(workspace_, copy, std::move(storage));
  }
  absl::Status BindPredictor(BlockId block, const PredictorView& predictor, std::shared_ptr<const void> storage) override {
    LIME_ASSIGN_OR_RETURN(MlpBlock* const mlp, Mlp(block));
    return mlp->BindPredictor(workspace_, predictor, std::move(storage));
  }
  absl::StatusOr<std::span<const std::byte>> InputOfNeurons(BlockId block) override {
    LIME_ASSIGN_OR_RETURN(const MlpBlock* const mlp, Mlp(block));
    if (!workspace_.neuron_progress.decided || workspace_.neuron_progress.layer != block.layer)
      return absl::InternalError(absl::StrCat("the input of ", BlockName(block), " is asked for, but its neurons are not decided"));
    return std::span(mlp->InputOfNeurons(workspace_),
                     static_cast<size_t>(workspace_.rows * workspace_.hidden * ElementBytes(workspace_.dtype)));
  }

  absl::Status AttendToPieces(int64_t layer, int64_t begin, int64_t end, std::span<const std::byte* const> places) override {
    LIME_CHECK(options_.attends_pieces);
    LIME_CHECK(0 <= begin && begin < end && std::ssize(places) == options_.max_sequences * (end - begin)) << begin << " to " << end;
    return attention(layer).AttendToPieces(workspace_, kv_.layer(layer), {.begin = begin, .end = end, .places = places.data()});
  }

  absl::StatusOr<std::span<const float>> Queries(int64_t layer) override {
    LIME_RETURN_IF_ERROR(attention(layer).Queries(workspace_, kv_.layer(layer)));
    return std::span<const float>(workspace_.q, static_cast<size_t>(workspace_.rows * spec_.config.q_cols(layer)));
  }

  int64_t RecordFloats() const override { return PackedRecordFloats(spec_.config.num_heads, spec_.config.MostHeadDim()); }

  absl::Status AttendFor(std::span<const int32_t> positions, std::span<const float> queries, std::span<const std::byte* const> pieces,
                         std::span<float> records) override {
    LIME_CHECK(options_.attends_for_others);
    const AttentionRows rows{.positions = positions.data(), .count = std::ssize(positions)};
    const int64_t count = std::ssize(pieces), layer = FirstKvLayer(spec_.config), head_dim = spec_.config.layer(layer).head_dim;
    LIME_RETURN_IF_ERROR(CheckForOthers(positions, count));
    LIME_RETURN_IF_ERROR(CheckSize("queries", std::ssize(queries), rows.count * spec_.config.q_cols(layer)));
    LIME_RETURN_IF_ERROR(CheckSize("records", std::ssize(records), rows.count * RecordFloats()));
    const AttentionShape shape = AttentionShapeOf(spec_.config, layer);
    AttentionWorkspace& scratch = *workspace_.for_others;
    Attend(workspace_.pool, scratch, kv_.layer(layer), rows, queries.data(), shape, nullptr, {.end = count, .places = pieces.data()});
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
    return static_cast<EmbeddingBlock&>(*blocks_[PlaceOf({BlockKind::kEmbedding, 0})]).ForwardGiven(rows, memory());
  }

  std::span<std::byte> Hidden() override {
    return {workspace_.x, static_cast<size_t>(workspace_.rows * spec_.config.stream_cols() * ElementBytes(workspace_.dtype))};
  }

  std::span<float> Logits() override { return {workspace_.logits, static_cast<size_t>(workspace_.logit_rows * workspace_.vocab)}; }

  Bytes ActivationBytes() const override { return workspace_.bytes(); }
  Bytes KvBytes() const override { return kv_.bytes(); }
  Bytes StateBytes() const override { return states_.bytes(); }

 private:
  StepMemory memory() { return {.ws = workspace_, .kv = kv_, .states = states_}; }
  AttentionBlock& attention(int64_t layer) {
    return static_cast<AttentionBlock&>(*blocks_[PlaceOf({BlockKind::kAttention, static_cast<int32_t>(layer)})]);
  }

  absl::StatusOr<MlpBlock*> Mlp(BlockId block) const {
    if (block.kind != BlockKind::kMlp)
      return absl::UnimplementedError(absl::StrCat(BlockName(block), " is no dense MLP and has no sparse form"));
    return static_cast<MlpBlock*>(blocks_[PlaceOf(block)].get());
  }

  // A block whose units are chosen.
  absl::StatusOr<const ExpertsBlock*> Open(BlockId block) const {
    if (block.kind != BlockKind::kExperts || blocks_[PlaceOf(block)]->ChosenUnits(workspace_).empty())
      return absl::InternalError(absl::StrCat(BlockName(block), " has not chosen its experts"));
    return static_cast<const ExpertsBlock*>(blocks_[PlaceOf(block)].get());
  }

  // Fails if another block than `next` lacks experts or neurons.
  absl::Status CheckComplete(BlockId next) const {
    const NeuronProgress& sparse = workspace_.neuron_progress;
    if (sparse.decided && !sparse.added && next != BlockId{BlockKind::kMlp, sparse.layer})
      return absl::InternalError(absl::StrCat(BlockName(next), " is to be computed, but layer ", sparse.layer, " lacks ",
                                              sparse.active - sparse.done, " active neurons, or the call that ends them"));
    const ExpertProgress& open = workspace_.experts;
    if (open.layer < 0 || open.added || next == BlockId{BlockKind::kExperts, open.layer}) return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat(BlockName(next), " is to be computed, but layer ", open.layer, " lacks ", open.missing, " results of experts"));
  }

  // The index of the block in the spec.
  size_t PlaceOf(BlockId id) const {
    const auto found = std::ranges::find(spec_.blocks, id, &BlockSpec::id);
    LIME_CHECK(found != spec_.blocks.end()) << BlockName(id);
    return static_cast<size_t>(found - spec_.blocks.begin());
  }

  absl::Status CheckForOthers(std::span<const int32_t> positions, int64_t pieces) const {
    if (positions.empty() || std::ssize(positions) > options_.max_rows)
      return Invalid("another device sent ", positions.size(), " rows, the plan allows 1 to ", options_.max_rows);
    if (pieces < 1) return Invalid("another device asks for attention to no pieces of KV");
    for (const int32_t position : positions) LIME_RETURN_IF_ERROR(CheckBehind(position, pieces));
    return absl::OkStatus();
  }

  const ModelSpec& spec_;
  const BackendOptions options_;
  const Numerics numerics_;
  Workspace workspace_;
  KvPool kv_;
  StatePool states_;
  std::vector<std::unique_ptr<Block>> blocks_;        // in the order of the spec
  std::vector<std::shared_ptr<const void>> storage_;  // of their weights
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> OpenCpuBackend(const ModelSpec& spec, const BackendOptions& options) {
  LIME_RETURN_IF_ERROR(CheckSupported(spec.config, options));
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

bool CpuProvesZeros(const ModelSpec& spec, const BackendOptions& options) {
  const Numerics numerics = NumericsOf(spec, options.numerics);
  return numerics == Numerics::kEmulatedBf16 || kSumOrderNames.Find(NumericsId(numerics)).has_value();
}

}  // namespace lime::cpu
