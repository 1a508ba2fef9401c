// Answers the questions of proto/hello.h on a UDP port, on its own thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "daemon/machine/files.h"
#include "planner/base/status.h"
#include "proto/hello.h"

namespace lime {

class HelloResponder {
 public:
  // Listens at the host of `address` and at `port`. Calls `what` for every answer, and `asked`,
  // unless it is empty, with the asking host; both on the responder's thread. Sends at most 100
  // answers a second and drops further questions.
  static absl::StatusOr<std::unique_ptr<HelloResponder>> Start(const std::string& address, int port, std::function<Hello()> what,
                                                               std::function<void(const std::string& peer)> asked);
  ~HelloResponder();

 private:
  HelloResponder(FileDescriptor socket, FileDescriptor wake, std::function<Hello()> what,
                 std::function<void(const std::string& peer)> asked);
  void Serve();

  // wake_ is an eventfd that ends the thread.
  const FileDescriptor socket_, wake_;
  const std::function<Hello()> what_;
  const std::function<void(const std::string& peer)> asked_;
  std::thread thread_;
};

}  // namespace lime
