#include "coordinator/logic/memory_planner.h"

#include <algorithm>

#include "planner/base/check.h"

namespace lime {

MemoryPlanner::MemoryPlanner(const Options& options)
    : options_(options), slots_(static_cast<size_t>(options.sequences)), present_pages_(options.layer_pages.at(0)) {
  LIME_CHECK(std::ranges::is_sorted(options_.layer_pages));
}

std::optional<int> MemoryPlanner::OnEvent(const Event& event) {
  if (const auto* admit = std::get_if<Admit>(&event)) {
    slots_.at(static_cast<size_t>(admit->slot)) = {.positions = admit->prompt, .end = admit->end};
    return Raise(Needed());
  }
  if (const auto* retire = std::get_if<Retire>(&event)) {
    slots_.at(static_cast<size_t>(retire->slot)) = {.kept = retire->kept};
    return std::nullopt;
  }
  const auto& step = std::get<Step>(event);
  for (size_t slot = 0; slot < step.positions.size(); ++slot) {
    slots_.at(slot).positions = std::max(slots_[slot].positions, step.positions[slot]);
  }
  ++step_;
  if (const std::optional<int> higher = Raise(Needed())) return higher;
  return Lower();
}

int64_t MemoryPlanner::Soon(const Claim& claim) const {
  return PagesOf(std::min(claim.end, claim.prompt + 2 * options_.lead));
}

int64_t MemoryPlanner::Needed() const {
  int64_t pages = 0;
  for (const Slot& slot : slots_) pages += slot.end > 0 ? Soon({.prompt = slot.positions, .end = slot.end}) : 0;
  return pages;
}

int64_t MemoryPlanner::AtEnd() const {
  int64_t pages = 0;
  for (const Slot& slot : slots_) pages += PagesOf(slot.end);
  return pages;
}

bool MemoryPlanner::Fits(int64_t end) const {
  return AtEnd() + PagesOf(end) <= options_.layer_pages.back();
}

int64_t MemoryPlanner::There() const {
  return step_ >= present_from_ ? options_.layer_pages[static_cast<size_t>(level_)] : present_pages_;
}

bool MemoryPlanner::HasPages(const Claim& claim) const {
  return Needed() + Soon(claim) <= There();
}

int64_t MemoryPlanner::Excess() const {
  int64_t kept = 0;
  for (const Slot& slot : slots_) kept += PagesOf(slot.kept);
  return std::clamp<int64_t>(Needed() + kept - There(), 0, kept);
}

std::optional<int> MemoryPlanner::Want(std::span<const Claim> waiting) {
  if (waiting.empty()) return std::nullopt;
  if (step_ < present_from_ && Needed() + Soon(waiting.front()) <= options_.layer_pages[static_cast<size_t>(level_)]) {
    calm_since_ = step_;  // the first one's pages are coming, and another change would delay them
    return std::nullopt;
  }
  int64_t pages = Needed(), at_end = AtEnd();
  for (const Claim& claim : waiting) {
    at_end += PagesOf(claim.end);
    if (at_end > options_.layer_pages.back()) break;
    pages += Soon(claim);
  }
  return Raise(pages);
}

std::optional<int> MemoryPlanner::Raise(int64_t pages) {
  const auto enough = std::ranges::lower_bound(options_.layer_pages, pages);
  const int wanted = static_cast<int>(std::min<ptrdiff_t>(enough - options_.layer_pages.begin(), std::ssize(options_.layer_pages) - 1));
  if (wanted < level_) return std::nullopt;
  calm_since_ = step_;
  if (wanted == level_) return std::nullopt;
  if (step_ >= present_from_) present_pages_ = options_.layer_pages[static_cast<size_t>(level_)];
  NoteChange();
  level_ = wanted;
  return wanted;
}

void MemoryPlanner::NoteChange() {
  present_from_ = step_ + (step_ >= busy_until_ ? 1 : 2) * options_.lead;
  busy_until_ = step_ + 2 * options_.lead;
}

// Lowers one level at a time, and only if a quarter of the released pages would stay free. So the
// pages are not needed again at once.
std::optional<int> MemoryPlanner::Lower() {
  if (level_ == 0) return std::nullopt;
  const int64_t below = options_.layer_pages[static_cast<size_t>(level_ - 1)];
  const int64_t released = options_.layer_pages[static_cast<size_t>(level_)] - below;
  if (Needed() > below - released / 4) calm_since_ = step_;
  if (step_ < present_from_ || step_ - calm_since_ < options_.calm) return std::nullopt;
  calm_since_ = step_;
  present_pages_ = below;
  NoteChange();
  return --level_;
}

}  // namespace lime
