#include "daemon/stores/predictor_writer.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/stores/safetensors_writer.h"
#include "planner/base/check.h"
#include "planner/base/strings.h"

namespace lime {

std::string EncodePredictorFile(const PredictorRecord& record, std::string_view calibration, std::span<const PredictorLayer> layers) {
  const std::string text = EncodePredictorRecord(record);
  std::vector<SafetensorsWriter::Tensor> tensors;
  std::vector<std::string_view> data;
  for (const PredictorLayer& layer : layers) {
    for (size_t i = 0; i < kPredictorParts; ++i) {
      const auto part = static_cast<PredictorPart>(i);
      const std::vector<std::byte>& bytes = layer.parts[i];
      tensors.push_back({.name = PredictorTensorName(layer.shape.layer, part),
                         .dtype = layer.shape.dtype,
                         .shape = PredictorTensorShape(layer.shape, part)});
      LIME_CHECK_EQ(std::ssize(bytes), TensorBytes(tensors.back().dtype, tensors.back().shape)) << tensors.back().name;
      data.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
  }
  const auto add_text = [&](std::string_view name, std::string_view of) {
    tensors.push_back({.name = absl::StrCat(Text(kPredictorPrefix), Text(name)), .dtype = DType::kU8, .shape = {std::ssize(of)}});
    data.push_back(of);
  };
  add_text(kPredictorRecordName, text);
  add_text(kPredictorCalibrationName, calibration);
  std::string file = SafetensorsHeaderBytes(tensors, {});
  for (const std::string_view bytes : data) file.append(bytes);
  return file;
}

}  // namespace lime
