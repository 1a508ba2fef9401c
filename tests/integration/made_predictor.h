// A predictor of random numbers, for tests.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/machine/files.h"
#include "daemon/stores/predictor_writer.h"
#include "daemon/weights/checkpoint.h"
#include "daemon/weights/predictor_store.h"
#include "planner/base/float_bits.h"
#include "tests/kernels/random_floats.h"

namespace lime {

// Of every layer of the model in `folder` that may have one; it names about half of the neurons. With the key
// and the text of a calibration, commands use it, too. Returns its layers.
inline absl::StatusOr<int64_t> WriteRandomPredictor(const std::string& folder, int64_t rank, uint32_t seed = 1,
                                                    const std::string& model = "random", const std::string& calibration = "{}") {
  LIME_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(folder));
  LIME_ASSIGN_OR_RETURN(const ModelSpec spec, checkpoint.BuildModelSpec());
  LIME_ASSIGN_OR_RETURN(const std::vector<PredictorShape> shapes, PredictorShapes(spec, folder));
  PredictorRecord record{.model = model, .text_xxh3 = "0123456789abcdef", .tokens = 1, .context = 1};
  std::vector<PredictorLayer> layers;
  for (PredictorShape shape : shapes) {
    shape.rank = rank;
    PredictorLayer& layer = layers.emplace_back(PredictorLayer{.shape = shape});
    for (size_t part = 0; part < kPredictorParts; ++part) {
      int64_t numbers = 1;
      for (const int64_t size : PredictorTensorShape(shape, static_cast<PredictorPart>(part))) numbers *= size;
      const float scale = part == static_cast<size_t>(PredictorPart::kThreshold) ? 0 : 0.3F;
      layer.parts[part].resize(static_cast<size_t>(numbers * ElementBytes(shape.dtype)));
      WithWorkingType(shape.dtype, [&](auto type) {
        using T = decltype(type);
        T* to = reinterpret_cast<T*>(layer.parts[part].data());
        for (const float value : cpu::RandomFloats(numbers, ++seed, scale)) *to++ = FromFloat<T>(value);
      });
    }
    record.layers.push_back({.layer = shape.layer,
                             .neurons = static_cast<int32_t>(shape.neurons),
                             .rank = static_cast<int32_t>(rank),
                             .xxh3 = PredictorLayerHash(layer.bytes())});
  }
  LIME_RETURN_IF_ERROR(WriteTextFile(PredictorPath(folder), EncodePredictorFile(record, calibration, layers)));
  return std::ssize(layers);
}

}  // namespace lime
