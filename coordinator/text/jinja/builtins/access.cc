#include "coordinator/text/jinja/builtins/access.h"

#include <algorithm>
#include <iterator>

#include "coordinator/text/jinja/builtins/methods.h"
#include "coordinator/text/jinja/values/operations.h"
#include "coordinator/text/jinja/values/python_text.h"

namespace lime::jinja {
namespace {

// Methods of a dict that change it: the sandbox hides them, and the items of these names.
bool IsHidden(const Value& object, std::string_view name) {
  constexpr std::string_view kChanging[] = {"clear", "pop", "popitem", "setdefault", "update"};
  return name.starts_with('_') || (object.Is(Kind::kDict) && std::ranges::count(kChanging, name) > 0);
}

std::optional<Value> FindAttribute(Rendering& rendering, const Value& object, const std::string& name) {
  if (object.Is(Kind::kObject)) return object.object->Attribute(rendering, name);
  const Builtin* method = FindBuiltin(MethodsOf(object), name);
  if (method == nullptr) return std::nullopt;
  return Value::Of(rendering.Make<Function>(*method, object));
}

Value RefuseUndefined(Rendering& rendering, const Value& object, const std::string& what) {
  return rendering.Fail(NameOf(object), " is undefined and has no ", what, "; give it, or test it with \"is defined\"");
}

}  // namespace

Value AttributeOf(Rendering& rendering, const Value& object, const std::string& name) {
  if (!rendering.Charge()) return Value::Undefined();
  if (object.IsUndefined()) return RefuseUndefined(rendering, object, "attribute \"" + Shortened(name) + "\"");
  if (const auto attribute = FindAttribute(rendering, object, name); attribute.has_value()) return *attribute;
  if (object.Is(Kind::kDict) && !IsHidden(object, name)) {
    const auto item = FindItem(rendering, object, Value::String(&name));
    if (item.has_value()) return *item;
  }
  return Value::Undefined(&name);
}

Value ItemOf(Rendering& rendering, const Value& object, const Value& key) {
  if (!rendering.Charge()) return Value::Undefined();
  if (object.IsUndefined()) return RefuseUndefined(rendering, object, "items");
  if (const auto item = FindItem(rendering, object, key); item.has_value()) return *item;
  if (!key.IsString()) return Value::Undefined();
  return FindAttribute(rendering, object, *key.text).value_or(Value::Undefined(key.text));
}

AttributePath::AttributePath(Rendering& rendering, const Value& attribute) : rendering_(rendering) {
  if (!attribute.IsString() && !attribute.IsNone()) keys_.push_back(attribute);
  if (!attribute.IsString()) return;
  for (const std::string_view part : Split(*attribute.text, ".")) {
    const auto index = IsDigit(part) ? ParseInt(part) : std::nullopt;
    keys_.push_back(index.has_value() ? Value::Integer(*index) : rendering.MakeString(std::string(part)));
  }
}

Value AttributePath::Of(Value item, const Value& fallback) const {
  for (const Value& key : keys_) {
    item = ItemOf(rendering_, item, key);
    if (item.IsUndefined() && !fallback.IsNone()) item = fallback;
  }
  return item;
}

}  // namespace lime::jinja
