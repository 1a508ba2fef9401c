#include "common/json_schema/matcher.h"

#include <utility>

namespace lime::json_schema {
namespace {

void Append(int32_t number, std::string& key) {
  for (int shift = 0; shift < 32; shift += 8) key.push_back(static_cast<char>(number >> shift));
}

void Append(const Frame& frame, std::string& key) {
  key.push_back(static_cast<char>(frame.kind));
  Append(frame.id, key);
  Append(frame.position, key);
  Append(frame.parents, key);
}

}  // namespace

Matcher::Matcher(GrammarPtr grammar) : grammar_(std::move(grammar)) {
  stepper_.Start(*grammar_, lists_, threads_);
}

bool Matcher::Advance(std::string_view bytes) {
  before_ = threads_;
  const FrameLists::Size size = lists_.size();
  for (const char byte : bytes) {
    next_.clear();
    stepper_.Step(*grammar_, threads_, static_cast<uint8_t>(byte), lists_, next_);
    threads_.swap(next_);
    if (!threads_.empty()) continue;
    threads_ = before_;
    lists_.ShrinkTo(size);
    return false;
  }
  lists_.Compact(threads_);
  return true;
}

void Matcher::AppendKey(std::string& key) const {
  for (const Thread& thread : threads_) {
    Append(thread.frame, key);
    key.push_back(static_cast<char>(thread.mode));
    key.push_back(static_cast<char>(thread.blanks));
    key.push_back(static_cast<char>(thread.depth));
    Append(thread.id, key);
    Append(thread.state, key);
    Append(thread.count, key);
  }
  for (size_t i = 0; i < lists_.size().lists; ++i) {
    key.push_back('|');
    for (const Frame& frame : lists_.Frames(static_cast<int>(i))) Append(frame, key);
  }
}

}  // namespace lime::json_schema
