// The file of a predictor of neurons (planner/plan/model/neuron_predictor.h), which lies in the folder of its model.
//
// It is a safetensors file. Of each layer that has a predictor, with numbers of the working dtype:
//
//   __lime_predictor__.LAYER.a          [rank, hidden]
//   __lime_predictor__.LAYER.b          [neurons, rank]
//   __lime_predictor__.LAYER.c          [neurons]
//   __lime_predictor__.LAYER.threshold  [1]   the limit of z: 0 for a probability of one half
//
// and of all:
//
//   __lime_predictor__.record           U8    one JSON object: what was trained, on what, and how good it is
//   __lime_predictor__.calibration      U8    a calibration (planner/demand/calibration.h) whose active
//                                             neurons are those that are predicted
//
// Pure: works on bytes that others have read. They are hostile: sizes are bounded, and no number is NaN or
// infinite. An error is one sentence that names the file and the tensor. What to do about it is said by the
// caller, who knows where the file is from.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/formats/bundle_file.h"
#include "daemon/formats/safetensors.h"
#include "planner/base/bytes.h"
#include "planner/base/dtype.h"
#include "planner/base/status.h"
#include "planner/plan/model/neuron_predictor.h"

namespace lime {

inline constexpr std::string_view kPredictorPrefix = "__lime_predictor__.", kPredictorFileName = "predictor.safetensors";
inline constexpr std::string_view kPredictorRecordName = "record", kPredictorCalibrationName = "calibration";  // behind the prefix
inline constexpr int64_t kMostPredictorRank = 4096;
inline constexpr Bytes kMostPredictorRecordBytes = 4 * kMiB;

// ---- The record

struct PredictorLayerRecord {
  int32_t layer = 0;
  int32_t neurons = 0;
  int32_t rank = 0;
  std::string xxh3;  // of a, b, c and threshold, one after another: 16 hexadecimal digits
  // Of tokens that it was not trained on: the share of the active neurons that it misses, and of the others
  // that it names; and mean shares of all neurons that are active, and that it names.
  double false_negatives = 0, false_positives = 0;
  double active = 0, predicted = 0;
  friend bool operator==(const PredictorLayerRecord&, const PredictorLayerRecord&) = default;
};

struct PredictorRecord {
  std::string model;      // its key, as in logs of routes
  std::string text_xxh3;  // of the token ids, 16 hexadecimal digits
  int64_t tokens = 0;     // of the text
  int64_t held_out = 0;   // of these, not trained on
  int32_t context = 0;    // tokens of a sequence
  int64_t seed = 0;
  // Of the tokens that were held out: without the predictor, and with it. 0: not measured.
  double exact_perplexity = 0, perplexity = 0;
  std::vector<PredictorLayerRecord> layers;  // ascending
  friend bool operator==(const PredictorRecord&, const PredictorRecord&) = default;
};

std::string EncodePredictorRecord(const PredictorRecord& record);
// Reads an untrusted record; `name` opens every error.
absl::StatusOr<PredictorRecord> ParsePredictorRecord(std::string_view text, std::string_view name);

// Names all numbers of all layers: 16 hexadecimal digits. Two predictors with it give the same results.
std::string PredictorHash(const PredictorRecord& record);
// Of the tensors of a layer, by PredictorPart.
enum class PredictorPart : uint8_t {
  kA,
  kB,
  kC,
  kThreshold,
};
inline constexpr size_t kPredictorParts = 4;
using PredictorBytes = std::array<std::span<const std::byte>, kPredictorParts>;
std::string PredictorLayerHash(const PredictorBytes& parts);

// ---- Tensors

// Of a layer; the caller knows all but the rank from the model.
struct PredictorShape {
  int32_t layer = 0;
  int64_t neurons = 0, cols = 0;
  int64_t rank = 0;
  DType dtype = DType::kF32;  // the working dtype
  friend bool operator==(const PredictorShape&, const PredictorShape&) = default;
};

// Name and shape of a tensor.
std::string PredictorTensorName(int32_t layer, PredictorPart part);
std::vector<int64_t> PredictorTensorShape(const PredictorShape& shape, PredictorPart part);

// Where the tensors of a layer are.
struct PredictorTensors {
  PredictorShape shape;
  std::array<BundleTensor, kPredictorParts> parts;  // by PredictorPart
};

struct PredictorFile {
  BundleTensor record, calibration;
  std::vector<PredictorTensors> layers;  // ascending
};

// `layers`: those of the model that may have one, ascending; their rank is ignored. InvalidArgument if a
// tensor is missing, has another type or shape, or is of a layer that may have none, and if there is none.
absl::StatusOr<PredictorFile> FindPredictors(const SafetensorsHeader& header, std::span<const PredictorShape> layers,
                                             std::string_view file);

// The predictor in these bytes, which outlive the result. InvalidArgument for another number of bytes, and
// for numbers that are not finite.
absl::StatusOr<PredictorView> ParsePredictor(const PredictorShape& shape, const PredictorBytes& parts, std::string_view file);

// A predictor that is made.
struct PredictorLayer {
  PredictorShape shape;
  std::array<std::vector<std::byte>, kPredictorParts> parts;

  PredictorBytes bytes() const;
};

}  // namespace lime
