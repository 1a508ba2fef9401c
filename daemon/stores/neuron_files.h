// Looks for what the folder of a model has for sparse MLPs.
#pragma once

#include <string>

#include "planner/plan/sparse_parts.h"

namespace lime {

// Reads headers and tables, and no weights. Damaged files, and files of another model, count as none:
// whoever opens them learns why.
NeuronFiles NeuronFilesIn(const std::string& folder);

}  // namespace lime
