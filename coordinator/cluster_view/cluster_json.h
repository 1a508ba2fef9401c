// The object of GET /lime/cluster and of the events of GET /lime/events.
#pragma once

#include <string>

#include "coordinator/cluster_view/cluster_facts.h"

namespace lime {

// One line. Numbers that are not known are null.
std::string ClusterJson(const ClusterFacts& facts);

// "event: cluster", and the object.
std::string ClusterEvent(const std::string& json);

}  // namespace lime
