#include "daemon/engine/stage_parts.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/engine/process_memory.h"
#include "daemon/logic/stage_inbox.h"
#include "daemon/weights/predictor_store.h"
#include "kernels/paced_backend.h"
#include "kernels/registry/registry.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_blocks.h"
#include "planner/plan/predictor_parts.h"
#include "planner/plan/sparse_parts.h"

namespace lime {
namespace {

// ---- What a stage needs of its device's memory

struct Needs {
  Bytes runtime = 0;      // the process, without what the previous plan has left
  Bytes activations = 0;  // the backend's, rows of an embedding, and messages
  Bytes kv = 0;           // pages, KV of other devices' layers, and pieces that a host sends back
  Bytes state = 0;        // of the layers that keep one, for every sequence
  Bytes weights = 0;      // and the ring

  Bytes total() const { return runtime + activations + kv + state + weights; }
};

// A piece on its way to the disk or to a host: its copy, and for a host its messages.
Bytes EvictedBytes(const Plan& plan, const PlanDevice& device) {
  return device.max_layer_pages == 0 ? 0 : (HasKvOnDisk(device) ? 1 : 2) * KvPieceBytes(plan);
}

// Messages that wait, are read or are on their way: activations, messages about KV and units,
// pieces of KV, and visits with evicted positions.
Bytes MessageBytes(const Plan& plan, int32_t device, const ModelSpec& spec, Bytes row_bytes) {
  return StageInbox::WaitingBytes(plan, device, row_bytes) + AskingBytes(plan, device, spec.config) +
         UnitsMessageBytes(plan, device, spec) + EvictedBytes(plan, plan.devices[device]) + SlicedVisit::BytesFor(plan, row_bytes);
}

std::string HowToFit(const PlanDevice& device, Bytes runtime) {
  const Bytes planned = device.memory.runtime + device.memory.margin;
  if (runtime <= planned) return "; raise its memory, or plan with more devices or a shorter context";
  return absl::StrCat("; the process itself uses ", FormatBytes(runtime), ", but the plan counts ", FormatBytes(planned),
                      " for it: plan again, or restart limed");
}

std::string StateSentence(Bytes state) {
  return state == 0 ? "" : absl::StrCat(", state of the sequences ", FormatBytes(state));
}

absl::Status CheckFits(const PlanDevice& device, const Needs& needs) {
  if (needs.total() <= device.budget) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "device \"", device.name, "\" would need ", FormatBytes(needs.total()), " (runtime ", FormatBytes(needs.runtime), ", activations ",
      FormatBytes(needs.activations), ", KV ", FormatBytes(needs.kv), StateSentence(needs.state), ", weights and ring ",
      FormatBytes(needs.weights), "), but it may use ", FormatBytes(device.budget), HowToFit(device, needs.runtime)));
}

absl::Status CheckBothFit(const PlanDevice& device, Bytes both) {
  if (both <= device.budget) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("device \"", device.name, "\" has no room for the KV of two plans at once: they need ",
                                                   FormatBytes(both), ", the budget is ", FormatBytes(device.budget)));
}

// ---- What computes

// How much was paced. Shows that a profile is too fast for this machine.
std::string PaceSentence(const PaceReport& report) {
  return absl::StrFormat("paced %d parts to %.0f ms (the kernels ran for %.0f ms); %d parts were late, by at most %.1f ms", report.parts,
                         report.paced_ms, report.real_ms, report.late, report.latest_ms);
}

std::unique_ptr<Backend> Pace(const EngineSettings& settings, std::unique_ptr<Backend> backend, const ModelSpec& spec) {
  const auto ended = [log = settings.log](const PaceReport& report) {
    if (log) log(PaceSentence(report));
  };
  return PaceBackend(std::move(backend), spec, {.profile = *settings.pace, .ended = ended});
}

}  // namespace

StageParts::StageParts(const Checkpoint& of_checkpoint, const ModelSpec& of_spec, const StageEngine::Options& of_stage)
    : checkpoint(of_checkpoint),
      spec(of_spec),
      stage(of_stage),
      layers(LayersOn(of_stage.plan, of_stage.device)),
      pages_come(GrowsKv(of_stage.plan) || SpillsKv(of_stage.plan)) {}

