// What every template has without being given it: functions, and namespaces.
#pragma once

#include <string>

#include "coordinator/text/jinja/builtins/builtin.h"

namespace lime::jinja {

// The function of this name. Nothing if there is none.
std::optional<Value> FindGlobal(Rendering& rendering, std::string_view name);

// namespace(a=1): variables that a block inside a loop may set for what comes after it.
class Namespace : public Object {
 public:
  // REQUIRES: `values` is a dict.
  explicit Namespace(const Value& values) : values_(values) {}

  void Set(Rendering& rendering, const std::string& name, const Value& value);

  std::string Text(Rendering& rendering) const override;
  std::optional<Value> Attribute(Rendering& rendering, std::string_view name) override;
  bool IsCallable() const override { return false; }
  Value Call(Rendering& rendering, const Arguments&) override;

 private:
  const Value values_;
};

}  // namespace lime::jinja
