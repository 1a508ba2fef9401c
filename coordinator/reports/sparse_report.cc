#include "coordinator/reports/sparse_report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "planner/plan/sparse_parts.h"

namespace lime {

SparseUse SparseUseOf(const Plan& plan, std::span<const DeviceStatistics> devices) {
  SparseUse use;
  const NeuronUse planned = NeuronUseOf(plan);
  const auto layers = static_cast<double>(planned.layers), neurons = static_cast<double>(planned.neurons);
  use.predicted = !plan.predictor.empty();
  use.exact = planned.layers > 0, use.calibrated = planned.calibrated;
  if (!use.exact) return use;
  const double planned_tokens = static_cast<double>(plan.batch) * plan.microbatches;
  use.certified = planned.certified, use.expected_active_share = planned.active / neurons;
  use.expected = {.computed_share = planned.computed / neurons,
                  .neurons_loaded = planned.loads / planned_tokens,
                  .reads = planned.reads / planned_tokens,
                  .bytes = planned.bytes / planned_tokens,
                  .io_ms = planned.read_ms / planned_tokens};
  DeviceStatistics sum;
  for (const DeviceStatistics& of : devices) {
    sum.neuron_visits += of.neuron_visits, sum.neuron_rows += of.neuron_rows;
    sum.neurons_computed += of.neurons_computed, sum.neurons_loaded += of.neurons_loaded;
    sum.neuron_reads += of.neuron_reads, sum.neuron_bytes += of.neuron_bytes, sum.neuron_io_ms += of.neuron_io_ms;
    use.copied += of.neurons_copied;
  }
  if (sum.neuron_rows == 0 || sum.neuron_visits == 0) return use;
  use.tokens = static_cast<double>(sum.neuron_rows) / layers;
  use.measured = {.computed_share = static_cast<double>(sum.neurons_computed) * layers / (static_cast<double>(sum.neuron_visits) * neurons),
                  .neurons_loaded = static_cast<double>(sum.neurons_loaded) / use.tokens,
                  .reads = static_cast<double>(sum.neuron_reads) / use.tokens,
                  .bytes = static_cast<double>(sum.neuron_bytes) / use.tokens,
                  .io_ms = sum.neuron_io_ms / use.tokens};
  return use;
}

std::string SparseUse::Text() const {
  if (!exact) return "";
  if (tokens == 0) return "sparse MLPs: no token has used them";
  const auto bytes_of = [](const SparseFigures& figures) { return FormatBytes(static_cast<Bytes>(figures.bytes)); };
  const std::string which = predicted ? "named by the predictor" : certified > 0 ? "computed" : "active";
  const std::string active = certified > 0 ? absl::StrFormat(", %.1f active", expected_active_share * 100) : "";
  const std::string proven = certified > 0 ? absl::StrCat(", the others are proven to be zero in ", certified, " layers") : "";
  const std::string from_prompts = copied > 0 ? absl::StrCat("; ", copied, " were copied from prompts") : "";
  if (calibrated) {
    return absl::StrFormat(
        "sparse MLPs: %.1f %% of the neurons %s (%.1f predicted%s)%s; a token reads %.1f of them (%.1f predicted) in %.1f reads (%.1f), "
        "%s (%s), %.2f ms (%.2f)%s",
        measured.computed_share * 100, which, expected.computed_share * 100, active, proven, measured.neurons_loaded,
        expected.neurons_loaded, measured.reads, expected.reads, bytes_of(measured), bytes_of(expected), measured.io_ms, expected.io_ms,
        from_prompts);
  }
  const std::string most = expected.bytes > 0 ? absl::StrCat("at most ", bytes_of(expected), " expected") : "each is read once";
  return absl::StrFormat("sparse MLPs: %.1f %% of the neurons %s%s; a token reads %.1f of them in %.1f reads, %s (%s), %.2f ms%s",
                         measured.computed_share * 100, which, proven, measured.neurons_loaded, measured.reads, bytes_of(measured), most,
                         measured.io_ms, from_prompts);
}

void AddSparsity(const SparseUse& use, nlohmann::json& answer) {
  answer["sparsity"] = use.predicted ? "predicted" : use.exact ? "exact" : "off";
  answer["lossless"] = !use.predicted;
  if (!use.exact) return;
  answer["neurons_copied"] = use.copied;
  answer["certified_layers"] = use.certified;
  const auto add = [&](const char* name, double SparseFigures::*figure) {
    answer[name] = use.tokens > 0 ? nlohmann::json(use.measured.*figure) : nlohmann::json();
    answer["sparse_prediction"][name] = use.calibrated ? nlohmann::json(use.expected.*figure) : nlohmann::json();
  };
  add("sparse_computed_share", &SparseFigures::computed_share);
  const bool counts_active = use.certified == 0 && !use.predicted;
  answer["sparse_active_share"] = counts_active ? answer["sparse_computed_share"] : nlohmann::json();
  answer["sparse_prediction"]["sparse_active_share"] =
      use.calibrated && !use.predicted ? nlohmann::json(use.expected_active_share) : nlohmann::json();
  add("neurons_loaded_per_token", &SparseFigures::neurons_loaded);
  add("sparse_reads_per_token", &SparseFigures::reads);
  add("sparse_bytes_per_token", &SparseFigures::bytes);
  add("sparse_io_ms_per_token", &SparseFigures::io_ms);
}

}  // namespace lime
