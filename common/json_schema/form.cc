#include "common/json_schema/form.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

namespace lime::json_schema {
namespace {

using Others = ObjectForm::Others;

StringForm Intersect(const StringForm& a, const StringForm& b) {
  StringForm both = a;
  both.min = std::max(a.min, b.min);
  both.max = std::min(a.max, b.max);
  both.rules.insert(both.rules.end(), b.rules.begin(), b.rules.end());
  return both;
}

// `sign`: 1 if the larger bound is the tighter one, otherwise -1.
std::optional<NumberBound> Tighter(const std::optional<NumberBound>& a, const std::optional<NumberBound>& b, int sign) {
  if (!a || !b) return a ? a : b;
  const int order = sign * Compare(a->value, b->value);
  if (order == 0) return a->is_exclusive ? a : b;
  return order > 0 ? a : b;
}

absl::StatusOr<NumberRange> Intersect(const NumberRange& a, const NumberRange& b) {
  if (a.multiple_of > 0 && b.multiple_of > 0 && a.multiple_of != b.multiple_of) return Invalid("two different values of multipleOf");
  return NumberRange{.is_integer = a.is_integer || b.is_integer,
                     .min = Tighter(a.min, b.min, 1),
                     .max = Tighter(a.max, b.max, -1),
                     .multiple_of = std::max(a.multiple_of, b.multiple_of)};
}

ArrayForm Intersect(const ArrayForm& a, const ArrayForm& b) {
  ArrayForm both{.min = std::max(a.min, b.min), .max = std::min(a.max, b.max)};
  const auto item = [](const ArrayForm& form, size_t i) -> const Schemas* {
    if (i < form.prefix.size()) return &form.prefix[i];
    return form.has_items ? &form.items : nullptr;
  };
  for (size_t i = 0; i < std::max(a.prefix.size(), b.prefix.size()); ++i) {
    const Schemas* left = item(a, i);
    const Schemas* right = item(b, i);
    if (left == nullptr || right == nullptr) {
      both.has_items = false;
      return both;
    }
    both.prefix.push_back(Union(*left, *right));
  }
  both.has_items = a.has_items && b.has_items;
  if (both.has_items) both.items = Union(a.items, b.items);
  return both;
}

// What `form` says about a property that it does not name. Null: it must not be there.
const Schemas* OfOthers(const ObjectForm& form) {
  static const Schemas* const any = new Schemas();
  if (form.others_kind == Others::kNone) return nullptr;
  return form.others_kind == Others::kSchema ? &form.others : any;
}

using MembersByName = std::map<std::string_view, const Schemas*>;

MembersByName ByName(const ObjectForm& form) {
  MembersByName members;
  for (const auto& [name, schemas] : form.members) members.emplace(name, &schemas);
  return members;
}

std::optional<ObjectForm> Intersect(const ObjectForm& a, const ObjectForm& b) {
  if (a.others_kind == Others::kFree) return b;
  if (b.others_kind == Others::kFree) return a;
  const MembersByName of_a = ByName(a), of_b = ByName(b);
  ObjectForm both{.required = a.required};
  std::set<std::string_view> names;
  // A property together with what the other form says about it.
  const auto add = [&](const std::string& name, const Schemas& schemas, const MembersByName& others, const ObjectForm& other) {
    const auto found = others.find(name);
    const Schemas* const said = found != others.end() ? found->second : OfOthers(other);
    if (said == nullptr) return;
    both.members.emplace_back(name, Union(schemas, *said));
    names.insert(name);
  };
  for (const auto& [name, schemas] : a.members) add(name, schemas, of_b, b);
  for (const auto& [name, schemas] : b.members) {
    if (!of_a.contains(name)) add(name, schemas, of_a, a);
  }
  const std::set<std::string_view> required(a.required.begin(), a.required.end());
  for (const std::string& name : b.required) {
    if (!required.contains(name)) both.required.push_back(name);
  }
  const bool is_closed = a.others_kind == Others::kNone || b.others_kind == Others::kNone;
  const bool lacks = std::ranges::any_of(both.required, [&](const std::string& name) { return !names.contains(name); });
  if (is_closed && lacks) return std::nullopt;
  both.others_kind = is_closed ? Others::kNone : std::max({a.others_kind, b.others_kind});
  if (both.others_kind == Others::kSchema) both.others = Union(a.others, b.others);
  return both;
}

}  // namespace

Schemas Union(const Schemas& a, const Schemas& b) {
  Schemas both = a;
  std::ranges::copy_if(b, std::back_inserter(both), [&a](const Json* schema) { return std::ranges::find(a, schema) == a.end(); });
  return both;
}

const Schemas* ObjectForm::Find(const std::string& name) const {
  const auto found = std::ranges::find(members, name, &std::pair<std::string, Schemas>::first);
  return found == members.end() ? nullptr : &found->second;
}

bool ObjectForm::Requires(const std::string& name) const {
  return std::ranges::find(required, name) != required.end();
}

absl::StatusOr<CharDfa> StringDfa(const StringForm& form) {
  std::optional<CharDfa> all;
  const auto add = [&all](const CharDfa& dfa) -> absl::Status {
    if (!all) {
      all = dfa;
      return absl::OkStatus();
    }
    LIME_ASSIGN_OR_RETURN(all, CharDfa::Intersect(*all, dfa));
    return absl::OkStatus();
  };
  for (const StringForm::Rule& rule : form.rules) {
    if (const absl::Status status = add(*rule.dfa); !status.ok()) return Invalid(rule.path, ": the string ", std::string(status.message()));
  }
  if (form.min > 0 || form.max < INT64_MAX || !all) {
    const absl::StatusOr<CharDfa> length = CharDfa::OfLength(form.min, form.max);
    const absl::Status status = length.ok() ? add(*length) : length.status();
    if (!status.ok()) return Invalid(form.rules.empty() ? "" : form.rules[0].path, ": the string ", std::string(status.message()));
  }
  return *std::move(all);
}

bool Matches(const Json& literal, const Form& form) {
  if (form.literal) return *form.literal == literal;
  if (literal.is_number()) return form.number.Contains(Decimal::Parse(literal.dump()));
  if (!literal.is_string()) return true;
  const auto& text = literal.get_ref<const std::string&>();
  const auto length = static_cast<int64_t>(CodePoints(text).size());
  if (length < form.string.min || length > form.string.max) return false;
  return std::ranges::all_of(form.string.rules, [&](const StringForm::Rule& rule) { return rule.dfa->Matches(text); });
}

absl::StatusOr<std::optional<Form>> Intersect(const Form& a, const Form& b) {
  if (a.kind != b.kind) return std::nullopt;
  Form both = a.literal ? a : b;
  both.is_hidden = a.is_hidden || b.is_hidden;
  if (both.literal) {
    return Matches(*both.literal, a.literal ? b : a) ? std::optional<Form>(std::move(both)) : std::nullopt;
  }
  both.string = Intersect(a.string, b.string);
  both.array = Intersect(a.array, b.array);
  LIME_ASSIGN_OR_RETURN(both.number, Intersect(a.number, b.number));
  std::optional<ObjectForm> object = Intersect(a.object, b.object);
  if (!object) return std::nullopt;
  both.object = *std::move(object);
  return both;
}

}  // namespace lime::json_schema
