// Filters on lists, dicts and whatever else has items.
#include <algorithm>
#include <numeric>

#include "coordinator/text/jinja/builtins/access.h"
#include "coordinator/text/jinja/builtins/filters.h"
#include "coordinator/text/jinja/values/operations.h"
#include "coordinator/text/jinja/values/printing.h"
#include "coordinator/text/jinja/values/python_text.h"

namespace lime::jinja {
namespace {

Value IteratorOf(const Call& call, std::vector<Value> items) {
  return call.rendering.MakeList(std::move(items), List::Form::kIterator);
}

std::vector<Value> ItemsOf(const Call& call) {
  return Iterate(call.rendering, call.self);
}

// What is compared: strings in lower case, unless `case_sensitive`.
Value KeyOf(const Call& call, const Value& value, bool case_sensitive) {
  return value.IsString() && !case_sensitive ? call.String(Lower(*value.text)) : value;
}

Value LengthOfInput(Call& call) {
  const auto length = LengthOf(call.self);
  if (length.has_value()) return Value::Integer(*length);
  return call.Fail("does not work on ", TypeName(call.self), "; make a list of it with \"|list\", or test it first");
}

// The first or last item, without going through the others.
Value EndOf(Call& call, bool last) {
  const Value& input = call.self;
  if (input.IsString()) return FindItem(call.rendering, input, Value::Integer(last ? -1 : 0)).value_or(Value::Undefined());
  if (!IsIterable(input)) return LengthOfInput(call);
  if (input.Is(Kind::kDict) && !input.dict->entries.empty()) return (last ? input.dict->entries.back() : input.dict->entries.front()).first;
  if (!input.Is(Kind::kList) || input.list->items.empty()) return Value::Undefined();
  return last ? input.list->items.back() : input.list->items.front();
}

Value First(Call& call) {
  const Value first = EndOf(call, /*last=*/false);
  if (!IsForm(call.self, List::Form::kIterator) || call.self.list->items.empty()) return first;
  auto& items = call.self.list->items;  // the others stay
  items.erase(items.begin());
  return call.rendering.Charge(items.size() * sizeof(Value)) ? first : Value::Undefined();
}

Value Last(Call& call) {
  return IsForm(call.self, List::Form::kIterator) ? LengthOfInput(call) : EndOf(call, /*last=*/true);
}

Value AsList(Call& call) {
  return call.rendering.MakeList(ItemsOf(call));
}

Value Reversed(Call& call) {
  if (call.self.IsString()) return SliceOf(call.rendering, call.self, Value::None(), Value::None(), Value::Integer(-1));
  auto items = ItemsOf(call);
  std::reverse(items.begin(), items.end());
  return IteratorOf(call, std::move(items));
}

Value Joined(Call& call) {
  const std::string& separator = call.bound[0].has_value() ? ViewOf(call.rendering, *call.bound[0]) : *call.String("").text;
  const AttributePath path(call.rendering, call.At(1));
  std::string out;
  bool is_first = true;
  for (const Value& item : ItemsOf(call)) {
    if (!call.rendering.ChargeMemory(separator.size())) break;
    if (!is_first) out.append(separator);
    out.append(TextOf(call.rendering, path.Of(item)));
    is_first = false;
  }
  return call.String(std::move(out));
}

// The items in the order of their keys. Equal ones keep their order, also in reverse.
std::vector<Value> Ordered(const Call& call, const std::vector<Value>& items, const std::vector<std::vector<Value>>& keys, bool reverse) {
  std::vector<size_t> order(items.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto is_less = [&](size_t a, size_t b) {
    for (size_t i = 0; i < keys[a].size(); ++i) {
      if (!AreEqual(call.rendering, keys[a][i], keys[b][i])) return IsLess(call.rendering, keys[a][i], keys[b][i]);
    }
    return false;
  };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return reverse ? is_less(b, a) : is_less(a, b); });
  std::vector<Value> sorted;
  sorted.reserve(order.size());
  for (const size_t at : order) sorted.push_back(items[at]);
  return sorted;
}

// `attribute` may name several, with commas between them.
Value Sorted(Call& call) {
  const auto items = ItemsOf(call);
  std::vector<AttributePath> paths;
  if (call.At(2).IsString()) {
    for (const std::string_view part : Split(*call.At(2).text, ",")) paths.emplace_back(call.rendering, call.String(std::string(part)));
  } else {
    paths.emplace_back(call.rendering, call.At(2));
  }
  std::vector<std::vector<Value>> keys;
  for (const Value& item : items) {
    auto& key = keys.emplace_back();
    for (const AttributePath& path : paths) key.push_back(KeyOf(call, path.Of(item), call.IsTrueAt(1)));
    if (!call.rendering.ChargeMemory(paths.size() * sizeof(Value))) return Value::Undefined();
  }
  return call.rendering.MakeList(Ordered(call, items, keys, call.IsTrueAt(0)));
}

Value PairsOf(Call& call) {
  std::vector<Value> pairs;
  if (!call.self.Is(Kind::kDict)) return call.Fail("needs a dict, not ", TypeName(call.self), "; test it with \"is mapping\" first");
  for (const auto& [key, value] : call.self.dict->entries) {
    if (call.rendering.failed()) break;
    pairs.push_back(call.rendering.MakeList({key, value}, List::Form::kTuple));
  }
  return call.rendering.MakeList(std::move(pairs));
}

Value Items(Call& call) {
  return IteratorOf(call, call.self.IsUndefined() ? std::vector<Value>() : Iterate(call.rendering, PairsOf(call)));
}

Value DictSorted(Call& call) {
  const std::string_view by = call.Has(1) ? call.TextAt(1) : "key";
  if (by != "key" && by != "value") return call.Fail("sorts by \"key\" or \"value\"; use one of them");
  const auto pairs = Iterate(call.rendering, PairsOf(call));
  std::vector<std::vector<Value>> keys;
  keys.reserve(pairs.size());
  for (const Value& pair : pairs) keys.push_back({KeyOf(call, pair.list->items[by == "key" ? 0 : 1], call.IsTrueAt(0))});
  return call.rendering.MakeList(Ordered(call, pairs, keys, call.IsTrueAt(2)));
}

Value Unique(Call& call) {
  const AttributePath path(call.rendering, call.At(1));
  std::vector<Value> seen, kept;
  for (const Value& item : ItemsOf(call)) {
    const Value key = KeyOf(call, path.Of(item), call.IsTrueAt(0));
    if (!IsHashable(call.rendering, key)) return call.Fail("cannot compare ", TypeName(key), "; name an attribute");
    if (std::ranges::any_of(seen, [&](const Value& other) { return AreEqual(call.rendering, key, other); })) continue;
    seen.push_back(key);
    kept.push_back(item);
  }
  return IteratorOf(call, std::move(kept));
}

template <bool largest>
Value Extreme(Call& call) {
  const AttributePath path(call.rendering, call.At(1));
  std::optional<Value> best, best_key;
  for (const Value& item : ItemsOf(call)) {
    const Value key = KeyOf(call, path.Of(item), call.IsTrueAt(0));
    if (call.rendering.failed()) break;
    const bool is_better = !best.has_value() || (largest ? IsLess(call.rendering, *best_key, key) : IsLess(call.rendering, key, *best_key));
    if (!is_better) continue;
    best = item;
    best_key = key;
  }
  return best.value_or(Value::Undefined());
}

Value Sum(Call& call) {
  const AttributePath path(call.rendering, call.At(0));
  Value sum = call.bound[1].value_or(Value::Integer(0));
  for (const Value& item : ItemsOf(call)) {
    if (call.rendering.failed()) break;
    sum = Calculate(call.rendering, Operator::kAdd, sum, path.Of(item));
  }
  return sum;
}

// The arguments without the first `count` that have no name.
Arguments Without(const Arguments& arguments, size_t count) {
  Arguments rest = arguments;
  rest.values.erase(rest.values.begin(), rest.values.begin() + static_cast<ptrdiff_t>(std::min(count, rest.values.size())));
  return rest;
}

// |map(attribute="a", default=1): nothing after an error.
Value MapAttribute(Call& call) {
  Value attribute = Value::None(), fallback = Value::None();
  for (const auto& [name, value] : call.arguments.named) {
    if (name != "attribute" && name != "default") return call.Fail("has no argument \"", Shortened(name), "\"; remove it");
    (name == "attribute" ? attribute : fallback) = value;
  }
  if (attribute.IsNone()) return call.Fail("needs a filter or an attribute; give one");
  const AttributePath path(call.rendering, attribute);
  std::vector<Value> mapped;
  for (const Value& item : ItemsOf(call)) {
    if (call.rendering.failed()) break;
    mapped.push_back(path.Of(item, fallback));
  }
  return IteratorOf(call, std::move(mapped));
}

Value Map(Call& call) {
  if (!IsTrue(call.self)) return IteratorOf(call, {});
  const auto& values = call.arguments.values;
  if (values.empty()) return MapAttribute(call);
  if (!values.front().IsString()) return call.Fail("needs the name of a filter, not ", TypeName(values.front()), "; write it in quotes");
  const Arguments arguments = Without(call.arguments, 1);
  std::vector<Value> mapped;
  for (const Value& item : ItemsOf(call)) {
    if (call.rendering.failed()) break;
    mapped.push_back(ApplyFilter(call.rendering, *values.front().text, item, arguments));
  }
  return IteratorOf(call, std::move(mapped));
}

// select, reject, and the same by an attribute: items whose test, or truth, is `wanted`.
template <bool wanted, bool by_attribute>
Value Selected(Call& call) {
  if (!IsTrue(call.self)) return IteratorOf(call, {});
  const auto& values = call.arguments.values;
  constexpr size_t kTest = by_attribute ? 1 : 0;
  if (by_attribute && values.empty()) return call.Fail("needs the name of an attribute; give it");
  const bool has_test = values.size() > kTest;
  if (has_test && !values[kTest].IsString())
    return call.Fail("needs the name of a test, not ", TypeName(values[kTest]), "; write it in quotes");
  const AttributePath path(call.rendering, by_attribute ? values.front() : Value::None());
  const Arguments arguments = Without(call.arguments, kTest + 1);
  std::vector<Value> kept;
  for (const Value& item : ItemsOf(call)) {
    const Value tested = path.Of(item);
    const bool is_so = has_test ? ApplyTest(call.rendering, *values[kTest].text, tested, arguments) : IsTrue(tested);
    if (call.rendering.failed()) break;
    if (is_so == wanted) kept.push_back(item);
  }
  return IteratorOf(call, std::move(kept));
}

constexpr Builtin kCollectionFilters[] = {
    {"count", LengthOfInput, ""},
    {"dictsort", DictSorted, "case_sensitive= by= reverse="},
    {"first", First, ""},
    {"items", Items, ""},
    {"join", Joined, "d= attribute="},
    {"last", Last, ""},
    {"length", LengthOfInput, ""},
    {"list", AsList, ""},
    {"map", Map, "*"},
    {"max", Extreme<true>, "case_sensitive= attribute="},
    {"min", Extreme<false>, "case_sensitive= attribute="},
    {"reject", Selected<false, false>, "*"},
    {"rejectattr", Selected<false, true>, "*"},
    {"reverse", Reversed, ""},
    {"select", Selected<true, false>, "*"},
    {"selectattr", Selected<true, true>, "*"},
    {"sort", Sorted, "reverse= case_sensitive= attribute="},
    {"sum", Sum, "attribute= start="},
    {"unique", Unique, "case_sensitive= attribute="},
};

}  // namespace

std::span<const Builtin> CollectionFilters() {
  return kCollectionFilters;
}

}  // namespace lime::jinja
