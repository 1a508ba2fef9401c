#include "daemon/calibration/mask_run.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "daemon/weights/bundled_mlp.h"
#include "daemon/weights/weight_store.h"
#include "kernels/backend.h"
#include "kernels/registry/registry.h"
#include "planner/base/bytes.h"
#include "planner/base/check.h"
#include "planner/base/float_bits.h"

namespace lime {
namespace {

constexpr int64_t kChunkRows = 64;
constexpr int64_t kPagePositions = 16;
constexpr char kBackend[] = "cpu";  // the one that decides neurons

// Of `all`, every so many-th is at most `most`.
int64_t StrideFor(int64_t all, int64_t most) {
  return (all + most - 1) / most;
}

// The stream of one sequence: what a block hands to the next one, row by row.
class Stream {
 public:
  // The stream of a batch is plane after plane, each [rows, hidden].
  Stream(const ModelSpec& spec, int64_t rows)
      : row_bytes_(spec.config.hidden_size * ElementBytes(spec.working_dtype)),
        planes_(static_cast<size_t>(spec.config.stream_cols() / spec.config.hidden_size),
                std::vector<std::byte>(static_cast<size_t>(rows * row_bytes_))) {}

  // `hidden`: of a batch of these rows.
  void Put(int64_t first, int64_t rows, std::span<std::byte> hidden) const {
    for (size_t plane = 0; plane < planes_.size(); ++plane)
      std::copy_n(planes_[plane].begin() + first * row_bytes_, rows * row_bytes_, hidden.begin() + At(plane, rows));
  }
  void Take(int64_t first, int64_t rows, std::span<const std::byte> hidden) {
    for (size_t plane = 0; plane < planes_.size(); ++plane)
      std::copy_n(hidden.begin() + At(plane, rows), rows * row_bytes_, planes_[plane].begin() + first * row_bytes_);
  }

 private:
  int64_t At(size_t plane, int64_t rows) const { return static_cast<int64_t>(plane) * rows * row_bytes_; }

  int64_t row_bytes_;
  std::vector<std::vector<std::byte>> planes_;
};

class Run {
 public:
  Run(const ModelSpec& spec, WeightStore& store, std::span<const std::vector<int32_t>> sequences, const MaskRunOptions& options,
      const TakeMasks& take)
      : spec_(spec), store_(store), sequences_(sequences), options_(options), take_(take) {
    for (const std::vector<int32_t>& sequence : sequences) {
      streams_.emplace_back(spec, std::ssize(sequence));
      longest_ = std::max(longest_, std::ssize(sequence));
      tokens_ += std::ssize(sequence);
    }
  }

  absl::Status Embed() {
    LIME_RETURN_IF_ERROR(Load({{BlockKind::kEmbedding, 0}}));
    return ForEachChunk([&](size_t sequence, int64_t first, int64_t rows) -> absl::Status {
      LIME_RETURN_IF_ERROR(backend_->Compute({BlockKind::kEmbedding, 0}));
      streams_[sequence].Take(first, rows, backend_->Hidden());
      return absl::OkStatus();
    });
  }

