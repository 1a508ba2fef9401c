#include "daemon/calibration/mask_run.h"

#include <algorithm>
#include <memory>
#include <numeric>

#include "daemon/weights/bundled_mlp.h"
#include "daemon/weights/weight_store.h"
#include "kernels/backend.h"
#include "kernels/registry/registry.h"
#include "planner/base/bytes.h"
#include "planner/base/check.h"

namespace lime {
namespace {

constexpr int64_t kChunkRows = 64;
constexpr int64_t kPagePositions = 16;
constexpr char kBackend[] = "cpu";  // the one that decides neurons

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
    LIME_RETURN_IF_ERROR(ForEachChunk([&](size_t sequence, int64_t first, int64_t rows) -> absl::Status {
      streams_[sequence].Put(first, rows, backend_->Hidden());
      LIME_RETURN_IF_ERROR(backend_->Compute(blocks.front()));
      streams_[sequence].Take(first, rows, backend_->Hidden());
      LIME_RETURN_IF_ERROR(backend_->Compute(blocks.back()));
      // The MLP's input is still in the stream: decide for one row at a time.
      const std::vector<std::byte> after(backend_->Hidden().begin(), backend_->Hidden().end());
      if (mlp != nullptr) LIME_RETURN_IF_ERROR(Decide(sequence, first, rows, blocks.back(), masks[sequence]));
      streams_[sequence].Take(first, rows, after);
      return absl::OkStatus();
    }));
    backend_.reset();  // and the weights, which are of no more use
    return mlp != nullptr ? take_(layer, mlp->shape.neurons, masks) : absl::OkStatus();
  }

  void PlanWork(int64_t layers) { work_ = tokens_ * (layers + 1); }

 private:
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
        if (options_.progress) options_.progress(static_cast<double>(done_) / static_cast<double>(work_));
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
    }
    return absl::OkStatus();
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
