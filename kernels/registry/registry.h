// The backends by name (planner/plan/backend_names.h). "cpu" is linked in. "torch" is a module, liblime_torch.so beside the program, which
// brings libtorch's hundreds of shared objects: it is opened when it is asked for, and stays open.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace lime {

// The backends that can be opened here.
std::vector<std::string> BackendsHere();

// Loads what backend `name` needs, so that a program knows its own memory before it is given a model. InvalidArgument for a name that
// is none, NotFound for a module that is not here or does not load; both say which backends are here.
absl::Status LoadBackend(const std::string& name);

// `spec` outlives the backend. Also what LoadBackend says, and ResourceExhausted where memory or threads are missing.
absl::StatusOr<std::unique_ptr<Backend>> OpenBackend(const std::string& name, const ModelSpec& spec, const BackendOptions& options);

// Backend::ActivationBytes of such a backend, without making it. Loads what the backend needs.
absl::StatusOr<Bytes> PlanActivationBytes(const std::string& name, const ModelSpec& spec, const BackendOptions& options);

namespace internal {
// What a module exports as lime_create_backend and lime_activation_bytes.
using CreateBackendFn = void(const ModelSpec&, const BackendOptions&, absl::StatusOr<std::unique_ptr<Backend>>* result);
using ActivationBytesFn = Bytes(const ModelSpec&, const BackendOptions&);
}  // namespace internal

}  // namespace lime
