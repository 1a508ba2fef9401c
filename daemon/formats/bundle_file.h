// A file of bundles: the weights of one layer's MLP once more, by neuron instead of by matrix.
//
// It is a safetensors file with these tensors, each on 4 KiB:
//
//   __lime_bundles__       U8 [neurons, stride]   a bundle at each place (planner/demand/bundle_layout.h)
//   __lime_bundle_sums__   U32 [neurons, parts]   by neuron: the checksum of each part of its bundle, the
//                                                 low half of XXH3-64
//   __lime_bundle_place__  U32 [neurons]          by neuron: the place of its bundle
//
// Each part has a checksum of its own, since a read may leave out the decider's part. Bytes between
// parts and bundles are zero, and not checked. Other tensors belong to others.
//
// Pure: works on bytes that others have read. They are hostile: everything is checked, and an error is
// one sentence that names the file and the tensor or neuron.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/formats/safetensors.h"
#include "planner/base/status.h"
#include "planner/demand/bundle_layout.h"

namespace lime {

inline constexpr std::string_view kBundlesName = "__lime_bundles__", kBundleSumsName = "__lime_bundle_sums__",
                                  kBundlePlaceName = "__lime_bundle_place__";

// A range of the file.
struct BundleTensor {
  int64_t offset = 0;
  Bytes bytes = 0;
};

// Of one layer; the caller knows both from the model.
struct BundleShape {
  BundleLayout layout;
  int32_t neurons = 0;
};

// Where the tensors are.
struct BundleFile {
  BundleTensor bundles, sums, place;
};

// InvalidArgument if a tensor is missing, has another type or shape, or does not begin on 4 KiB.
absl::StatusOr<BundleFile> FindBundles(const SafetensorsHeader& header, const BundleShape& shape, std::string_view file);

// ---- Tables

// By neuron: its place. InvalidArgument unless the bytes have every place from 0 to `neurons` - 1 once.
absl::StatusOr<std::vector<int32_t>> ParsePlaces(std::span<const std::byte> bytes, int32_t neurons, std::string_view file);
std::vector<std::byte> EncodePlaces(std::span<const int32_t> places);

// By neuron and part.  InvalidArgument for another number of bytes.
absl::StatusOr<std::vector<uint32_t>> ParseSums(std::span<const std::byte> bytes, const BundleShape& shape, std::string_view file);
std::vector<std::byte> EncodeSums(std::span<const uint32_t> sums);

// ---- Bundles

// Writes the parts of a neuron into a bundle of layout.stride bytes, and their checksums. All else
// becomes zero.
// REQUIRES: as many parts and sums as the layout has, each part of part_bytes
void EncodeBundle(const BundleLayout& layout, std::span<const std::span<const std::byte>> parts, std::span<std::byte> bundle,
                  std::span<uint32_t> sums);

// The weights of a part.  REQUIRES: `record` has the record's bytes from part `first` on
std::span<const std::byte> PartOf(const BundleLayout& layout, std::span<const std::byte> record, int first, int part);

// Whether the parts from `first` on are those that were written. `sums`: of all parts of the neuron.
// `what` names file, layer and neuron. DataLoss if a part differs. Allocates nothing unless it fails.
// REQUIRES: as of PartOf
absl::Status CheckBundle(const BundleLayout& layout, std::span<const std::byte> record, int first, std::span<const uint32_t> sums,
                         std::string_view what);

}  // namespace lime
