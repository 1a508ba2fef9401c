// Whatever the other side of a question about units sends: no message may do harm, and what is
// accepted returns through the wire as it is, with rows and units within their bounds.

#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "daemon/logic/hosting/units_message.h"
#include "planner/base/check.h"

namespace {

void Check(const lime::UnitsQuery& query) {
  LIME_CHECK(query.num_rows() >= 1 && query.num_rows() <= lime::kMaxUnitRows) << query.num_rows();
  LIME_CHECK_EQ(std::ssize(query.rows) % query.num_rows(), 0);
  for (const int32_t unit : query.units) LIME_CHECK(unit >= -1 && unit < lime::kMaxUnits) << unit;
}

void Check(const lime::UnitsAnswer& answer) {
  LIME_CHECK(!answer.units.empty() && !answer.results.empty());
  for (const int32_t unit : answer.units) LIME_CHECK(unit >= 0 && unit < lime::kMaxUnits) << unit;
}

void Check(const lime::UnitsGuess& guess) {
  LIME_CHECK(!guess.units.empty() && std::ssize(guess.units) <= lime::kMaxAheadPlaces) << guess.units.size();
  for (const int32_t unit : guess.units) LIME_CHECK(unit >= 0 && unit < lime::kMaxUnits) << unit;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::vector<std::byte> bytes(std::as_bytes(std::span(data, size)).begin(), std::as_bytes(std::span(data, size)).end());
  const auto message = lime::ParseUnitsMessage(bytes);
  if (!message.ok()) {
    LIME_CHECK(!message.status().message().empty());
    return 0;
  }
  LIME_CHECK(lime::IsUnitsMessage(bytes));
  std::visit([](const auto& kind) { Check(kind); }, *message);
  LIME_CHECK(lime::Encode(*message) == bytes) << "what was accepted returns otherwise";
  return 0;
}
