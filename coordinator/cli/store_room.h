// Whether the stores of a cluster have room for what `lime push` would still send them: rows of `lime doctor`.
#pragma once

#include <string>
#include <vector>

#include "coordinator/cli/cluster_session.h"
#include "coordinator/cli/device_checks.h"

namespace lime::cli {

// Adds it to the row of each store's disk. Says nothing where a device is silent: other rows say why. Of a cluster that cannot be planned
// for yet it is only known what the whole model takes.
void CheckStoreRoom(ClusterSession::Options options, std::vector<Checked>& rows);

}  // namespace lime::cli
