#include "daemon/weights/unused_tensors.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "daemon/machine/files.h"
#include "daemon/weights/model_folder.h"
#include "planner/base/strings.h"
#include "planner/plan/model/family.h"

namespace lime {
namespace {

constexpr Bytes kSampleBytes = 64 * kKiB;
constexpr int64_t kMostSamples = 256;  // enough, since heads differ everywhere or nowhere

std::string DescribeIgnored(const std::vector<std::string>& ignored) {
  const bool one = ignored.size() == 1;
  return absl::StrCat(ignored.size(), one ? " tensor is" : " tensors are",
                      " not used, because config.json does not say that the model has ",
                      one ? "it: " : "them: ", absl::CEscape(SomeOf(ignored)));
}

// Numbers of the layers that `spec` does not have and config.json does not announce.
std::set<int64_t> FurtherLayers(const TensorIndex& index, const ModelSpec& spec) {
  std::set<int64_t> layers;
  const std::string begin = absl::StrCat(spec.tensor_prefix, Text(FamilyOf(spec.config.model_type).layer_list));
  for (auto at = index.lower_bound(begin); at != index.end() && at->first.starts_with(begin); ++at) {
    int64_t layer = -1;
    const std::string& name = at->first;
    std::from_chars(name.data() + begin.size(), name.data() + name.size(), layer);
    if (layer >= spec.config.num_layers() + spec.config.draft_layers && !IsRotaryTable(name)) layers.insert(layer);
  }
  return layers;
}

std::string DescribeFurther(const std::set<int64_t>& layers, const ModelSpec& spec) {
  const bool one = layers.size() == 1;
  const std::string which =
      one ? absl::StrCat("layer ", *layers.begin()) : absl::StrCat("layers ", *layers.begin(), " to ", *layers.rbegin());
  return absl::StrCat(which, " of the weights ", one ? "is" : "are", " not used, because config.json says num_hidden_layers ",
                      spec.config.num_layers(), " (they count from 0)");
}

// Compares evenly spread samples of two tensors. REQUIRES: both have the same size.
absl::StatusOr<bool> BytesDiffer(const Checkpoint& checkpoint, const TensorLocation& a, const TensorLocation& b) {
  const std::string &path_a = checkpoint.files()[a.file].path, &path_b = checkpoint.files()[b.file].path;
  LIME_ASSIGN_OR_RETURN(const FileDescriptor file_a, OpenForReading(path_a));
  LIME_ASSIGN_OR_RETURN(const FileDescriptor file_b, OpenForReading(path_b));
  const int64_t samples = std::min((a.bytes + kSampleBytes - 1) / kSampleBytes, kMostSamples);
  std::vector<std::byte> of_a(static_cast<size_t>(std::min(a.bytes, kSampleBytes))), of_b(of_a.size());
  for (int64_t i = 0; i < samples; ++i) {
    const int64_t last = a.bytes - static_cast<Bytes>(of_a.size());
    const int64_t at = samples == 1 ? 0 : last / (samples - 1) * i + last % (samples - 1) * i / (samples - 1);
    LIME_RETURN_IF_ERROR(ReadExactly(file_a, path_a, a.offset + at, of_a));
    LIME_RETURN_IF_ERROR(ReadExactly(file_b, path_b, b.offset + at, of_b));
    if (std::memcmp(of_a.data(), of_b.data(), of_a.size()) != 0) return true;
  }
  return false;
}

// Whether the embedding is tied but the checkpoint has a head that differs from it.
absl::StatusOr<bool> HeadDiffers(const Checkpoint& checkpoint, const ModelSpec& spec) {
  const std::string name = spec.head_module + ".weight";
  const auto head = checkpoint.index().find(name);
  if (!spec.config.tie_embeddings || head == checkpoint.index().end()) return false;
  const TensorSpec& embedding = spec.block({BlockKind::kEmbedding, 0}).tensors.front();
  if (embedding.name == name) return false;
  if (head->second.dtype != embedding.info.dtype || head->second.shape != embedding.info.shape) return true;
  return BytesDiffer(checkpoint, checkpoint.location(name), checkpoint.location(embedding.name));
}

}  // namespace

absl::StatusOr<std::vector<std::string>> DescribeUnused(const Checkpoint& checkpoint, const ModelSpec& spec) {
  std::vector<std::string> sentences;
  if (const std::vector<std::string> ignored = checkpoint.IgnoredTensors(spec); !ignored.empty())
    sentences.push_back(DescribeIgnored(ignored));
  if (const std::set<int64_t> layers = FurtherLayers(checkpoint.index(), spec); !layers.empty())
    sentences.push_back(DescribeFurther(layers, spec));
  LIME_ASSIGN_OR_RETURN(const bool head_differs, HeadDiffers(checkpoint, spec));
  if (head_differs) {
    sentences.push_back(
        absl::StrCat(spec.head_module,
                     ".weight is not used, although it differs from the embedding, because config.json sets tie_word_embeddings; to use "
                     "the head, as transformers 5 does, set that field to false"));
  }
  return sentences;
}

}  // namespace lime
