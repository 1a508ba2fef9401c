// Opens backends by name (planner/plan/device/backend_names.h). "cpu" is linked in. "torch" is a
// module, liblime_torch.so beside the program, which brings libtorch's hundreds of shared objects.
// It is opened on first use and stays open.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace lime {

// Names of the backends that can be opened here.
std::vector<std::string> BackendsHere();

// Loads the libraries of backend `name`, so that a program knows its own memory before it gets a
// model. InvalidArgument for an unknown name; NotFound for a module that is missing or does not
// load. Both name the backends that are here.
absl::Status LoadBackend(const std::string& name);

// REQUIRES: `spec` outlives the backend. Errors: those of LoadBackend, and ResourceExhausted if
// memory or threads are missing.
absl::StatusOr<std::unique_ptr<Backend>> OpenBackend(const std::string& name, const ModelSpec& spec, const BackendOptions& options);

// Backend::ActivationBytes of such a backend, without creating it. Loads its libraries.
absl::StatusOr<Bytes> PlanActivationBytes(const std::string& name, const ModelSpec& spec, const BackendOptions& options);

// Whether such a backend decides with copies of dense deciders (Backend::BindCopy).
bool ProvesZeros(const std::string& name, const ModelSpec& spec, const BackendOptions& options);

namespace internal {
// The functions that a module exports as lime_create_backend and lime_activation_bytes.
using CreateBackendFn = void(const ModelSpec&, const BackendOptions&, absl::StatusOr<std::unique_ptr<Backend>>* result);
using ActivationBytesFn = Bytes(const ModelSpec&, const BackendOptions&);
}  // namespace internal

}  // namespace lime
