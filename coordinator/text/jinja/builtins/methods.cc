#include "coordinator/text/jinja/builtins/methods.h"

#include <algorithm>

#include "coordinator/text/jinja/values/operations.h"

namespace lime::jinja {
namespace {

Value Get(Call& call) {
  const auto found = FindItem(call.rendering, call.self, call.At(0));
  return found.value_or(call.At(1));
}

Value Keys(Call& call) {
  return call.rendering.MakeList(Iterate(call.rendering, call.self), List::Form::kKeys);
}

Value Values(Call& call) {
  std::vector<Value> values;
  for (const auto& entry : call.self.dict->entries) values.push_back(entry.second);
  return call.rendering.MakeList(std::move(values), List::Form::kValues);
}

Value DictItems(Call& call) {
  std::vector<Value> items;
  for (const auto& [key, value] : call.self.dict->entries) {
    if (call.rendering.failed()) break;
    items.push_back(call.rendering.MakeList({key, value}, List::Form::kTuple));
  }
  return call.rendering.MakeList(std::move(items), List::Form::kItems);
}

Value CopyDict(Call& call) {
  return call.rendering.MakeDict(call.self.dict->entries);
}

Value CopyList(Call& call) {
  return call.rendering.MakeList(call.self.list->items);
}

Value CountItems(Call& call) {
  const auto& items = call.self.list->items;
  const auto count = std::ranges::count_if(items, [&](const Value& item) { return AreEqual(call.rendering, item, call.At(0)); });
  return Value::Integer(count);
}

Value IndexOfItem(Call& call) {
  const auto& items = call.self.list->items;
  const auto found = std::ranges::find_if(items, [&](const Value& item) { return AreEqual(call.rendering, item, call.At(0)); });
  if (found == items.end()) return call.Fail("does not find its argument in the list; test it with \"in\" first");
  return Value::Integer(found - items.begin());
}

// The only methods that change something: Jinja 3.1.2's sandbox lets them pass.
Value Pop(Call& call) {
  auto& items = call.self.list->items;
  const Int size = static_cast<Int>(items.size());
  const Int index = call.IntAt(0, -1), at = index < 0 ? index + size : index;
  if (!call.rendering.Charge(items.size() * sizeof(Value))) return Value::Undefined();
  if (at < 0 || at >= size) return call.Fail("finds no such item; test the length of the list first");
  const Value popped = items[static_cast<size_t>(at)];
  items.erase(items.begin() + static_cast<ptrdiff_t>(at));
  return popped;
}

Value Clear(Call& call) {
  call.self.list->items.clear();
  return Value::None();
}

constexpr Builtin kDictMethods[] = {
    {"get", Get, "key default="}, {"items", DictItems, ""}, {"keys", Keys, ""}, {"values", Values, ""}, {"copy", CopyDict, ""},
};

constexpr Builtin kListMethods[] = {
    {"count", CountItems, "value"}, {"index", IndexOfItem, "value"}, {"copy", CopyList, ""}, {"pop", Pop, "index="}, {"clear", Clear, ""},
};

}  // namespace

std::span<const Builtin> MethodsOf(const Value& value) {
  if (value.IsString()) return StringMethods();
  if (value.Is(Kind::kDict)) return kDictMethods;
  if (IsForm(value, List::Form::kList)) return kListMethods;
  if (IsForm(value, List::Form::kTuple) || IsForm(value, List::Form::kRange)) return std::span(kListMethods).first(2);
  return {};
}

}  // namespace lime::jinja
