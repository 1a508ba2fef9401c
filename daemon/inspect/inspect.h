// Looks at this machine as one device of a cluster: memory and its limits, the disks of its folders, what weights lie there, its keys.
//
// Reads only. Threads: any; takes little more than `seconds` for each folder.
#pragma once

#include <ctime>
#include <string>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/base/finding.h"

namespace lime {

struct InspectOptions {
  std::string weights;  // folder; empty: none
  std::string store;    // folder for what is pushed; empty: nothing can be
  std::string kv;       // folder for KV that memory has no room for; empty: that of the weights
  Bytes memory = 0;     // that the process may use; 0: not said
  Bytes runtime = 0;    // that it holds without a plan; 0: not known
  double seconds = 0;   // that measuring a disk's rate may take; 0: it is not measured
};
std::vector<Finding> InspectMachine(const InspectOptions& options);

inline constexpr char kStoreDiskCheck[] = "disk of the store";  // name of a row

// Its parts.
Finding InspectMemory(Bytes budget, Bytes runtime);
// `check` names the row; `writes`: files are to be made there, so that room matters, and the folder may be made later.
Finding InspectDisk(const std::string& check, const std::string& named, bool writes, double seconds);
Finding InspectWeights(const std::string& folder);
Finding InspectStore(const std::string& folder);
// `what` opens the sentence: "the keys of this machine". `until`: of the certificate and its authority, the earlier; `renew` is the remedy.
Finding InspectExpiry(const std::string& what, std::time_t until, std::time_t now, const std::string& renew);

}  // namespace lime
