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

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> OpenBackend(const ModelSpec& spec, const BackendOptions& options) {
  LIME_ASSIGN_OR_RETURN(const std::string path, ModulePath());
  void* module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // stays open: its thread pools and registrations live as long as the process
  if (module == nullptr)
    return absl::NotFoundError(absl::StrCat("cannot load the kernels module: ", dlerror(), "; build the target lime_kernels"));
  auto* create = reinterpret_cast<internal::CreateBackendFn*>(dlsym(module, "lime_create_backend"));
  if (create == nullptr) return absl::NotFoundError(absl::StrCat(path, " is not a LIME kernels module; build the target lime_kernels"));
  absl::StatusOr<std::unique_ptr<Backend>> backend;
  create(spec, options, &backend);
  return backend;
}

}  // namespace lime
