#include "kernels/registry/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "planner/plan/device/backend_names.h"
#include "planner/plan/model/described_model.h"
#include "tests/kernels/random_model.h"

namespace lime {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

bool IsHere(const char* name) {
  return std::ranges::count(BackendsHere(), name) > 0;
}

TEST(RegistryTest, TheCpuIsAlwaysHere) {
  EXPECT_THAT(BackendsHere(), Contains(kCpuBackend));
  EXPECT_TRUE(LoadBackend(kCpuBackend).ok());
}

TEST(RegistryTest, ANameThatIsNoneIsRefusedWithWhatThereIs) {
  const ModelSpec spec = DescribeModel(RandomModelConfig("llama"), "llama").value();
  const BackendOptions options{.max_rows = 1, .max_sequences = 1, .context = 16};
  for (const absl::Status& status :
       {LoadBackend("cuda"), OpenBackend("cuda", spec, options).status(), PlanActivationBytes("cuda", spec, options).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("there is no backend \"cuda\""), HasSubstr("this program has cpu")));
  }
}

TEST(RegistryTest, AModuleThatIsNotInstalledIsNotFound) {
  if (IsHere(kTorchBackend)) GTEST_SKIP() << "liblime_torch.so lies beside this program";
  const absl::Status status = LoadBackend(kTorchBackend);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("\"torch\" is not available"), HasSubstr("this program has cpu.")));
}

}  // namespace
}  // namespace lime
