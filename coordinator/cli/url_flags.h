// Flags of commands that call a server instead of computing: --url and what belongs to it.
#pragma once

#include <memory>
#include <string>

#include "common/input/command_line.h"
#include "coordinator/client/api_client.h"
#include "planner/base/status.h"

namespace lime::cli {

struct UrlFlags {
  std::string url;      // empty: the command computes
  std::string api_key;  // empty: LIME_API_KEY
  std::string authorities;

  void AddTo(const CommandFlags& command);
  bool given() const { return !url.empty(); }
  // Sends nothing yet. Every error is a wrong call.  REQUIRES: given()
  absl::StatusOr<std::unique_ptr<ApiClient>> Open() const;
};

}  // namespace lime::cli
