// Opens the kernels module (liblime_kernels.so beside the program), which brings libtorch, and makes a Backend.
// Programs that only plan or tokenise never call this, and so never load libtorch's hundreds of shared objects.
#pragma once

#include <memory>

#include "kernels/backend.h"

namespace lime {

// NotFound, with the path and the linker's words, when the module is missing or does not load.
absl::StatusOr<std::unique_ptr<Backend>> OpenBackend(const ModelSpec& spec, const BackendOptions& options);

// Backend::ActivationBytes of such a backend, without making it. Opens the module, so that its share of memory can be measured too.
absl::StatusOr<Bytes> PlanActivationBytes(const ModelSpec& spec, const BackendOptions& options);

// Opens the module alone, so that a program knows its own memory before it is given a model.
absl::Status LoadKernels();

namespace internal {
// What the module exports as lime_create_backend and lime_activation_bytes.
using CreateBackendFn = void(const ModelSpec&, const BackendOptions&, absl::StatusOr<std::unique_ptr<Backend>>* result);
using ActivationBytesFn = Bytes(const ModelSpec&, const BackendOptions&);
}  // namespace internal

}  // namespace lime
