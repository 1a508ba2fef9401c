// The metrics that follow from the facts of a cluster. Pure.
#pragma once

#include "common/exposition/exposition.h"
#include "coordinator/cluster_view/cluster_facts.h"

namespace lime {

// A value that is not known yet is 0.
MetricFamilies ClusterMetrics(const ClusterFacts& facts);

}  // namespace lime
