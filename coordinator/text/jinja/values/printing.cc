#include "coordinator/text/jinja/values/printing.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "coordinator/text/jinja/values/operations.h"
#include "coordinator/text/jinja/values/python_text.h"

namespace lime::jinja {
namespace {

// Writes one value, of any depth, into `out`.
class Printer {
 public:
  Printer(Rendering& rendering, std::string& out) : rendering_(rendering), out_(out) {}

  void Repr(const Value& value) {
    const Rendering::Level level(rendering_);
    if (!MayGoOn(level)) return;
    switch (value.kind) {
      case Kind::kString:
        if (!rendering_.ChargeMemory(value.text->size())) return;
        out_.append(value.is_markup ? "Markup(" : "").append(Quoted(*value.text)).append(value.is_markup ? ")" : "");
        return;
      case Kind::kUndefined:
        out_.append("Undefined");
        return;
      case Kind::kList:
        return ReprList(*value.list);
      case Kind::kDict:
        return ReprDict(*value.dict);
      default:
        out_.append(TextOf(rendering_, value));
    }
  }

 private:
  bool MayGoOn(const Rendering::Level& level) {
    if (static_cast<Bytes>(out_.size()) > kMaxOutputBytes) {
      rendering_.Fail("a value is longer than ", kMaxOutputBytes / kMiB, " MiB as text; print less of it");
    }
    return rendering_.Charge() && level.ok();
  }

  void ReprItems(const List& list) {
    for (size_t i = 0; i < list.items.size() && !rendering_.failed(); ++i) {
      out_.append(i == 0 ? "" : ", ");
      Repr(list.items[i]);
    }
  }

  void ReprList(const List& list) {
    using enum List::Form;
    switch (list.form) {
      case kTuple:
        out_.append("(");
        ReprItems(list);
        out_.append(list.items.size() == 1 ? ",)" : ")");
        return;
      case kIterator:
        out_.append("<generator object>");
        return;
      case kList:
      case kRange:
        break;
      case kKeys:
        out_.append("dict_keys(");
        break;
      case kValues:
        out_.append("dict_values(");
        break;
      case kItems:
        out_.append("dict_items(");
        break;
    }
    out_.append("[");
    ReprItems(list);
    out_.append(list.HasItems() ? "]" : "])");
  }

  void ReprDict(const Dict& dict) {
    out_.append("{");
    for (size_t i = 0; i < dict.entries.size() && !rendering_.failed(); ++i) {
      out_.append(i == 0 ? "" : ", ");
      Repr(dict.entries[i].first);
      out_.append(": ");
      Repr(dict.entries[i].second);
    }
    out_.append("}");
  }

  Rendering& rendering_;
  std::string& out_;
};

void AppendUtf16Escape(char32_t code, std::string& out) {
  const auto append = [&out](uint32_t unit) { absl::StrAppend(&out, "\\u", absl::Hex(unit, absl::kZeroPad4)); };
  if (code < 0x10000) return append(code);
  append(0xD800 + ((code - 0x10000) >> 10));
  append(0xDC00 + ((code - 0x10000) & 0x3FF));
}

class JsonWriter {
 public:
  JsonWriter(Rendering& rendering, const JsonStyle& style, std::string& out) : rendering_(rendering), style_(style), out_(out) {}

  void Write(const Value& value) {
    const Rendering::Level level(rendering_);
    if (!rendering_.Charge() || !level.ok()) return;
    if (static_cast<Bytes>(out_.size()) > kMaxOutputBytes) {
      rendering_.Fail("a value is longer than ", kMaxOutputBytes / kMiB, " MiB as JSON; print less of it");
    } else if (value.IsString()) {
      WriteString(*value.text);
    } else if (value.Is(Kind::kDict)) {
      WriteDict(*value.dict);
    } else if (IsForm(value, List::Form::kList) || IsForm(value, List::Form::kTuple)) {
      WriteList(*value.list);
    } else if (value.IsNone() || value.IsNumber()) {
      out_.append(Scalar(value));
    } else {
      rendering_.Fail(TypeName(value), " has no form in JSON; give tojson a string, number, list or dict");
    }
  }

