// Stores whose bundles have copies of deciders with made frames: random directions, which prove less than those of
// inputs, and no mean. Any copy is valid.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/proven_zeros/decider_copy.h"
#include "daemon/stores/block_store.h"
#include "daemon/weights/bundle_store.h"
#include "daemon/weights/checkpoint.h"
#include "planner/base/random.h"
#include "planner/plan/sparse_parts.h"

namespace lime {

// Of all layers, or, of more than one, all but the last one: 8 bits and 6 in turn, each with other directions.
inline std::map<int32_t, std::shared_ptr<const RowCopier>> MadeCopies(const ModelSpec& spec, bool all = false) {
  std::map<int32_t, std::shared_ptr<const RowCopier>> copies;
  Random random(7);
  const auto layers = static_cast<int32_t>(spec.config.num_layers());
  for (int32_t layer = 0; layer < (layers > 1 && !all ? layers - 1 : layers); ++layer) {
    const int64_t cols = spec.config.hidden_size, directions = 2 + layer;
    InputFrame frame{.mean = std::vector<float>(static_cast<size_t>(cols))};
    for (int64_t i = 0; i < directions * cols; ++i) frame.directions.push_back(static_cast<float>(random.Uniform() - 0.5));
    copies[layer] = std::make_shared<const RowCopier>(RowCopier::Create(cols, layer % 2 == 0 ? 8 : 6, frame).value());
  }
  return copies;
}

// Writes such a store of a model of which every layer can have bundles and a copy. Returns the copies, by layer.
inline absl::StatusOr<std::vector<DeciderForm>> PrepareWithCopies(const std::string& model, const std::string& store) {
  LIME_ASSIGN_OR_RETURN(const Checkpoint source, Checkpoint::Open(model));
  LIME_ASSIGN_OR_RETURN(const ModelSpec spec, source.BuildModelSpec());
  LIME_RETURN_IF_ERROR(PrepareBlockStore(model, store, {.bundles = true, .decider_copies = MadeCopies(spec)}).status());
  LIME_ASSIGN_OR_RETURN(const Checkpoint prepared, Checkpoint::Open(store));
  LIME_ASSIGN_OR_RETURN(const BundleStore bundles, BundleStore::Open(prepared, spec));
  return bundles.Deciders(spec.config.num_layers());
}

}  // namespace lime