absl::Status StageParts::Open(const Owner& owner) {
  const BackendOptions options = OptionsOfBackend();
  LIME_RETURN_IF_ERROR(MakeRoom(options));
  LIME_RETURN_IF_ERROR(OpenTheBackend(options));
  LIME_RETURN_IF_ERROR(OpenKv(owner));
  LIME_RETURN_IF_ERROR(TakeOver());
  LIME_ASSIGN_OR_RETURN(weights, StageWeights::Load(checkpoint, spec, plan(), stage.device, *backend,
                                                    {.load = stage.load,
                                                     .loader = stage.loader,
                                                     .passes = stage.planned_steps > 0 ? stage.planned_steps : plan().context,
                                                     .kv = kv.get(),
                                                     .handover = stage.takeover == nullptr ? nullptr : stage.takeover->weights.get(),
                                                     .wrap_device = stage.wrap_device,
                                                     .neurons_read = owner.neurons_read}));
  LIME_RETURN_IF_ERROR(BindPredictors());
  OpenUnits(owner);
  LIME_ASSIGN_OR_RETURN(visit, SlicedVisit::Create(plan(), RowBytes(), *backend));
  if (visit != nullptr && spec.config.stream_cols() != spec.config.hidden_size)
    return absl::UnimplementedError(
        "a plan that evicts KV is not supported for models whose layers pass on more than the residual stream; plan without eviction");
  if (!EmbedsByRows()) return absl::OkStatus();
  LIME_ASSIGN_OR_RETURN(rows, OpenRows());
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RowReader>> StageParts::OpenRows() const {
  return RowReader::Open(
      checkpoint, spec,
      {.max_rows = MaxRows(plan()), .cancelled = stage.load.cancelled, .report = stage.report, .wrap_device = stage.wrap_device});
}

bool StageParts::EmbedsByRows() const {
  return plan().stages.front().device == stage.device && plan().embedding == EmbeddingPlacement::kByRows;
}

BackendOptions StageParts::OptionsOfBackend() const {
  return {.num_threads = stage.num_threads > 0 ? stage.num_threads : UsableCores(),
          .max_rows = MaxRows(plan()),
          .max_logit_rows = HasHead(plan(), stage.device) ? MostLogitRows(plan()) : 0,
          .max_sequences = plan().sequences,
          .context = plan().context,
          .num_kv_pages = pages_come ? PagesOn(plan(), stage.device, FullLayerPages(plan())) : device().kv_pages,
          .present_kv_pages = pages_come ? device().kv_pages : -1,
          .state_layers = StateLayersOn(plan(), stage.device),
          .state_snapshots = plan().state_snapshots,
          .attends_pieces = device().max_layer_pages > 0,
          .attends_for_others = device().memory.hosted > 0,
          .computes_for_others = HostsUnits(plan(), stage.device),
          .sparse_rows = HasSparseParts(plan(), stage.device) ? plan().batch : 0,
          .copied_directions = CopiedDirections(plan(), stage.device),
          .predictor_rank = LargestPredictorRank(plan(), stage.device),
          .grow_kv = stage.grow_kv,
          .numerics = stage.numerics};
}

// Keeps weights of the previous plan that stay. The others are freed before anything is allocated.
void StageParts::KeepWeights() {
  if (HandoverWeightBytes() == 0) return;
  if (stage.takeover->weights->dir() != checkpoint.dir()) return stage.takeover->weights.reset();
  StageWeights::RetainFor(spec, plan(), stage.device, *stage.takeover->weights);
}

absl::Status StageParts::MakeRoom(const BackendOptions& options) {
  LIME_ASSIGN_OR_RETURN(const Bytes activations, PlanActivationBytes(stage.backend, spec, options));
  LIME_ASSIGN_OR_RETURN(const Bytes weight_bytes, StageWeights::MemoryFor(checkpoint, spec, plan(), stage.device));
  KeepWeights();
  ReturnFreedMemory();  // free heap pages must not count as resident
  const Bytes handover = stage.takeover == nullptr ? 0 : stage.takeover->handover_bytes();
  const Needs needs{.runtime = std::max<Bytes>(0, ProcessResidentBytes() - handover - HandoverWeightBytes()),
                    .activations = activations + (EmbedsByRows() ? RowsBytes() : 0) + SparseMemory(spec, plan(), stage.device) +
                                   PredictorMemory(spec, plan(), stage.device) + MessageBytes(plan(), stage.device, spec, RowBytes()),
                    .kv = device().kv_pages * plan().page_bytes + device().memory.hosted + device().memory.fetched,
                    .state = device().memory.state,
                    .weights = weight_bytes};
  LIME_RETURN_IF_ERROR(CheckFits(device(), needs));
  const Bytes both = needs.total() - weight_bytes + handover + (stage.takeover == nullptr ? 0 : TakeoverBytes(plan()));
  if (HandoverWeightBytes() > 0 && both + HandoverWeightBytes() > device().budget)
    stage.takeover->weights.reset();  // rather than KV: weights can be read from the disk again
  return handover > 0 ? CheckBothFit(device(), both) : absl::OkStatus();
}

absl::Status StageParts::OpenTheBackend(const BackendOptions& options) {
  {
    const ScopedCoreBinding binding(stage.cores);
    LIME_ASSIGN_OR_RETURN(backend, OpenBackend(stage.backend, spec, options));
  }
  if (stage.pace) backend = Pace(stage, std::move(backend), spec);
  if (device().numerics_id.empty() || device().numerics_id == backend->numerics_id()) return absl::OkStatus();
  return Invalid("the plan was made for kernels of order ", device().numerics_id, " on device \"", device().name,
                 "\", which has the order ", backend->numerics_id(), "; profile the device again, or choose --numerics portable");
}

absl::Status StageParts::BindPredictors() {
  if (LargestPredictorRank(plan(), stage.device) == 0) return absl::OkStatus();
  LIME_ASSIGN_OR_RETURN(const PredictorStore predictors, PredictorStore::Open(checkpoint.dir(), spec));
  if (predictors.hash() != plan().predictor)
    return absl::FailedPreconditionError(absl::StrCat(predictors.path(), ": is the predictor ", predictors.hash(), ", but the plan is for ",
                                                      plan().predictor, "; plan again"));
  for (const int p : PartsOn(plan(), stage.device)) {
    const PlanPart& part = plan().parts[p];
    if (part.predictor_rank == 0) continue;
    const int64_t rank = predictors.RankOf(part.block.layer);
    if (rank != part.predictor_rank)
      return Invalid(predictors.path(), ": layer ", part.block.layer, " has a predictor of rank ", rank, ", but the plan is for rank ",
                     part.predictor_rank, "; plan again");
    LIME_ASSIGN_OR_RETURN(const std::shared_ptr<const LoadedPredictor> loaded, predictors.Load(part.block.layer));
    LIME_RETURN_IF_ERROR(backend->BindPredictor(part.block, loaded->view, loaded));
  }
  return absl::OkStatus();
}

std::string StageParts::numerics_id() const {
  return plan().predictor.empty() ? backend->numerics_id() : absl::StrCat(backend->numerics_id(), "+predicted-", plan().predictor);
}

absl::Status StageParts::OpenKv(const Owner& owner) {
  LIME_ASSIGN_OR_RETURN(
      kv, StageKv::Create(
              plan(), {.stage = {.device = stage.device,
                                 .layers = layers,
                                 .backend = backend.get(),
                                 .max_rows = MaxRows(plan()),
                                 .window = layers.empty() ? 0 : spec.config.layer(layers.front()).window,
                                 .send = [send = owner.send_to_peer, host = device().kv_host](
                                             std::vector<std::byte> message, bool may_wait) { send(host, std::move(message), may_wait); }},
                       .state_layers = StateLayersOn(plan(), stage.device),
                       .mutex = owner.mutex,
                       .folder = stage.kv_dir.empty() ? checkpoint.dir() : stage.kv_dir,
                       .wrote = owner.wrote,
                       .wrap_device = stage.wrap_device}));
  LIME_ASSIGN_OR_RETURN(
      others,
      HostedKv::Create(plan(), spec,
                       {.device = stage.device, .max_rows = MaxRows(plan()), .backend = backend.get(), .send = owner.send_to_peer}));
  return absl::OkStatus();
}

void StageParts::OpenUnits(const Owner& owner) {
  const auto send = [send = owner.send_to_peer](int32_t to, std::vector<std::byte> message) {
    send(to, std::move(message), /*may_wait=*/false);
  };
  const auto matrices_of = [this](int part, const UnitInPlace& unit, std::vector<RowsInMemory>& matrices) {
    for (int i = 0; i < weights->NumUnitRows(part, unit.unit); ++i) matrices.push_back(weights->UnitRows(part, unit.unit, i, unit.place));
  };
  asked_units = std::make_unique<AskedUnits>(plan(), AskedUnits::Options{.device = stage.device, .backend = backend.get(), .send = send});
  hosted_units = std::make_unique<HostedUnits>(
      plan(), spec,
      HostedUnits::Options{
          .device = stage.device, .max_rows = MaxRows(plan()), .backend = backend.get(), .matrices_of = matrices_of, .send = send});
}

// Comes before the weights: memory has room for both KV pools only while no weights are in it.
absl::Status StageParts::TakeOver() {
  if (stage.takeover == nullptr) return absl::OkStatus();
  LIME_RETURN_IF_ERROR(kv->TakeOver(*stage.takeover));
  LIME_RETURN_IF_ERROR(others->TakeOver(stage.takeover->sequences, stage.takeover->read));
  stage.takeover->here.reset();
  return stage.takeover->let_go ? stage.takeover->let_go() : absl::OkStatus();
}

}  // namespace lime
