// The neurons that a model computes for real tokens, from the engine: what the rungs of the ladder
// read.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "daemon/weights/bundle_store.h"
#include "daemon/weights/checkpoint.h"
#include "daemon/weights/predictor_store.h"
#include "planner/base/status.h"
#include "planner/plan/model/model_spec.h"

namespace lime::flash {

// Masks of one token after another; the neurons of each ascend.
using TokenMasks = std::vector<std::vector<int32_t>>;

struct LayerMasks {
  int32_t layer = 0;
  int32_t neurons = 0;
  TokenMasks active;     // the decider is above zero
  TokenMasks predicted;  // by a predictor; empty if none was asked for
  // What a copy of the decider does not prove to be zero; empty if there is none, and for the first tokens.
  TokenMasks unproven;
};

struct MaskOptions {
  bool predict = false;
  const PredictorStore* trained = nullptr;  // the predictor; null: the best one of a planted model
  int64_t learn = 0;                        // tokens from the beginning from which the predictor's thresholds come
  // Those that have copies of deciders prove with them, from the token behind the first `learn` on. May be null.
  const BundleStore* bundles = nullptr;
  int num_threads = 1;
  std::function<void(double)> progress = nullptr;  // the share that is done; may be null
  const std::atomic<bool>* cancelled = nullptr;
};

// Runs these ids through the model, and takes the masks of every layer with a sparse MLP.
//
// Without a trained predictor, it is the best one of rank d / 32 for a model with planted neurons
// (testbed/make_model/planted_neurons.h): it knows the directions in which the inputs of a layer
// vary, and of each row of up the part in these directions. As the paper's predictors, it misses
// 5 % of the active neurons of the tokens from which it has its threshold. A model that was not
// planted is refused.
//
// InvalidArgument, as RunForMasks, and if the trained predictor lacks a layer.  REQUIRES: `spec` was built from `checkpoint`
absl::StatusOr<std::vector<LayerMasks>> MasksOf(const Checkpoint& checkpoint, const ModelSpec& spec, const std::vector<int32_t>& ids,
                                                const MaskOptions& options);

// Rank of the predictor of a planted model.
int64_t PredictorRank(const ModelSpec& spec);
// Memory of a layer's predictor in the working dtype.
Bytes PredictorBytes(const ModelSpec& spec, int64_t rank);

// Over tokens from `first` on, of all layers.
struct MaskShares {
  double active = 0;           // of the neurons, for a token
  double predicted = 0;        // the same; 0 without a predictor
  double unproven = 0;         // the same, without a proof; 0 without copies of all deciders
  double missed = 0;           // of the active ones, by the predictor
  double false_positives = 0;  // of the others, that it names
};
MaskShares SharesOf(std::span<const LayerMasks> layers, size_t first);

}  // namespace lime::flash
