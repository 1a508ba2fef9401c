// Reads requests from texts, for tests.
#pragma once

#include <string>
#include <string_view>

#include "common/http/request_reader.h"

namespace lime {

// What a reader made of `text`, which came in pieces of `piece` bytes.
struct ReadRequest {
  RequestReader reader;
  std::string rest;  // that it did not take

  ReadRequest(std::string_view text, size_t piece, const RequestReader::Limits& limits = {}) : reader(limits) {
    const auto open = [&] { return reader.state() == RequestReader::State::kHead || reader.state() == RequestReader::State::kBody; };
    while (!text.empty()) {
      rest.append(text.substr(0, piece));
      text.remove_prefix(std::min(piece, text.size()));
      for (size_t taken = 1; taken > 0 && open() && !rest.empty();) {
        taken = reader.Read(rest);
        rest.erase(0, taken);
      }
    }
  }
};

}  // namespace lime
