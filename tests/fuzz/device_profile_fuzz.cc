// Any text as a device profile: an error in one sentence, or a profile that is written and read
// back the same and predicts finite times.
#include <cmath>
#include <string_view>

#include "planner/base/check.h"
#include "planner/plan/device/device_profile.h"

namespace {

void CheckFinite(double value) {
  LIME_CHECK(std::isfinite(value) && value >= 0) << value;
}

lime::ModelSpec Spec() {
  lime::ModelSpec spec;
  spec.config.architecture = "A";
  spec.config.layers.resize(1);
  spec.config.vocab_size = 8;
  return spec;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lime;
  absl::StatusOr<DeviceProfile> profile = ParseDeviceProfile({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!profile.ok()) {
    LIME_CHECK(!profile.status().message().empty());
    return 0;
  }
  const absl::StatusOr<DeviceProfile> again = ParseDeviceProfile(ToJsonText(*profile), "again");
  LIME_CHECK(again.ok()) << again.status().message();
  LIME_CHECK(*again == *profile);
  const ModelSpec spec = Spec();
  for (ModelCompute& model : profile->models) model.key = ModelKey(spec);  // the first is then found
  for (const int64_t amount : {int64_t{0}, int64_t{1}, int64_t{300}, int64_t{1} << 40}) {
    CheckFinite(profile->DiskRate(amount, amount));
    CheckFinite(profile->DiskLatencyMs(amount, 4));
    CheckFinite(profile->StepMs(spec, {.rows = amount, .context = amount, .logit_rows = 1}));
  }
  return 0;
}
