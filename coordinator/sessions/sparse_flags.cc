#include "coordinator/sessions/sparse_flags.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/local/local_plan.h"
#include "daemon/weights/checkpoint.h"
#include "nlohmann/json.hpp"

namespace lime::cli {

using nlohmann::json;

absl::StatusOr<SparseInputs> ReadSparseInputs(const ModelFlags& flags, const std::string& model) {
  LocalPlanRequest asked;
  LIME_RETURN_IF_ERROR(flags.Apply(asked));
  SparseInputs sparse{
      .sparsity = asked.sparsity, .decider = asked.decider, .neuron_rows = asked.neuron_rows, .window_masks = asked.window_masks};
  if (sparse.sparsity == SparsityWish::kOff) return sparse;
  if (model.empty() && sparse.sparsity == SparsityWish::kAuto) return sparse;
  if (model.empty())
    return WrongCall(absl::StrCat("--sparsity ", AsTyped(flags.sparsity), " needs the bundles of a model; give --model FOLDER"));
  LIME_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(model));
  LIME_ASSIGN_OR_RETURN(const ModelSpec spec, checkpoint.BuildModelSpec());
  LIME_ASSIGN_OR_RETURN(sparse.model, ReadSparseModel(checkpoint, spec, sparse.sparsity));
  if (sparse.model.predictor != nullptr) sparse.model.copies.clear();  // the predictor decides
  return sparse;
}

// Perplexity was measured when the predictor was trained.
std::string PredictorText(const PredictorStore& predictor) {
  const PredictorRecord& record = predictor.record();
  const std::string measured = record.perplexity > 0
                                   ? absl::StrFormat("perplexity %.3f with it and %.3f without, on %d tokens that it was not trained on",
                                                     record.perplexity, record.exact_perplexity, record.held_out)
                                   : "its perplexity was not measured";
  return absl::StrCat("results change: predictor ", predictor.hash(), " decides which neurons are computed; ", measured);
}

json PredictorJson(const PredictorStore& predictor) {
  const PredictorRecord& record = predictor.record();
  const auto measured = [](double perplexity) { return perplexity > 0 ? json(perplexity) : json(); };
  return {{"xxh3", predictor.hash()},
          {"perplexity", measured(record.perplexity)},
          {"exact_perplexity", measured(record.exact_perplexity)},
          {"held_out", record.held_out},
          {"text_xxh3", record.text_xxh3}};
}

}  // namespace lime::cli
