#include "planner/base/wide_text.h"

namespace lime {

std::string_view WideMark(std::string_view text) {
  using namespace std::string_view_literals;
  if (text.starts_with("\xFF\xFE\0\0"sv) || text.starts_with("\0\0\xFE\xFF"sv)) return "UTF-32";
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) return "UTF-16";
  return "";
}

std::string_view WideJson(std::string_view text) {
  if (const std::string_view marked = WideMark(text); !marked.empty()) return marked;
  if (text.size() < 2) return "";
  const auto zero = [&](size_t at) { return at < text.size() && text[at] == '\0'; };
  if ((zero(0) && zero(1)) || (zero(1) && zero(2) && zero(3))) return "UTF-32";
  return zero(0) || zero(1) ? "UTF-16" : "";
}

}  // namespace lime
