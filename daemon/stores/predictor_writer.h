// Makes the file of a predictor (daemon/formats/predictor_file.h).
//
// Pure.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "daemon/formats/predictor_file.h"

namespace lime {

// REQUIRES: layers ascend, and their parts have the bytes of their shapes
std::string EncodePredictorFile(const PredictorRecord& record, std::string_view calibration, std::span<const PredictorLayer> layers);

}  // namespace lime
