#include "daemon/engine/engine.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/engine/process_memory.h"
#include "daemon/weights/checkpoint.h"
#include "daemon/weights/system_memory.h"
#include "kernels/module.h"
#include "planner/base/check.h"

namespace lime {
namespace {

// K and V of 16 positions of one layer.
Bytes PageBytes(const ModelSpec& spec) {
  return spec.KvBytesPerToken() / spec.config.num_layers * kPositionsPerPage;
}

absl::Status CheckContext(const ModelSpec& spec, int64_t context, const std::string& dir) {
  if (context >= 1 && context <= spec.config.max_positions) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(dir, ": a context of ", context, " positions is outside 1 to ", spec.config.max_positions,
                                                 ", which config.json states as max_position_embeddings"));
}

// The budget holds everything or nothing is loaded.
absl::Status CheckBudget(const Engine::Memory& need, Bytes budget, bool asked, const std::string& dir) {
  const Bytes total = need.weights + need.kv + need.activations + need.runtime;
  if (total <= budget) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      dir, " needs ", FormatBytes(total), " (weights ", FormatBytes(need.weights), ", KV ", FormatBytes(need.kv), ", activations ",
      FormatBytes(need.activations), ", runtime ", FormatBytes(need.runtime), ") and ", asked ? "--memory allows " : "this machine has ",
      FormatBytes(budget), "; give a smaller --context or --chunk, quantise the model, or use a device with more memory"));
}

BackendOptions ToBackendOptions(const ModelSpec& spec, const Engine::Options& options) {
  return {.num_threads = options.num_threads > 0 ? options.num_threads : UsableCores(),
          .max_rows = options.max_rows,
          .max_logit_rows = options.max_logit_rows,
          .max_sequences = options.max_sequences,
          .context = options.context,
          .num_kv_pages = options.max_sequences * KvPages::PagesFor(options.context, spec.config.num_layers),
          .grow_kv = options.grow_kv,
          .numerics = options.numerics};
}

// What is to be held, checked before any of it is allocated: weights and KV before the kernels are opened, then all of it beside the
// process with its libraries.
absl::StatusOr<Engine::Memory> PlanMemory(const ModelSpec& spec, const BackendOptions& backend, Bytes budget, bool asked,
                                          const std::string& dir) {
  Engine::Memory memory{.weights = spec.WeightBytes(), .kv = backend.num_kv_pages * PageBytes(spec), .runtime = ProcessResidentBytes()};
  LIME_RETURN_IF_ERROR(CheckBudget(memory, budget, asked, dir));
  LIME_ASSIGN_OR_RETURN(memory.activations, PlanActivationBytes(spec, backend));
  memory.runtime = ProcessResidentBytes();
  LIME_RETURN_IF_ERROR(CheckBudget(memory, budget, asked, dir));
  return memory;
}

BlockWeights ToWeights(const LoadedBlock& block) {
  BlockWeights weights;
  weights.storage = block.storage;
  for (const LoadedTensor& tensor : block.tensors) weights.tensors.push_back(tensor.data);
  return weights;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const std::string& model_dir, const Options& options) {
  LIME_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(model_dir));
  LIME_ASSIGN_OR_RETURN(ModelSpec spec, checkpoint.BuildModelSpec());
  LIME_RETURN_IF_ERROR(CheckContext(spec, options.context, model_dir));
  LIME_CHECK_GE(options.max_rows, options.max_sequences);
  const BackendOptions backend = ToBackendOptions(spec, options);
  const Bytes budget = options.memory > 0 ? options.memory : AvailableMemory() + ProcessResidentBytes();
  LIME_ASSIGN_OR_RETURN(const Memory memory, PlanMemory(spec, backend, budget, options.memory > 0, model_dir));
  const KvPages::Options pages{
      .num_pages = backend.num_kv_pages, .num_layers = spec.config.num_layers, .max_sequences = options.max_sequences};
  std::unique_ptr<Engine> engine(new Engine(std::move(spec), pages));
  engine->context_ = options.context;
  engine->memory_ = memory;
  LIME_RETURN_IF_ERROR(engine->Open(checkpoint, options, backend, budget));
  return engine;
}

// What the libraries took for themselves while they were set up shows only now, and counts as runtime.
absl::Status Engine::Open(const Checkpoint& checkpoint, const Options& options, const BackendOptions& backend, Bytes budget) {
  LIME_ASSIGN_OR_RETURN(backend_, OpenBackend(spec_, backend));
  LIME_CHECK_EQ(backend_->ActivationBytes(), memory_.activations) << "the plan of activations differs from what was allocated";
  LIME_CHECK_EQ(backend_->KvBytes(), memory_.kv);
  const Bytes resident_kv = options.grow_kv ? 0 : memory_.kv;
  memory_.runtime = std::max(memory_.runtime, ProcessResidentBytes() - memory_.activations - resident_kv);
  LIME_RETURN_IF_ERROR(CheckBudget(memory_, budget, options.memory > 0, checkpoint.dir()));
  return LoadWeights(checkpoint, options);
}

absl::Status Engine::LoadWeights(const Checkpoint& checkpoint, const Options& options) {
  const absl::Time start = absl::Now();
  LIME_ASSIGN_OR_RETURN(const std::unique_ptr<WeightStore> store,
                        WeightStore::Open(checkpoint, spec_, {.loader = options.loader, .passes = options.planned_steps}));
  LIME_ASSIGN_OR_RETURN(const std::vector<LoadedBlock> blocks, store->LoadAll(options.load));
  for (size_t i = 0; i < blocks.size(); ++i) LIME_RETURN_IF_ERROR(backend_->BindBlock(spec_.blocks[i], ToWeights(blocks[i])));
  load_ = {.loader = store->Describe(), .bytes = spec_.WeightBytes(), .seconds = absl::ToDoubleSeconds(absl::Now() - start)};
  return absl::OkStatus();
}

absl::Status Engine::StartSequence(int32_t sequence, int64_t positions) {
  LIME_RETURN_IF_ERROR(pages_.Reserve(sequence, positions));
  for (int64_t layer = 0; layer < spec_.config.num_layers; ++layer) backend_->SetPages(sequence, layer, pages_.Pages(sequence, layer));
  return absl::OkStatus();
}

void Engine::EndSequence(int32_t sequence) {
  pages_.Release(sequence);
}

absl::StatusOr<std::span<const float>> Engine::Step(const MicroBatch& batch) {
  LIME_RETURN_IF_ERROR(backend_->Begin(batch));
  LIME_RETURN_IF_ERROR(backend_->Embed());
  for (int64_t layer = 0; layer < spec_.config.num_layers; ++layer) {
    LIME_RETURN_IF_ERROR(backend_->Attention(layer));
    LIME_RETURN_IF_ERROR(backend_->Mlp(layer));
  }
  LIME_RETURN_IF_ERROR(backend_->Head());
  return backend_->Logits();
}

Bytes Engine::BytesPerStep(int64_t sequences, int64_t positions) const {
  Bytes bytes = sequences * positions * spec_.KvBytesPerToken();
  for (const BlockSpec& block : spec_.blocks) {
    if (block.id.kind != BlockKind::kEmbedding) bytes += block.bytes;
  }
  return bytes;
}

}  // namespace lime