  // `mlp`: null if the layer can have no bundles.
  absl::Status Layer(int32_t layer, const BundledMlp* mlp) {
    std::vector<BlockId> blocks;
    for (const BlockSpec& block : spec_.blocks) {
      const bool is_of_layer = block.id.kind != BlockKind::kEmbedding && block.id.kind != BlockKind::kHead && block.id.layer == layer;
      if (is_of_layer) blocks.push_back(block.id);
    }
    LIME_RETURN_IF_ERROR(Load(blocks));
    std::vector<SequenceMasks> masks(sequences_.size());
    BeginInputs(layer, mlp);
    LIME_RETURN_IF_ERROR(ForEachChunk([&](size_t sequence, int64_t first, int64_t rows) -> absl::Status {
      streams_[sequence].Put(first, rows, backend_->Hidden());
      LIME_RETURN_IF_ERROR(backend_->Compute(blocks.front()));
      streams_[sequence].Take(first, rows, backend_->Hidden());
      if (options_.inputs) options_.inputs(layer, sequence, first, rows, backend_->Hidden());
      LIME_RETURN_IF_ERROR(backend_->Compute(blocks.back()));
      // The MLP's input is still in the stream: decide for one row at a time.
      const std::vector<std::byte> after(backend_->Hidden().begin(), backend_->Hidden().end());
      if (mlp != nullptr) LIME_RETURN_IF_ERROR(Decide(sequence, first, rows, blocks.back(), masks[sequence]));
      streams_[sequence].Take(first, rows, after);
      return absl::OkStatus();
    }));
    if (inputs_) LIME_RETURN_IF_ERROR(options_.take_inputs(*inputs_));
    inputs_.reset();
    if (options_.take_inputs) done_ += tokens_;
    backend_.reset();  // and the weights, which are of no more use
    return mlp != nullptr ? take_(layer, mlp->shape.neurons, masks) : absl::OkStatus();
  }

  // What is made of the inputs of a layer counts like the layer.
  void PlanWork(int64_t layers) { work_ = tokens_ * (layers + 1 + (options_.take_inputs ? layers : 0)); }

 private:
  void Report(double done) const {
    if (options_.progress) options_.progress(done / static_cast<double>(work_));
  }

  int64_t Pages() const { return (longest_ + kPagePositions - 1) / kPagePositions; }

  // Opens a backend with these blocks alone.
  absl::Status Load(const std::vector<BlockId>& blocks) {
    LIME_ASSIGN_OR_RETURN(backend_, OpenBackend(kBackend, spec_,
                                                {.num_threads = options_.num_threads,
                                                 .max_rows = std::min(kChunkRows, longest_),
                                                 .max_logit_rows = 1,
                                                 .max_sequences = 1,
                                                 .context = longest_,
                                                 .num_kv_pages = Pages(),
                                                 .sparse_rows = 1,
                                                 .numerics = options_.numerics}));
    // A step needs pages in all layers. They are the same, since only one layer is computed.
    std::vector<int32_t> pages(static_cast<size_t>(Pages()));
    std::iota(pages.begin(), pages.end(), 0);
    for (int64_t layer = 0; layer < spec_.config.num_layers(); ++layer) backend_->SetPages(0, layer, pages);
    LIME_ASSIGN_OR_RETURN(std::vector<LoadedBlock> loaded, store_.LoadBlocks(blocks, {.cancelled = options_.cancelled}));
    for (const LoadedBlock& block : loaded) {
      BlockWeights weights{.storage = block.storage};
      for (const LoadedTensor& tensor : block.tensors) weights.tensors.push_back(tensor.data);
      if (block.id.kind == BlockKind::kMlp) loaded_ = weights.tensors;
      LIME_RETURN_IF_ERROR(backend_->BindBlock(spec_.block(block.id), std::move(weights)));
    }
    return absl::OkStatus();
  }

  absl::Status Begin(size_t sequence, int64_t first, int64_t rows) {
    batch_.Clear();
    for (int64_t row = first; row < first + rows; ++row)
      batch_.rows.push_back({.token = sequences_[sequence][static_cast<size_t>(row)], .position = static_cast<int32_t>(row)});
    return backend_->Begin(batch_);
  }

