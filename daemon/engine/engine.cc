#include "daemon/engine/engine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/engine/block_weights.h"
#include "daemon/engine/call_limits.h"
#include "daemon/engine/process_memory.h"
#include "daemon/engine/traced.h"
#include "daemon/weights/kept_tensors.h"
#include "daemon/weights/system_memory.h"
#include "kernels/registry/registry.h"
#include "planner/base/check.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

// What was read says what the disk delivers from so much on; what stays in memory is decided anew from kSureSeconds on.
constexpr Bytes kLeastBytes = 32 * kMiB;
constexpr double kLeastSeconds = 0.1;
constexpr double kSureSeconds = 0.5;
constexpr double kSameRate = 0.1;      // rates that differ by less are one
constexpr double kSameBurst = 0.15;    // likewise, of reads that follow one another
constexpr double kWaitedShare = 0.25;  // of the time that the disk read, the computation waited for it: it was what held it up

constexpr Bytes kRoomBeside = 16 * kMiB;  // of a budget that is advised after one was just too small
constexpr int64_t kUsualChunk = 512;      // prompt rows of one step: enough for the matrices, short enough for others to wait beside

absl::Status CheckContext(const ModelSpec& spec, int64_t context, const std::string& dir) {
  if (context >= 1 && context <= spec.config.max_positions) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(dir, ": a context of ", context, " positions is outside 1 to ", spec.config.max_positions,
                                                 ", which config.json states as max_position_embeddings"));
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

// A few tens of megabytes alone can be an eighth too fast: a limit lets a burst pass, and a disk has a cache.
bool AreOneRate(const SteadyReads& before, const SteadyReads& now) {
  return before.seconds > 0 && now.seconds > 0 && std::abs(now.bytes_per_second() / before.bytes_per_second() - 1) <= kSameBurst;
}

SteadyReads Together(const SteadyReads& before, const SteadyReads& now) {
  return {.bytes = before.bytes + now.bytes, .seconds = before.seconds + now.seconds};
}

// In memory with all of its tensors.
bool IsLoaded(const LoadedBlock& block) {
  return !block.tensors.empty() && std::ranges::all_of(block.tensors, [](const LoadedTensor& tensor) { return tensor.data != nullptr; });
}

// Progress of one of several loads as that of all of them.
LoadOptions PartOf(const LoadOptions& whole, Bytes done, Bytes total, absl::Time start) {
  LoadOptions part = whole;
  if (!whole.progress) return part;
  part.progress = [&whole, done, total, start](const LoadProgress& progress) {
    whole.progress({.done = std::min(total, done + progress.done), .total = total, .elapsed = absl::Now() - start});
  };
  return part;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const std::string& model_dir, const Options& options) {
  LIME_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(model_dir));
  LIME_ASSIGN_OR_RETURN(ModelSpec spec, checkpoint.BuildModelSpec());
  LIME_RETURN_IF_ERROR(CheckContext(spec, options.context, model_dir));
  LIME_CHECK_GE(options.max_rows, options.max_sequences);
  BackendOptions backend = ToBackendOptions(spec, options);
  if (backend.num_kv_pages > std::numeric_limits<int32_t>::max()) {
    return absl::ResourceExhaustedError(absl::StrCat(model_dir, ": ", options.max_sequences, " sequences of ", options.context,
                                                     " positions need ", backend.num_kv_pages, " KV pages, more than can be numbered"));
  }
  std::unique_ptr<Engine> engine(new Engine(std::move(checkpoint), std::move(spec)));
  engine->context_ = options.context;
  LIME_ASSIGN_OR_RETURN(
      std::unique_ptr<PieceReader> reader,
      PieceReader::Open(
          engine->checkpoint_, engine->spec_,
          {.lanes = kStreamedReads, .read_bytes = kStreamedRead, .piece_bytes = options.piece_bytes, .wrap_device = options.wrap_device}));
  const MemoryRequest request{.backend = options.backend,
                              .budget = options.memory,
                              .priority = options.priority,
                              .placement = options.placement,
                              .ring = options.ring,
                              .ring_pieces = options.ring_pieces,
                              .resident_share = options.resident_share,
                              .profile = options.profile,
                              .positions = options.expected_positions,
                              .model = model_dir};
  LIME_ASSIGN_OR_RETURN(MemoryPlan plan, options.work.prompt_tokens > 0
                                             ? PlanMemoryAndChunk(engine->spec_, *reader, request, options.work, kUsualChunk, backend)
                                             : PlanEngineMemory(engine->spec_, backend, *reader, request));
  engine->max_rows_ = backend.max_rows;
  engine->budget_text_ = std::move(plan.budget_text);
  engine->pages_.emplace(KvPages::Options{
      .num_pages = backend.num_kv_pages, .num_layers = engine->spec_.config.num_layers, .max_sequences = options.max_sequences});
  engine->memory_ = plan.memory;
  engine->budget_ = plan.budget;
  engine->residency_ = std::move(plan.residency);
  engine->problem_ = std::move(plan.problem);
  if (engine->problem_) {
    engine->disk_rates_ = {.profiled = options.profile != nullptr && !options.profile->disk.empty(),
                           .planned = engine->problem_->disk_bytes_per_ms * 1000,
                           .planned_ms = engine->residency_.ms_per_step};
  }
  LIME_RETURN_IF_ERROR(engine->Open(options, backend, std::move(reader)));
  return engine;
}

