// Python's str.format: "{}", "{0}", "{name.attribute[key]!r:>10}".
#include <algorithm>

#include "coordinator/text/jinja/builtins/access.h"
#include "coordinator/text/jinja/builtins/methods.h"
#include "coordinator/text/jinja/values/format.h"
#include "coordinator/text/jinja/values/printing.h"
#include "coordinator/text/jinja/values/python_text.h"

namespace lime::jinja {
namespace {

class BraceFormat {
 public:
  explicit BraceFormat(Call& call) : call_(call) {}

  // `may_nest`: fields may be in the text of a field's format, but not in that of those.
  std::string Run(std::string_view text, bool may_nest = true) {
    std::string out;
    while (!text.empty() && call_.rendering.Charge()) {
      const size_t plain = std::min(text.find_first_of("{}"), text.size());
      out.append(text.substr(0, plain));
      text.remove_prefix(plain);
      if (text.empty()) break;
      if (text.starts_with("{{") || text.starts_with("}}")) {
        out.push_back(text.front());
        text.remove_prefix(2);
      } else if (const size_t length = FieldLength(text); length > 0) {
        out.append(Field(text.substr(1, length - 2), may_nest));
        text.remove_prefix(length);
      } else {
        call_.Fail("has a bracket without its pair; write it twice where it is text");
      }
      if (!call_.rendering.ChargeMemory(0)) break;
    }
    return out;
  }

 private:
  // Up to the bracket that closes the first one; 0: none does.
  static size_t FieldLength(std::string_view text) {
    int depth = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      depth += text[i] == '{' ? 1 : text[i] == '}' ? -1 : 0;
      if (depth <= 0) return depth == 0 && i > 0 ? i + 1 : 0;
    }
    return 0;
  }

  std::string Field(std::string_view field, bool may_nest) {
    const size_t bracket = field.find('[');
    size_t end = std::min(field.find_first_of("!:"), field.size());
    if (bracket < end) end = std::min(field.find_first_of("!:", std::min(field.find(']', bracket), field.size())), field.size());
    Value value = ValueOf(field.substr(0, end));
    std::string_view rest = field.substr(end);
    if (rest.starts_with('!')) {
      value = Converted(value, rest.substr(1, rest.find(':') - 1));
      rest.remove_prefix(std::min(rest.find(':'), rest.size()));
    }
    if (!rest.empty()) rest.remove_prefix(1);
    const std::string nested = may_nest ? Run(rest, /*may_nest=*/false) : std::string(rest);
    const auto spec = ParseFormatSpec(call_.rendering, nested);
    if (!spec.has_value() || call_.rendering.failed()) return "";
    return FormatValue(call_.rendering, value, *spec);
  }

  Value Converted(const Value& value, std::string_view how) {
    if (how == "r" || how == "a") return call_.String(ReprOf(call_.rendering, value));
    if (how == "s") return call_.String(TextOf(call_.rendering, value));
    return call_.Fail("has a conversion other than \"!r\", \"!s\" and \"!a\"; use one of them");
  }

  // "name", "0" or "", with ".attribute" and "[key]" behind it.
  Value ValueOf(std::string_view path) {
    const size_t end = std::min(path.find_first_of(".["), path.size());
    Value value = Argument(path.substr(0, end));
    for (path.remove_prefix(end); !path.empty() && !call_.rendering.failed();) {
      const bool is_item = path.front() == '[';
      const size_t stop = std::min(is_item ? path.find(']') : path.find_first_of(".[", 1), path.size());
      const Value key = call_.String(std::string(path.substr(1, stop - 1)));
      const auto index = is_item && IsDigit(*key.text) ? ParseInt(*key.text) : std::nullopt;
      value = !is_item ? AttributeOf(call_.rendering, value, *key.text)
                       : ItemOf(call_.rendering, value, index.has_value() ? Value::Integer(*index) : key);
      path.remove_prefix(std::min(stop + (is_item ? 1 : 0), path.size()));
    }
    return value;
  }

  Value Argument(std::string_view name) {
    const auto& [values, named] = call_.arguments;
    const auto index = name.empty() ? std::optional<Int>(next_++) : IsDigit(name) ? ParseInt(name) : std::nullopt;
    if (index.has_value()) {
      return *index < static_cast<Int>(values.size()) ? values[static_cast<size_t>(*index)]
                                                      : call_.Fail("has more places than arguments; give one for each place");
    }
    const auto found = std::ranges::find(named, name, [](const auto& argument) { return argument.first; });
    return found != named.end() ? found->second : call_.Fail("names \"", Shortened(name), "\", which is not given; give it");
  }

  Call& call_;
  int64_t next_ = 0;
};

}  // namespace

Value FormatBraces(Call& call) {
  return call.String(BraceFormat(call).Run(call.Text()), call.self.is_markup);
}

}  // namespace lime::jinja
