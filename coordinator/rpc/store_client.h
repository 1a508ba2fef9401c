// The content of a device's store of pushed models.
//
// Threads: any; calls block.
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
  // Returns the bytes that were freed. FailedPrecondition if an installed plan reads the model or a
  // push of it is under way.
  absl::StatusOr<Bytes> Remove(uint64_t model) const;

 private:
  std::string Who() const;

  const std::string name_, address_;
  struct Stub;
  const std::unique_ptr<Stub> stub_;
};

}  // namespace lime