// What the libraries took for themselves while they were set up shows only now, and counts as runtime: the margin pays for it.
absl::Status Engine::Open(const Options& options, const BackendOptions& backend, std::unique_ptr<PieceReader> reader) {
  LIME_ASSIGN_OR_RETURN(backend_, OpenBackend(options.backend, spec_, backend));
  LIME_CHECK_LE(backend_->ActivationBytes(), memory_.activations) << "the plan of activations differs from what was allocated";
  LIME_CHECK_EQ(backend_->KvBytes(), memory_.kv);
  const Bytes resident_kv = options.grow_kv ? 0 : memory_.kv;
  const Bytes runtime = std::max(memory_.runtime, ProcessResidentBytes() - backend_->ActivationBytes() - resident_kv);
  memory_.margin = std::max<Bytes>(0, memory_.margin - (runtime - memory_.runtime));
  memory_.runtime = runtime;
  if (memory_.total() > budget_) {
    return absl::ResourceExhaustedError(
        absl::StrCat(checkpoint_.dir(), ": the process takes ", FormatBytes(runtime), " before weights are loaded, and ",
                     FormatBytes(memory_.total()), " with them; ", options.memory > 0 ? "--memory allows " : "this machine can give ",
                     FormatBytes(budget_), "; ", options.memory > 0 ? "give --memory " : "end other programs, so that it can give ",
                     BudgetAtLeast(memory_.total() + kRoomBeside), " or more"));
  }
  const absl::Time start = absl::Now();
  LIME_RETURN_IF_ERROR(LoadWeights(options));
  streaming_ = {.ring_bytes = residency_.ring,
                .max_rows = backend.max_rows,
                .piece_bytes = options.piece_bytes,
                .cancelled = options.load.cancelled,
                .report = options.report,
                .trace = options.trace,
                .wrap_device = options.wrap_device};
  if (residency_.streams()) {
    LIME_ASSIGN_OR_RETURN(streamer_, Streamer::Create(checkpoint_, spec_, *backend_, std::move(reader), blocks_, streaming_));
  }
  load_.seconds = absl::ToDoubleSeconds(absl::Now() - start);
  return options.watch_pressure ? WatchPressure(options.pressure.value_or(PressureMonitor::Options{})) : absl::OkStatus();
}

absl::Status Engine::LoadWeights(const Options& options) {
  const bool streams = residency_.streams();
  // Blocks that are planned to stay are worth reading; the choice is for models that are all resident.
  const LoaderKind loader = streams && options.loader == LoaderKind::kAuto ? LoaderKind::kRead : options.loader;
  LIME_ASSIGN_OR_RETURN(
      const std::unique_ptr<WeightStore> store,
      WeightStore::Open(
          checkpoint_, spec_,
          {.loader = loader, .available_memory = streams ? std::numeric_limits<Bytes>::max() : 0, .passes = options.planned_steps}));
  LIME_ASSIGN_OR_RETURN(blocks_, streams ? LoadResident(*store, options) : store->LoadAll(options.load));
  for (size_t i = 0; i < blocks_.size(); ++i) LIME_RETURN_IF_ERROR(backend_->BindBlock(spec_.blocks[i], ToWeights(blocks_[i])));
  load_.loader = loader == options.loader ? store->Describe() : "read: blocks that stay are worth a copy of their own";
  load_.bytes = streams ? residency_.resident_bytes : spec_.WeightBytes();
  return absl::OkStatus();
}

