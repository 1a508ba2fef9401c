#include "coordinator/reports/sparse_report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "planner/plan/sparse_parts.h"

namespace lime {

SparseUse SparseUseOf(const Plan& plan, std::span<const DeviceStatistics> devices) {
  SparseUse use;
  double neurons = 0, layers = 0;
  for (int p = 0; p < plan.NumParts(); ++p) {
    const PlanPart& part = plan.parts[p];
    if (!part.sparse()) continue;
    ++layers, neurons += static_cast<double>(NeuronsOf(plan, p));
    use.expected_bytes += DemandBytes(part) / plan.batch;
  }
  use.exact = layers > 0;
  DeviceStatistics sum;
  for (const DeviceStatistics& of : devices) {
    sum.neuron_visits += of.neuron_visits, sum.neuron_rows += of.neuron_rows;
    sum.neurons_computed += of.neurons_computed, sum.neurons_loaded += of.neurons_loaded;
    sum.neuron_reads += of.neuron_reads, sum.neuron_bytes += of.neuron_bytes, sum.neuron_io_ms += of.neuron_io_ms;
  }
  if (!use.exact || sum.neuron_rows == 0 || sum.neuron_visits == 0) return use;
  use.tokens = static_cast<double>(sum.neuron_rows) / layers;
  use.active_share = static_cast<double>(sum.neurons_computed) * layers / (static_cast<double>(sum.neuron_visits) * neurons);
  use.neurons_loaded = static_cast<double>(sum.neurons_loaded) / use.tokens;
  use.reads = static_cast<double>(sum.neuron_reads) / use.tokens;
  use.bytes = static_cast<double>(sum.neuron_bytes) / use.tokens;
  use.io_ms = sum.neuron_io_ms / use.tokens;
  return use;
}

std::string SparseUse::Text() const {
  if (!exact) return "";
  if (tokens == 0) return "sparse MLPs: no token has used them";
  const std::string expected =
      expected_bytes > 0 ? absl::StrCat("at most ", FormatBytes(static_cast<Bytes>(expected_bytes)), " expected") : "each is read once";
  return absl::StrFormat("sparse MLPs: %.1f %% of the neurons active; a token reads %.1f of them in %.1f reads, %s (%s), %.2f ms",
                         active_share * 100, neurons_loaded, reads, FormatBytes(static_cast<Bytes>(bytes)), expected, io_ms);
}

void AddSparsity(const SparseUse& use, nlohmann::json& answer) {
  answer["sparsity"] = use.exact ? "exact" : "off";
  answer["lossless"] = true;
  if (!use.exact) return;
  const auto a_token = [&](double value) { return use.tokens > 0 ? nlohmann::json(value) : nlohmann::json(); };
  answer["neurons_loaded_per_token"] = a_token(use.neurons_loaded);
  answer["sparse_bytes_per_token"] = a_token(use.bytes);
  answer["sparse_io_ms_per_token"] = a_token(use.io_ms);
}

}  // namespace lime
