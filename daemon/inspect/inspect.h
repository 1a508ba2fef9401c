// Inspects this machine as a device of a cluster: memory and its limits, the disks of its folders,
// its weights, its keys.
//
// Reads only. Threads: any. Takes little more than `seconds` for each folder.
#pragma once

#include <ctime>
#include <string>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/base/finding.h"

namespace lime {

struct InspectOptions {
  std::string weights;  // folder; empty: none
  std::string store;    // folder for pushed weights; empty: none can be pushed
  std::string kv;       // folder for KV that does not fit in memory; empty: that of the weights
  Bytes memory = 0;     // for the process; 0: not given
  Bytes runtime = 0;    // of the process without a plan; 0: not known
  double seconds = 0;   // for measuring a disk's rate; 0: it is not measured
};
std::vector<Finding> InspectMachine(const InspectOptions& options);

inline constexpr char kStoreDiskCheck[] = "disk of the store";  // name of a row

// The parts of InspectMachine.
Finding InspectMemory(Bytes budget, Bytes runtime);
// `check` names the row. `writes`: limed writes there, so free space counts, and the folder may not
// exist yet.
Finding InspectDisk(const std::string& check, const std::string& named, bool writes, double seconds);
Finding InspectWeights(const std::string& folder);
Finding InspectStore(const std::string& folder);
// `what` opens the sentence: "the keys of this machine". `until`: when the certificate or its
// authority expires, whichever is first. `renew`: the remedy.
Finding InspectExpiry(const std::string& what, std::time_t until, std::time_t now, const std::string& renew);

}  // namespace lime
