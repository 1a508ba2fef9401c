#include "coordinator/text/jinja/values/rendering.h"

namespace lime::jinja {

Value Rendering::FailWith(const std::string& sentence) {
  if (status_.ok()) status_ = absl::InvalidArgumentError(sentence);
  return Value::Undefined();
}

bool Rendering::Charge(size_t bytes) {
  if (failed()) return false;
  steps_ += 1 + static_cast<int64_t>(bytes / 32);
  if (steps_ > kMaxSteps) Fail("rendering takes more than ", kMaxSteps, " steps; shorten the loops or the conversation");
  return !failed();
}

bool Rendering::ChargeMemory(size_t bytes) {
  constexpr size_t kOwn = 48;  // of any value, with what the allocator adds
  if (static_cast<Bytes>(bytes) > kMaxOneValueBytes || static_cast<Bytes>(bytes) < 0) {
    Fail("rendering makes a value of more than ", kMaxOneValueBytes / kMiB, " MiB; make less of it");
    return false;
  }
  value_bytes_ += static_cast<Bytes>(kOwn + bytes);
  if (value_bytes_ > kMaxValueBytes) {
    Fail("rendering makes more than ", kMaxValueBytes / kMiB, " MiB of values; shorten the loops or the conversation");
  }
  return Charge(bytes);
}

Value Rendering::MakeString(std::string text, bool is_markup) {
  ChargeMemory(text.capacity());
  return Value::String(&strings_.emplace_back(std::move(text)), is_markup);
}

Value Rendering::MakeList(std::vector<Value> items, List::Form form) {
  ChargeMemory(items.capacity() * sizeof(Value));
  return Value::Of(&lists_.emplace_back(List{.form = form, .items = std::move(items)}));
}

Value Rendering::MakeDict(std::vector<std::pair<Value, Value>> entries) {
  ChargeMemory(entries.capacity() * 2 * sizeof(Value));
  return Value::Of(&dicts_.emplace_back(Dict{std::move(entries)}));
}

Rendering::Level::Level(Rendering& rendering) : rendering_(rendering) {
  if (++rendering.levels_ > kMaxNesting) {
    rendering.Fail("more than ", kMaxNesting, " levels are inside each other; end the recursion of macros or values");
  }
}

}  // namespace lime::jinja