 private:
  std::string Scalar(const Value& value) {
    if (value.IsNone()) return "null";
    if (value.Is(Kind::kBool)) return value.boolean ? "true" : "false";
    if (!value.Is(Kind::kFloat) || std::isfinite(value.real)) return TextOf(rendering_, value);
    return std::isnan(value.real) ? "NaN" : value.real < 0 ? "-Infinity" : "Infinity";
  }

  void WriteString(std::string_view text) {
    rendering_.Charge(text.size());
    out_.push_back('"');
    while (!text.empty()) {
      const std::string_view before = text;
      const char32_t code = NextChar(text);
      constexpr std::string_view kShort = "\"\"\\\\\bb\ff\nn\rr\tt";
      const size_t at = code < 0x80 ? kShort.find(static_cast<char>(code)) : std::string_view::npos;
      if (code < 0x80 && at != std::string_view::npos && at % 2 == 0) {
        out_.append({'\\', kShort[at + 1]});
      } else if (code < 0x20 || (style_.ascii_only && code >= 0x7F)) {
        AppendUtf16Escape(code, out_);
      } else {
        out_.append(before.substr(0, before.size() - text.size()));
      }
    }
    out_.push_back('"');
  }

  void BreakLine() {
    if (!style_.indent.has_value()) return;
    if (!rendering_.Charge(static_cast<size_t>(depth_) * style_.indent->size())) return;
    out_.push_back('\n');
    for (int i = 0; i < depth_; ++i) out_.append(*style_.indent);
  }

  void BeginItem(bool is_first) {
    out_.append(is_first ? "" : style_.between_items);
    BreakLine();
  }

  void WriteList(const List& list) {
    if (list.items.empty()) return void(out_.append("[]"));
    out_.push_back('[');
    ++depth_;
    for (size_t i = 0; i < list.items.size() && !rendering_.failed(); ++i) {
      BeginItem(i == 0);
      Write(list.items[i]);
    }
    --depth_;
    BreakLine();
    out_.push_back(']');
  }

  void WriteKey(const Value& key) {
    if (key.IsString()) return WriteString(*key.text);
    if (key.IsNone() || key.IsNumber()) return void(out_.append("\"").append(Scalar(key)).append("\""));
    rendering_.Fail("a key of JSON cannot be ", TypeName(key), "; use strings");
  }

  void WriteDict(const Dict& dict) {
    if (dict.entries.empty()) return void(out_.append("{}"));
    auto entries = dict.entries;
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(),
                       [this](const auto& a, const auto& b) { return IsLess(rendering_, a.first, b.first); });
    }
    out_.push_back('{');
    ++depth_;
    for (size_t i = 0; i < entries.size() && !rendering_.failed(); ++i) {
      BeginItem(i == 0);
      WriteKey(entries[i].first);
      out_.append(style_.after_key);
      Write(entries[i].second);
    }
    --depth_;
    BreakLine();
    out_.push_back('}');
  }

  Rendering& rendering_;
  const JsonStyle& style_;
  std::string& out_;
  int depth_ = 0;
};

}  // namespace

std::string ReprOf(Rendering& rendering, const Value& value) {
  std::string out;
  Printer(rendering, out).Repr(value);
  return out;
}

std::string TextOf(Rendering& rendering, const Value& value) {
  switch (value.kind) {
    case Kind::kUndefined:
      return "";
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return value.boolean ? "True" : "False";
    case Kind::kInt:
      return IntText(value.integer);
    case Kind::kFloat:
      return FloatText(value.real);
    case Kind::kString:
      rendering.ChargeMemory(value.text->size());
      return *value.text;
    case Kind::kObject:
      return value.object->Text(rendering);
    case Kind::kList:
    case Kind::kDict:
      return ReprOf(rendering, value);
  }
  return "";
}

const std::string& ViewOf(Rendering& rendering, const Value& value) {
  return value.IsString() ? *value.text : *rendering.MakeString(TextOf(rendering, value)).text;
}

std::string JsonOf(Rendering& rendering, const Value& value, const JsonStyle& style) {
  std::string out;
  JsonWriter(rendering, style, out).Write(value);
  return out;
}

}  // namespace lime::jinja