  template <typename Compute>
  absl::Status ForEachChunk(const Compute& compute) {
    for (size_t sequence = 0; sequence < sequences_.size(); ++sequence) {
      const int64_t all = std::ssize(sequences_[sequence]);
      for (int64_t first = 0; first < all; first += kChunkRows) {
        if (options_.cancelled != nullptr && options_.cancelled->load()) return absl::CancelledError("interrupted");
        const int64_t rows = std::min(kChunkRows, all - first);
        LIME_RETURN_IF_ERROR(Begin(sequence, first, rows));
        LIME_RETURN_IF_ERROR(compute(sequence, first, rows));
        done_ += rows;
        Report(static_cast<double>(done_));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Decide(size_t sequence, int64_t first, int64_t rows, BlockId block, SequenceMasks& masks) {
    for (int64_t row = first; row < first + rows; ++row) {
      LIME_RETURN_IF_ERROR(Begin(sequence, row, 1));
      streams_[sequence].Put(row, 1, backend_->Hidden());
      LIME_ASSIGN_OR_RETURN(const std::span<const int32_t> active, backend_->DecideNeurons(block));
      masks.emplace_back(active.begin(), active.end());
      if (!inputs_) continue;
      if (decided_ >= LastBegin() && last_taken_ < kMostLastInputs) LIME_RETURN_IF_ERROR(AddLast(block, sequence, masks.back()));
      if (decided_++ % InputStride() == 0) LIME_RETURN_IF_ERROR(AddInput(block, masks.back()));
    }
    return absl::OkStatus();
  }

  // ---- Inputs of the decider

  // Every so many-th token is sampled.
  int64_t InputStride() const { return StrideFor(tokens_, options_.most_inputs); }

  // The first token behind those that teach.
  int64_t LastBegin() const {
    if (options_.last_from >= 0) return options_.last_from;
    const int64_t stride = InputStride(), sampled = (tokens_ + stride - 1) / stride;
    return TaughtInputs(sampled) * stride;
  }

  // Takes the weights of the decider, if inputs are wanted and the layer can have a copy.
  void BeginInputs(int32_t layer, const BundledMlp* mlp) {
    decided_ = last_taken_ = 0, last_sequence_ = -1;
    const std::optional<SumOrder> order = kSumOrderNames.Find(backend_->numerics_id());
    if (!options_.take_inputs || mlp == nullptr || mlp->packed) return;
    const TensorSpec& weight = *mlp->rows().front();
    const bool pairs = weight.info.dtype == DType::kBF16 && spec_.working_dtype == DType::kBF16;
    inputs_ = LayerInputs{.layer = layer,
                          .cols = weight.info.shape[1],
                          .order = pairs ? order : SumOrder::kPortable,
                          .threshold = static_cast<float>(spec_.config.activation_limit),
                          .num_threads = options_.num_threads,
                          .cancelled = options_.cancelled,
                          .progress = [this](double share) { Report(static_cast<double>(done_) + share * static_cast<double>(tokens_)); }};
    const BlockSpec& block = spec_.block({BlockKind::kMlp, layer});
    const std::optional<size_t> bias = block.Find(weight.role, TensorPart::kBias);
    const std::byte* const rows = loaded_[block.Find(weight.role, TensorPart::kWeight).value()];
    const int64_t all = mlp->shape.neurons, stride = StrideFor(all, std::max<int64_t>(1, options_.most_weights / inputs_->cols));
    for (int64_t neuron = 0; neuron < all; neuron += stride) {
      inputs_->neurons.push_back(static_cast<int32_t>(neuron));
      AppendFloats(weight.info.dtype, rows, neuron * inputs_->cols, inputs_->cols, inputs_->decider);
      if (bias) AppendFloats(block.tensors[*bias].info.dtype, loaded_[*bias], neuron, 1, inputs_->bias);
    }
    inputs_->all_neurons = mlp->shape.neurons;
    if (bias) AppendFloats(block.tensors[*bias].info.dtype, loaded_[*bias], 0, all, inputs_->all_bias);
    inputs_->row = [rows, dtype = weight.info.dtype, cols = inputs_->cols](int64_t neuron, std::span<float> weights) {
      CopyFloats(dtype, rows, neuron * cols, weights);
    };
    const auto is_finite = [](float value) { return std::isfinite(value); };
    if (!std::ranges::all_of(inputs_->decider, is_finite) || !std::ranges::all_of(inputs_->bias, is_finite)) inputs_.reset();
  }

  absl::Status AddInput(BlockId block, const std::vector<int32_t>& mask) {
    LIME_ASSIGN_OR_RETURN(const std::span<const std::byte> row, backend_->InputOfNeurons(block));
    AppendFloats(spec_.working_dtype, row.data(), 0, inputs_->cols, inputs_->inputs);
    inputs_->masks.push_back(mask);
    return absl::OkStatus();
  }

  absl::Status AddLast(BlockId block, size_t sequence, const std::vector<int32_t>& mask) {
    LIME_ASSIGN_OR_RETURN(const std::span<const std::byte> row, backend_->InputOfNeurons(block));
    AppendFloats(spec_.working_dtype, row.data(), 0, inputs_->cols, inputs_->last_inputs);
    const auto now = static_cast<int64_t>(sequence);
    if (std::exchange(last_sequence_, now) != now) inputs_->last_masks.emplace_back();
    inputs_->last_masks.back().push_back(mask);
    ++last_taken_;
    return absl::OkStatus();
  }

  static void CopyFloats(DType dtype, const std::byte* data, int64_t first, std::span<float> out) {
    WithWorkingType(dtype, [&](auto type) {
      const auto* from = reinterpret_cast<const decltype(type)*>(data) + first;
      for (float& value : out) value = ToFloat(*from++);
    });
  }
  static void AppendFloats(DType dtype, const std::byte* data, int64_t first, int64_t count, std::vector<float>& out) {
    out.resize(out.size() + static_cast<size_t>(count));
    CopyFloats(dtype, data, first, std::span(out).last(static_cast<size_t>(count)));
  }

  const ModelSpec& spec_;
  WeightStore& store_;
  const std::span<const std::vector<int32_t>> sequences_;
  const MaskRunOptions& options_;
  const TakeMasks& take_;
  std::vector<Stream> streams_;  // by sequence
  int64_t longest_ = 0, tokens_ = 0;
  int64_t work_ = 1, done_ = 0;  // tokens through blocks
  std::unique_ptr<Backend> backend_;
  MicroBatch batch_;
  std::vector<const std::byte*> loaded_;  // tensors of the MLP that was loaded last
  std::optional<LayerInputs> inputs_;     // of the layer at work; nothing if they are not wanted
  int64_t decided_ = 0;                   // tokens of the layer
  int64_t last_taken_ = 0, last_sequence_ = -1;
};

absl::Status CheckSequences(const ModelSpec& spec, std::span<const std::vector<int32_t>> sequences) {
  if (sequences.empty()) return Invalid("calibration: there is no text");
  for (const std::vector<int32_t>& sequence : sequences) {
    if (sequence.empty() || std::ssize(sequence) > spec.config.max_positions)
      return Invalid("calibration: a sequence of ", sequence.size(), " tokens, need 1 to the model's ", spec.config.max_positions,
                     " positions");
    for (const int32_t id : sequence) {
      if (id < 0 || id >= spec.config.vocab_size) return Invalid("calibration: token id ", id, " is not one of the model's");
    }
  }
  return absl::OkStatus();
}

// All tokens count, also those that begin a sequence and are not of the text.
absl::Status CheckMasks(std::span<const std::vector<int32_t>> sequences, std::span<const BundledMlp> mlps) {
  int64_t tokens = 0, longest = 0, neurons = 0;
  for (const std::vector<int32_t>& sequence : sequences) {
    tokens += std::ssize(sequence);
    longest = std::max(longest, std::ssize(sequence));
  }
  for (const BundledMlp& mlp : mlps) neurons = std::max<int64_t>(neurons, mlp.shape.neurons);
  const int64_t most = kMostMaskNeurons / neurons;
  if (tokens <= most) return absl::OkStatus();
  // Each sequence of the text may have another token at its beginning.
  const int64_t of_text = most - (most + longest - 1) / longest;
  return Invalid("calibration: the masks of ", tokens, " tokens and a layer of ", neurons, " neurons may need ",
                 FormatBytes(4 * tokens * neurons), " of memory, supported are ", FormatBytes(4 * kMostMaskNeurons), "; give --tokens ",
                 of_text, " or less");
}

absl::Status CheckMlps(const ModelSpec& spec, const std::string& dir) {
  if (!MakesZeros(spec.config.activation))
    return Invalid(dir, ": its MLPs have neither ReLU nor FATReLU nor dReLU, so none of their neurons is ever exactly zero; only models",
                   " with one of these can be calibrated");
  if (std::ranges::none_of(spec.blocks, [](const BlockSpec& block) { return block.id.kind == BlockKind::kMlp; }))
    return Invalid(dir, ": has no dense MLP, only experts; only dense MLPs can be calibrated");
  if (spec.config.layer_inputs > 0)
    return Invalid(dir, ": its layers have inputs of their own, with which no MLP can be sparse; such models cannot be calibrated");
  // A layer is computed without the layers before it, whose keys and values it may take.
  if (!spec.config.shared_kv_cols.empty())
    return Invalid(dir, ": its layers share keys and values, so none can be computed alone; such models cannot be calibrated");
  return absl::OkStatus();
}

}  // namespace

LayerInputs Sampled(const LayerInputs& inputs, int64_t most_inputs, int64_t most_weights) {
  LayerInputs out{.layer = inputs.layer,
                  .cols = inputs.cols,
                  .order = inputs.order,
                  .threshold = inputs.threshold,
                  .all_neurons = inputs.all_neurons,
                  .all_bias = inputs.all_bias,
                  .row = inputs.row,
                  .last_inputs = inputs.last_inputs,
                  .last_masks = inputs.last_masks};
  const auto add = [cols = inputs.cols](const std::vector<float>& from, int64_t row, std::vector<float>& to) {
    to.insert(to.end(), from.begin() + row * cols, from.begin() + (row + 1) * cols);
  };
  const int64_t neurons = std::ssize(inputs.neurons), tokens = std::ssize(inputs.masks);
  const int64_t step = StrideFor(neurons, std::max<int64_t>(1, most_weights / inputs.cols));
  for (int64_t i = 0; i < neurons; i += step) {
    out.neurons.push_back(inputs.neurons[static_cast<size_t>(i)]);
    add(inputs.decider, i, out.decider);
    if (!inputs.bias.empty()) out.bias.push_back(inputs.bias[static_cast<size_t>(i)]);
  }
  for (int64_t token = 0; token < tokens; token += StrideFor(tokens, most_inputs)) {
    add(inputs.inputs, token, out.inputs);
    out.masks.push_back(inputs.masks[static_cast<size_t>(token)]);
  }
  return out;
}

absl::Status RunForMasks(const Checkpoint& checkpoint, const ModelSpec& spec, std::span<const std::vector<int32_t>> sequences,
                         const MaskRunOptions& options, const TakeMasks& take) {
  LIME_RETURN_IF_ERROR(CheckSequences(spec, sequences));
  LIME_RETURN_IF_ERROR(CheckMlps(spec, checkpoint.dir()));
  LIME_ASSIGN_OR_RETURN(const std::vector<BundledMlp> mlps, BundledMlps(spec, checkpoint.dir()));
  LIME_RETURN_IF_ERROR(CheckMasks(sequences, mlps));
  // Other columns are refused: inputs of layers, and keys and values that they share.
  LIME_CHECK_EQ(spec.config.stream_cols(), spec.config.layer_inputs_at());
  LIME_ASSIGN_OR_RETURN(const auto store, WeightStore::Open(checkpoint, spec, {.loader = LoaderKind::kRead}));
  Run run(spec, *store, sequences, options, take);
  run.PlanWork(mlps.back().layer + 1);
  LIME_RETURN_IF_ERROR(run.Embed());
  for (int32_t layer = 0; layer <= mlps.back().layer; ++layer) {
    const auto mlp = std::ranges::find(mlps, layer, &BundledMlp::layer);
    LIME_RETURN_IF_ERROR(run.Layer(layer, mlp == mlps.end() ? nullptr : &*mlp));
  }
  return absl::OkStatus();
}

}  // namespace lime
