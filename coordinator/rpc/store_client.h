// What a device holds of what was pushed to it.
//
// Threads: any; calls wait.
#pragma once

#include <memory>
#include <string>

#include "proto/bulk_convert.h"
#include "proto/certificate.h"

namespace lime {

class StoreClient {
 public:
  StoreClient(std::string name, std::string address, const ClusterKeys& keys);
  ~StoreClient();

  absl::StatusOr<StoreContent> List() const;
  // The bytes that are free again. FailedPrecondition while a plan that reads the model is installed, or it is being pushed.
  absl::StatusOr<Bytes> Remove(uint64_t model) const;

 private:
  std::string Who() const;

  const std::string name_, address_;
  struct Stub;
  const std::unique_ptr<Stub> stub_;
};

}  // namespace lime
