// Attributes and items of values, as the sandbox of Jinja gives them.
#pragma once

#include <string>
#include <vector>

#include "coordinator/text/jinja/values/rendering.h"

namespace lime::jinja {

// object.name: a method, or else an item. Undefined if there is neither; an error if the object is
// undefined itself. `name` lives as long as the rendering.
Value AttributeOf(Rendering& rendering, const Value& object, const std::string& name);

// object[key]: an item, or else a method.
Value ItemOf(Rendering& rendering, const Value& object, const Value& key);

// The parameter `attribute` of filters: "function.name", "0.role" or an integer. None: the item
// itself.
class AttributePath {
 public:
  AttributePath(Rendering& rendering, const Value& attribute);
  // `fallback` takes the place of what is undefined on the way, unless it is none.
  Value Of(Value item, const Value& fallback = Value::None()) const;

 private:
  Rendering& rendering_;
  std::vector<Value> keys_;
};

}  // namespace lime::jinja
