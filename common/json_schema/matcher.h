// Where an answer is in its grammar, and which tokens may come next.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/json_schema/match_state.h"

namespace lime::json_schema {

// A function of the bytes so far. Owner: one thread. Copies are independent.
class Matcher {
 public:
  explicit Matcher(GrammarPtr grammar);

  // False, and no change, if no answer begins with the bytes so far and these.
  bool Advance(std::string_view bytes);

  // Whether the bytes so far are an answer. More bytes may still be allowed.
  bool IsComplete() const { return LeastBytes() == 0; }
  // Fewest bytes to the end of an answer.
  int32_t LeastBytes() const { return LeastOf(*grammar_, lists_, threads_); }

  const GrammarPtr& grammar() const { return grammar_; }
  std::span<const Thread> threads() const { return threads_; }
  const FrameLists& lists() const { return lists_; }
  // Equal for matchers of one grammar that allow the same bytes from here on. Appends to `key`.
  void AppendKey(std::string& key) const;

 private:
  GrammarPtr grammar_;
  std::vector<Thread> threads_, next_, before_;
  FrameLists lists_;
  Stepper stepper_;
};

}  // namespace lime::json_schema
