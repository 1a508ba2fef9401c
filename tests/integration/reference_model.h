// A model that is computed block by block on a backend, entirely in memory. Every plan of the model
// must give the same bits.
//
// It shares kernels and readers with LIME, but no planning, streaming, orders or threads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "daemon/engine/stage_weights.h"
#include "daemon/logic/pages/kv_pages.h"
#include "daemon/weights/checkpoint.h"
#include "daemon/weights/weight_store.h"
#include "kernels/backend.h"
#include "kernels/registry/registry.h"
#include "planner/plan/device/backend_names.h"
#include "planner/plan/micro_batch.h"

namespace lime {

// Thread: one at a time.
class ReferenceModel {
 public:
  struct Options {
    int threads = 2;
    int64_t max_rows = 512;  // of one micro-batch; all of them may ask for logits
    int64_t max_sequences = 1;
    int64_t context = 0;  // positions of one sequence
    std::string backend = kCpuBackend;
    std::string numerics = "auto";
  };

  static absl::StatusOr<std::unique_ptr<ReferenceModel>> Open(const std::string& dir, const Options& options) {
    LIME_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(dir));
    LIME_ASSIGN_OR_RETURN(ModelSpec spec, checkpoint.BuildModelSpec());
    auto model = absl::WrapUnique(new ReferenceModel(std::move(checkpoint), std::move(spec)));
    LIME_RETURN_IF_ERROR(model->Load(options));
    return model;
  }

  const ModelSpec& spec() const { return spec_; }
  std::string numerics_id() const { return backend_->numerics_id(); }

  absl::Status StartSequence(int32_t slot, int64_t positions) {
    LIME_RETURN_IF_ERROR(pages_->Reserve(slot, positions));
    int64_t next = 0;
    for (int64_t layer = 0; layer < spec_.config.num_layers(); ++layer) {
      if (spec_.config.layer(layer).has_kv()) backend_->SetPages(slot, layer, pages_->Pages(slot, next++));
    }
    return absl::OkStatus();
  }
  void EndSequence(int32_t slot) { pages_->Release(slot); }

  // The logits of the rows that asked, [rows, vocab] fp32 in order, valid until the next call.
  absl::StatusOr<std::span<const float>> Step(const MicroBatch& batch) {
    LIME_RETURN_IF_ERROR(backend_->Begin(batch));
    for (const BlockSpec& block : spec_.blocks) LIME_RETURN_IF_ERROR(backend_->Compute(block.id));
    return backend_->Logits();
  }

 private:
  ReferenceModel(Checkpoint checkpoint, ModelSpec spec) : checkpoint_(std::move(checkpoint)), spec_(std::move(spec)) {}

  absl::Status Load(const Options& options) {
    const int64_t pages = options.max_sequences * KvPages::PagesFor(options.context, spec_.NumKvLayers());
    pages_ = std::make_unique<KvPages>(
        KvPages::Options{.num_pages = pages, .num_layers = spec_.NumKvLayers(), .max_sequences = options.max_sequences});
    LIME_ASSIGN_OR_RETURN(backend_, OpenBackend(options.backend, spec_,
                                                {.num_threads = options.threads,
                                                 .max_rows = options.max_rows,
                                                 .max_logit_rows = options.max_rows,
                                                 .max_sequences = options.max_sequences,
                                                 .context = options.context,
                                                 .num_kv_pages = pages,
                                                 .state_layers = StateLayers(),
                                                 .numerics = options.numerics}));
    LIME_ASSIGN_OR_RETURN(const std::unique_ptr<WeightStore> store, WeightStore::Open(checkpoint_, spec_, {.loader = LoaderKind::kRead}));
    LIME_ASSIGN_OR_RETURN(blocks_, store->LoadAll());
    for (const LoadedBlock& block : blocks_) LIME_RETURN_IF_ERROR(backend_->BindBlock(spec_.block(block.id), ToWeights(block)));
    return absl::OkStatus();
  }

  std::vector<int32_t> StateLayers() const {
    std::vector<int32_t> layers;
    for (const BlockSpec& block : spec_.blocks) {
      if (HasState(block.id.kind)) layers.push_back(block.id.layer);
    }
    return layers;
  }

  const Checkpoint checkpoint_;
  const ModelSpec spec_;
  std::unique_ptr<KvPages> pages_;
  std::unique_ptr<Backend> backend_;
  std::vector<LoadedBlock> blocks_;
};

}  // namespace lime
