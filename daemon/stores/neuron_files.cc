#include "daemon/stores/neuron_files.h"

#include "daemon/weights/bundle_store.h"
#include "daemon/weights/checkpoint.h"
#include "daemon/weights/predictor_store.h"

namespace lime {

NeuronFiles NeuronFilesIn(const std::string& folder) {
  NeuronFiles files;
  const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(folder);
  if (!checkpoint.ok()) return files;
  const absl::StatusOr<ModelSpec> spec = checkpoint->BuildModelSpec();
  if (!spec.ok() || !MakesZeros(spec->config.activation)) return files;
  if (const absl::StatusOr<PredictorStore> predictor = PredictorStore::Open(folder, *spec); predictor.ok())
    files.predictor = predictor->hash();
  const absl::StatusOr<BundleStore> store = BundleStore::Open(*checkpoint, *spec);
  if (!store.ok()) return files;
  const std::vector<DeciderForm> copies = store->Deciders(spec->config.num_layers());
  for (const LayerBundles& bundles : store->layers())
    files.bundles.push_back({.layer = bundles.layer(), .decider = copies[static_cast<size_t>(bundles.layer())]});
  return files;
}

}  // namespace lime
