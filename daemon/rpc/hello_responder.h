// Answers the questions of proto/hello.h on a UDP port, from a thread of its own.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "daemon/weights/files.h"
#include "planner/base/status.h"
#include "proto/hello.h"

namespace lime {

class HelloResponder {
 public:
  // At the host of `address` and `port`. `what` is asked for every answer, on the responder's thread; `asked`, where it is not
  // empty, hears of it. At most 100 answers a second go out:
  // what comes faster is dropped.
  static absl::StatusOr<std::unique_ptr<HelloResponder>> Start(const std::string& address, int port, std::function<Hello()> what,
                                                               std::function<void(const std::string& peer)> asked);
  ~HelloResponder();

 private:
  HelloResponder(FileDescriptor socket, FileDescriptor wake, std::function<Hello()> what,
                 std::function<void(const std::string& peer)> asked);
  void Serve();

  const FileDescriptor socket_, wake_;  // an eventfd: the thread ends
  const std::function<Hello()> what_;
  const std::function<void(const std::string& peer)> asked_;
  std::thread thread_;
};

}  // namespace lime
