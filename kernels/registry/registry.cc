#include "kernels/registry/registry.h"

#include <dlfcn.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/cpu_backend/cpu_backend.h"
#include "planner/plan/device/backend_names.h"

namespace lime {
namespace {

// The module lies beside the running program, wherever it is installed.
std::filesystem::path ModulePath() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / "liblime_torch.so";
}

std::string Here() {
  return absl::StrCat("; this program has ", absl::StrJoin(BackendsHere(), " and "));
}

absl::Status Unknown(const std::string& name) {
  return Invalid("there is no backend \"", name.substr(0, 80), "\"", Here());
}

absl::Status NotHere(const std::string& why) {
  return absl::NotFoundError(absl::StrCat("the backend \"", kTorchBackend, "\" is not available: ", why, Here(),
                                          ". Build the target lime_torch, or install liblime_torch.so beside the program"));
}

// Finds the module's function with this name.
template <typename Fn>
absl::StatusOr<Fn*> FindInModule(const char* name) {
  const std::string path = ModulePath().string();
  void* const module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr) return NotHere(dlerror());
  void* const function = dlsym(module, name);
  if (function == nullptr) return NotHere(absl::StrCat(path, " is not a module of this release"));
  return reinterpret_cast<Fn*>(function);
}

}  // namespace

std::vector<std::string> BackendsHere() {
  std::error_code error;
  std::vector<std::string> names = {kCpuBackend};
  if (std::filesystem::exists(ModulePath(), error)) names.push_back(kTorchBackend);
  return names;
}

absl::Status LoadBackend(const std::string& name) {
  if (name == kCpuBackend) return absl::OkStatus();
  if (name != kTorchBackend) return Unknown(name);
  return FindInModule<internal::CreateBackendFn>("lime_create_backend").status();
}

absl::StatusOr<std::unique_ptr<Backend>> OpenBackend(const std::string& name, const ModelSpec& spec, const BackendOptions& options) {
  if (name == kCpuBackend) return cpu::OpenCpuBackend(spec, options);
  if (name != kTorchBackend) return Unknown(name);
  LIME_ASSIGN_OR_RETURN(auto* const create, FindInModule<internal::CreateBackendFn>("lime_create_backend"));
  absl::StatusOr<std::unique_ptr<Backend>> backend;
  create(spec, options, &backend);
  return backend;
}

absl::StatusOr<Bytes> PlanActivationBytes(const std::string& name, const ModelSpec& spec, const BackendOptions& options) {
  if (name == kCpuBackend) return cpu::CpuActivationBytes(spec, options);
  if (name != kTorchBackend) return Unknown(name);
  LIME_ASSIGN_OR_RETURN(auto* const activation_bytes, FindInModule<internal::ActivationBytesFn>("lime_activation_bytes"));
  return activation_bytes(spec, options);
}

bool ProvesZeros(const std::string& name, const ModelSpec& spec, const BackendOptions& options) {
  return name == kCpuBackend && cpu::CpuProvesZeros(spec, options);
}

}  // namespace lime
