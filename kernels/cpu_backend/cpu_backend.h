// The backend "cpu": decoder blocks with the operators of kernels/cpu.
#pragma once

#include <memory>

#include "kernels/backend.h"

namespace lime::cpu {

// ResourceExhausted if memory or threads are missing. REQUIRES: `spec` outlives the backend.
absl::StatusOr<std::unique_ptr<Backend>> OpenCpuBackend(const ModelSpec& spec, const BackendOptions& options);

// Backend::ActivationBytes of such a backend, without creating it.
Bytes CpuActivationBytes(const ModelSpec& spec, const BackendOptions& options);

// Whether such a backend decides with copies of dense deciders (Backend::BindCopy): its order of sums has
// proofs.
bool CpuProvesZeros(const ModelSpec& spec, const BackendOptions& options);

}  // namespace lime::cpu
