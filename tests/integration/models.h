// Models for the integration tests: their folders, and their results, computed by the reference and
// by a plan for this process.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/sampling/logits_hash.h"
#include "coordinator/local/local_device.h"
#include "coordinator/local/local_plan.h"
#include "coordinator/serving/serving.h"
#include "coordinator/sessions/score.h"
#include "daemon/engine/stage_engine.h"
#include "daemon/weights/bundle_store.h"
#include "daemon/weights/checkpoint.h"
#include "daemon/weights/predictor_store.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "testbed/make_model/make_model.h"
#include "tests/integration/reference_model.h"
#include "tests/skips.h"
#include "tests/temp_dir.h"

namespace lime {

inline std::string SharedModel(const std::string& name) {
  return SharedDir() / "models" / name;
}

inline std::vector<std::string> SharedModels() {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(SharedDir() / "models", error)) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

// A model that the project ships.
inline std::string ShippedModel(const std::string& name) {
  return std::string(LIME_SOURCE_DIR) + "/models/" + name;
}

inline nlohmann::json ReadJson(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
}

// How one run computes. No field except `backend` and `numerics` may change a bit of the results.
struct RunShape {
  LoaderKind loader = LoaderKind::kRead;
  int threads = 2;
  int64_t chunk = 512;
  std::vector<std::vector<int32_t>> companions;  // sequences computed together with the ids
  std::string backend = kCpuBackend;             // this field and the next may change bits
  std::string numerics = "auto";
  // The share of the weights that stays in memory; nullopt: all weights.
  std::optional<double> resident;
  Placement placement = Placement::kAuto;
  std::optional<int64_t> ring_parts;
  Bytes part_bytes = kPartBytes;
  std::optional<int64_t> unit_places;  // LocalPlanRequest::unit_places
  int32_t ahead_places = 0;            // LocalPlanRequest::ahead_places
  // Sparse MLPs, with so many rows of neurons in every layer, and so many masks of a window. The folder
  // has bundles.
  std::optional<int64_t> neuron_rows;
  int32_t window_masks = kUsualWindowMasks;
  bool certified = false;  // sparse MLPs decide with the copies of deciders that the bundles have
  bool predicted = false;  // with the predictor in the folder; changes bits
};

// Opens the reference, with room for one sequence of `context` positions and for the companions.
inline absl::StatusOr<std::unique_ptr<ReferenceModel>> OpenReference(const std::string& dir, const RunShape& shape, int64_t context) {
  return ReferenceModel::Open(dir, {.threads = shape.threads,
                                    .max_rows = shape.chunk,
                                    .max_sequences = 1 + static_cast<int64_t>(shape.companions.size()),
                                    .context = context,
                                    .backend = shape.backend,
                                    .numerics = shape.numerics});
}

// The hash of all logits of `ids`, computed by the reference.
inline uint64_t ReferenceHash(const std::string& dir, const std::vector<int32_t>& ids, const RunShape& shape = {}) {
  const auto length = static_cast<int64_t>(ids.size());
  const auto model = OpenReference(dir, shape, length);
  EXPECT_TRUE(model.ok()) << model.status();
  if (!model.ok()) return 0;
  EXPECT_TRUE((*model)->StartSequence(0, length).ok());
  LogitsHash hash;
  MicroBatch batch;
  for (int64_t i = 0; i < length; ++i) {
    batch.rows.push_back(
        {.token = ids[static_cast<size_t>(i)], .position = static_cast<int32_t>(i), .wants_logits = true, .length = length});
    if (i + 1 < length && std::ssize(batch.rows) < shape.chunk) continue;
    const auto logits = (*model)->Step(batch);
    EXPECT_TRUE(logits.ok()) << logits.status();
    if (!logits.ok()) return 0;
    hash.Add(*logits);
    batch.rows.clear();
  }
  return hash.value();
}

// The request for a plan for this process alone. Its steps have room for as many rows of each
// companion as they have rows with logits, so that they are computed together.
inline LocalPlanRequest RequestFor(const std::string& dir, const RunShape& shape, int64_t context) {
  const auto sequences = static_cast<int32_t>(1 + shape.companions.size());
  return {.model_name = dir,
          .budget = 8 * kGiB,
          .context = context,
          .ahead_places = shape.ahead_places,
          .unit_places = shape.unit_places,
          .sparsity = shape.predicted     ? SparsityWish::kPredicted
                      : shape.neuron_rows ? SparsityWish::kExact
                                          : SparsityWish::kOff,
          .decider = shape.certified ? DeciderWish::kCertified : DeciderWish::kAuto,
          .neuron_rows = shape.neuron_rows,
          .window_masks = shape.window_masks,
          .sequences = sequences,
          .prompt_tokens = context,
          .chunk = shape.chunk * sequences,
          .logit_rows = shape.chunk,
          .placement = shape.placement,
          .ring_parts = shape.ring_parts,
          .resident_share = shape.resident,
          .part_bytes = shape.part_bytes,
          .num_threads = shape.threads,
          .backend = shape.backend,
          .numerics = shape.numerics};
}

// Installs a plan for this process, as the commands do without a cluster.
inline absl::StatusOr<std::unique_ptr<LocalDevice>> InstallHere(const std::string& dir, const RunShape& shape,
                                                                const LocalPlanRequest& request) {
  LIME_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(dir));
  LIME_ASSIGN_OR_RETURN(const ModelSpec spec, checkpoint.BuildModelSpec());
  LocalPlanRequest with = request;
  if (shape.neuron_rows) {
    LIME_ASSIGN_OR_RETURN(with.neurons, BundleStore::SparseNeurons(checkpoint, spec));
    LIME_ASSIGN_OR_RETURN(const BundleStore store, BundleStore::Open(checkpoint, spec));
    with.copies = store.Deciders(spec.config.num_layers());
  }
  if (shape.predicted) {
    LIME_ASSIGN_OR_RETURN(const PredictorStore predictor, PredictorStore::Open(dir, spec));
    with.predictor = predictor.hash();
    for (int32_t layer = 0; layer < spec.config.num_layers(); ++layer)
      with.predictor_ranks.push_back(static_cast<int32_t>(predictor.RankOf(layer)));
  }
  LIME_ASSIGN_OR_RETURN(const LocalPlan plan, PlanForThisProcess(spec, with));
  auto device = std::make_unique<LocalDevice>(LocalDevice::Options{
      .weights = dir,
      .make_stage =
          MakeEngineStages({.num_threads = shape.threads, .backend = shape.backend, .numerics = shape.numerics, .loader = shape.loader})});
  LIME_RETURN_IF_ERROR(device->Install(plan.plan, {}));
  return device;
}
inline absl::StatusOr<std::unique_ptr<LocalDevice>> InstallHere(const std::string& dir, const RunShape& shape, int64_t context) {
  return InstallHere(dir, shape, RequestFor(dir, shape, context));
}

// The scores of `ids` by a plan for this process, computed together with the shape's companions.
inline cli::Scores ScoresOf(const std::string& dir, const RunShape& shape, const std::vector<int32_t>& ids, int64_t top) {
  int64_t context = std::ssize(ids);
  for (const auto& companion : shape.companions) context = std::max<int64_t>(context, std::ssize(companion) + 1);  // it makes a token
  const auto device = InstallHere(dir, shape, context);
  EXPECT_TRUE(device.ok()) << device.status();
  if (!device.ok()) return {};
  Serving serving(**device, {});
  absl::StatusOr<cli::Scores> scores = cli::ScoreWindows(serving, {ids}, {.top = top, .companions = shape.companions});
  EXPECT_TRUE(scores.ok()) << scores.status();
  return scores.ok() ? *std::move(scores) : cli::Scores{};
}

inline uint64_t LogitsHashOf(const std::string& dir, const RunShape& shape, const std::vector<int32_t>& ids) {
  return ScoresOf(dir, shape, ids, /*top=*/5).logits_hash.value_or(0);
}

}  // namespace lime
