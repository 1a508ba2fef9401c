#include "coordinator/devices/stored_choice.h"

#include <algorithm>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace lime::cli {
namespace {

constexpr size_t kLeastDigits = 8;

bool IsDigits(const std::string& word) {
  return word.size() >= kLeastDigits && word.size() <= 16 && word.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// "llama (1f3c0d5e7a9b2468)"
std::string ShownModel(const std::pair<const uint64_t, std::string>& model) {
  return model.second.empty() ? DigestText(model.first) : absl::StrCat(model.second, " (", DigestText(model.first), ")");
}

std::string ShownAll(const std::map<uint64_t, std::string>& models) {
  std::vector<std::string> shown(models.size());
  std::ranges::transform(models, shown.begin(), ShownModel);
  return absl::StrJoin(shown, ", ");
}

}  // namespace

std::string DigestText(uint64_t model) {
  return absl::StrFormat("%016x", model);
}

absl::StatusOr<uint64_t> ChooseStored(const std::string& word, const std::vector<StoreContent>& devices) {
  std::map<uint64_t, std::string> all, named;
  for (const StoreContent& device : devices) {
    for (const StoredModel& stored : device.models) {
      all.emplace(stored.model, stored.name);
      if (!stored.name.empty()) all[stored.model] = stored.name;
      if (stored.name == word) named[stored.model] = stored.name;
    }
  }
  if (const std::string digits = absl::AsciiStrToLower(word); named.empty() && IsDigits(digits)) {
    for (const auto& [model, name] : all) {
      if (DigestText(model).starts_with(digits)) named[model] = name;
    }
  }
  if (named.size() == 1) return named.begin()->first;
  if (!named.empty()) return Invalid("\"", word, "\" names several models: ", ShownAll(named), "; name one by the digits of its digest");
  return absl::NotFoundError(absl::StrCat("no device holds \"", word, "\"; the devices hold ", all.empty() ? "nothing" : ShownAll(all)));
}

}  // namespace lime::cli
