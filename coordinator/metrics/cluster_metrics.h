// The metrics that follow from the facts of a cluster. Pure.
#pragma once

#include "common/exposition/exposition.h"
#include "coordinator/cluster_view/cluster_facts.h"

namespace lime {

// Every family has a sample. A value that is not known yet is 0; while no device is known, the name
// of one is empty.
MetricFamilies ClusterMetrics(ClusterFacts known);

}  // namespace lime