// Every block in memory of its own, so that it can be given back; of the others what is small. The first ones show what the disk delivers:
// where that is not what the plan was made for, the rest is planned anew.
absl::StatusOr<std::vector<LoadedBlock>> Engine::LoadResident(WeightStore& store, const Options& options) {
  const absl::Time start = absl::Now();
  std::vector<LoadedBlock> blocks(spec_.blocks.size());
  Bytes done = 0;
  bool decided = false;
  // The head first: a tied embedding is then the same memory.
  for (size_t i = spec_.blocks.size(); i-- > 0;) {
    const BlockSpec& block = spec_.blocks[i];
    if (IsLoaded(blocks[i])) continue;
    if (!residency_.resident[i]) {
      if (!blocks[i].tensors.empty()) continue;
      LIME_ASSIGN_OR_RETURN(blocks[i], LoadKept(checkpoint_, block));
      continue;
    }
    LIME_ASSIGN_OR_RETURN(std::vector<LoadedBlock> loaded,
                          store.LoadBlocks(std::array{block.id}, PartOf(options.load, done, residency_.resident_bytes, start)));
    blocks[i] = std::move(loaded.front());
    done += block.bytes;
    if (decided || store.steady().seconds < kSureSeconds) continue;
    decided = true;
    if (!TakeDiskRate(store.steady())) continue;
    LIME_RETURN_IF_ERROR(DecideAgain(blocks, done));
    i = spec_.blocks.size();
  }
  TakeDiskRate(store.steady());
  return blocks;
}

// ---- What the disk delivers

// Where enough was read to tell. Returns whether that differs from what was planned with.
bool Engine::TakeDiskRate(const SteadyReads& reads) {
  if (!problem_ || reads.seconds < kLeastSeconds || reads.bytes < kLeastBytes) return false;
  seen_reads_ = reads;
  disk_rates_.seen = reads.bytes_per_second();
  problem_->disk_bytes_per_ms = disk_rates_.seen / 1000;
  residency_.ms_per_step = ResidencyMsPerStep(*problem_, residency_);
  return std::abs(disk_rates_.seen / disk_rates_.planned - 1) > kSameRate;
}

// What stays in memory, for the disk as it is; gives back what no longer does, and takes it off the bytes `loaded`.
absl::Status Engine::DecideAgain(std::vector<LoadedBlock>& blocks, Bytes& loaded) {
  LIME_ASSIGN_OR_RETURN(ResidencyPlan plan, PlanResidency(*problem_));
  memory_.weights += plan.resident_bytes - residency_.resident_bytes;
  memory_.ring = plan.ring;
  residency_ = std::move(plan);
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (residency_.resident[i] || !IsLoaded(blocks[i])) continue;
    loaded -= spec_.blocks[i].bytes;
    blocks[i] = {};
  }
  return absl::OkStatus();
}

bool Engine::LearnDiskRate() {
  if (!streamer_ || !problem_) return false;
  const PieceLoader::Stats now = streamer_->stats();
  const SteadyReads reads{.bytes = now.bytes_read - learnt_.bytes_read, .seconds = absl::ToDoubleSeconds(now.busy - learnt_.busy)};
  const bool waited = now.waited - learnt_.waited >= kWaitedShare * (now.busy - learnt_.busy);
  learnt_ = now;
  if (!waited && reads.bytes_per_second() / 1000 < problem_->disk_bytes_per_ms) return false;
  TakeDiskRate(AreOneRate(seen_reads_, reads) ? Together(seen_reads_, reads) : reads);
  return true;
}

absl::Status Engine::StartSequence(int32_t sequence, int64_t positions) {
  LIME_RETURN_IF_ERROR(pages_->Reserve(sequence, positions));
  for (int64_t layer = 0; layer < spec_.config.num_layers; ++layer) backend_->SetPages(sequence, layer, pages_->Pages(sequence, layer));
  return absl::OkStatus();
}

void Engine::EndSequence(int32_t sequence) {
  pages_->Release(sequence);
}

absl::StatusOr<std::span<const float>> Engine::Step(const MicroBatch& batch) {
  FollowPressure();
  LIME_RETURN_IF_ERROR(backend_->Begin(batch));
  ++step_;
  LIME_RETURN_IF_ERROR(streamer_ ? streamer_->Step(batch, on_block_) : StepResident());
  return backend_->Logits();
}

void Engine::set_on_block(std::function<void(int done, int total)> call) {
  on_block_ = std::move(call);
}

