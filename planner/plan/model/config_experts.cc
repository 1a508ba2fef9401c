// Reads the experts of a model, and which of its layers have them.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/base/json_fields.h"
#include "planner/base/strings.h"
#include "planner/plan/model/config_parts.h"

namespace lime::config {
namespace {

using nlohmann::json;

// Bounds that keep the products of sizes far below 2^63, and the list of all tensors short.
constexpr int64_t kMaxExperts = 1024;        // of a layer
constexpr int64_t kMaxExpertsInAll = 65536;  // of all layers
constexpr int64_t kMaxPerToken = 64;
constexpr int64_t kMaxInnerColumns = int64_t{1} << 22;  // of all experts of a layer
constexpr size_t kMaxDenseLayers = 65536;               // in a list

// The family's own field, or else one by which another version of its class spells the same.
absl::StatusOr<int64_t> ReadCount(const json& root, std::string_view name, const ExpertsFields& spelled) {
  JsonFields fields(root, std::string(name));
  const char* read = spelled.count;
  for (const char* other : kExpertCounts) {
    if (!fields.Has(read) && fields.Has(other)) read = other;
  }
  const int64_t count = fields.IntOr(read, spelled.defaults.count, 1, kMaxExperts);
  for (const char* other : kExpertCounts) {
    const int64_t same = fields.IntOr(other, count, 0, kMaxExperts);
    LIME_RETURN_IF_ERROR(fields.status());
    if (same != count) return Invalid(Text(name), ": field \"", other, "\" = ", same, ", but \"", read, "\" = ", count);
  }
  return count;
}

int64_t IntOr(JsonFields& fields, const char* key, int64_t fallback, int64_t low, int64_t high) {
  return key == nullptr ? fallback : fields.IntOr(key, fallback, low, high);
}

void ReadSizes(const ExpertsFields& spelled, JsonFields& fields, ExpertsConfig& experts) {
  experts.per_token = fields.IntOr(spelled.per_token, spelled.defaults.per_token, 1, std::min(experts.count, kMaxPerToken));
  experts.intermediate_size = fields.IntOr(spelled.intermediate_size, spelled.defaults.intermediate_size, 1, kMaxWidth);
  experts.shared_intermediate_size =
      IntOr(fields, spelled.shared_intermediate_size, spelled.defaults.shared_intermediate_size, 0, kMaxWidth);
  if (spelled.shared_count == nullptr) return;
  const int64_t most = kMaxWidth / std::max<int64_t>(1, experts.intermediate_size);
  experts.shared_intermediate_size = experts.intermediate_size * fields.IntOr(spelled.shared_count, spelled.default_shared_count, 0, most);
}

void ReadRouter(const ExpertsFields& spelled, JsonFields& fields, ExpertsConfig& experts) {
  if (spelled.normalized != nullptr) experts.normalized = fields.BoolOr(spelled.normalized, experts.normalized);
  if (spelled.correction != nullptr) experts.correction = fields.BoolOr(spelled.correction, experts.correction);
  if (spelled.weight_factor != nullptr)
    experts.weight_factor = fields.DoubleOr(spelled.weight_factor, experts.weight_factor, 1 / kMaxFactor, kMaxFactor);
  experts.groups = IntOr(fields, spelled.groups, experts.groups, 1, kMaxExperts);
  experts.groups_kept = IntOr(fields, spelled.groups_kept, experts.groups_kept, 1, kMaxExperts);
}

// A group's score is the sum of its two best, so that it needs two experts.
absl::Status CheckGroups(const ExpertsConfig& experts, const ExpertsFields& spelled, std::string_view name) {
  const int64_t of_group = experts.count / experts.groups;
  const bool even = experts.count % experts.groups == 0 && (experts.groups == 1 || of_group >= 2);
  if (even && experts.groups_kept <= experts.groups && experts.per_token <= experts.groups_kept * of_group) return absl::OkStatus();
  return Invalid(Text(name), ": ", experts.count, " experts, of which a token uses ", experts.per_token, ", cannot be in ", experts.groups,
                 " groups of which ", experts.groups_kept, " are kept (", spelled.groups, ", ", spelled.groups_kept, ")");
}

// Whether each layer has experts.
std::vector<bool> ReadSparseLayers(const ExpertsFields& spelled, JsonFields& fields, size_t num_layers) {
  const auto interval = static_cast<size_t>(IntOr(fields, spelled.interval, 1, 1, INT32_MAX));
  const auto first = static_cast<size_t>(IntOr(fields, spelled.first_dense, spelled.default_first_dense, 0, INT32_MAX));
  std::vector<bool> sparse(num_layers);
  for (size_t layer = first; layer < num_layers; ++layer) sparse[layer] = (layer + 1) % std::max<size_t>(1, interval) == 0;
  if (spelled.dense_layers == nullptr || !fields.Has(spelled.dense_layers)) return sparse;
  for (const int64_t dense : fields.Ints(spelled.dense_layers, 0, INT32_MAX, kMaxDenseLayers)) {
    if (static_cast<size_t>(dense) < num_layers) sparse[static_cast<size_t>(dense)] = false;
  }
  return sparse;
}

absl::Status CheckSizes(const ExpertsConfig& experts, int64_t sparse_layers, std::string_view name) {
  if (experts.count * experts.intermediate_size > kMaxInnerColumns) {
    return Invalid(Text(name), ": ", experts.count, " experts of ", experts.intermediate_size, " columns are out of range");
  }
  if (experts.count * sparse_layers > kMaxExpertsInAll) {
    return Invalid(Text(name), ": ", experts.count, " experts in each of ", sparse_layers, " layers are out of range; at most ",
                   kMaxExpertsInAll, " in all are supported");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadExperts(const json& root, std::string_view name, const Family& family, ModelConfig& config) {
  const ExpertsFields& spelled = *family.experts;
  ExpertsConfig experts = spelled.defaults;
  LIME_ASSIGN_OR_RETURN(experts.count, ReadCount(root, name, spelled));
  JsonFields fields(root, std::string(name));
  ReadSizes(spelled, fields, experts);
  ReadRouter(spelled, fields, experts);
  const std::vector<bool> sparse = ReadSparseLayers(spelled, fields, config.layers.size());
  const int64_t sparse_layers = std::ranges::count(sparse, true);
  const bool all_sparse = sparse_layers == config.num_layers();
  const int64_t dense_size = all_sparse ? 0 : fields.Int(family.intermediate_size, 1, kMaxWidth);
  LIME_RETURN_IF_ERROR(fields.status());
  LIME_RETURN_IF_ERROR(CheckGroups(experts, spelled, name));
  LIME_RETURN_IF_ERROR(CheckSizes(experts, sparse_layers, name));
  for (size_t layer = 0; layer < config.layers.size(); ++layer) {
    config.layers[layer].experts = sparse[layer];
    config.layers[layer].intermediate_size = sparse[layer] ? 0 : dense_size;
  }
  if (sparse_layers > 0) config.experts = experts;
  return absl::OkStatus();
}

}  // namespace lime::config
