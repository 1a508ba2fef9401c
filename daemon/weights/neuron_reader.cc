#include "daemon/weights/neuron_reader.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/base/check.h"

namespace lime {
namespace {

std::vector<int> FirstPartsOf(const BundleStore& store, std::span<const int32_t> whole_records) {
  std::vector<int> parts(store.layers().empty() ? 0 : static_cast<size_t>(store.layers().back().layer()) + 1, 1);
  for (const int32_t layer : whole_records) parts[static_cast<size_t>(layer)] = 0;
  return parts;
}

}  // namespace

absl::StatusOr<std::unique_ptr<NeuronReader>> NeuronReader::Open(const Checkpoint& checkpoint, const ModelSpec& spec,
                                                                 std::span<const int32_t> layers, const Options& options) {
  LIME_ASSIGN_OR_RETURN(BundleStore store, BundleStore::Open(checkpoint, spec, layers));
  for (const int32_t layer : layers) {
    if (store.OfLayer(layer) != nullptr) continue;
    return absl::FailedPreconditionError(absl::StrCat(checkpoint.dir(), ": has no bundles of layer ", layer,
                                                      ", whose MLP the plan computes from its active neurons; plan again with this store"));
  }
  std::vector<int> first_parts = FirstPartsOf(store, options.whole_records);
  std::vector<std::string> paths;
  size_t most = 0;
  Bytes gap_memory = 0;
  for (const LayerBundles& layer : store.layers()) {
    paths.push_back(layer.path());
    gap_memory = std::max(gap_memory, GapMemory(layer.shape().layout, first_parts[static_cast<size_t>(layer.layer())], options.gap_bytes));
    most = std::max(most, static_cast<size_t>(layer.shape().neurons));
  }
  LIME_ASSIGN_OR_RETURN(std::unique_ptr<BlockDevice> device,
                        OpenBlockDevice(paths, {.channels = options.channels, .io_uring = options.io_uring}));
  if (options.wrap_device) device = options.wrap_device(std::move(device));
  LIME_ASSIGN_OR_RETURN(HugeBuffer gap, HugeBuffer::AllocatePresent(gap_memory));
  auto blocks = std::make_unique<BlockReader>(std::move(device), BlockReader::Options{});
  std::unique_ptr<NeuronReader> reader(
      new NeuronReader(std::move(store), options, std::move(first_parts), std::move(blocks), std::move(gap)));
  reader->wanted_.reserve(most), reader->states_.reserve(most), reader->scattered_.Reserve(most);
  return reader;
}

NeuronReader::NeuronReader(BundleStore store, const Options& options, std::vector<int> first_parts, std::unique_ptr<BlockReader> reader,
                           HugeBuffer gap)
    : store_(std::move(store)), options_(options), first_parts_(std::move(first_parts)), gap_(std::move(gap)), reader_(std::move(reader)) {}

void NeuronReader::StartBurst(int32_t layer, std::span<const BundleSlot> neurons) {
  const LayerBundles& bundles = OfLayer(layer);
  layer_ = layer;
  wanted_.assign(neurons.begin(), neurons.end());
  std::ranges::sort(wanted_, {}, [&](const BundleSlot& slot) { return bundles.places()[static_cast<size_t>(slot.neuron)]; });
  ScatterReads(bundles, wanted_,
               {.first_part = FirstPart(layer),
                .gap_bytes = options_.gap_bytes,
                .longest_bytes = options_.longest_bytes,
                .gap_memory = {gap_.data(), static_cast<size_t>(gap_.bytes())}},
               scattered_);
  states_.clear();
  size_t first = 0;
  for (const ScatteredRead& read : scattered_.reads) {
    states_.push_back({.first = first});
    first += read.num_neurons;
  }
  reads_started_ += std::ssize(states_);
  for (size_t read = 0; read < states_.size(); ++read) Start(read);
}

void NeuronReader::Start(size_t read) {
  const ScatteredRead& what = scattered_.reads[read];
  const auto file = static_cast<int>(&OfLayer(layer_) - store_.layers().data());
  reader_->StartScatteredRead(file, what.offset, std::span(scattered_.segments).subspan(what.first_segment, what.num_segments),
                              [this, read](const absl::Status& status) { OnRead(read, status); });
}

// The next burst may begin within `done`, so nothing of this one is used afterwards.
void NeuronReader::OnRead(size_t read, absl::Status status) {
  ReadState& state = states_[read];
  const std::span<const BundleSlot> neurons = std::span(wanted_).subspan(state.first, scattered_.reads[read].num_neurons);
  if (status.ok()) status = Check(neurons);
  if (absl::IsDataLoss(status) && !std::exchange(state.again, true)) return Start(read);
  options_.done(layer_, neurons, status);
}

absl::Status NeuronReader::Check(std::span<const BundleSlot> neurons) const {
  const LayerBundles& bundles = OfLayer(layer_);
  const BundleLayout& layout = bundles.shape().layout;
  const int first = FirstPart(layer_);
  for (const BundleSlot& slot : neurons) {
    const std::span<const std::byte> record(slot.memory + bundles.RangeOf(slot.neuron, first).skipped,
                                            static_cast<size_t>(layout.record_bytes - layout.PartAt(first)));
    LIME_RETURN_IF_ERROR(bundles.Check(slot.neuron, first, record));
  }
  return absl::OkStatus();
}

}  // namespace lime
