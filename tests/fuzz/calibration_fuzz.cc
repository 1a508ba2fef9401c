// Any bytes as a calibration: an error in one sentence, or one that is written back the same, whose
// shares are shares.
#include <string_view>

#include "planner/base/check.h"
#include "planner/demand/calibration.h"

namespace {

using namespace lime;

void CheckShares(const LayerCalibration& layer) {
  for (const int64_t batch : {1, 2, 3, 7, 100}) {
    const double active = ActiveShare(layer, batch);
    LIME_CHECK(active >= 0 && active <= 1) << active;
    for (const int64_t rows : {int64_t{0}, int64_t{1}, int64_t{layer.neurons} / 2, int64_t{layer.neurons}}) {
      const double loads = LoadShare(layer, rows, batch);
      LIME_CHECK(loads >= 0 && loads <= 1) << loads;
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<Calibration> calibration = ParseCalibration(bytes, "fuzz");
  if (!calibration.ok()) {
    LIME_CHECK(!calibration.status().message().empty());
    LIME_CHECK(calibration.status().message().find('\n') == absl::string_view::npos) << calibration.status().message();
    return 0;
  }
  const absl::StatusOr<Calibration> again = ParseCalibration(EncodeCalibration(*calibration), "again");
  LIME_CHECK(again.ok()) << again.status().message();
  LIME_CHECK(*again == *calibration) << "written back otherwise";
  for (const LayerCalibration& layer : calibration->layers) CheckShares(layer);
  for (const CopiedLayer& copy : calibration->copies) CheckShares(copy.unproven);
  return 0;
}