absl::Status Engine::StepResident() {
  int32_t block = 0;
  const auto traced = [this, &block](auto compute) {
    if (on_block_) on_block_(block, static_cast<int>(spec_.blocks.size()));
    return Traced(streaming_.trace, step_, block++, compute);
  };
  LIME_RETURN_IF_ERROR(traced([&] { return backend_->Embed(); }));
  for (int64_t layer = 0; layer < spec_.config.num_layers; ++layer) {
    if (streaming_.cancelled != nullptr && streaming_.cancelled->load(std::memory_order_relaxed)) {
      return absl::CancelledError("interrupted between two layers");
    }
    LIME_RETURN_IF_ERROR(traced([&] { return backend_->Attention(layer); }));
    LIME_RETURN_IF_ERROR(traced([&] { return backend_->Mlp(layer); }));
  }
  return traced([&] { return backend_->Head(); });
}

// ---- Pressure

// Of a model that is all resident: what could be given back.
Bytes Engine::MatrixBytes() const {
  Bytes bytes = spec_.WeightBytes();
  for (const BlockSpec& block : spec_.blocks) bytes -= KeptBytes(block);
  return bytes;
}

absl::Status Engine::WatchPressure(const PressureMonitor::Options& watching) {
  most_ = streamer_ ? streamer_->resident_bytes() : MatrixBytes();
  Bytes largest = 0;
  for (const BlockSpec& block : spec_.blocks) largest = std::max(largest, block.bytes);
  LIME_ASSIGN_OR_RETURN(
      control_, ResidencyControl::Start({.most = most_, .reserve = PressureReserve(MachineMemory(), budget_), .block = largest}, watching));
  if (streamer_) FollowBetweenBlocks();
  return absl::OkStatus();
}

void Engine::FollowPressure() {
  if (!control_ || !control_->changed()) return;
  const Bytes target = control_->Target();
  if (!streamer_) {
    if (target >= MatrixBytes()) return;
    // A model that cannot stream now (its files are gone, say) goes on as it is, and tries again with the next sample.
    const absl::Status status = BecomeStreaming(target);
    if (!status.ok() && !std::exchange(told_, true) && streaming_.report) {
      streaming_.report(absl::StrCat("memory is short, and nothing can be given back: ", status.message()));
    }
    return;
  }
  const Bytes resident = streamer_->resident_bytes();
  if (resident > target) {
    streamer_->Shed(resident - target);
    control_->SetMost(most_ - streamer_->given_up_bytes());
  }
  // Memory that is not there after all is asked for again with the next sample; else the next block follows before the next one computed.
  if (resident <= target && streamer_->Regain(target - resident).value_or(false)) control_->LookAgain();
  control_->SetResident(streamer_->resident_bytes());
}

// From a model that is all in memory to one that streams, between two steps. Everything that can fail is made first; the ring takes its
// memory only when it is written, after blocks were given back.
absl::Status Engine::BecomeStreaming(Bytes target) {
  LIME_ASSIGN_OR_RETURN(std::unique_ptr<PieceReader> reader, PieceReader::Open(checkpoint_, spec_,
                                                                               {.lanes = kStreamedReads,
                                                                                .read_bytes = kStreamedRead,
                                                                                .piece_bytes = streaming_.piece_bytes,
                                                                                .wrap_device = streaming_.wrap_device}));
  streaming_.ring_bytes = PieceLoader::LeastRing(*reader, static_cast<int>(spec_.blocks.size()));
  streaming_.prefault = false;
  streaming_.first_step = step_ + 1;
  LIME_ASSIGN_OR_RETURN(streamer_, Streamer::Create(checkpoint_, spec_, *backend_, std::move(reader), blocks_, streaming_));
  FollowBetweenBlocks();
  // The ring has to fit into the budget from now on, beside what is taken back.
  memory_.ring = streaming_.ring_bytes;
  memory_.activations += RowReader::BytesFor(spec_, max_rows_);
  most_ = MatrixBytes() - std::max<Bytes>(0, memory_.total() - budget_);
  control_->SetMost(most_);
  streamer_->Shed(std::max(streamer_->resident_bytes() - target, memory_.ring));
  control_->SetResident(streamer_->resident_bytes());
  return absl::OkStatus();
}

// A step that waits for its disk can be long: pressure is followed within it too.
void Engine::FollowBetweenBlocks() {
  streamer_->set_between_blocks([this] { FollowPressure(); });
}

Bytes Engine::BytesPerStep(int64_t sequences, int64_t positions) const {
  Bytes bytes = sequences * positions * spec_.KvBytesPerToken();
  for (const BlockSpec& block : spec_.blocks) {
    if (block.id.kind != BlockKind::kEmbedding) bytes += block.bytes;
  }
  return bytes;
}

}  // namespace lime
