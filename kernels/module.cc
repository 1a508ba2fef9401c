#include "kernels/module.h"

#include <dlfcn.h>

#include <filesystem>

#include "absl/strings/str_cat.h"

namespace lime {
namespace {

// The module lies beside the running program, wherever that was installed.
absl::StatusOr<std::string> ModulePath() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return absl::NotFoundError(absl::StrCat("cannot find the running program in /proc/self/exe: ", error.message()));
  return (program.parent_path() / "liblime_kernels.so").string();
}

// The function of that name. The module stays open: its thread pools and registrations live as long as the process.
template <typename Fn>
absl::StatusOr<Fn*> Find(const char* name) {
  LIME_ASSIGN_OR_RETURN(const std::string path, ModulePath());
  void* const module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr)
    return absl::NotFoundError(absl::StrCat("cannot load the kernels module: ", dlerror(), "; build the target lime_kernels"));
  void* const function = dlsym(module, name);
  if (function == nullptr) return absl::NotFoundError(absl::StrCat(path, " is not a LIME kernels module; build the target lime_kernels"));
  return reinterpret_cast<Fn*>(function);
}

}  // namespace

absl::Status LoadKernels() {
  return Find<internal::CreateBackendFn>("lime_create_backend").status();
}

absl::StatusOr<std::unique_ptr<Backend>> OpenBackend(const ModelSpec& spec, const BackendOptions& options) {
  LIME_ASSIGN_OR_RETURN(auto* const create, Find<internal::CreateBackendFn>("lime_create_backend"));
  absl::StatusOr<std::unique_ptr<Backend>> backend;
  create(spec, options, &backend);
  return backend;
}

absl::StatusOr<Bytes> PlanActivationBytes(const ModelSpec& spec, const BackendOptions& options) {
  LIME_ASSIGN_OR_RETURN(auto* const activation_bytes, Find<internal::ActivationBytesFn>("lime_activation_bytes"));
  return activation_bytes(spec, options);
}

}  // namespace lime
