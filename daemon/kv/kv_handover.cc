#include "daemon/kv/kv_handover.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "planner/plan/kv_spill.h"

namespace lime {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(50);
constexpr Bytes kRunBytes = kMiB;

}  // namespace

KvHandover::KvHandover(Content content) : content_(std::move(content)), read_at_(absl::Now()) {}
KvHandover::~KvHandover() = default;

Bytes KvHandover::memory_bytes() const {
  return content_.memory_bytes + content_.others.bytes() + content_.states.bytes;
}

void KvHandover::Cancel() {
  if (content_.file != nullptr) content_.file->Cancel();
}

bool KvHandover::Has(int32_t layer) const {
  return std::ranges::binary_search(content_.layers, layer);
}

int64_t KvHandover::RunAt(int64_t first, int64_t end, Bytes page_bytes) {
  return std::min({std::max<int64_t>(1, kRunBytes / page_bytes), kKvPiecePages - first % kKvPiecePages, end - first});
}

absl::Status KvHandover::ReadAll(int32_t layer, bool hosts, const KvExtent& extent, const PageSink& sink) const {
  Reader reader(*this, layer, hosts, extent);
  for (int64_t first = extent.first; first < extent.end;) {
    const int64_t run = RunAt(first, extent.end, content_.page_bytes);
    LIME_ASSIGN_OR_RETURN(const std::span<const std::byte> pages, reader.Pages(first, run));
    LIME_RETURN_IF_ERROR(sink(first, pages));
    first += run;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::span<const std::byte>> KvHandover::Reader::Pages(int64_t first, int64_t count) {
  const Content& of = handover_.content_;
  if (hosts_) return of.others.Pages(layer_, of_, first, count, of.page_bytes);
  if (const auto states = of.states.layers.find(layer_); states != of.states.layers.end())
    return StatesAsPages(states->second, first, count);
  if (!handover_.Has(layer_) || of_.sequence < 0 || of_.sequence >= of.sequences)
    return absl::NotFoundError(absl::StrCat("no KV of layer ", layer_, " and slot ", of_.sequence, " is on this device"));
  const int64_t index = std::ranges::lower_bound(of.layers, layer_) - of.layers.begin();
  const std::span<const int32_t> held = of.pages.Pages(of_.sequence, index);
  if (first < 0 || first + count > std::ssize(held))
    return absl::NotFoundError(absl::StrCat("slot ", of_.sequence, " has ", held.size(), " pages of layer ", layer_,
                                            " here, but pages from ", first, " on were requested"));
  if (run_.data() == nullptr) {
    LIME_ASSIGN_OR_RETURN(run_, HugeBuffer::Allocate(kKvPiecePages * of.page_bytes));
  }
  const bool on_file = held[static_cast<size_t>(first)] < 0;
  if (on_file) LIME_RETURN_IF_ERROR(ReadPiece(index, first / kKvPiecePages));
  for (int64_t i = 0; i < count; ++i) {
    const std::byte* const page = on_file ? piece_.data() + (first % kKvPiecePages + i) * of.page_bytes
                                          : of.memory.get() + held[static_cast<size_t>(first + i)] * of.page_bytes;
    std::memcpy(run_.data() + i * of.page_bytes, page, static_cast<size_t>(of.page_bytes));
  }
  return std::span<const std::byte>(run_.data(), static_cast<size_t>(count * of.page_bytes));
}

absl::StatusOr<std::span<const std::byte>> KvHandover::Reader::StatesAsPages(const std::vector<std::span<const std::byte>>& states,
                                                                             int64_t first, int64_t count) {
  const Content& of = handover_.content_;
  const int64_t pages = StatePages(std::ssize(states.front()), of.page_bytes);
  if (of_.sequence < 0 || of_.sequence >= of.sequences || first < 0 || first + count > pages * of.states.of_slot)
    return absl::NotFoundError(absl::StrCat("the states of layer ", layer_, " and slot ", of_.sequence, " have ", pages * of.states.of_slot,
                                            " pages here, but pages from ", first, " on were requested"));
  if (run_.data() == nullptr) {
    LIME_ASSIGN_OR_RETURN(run_, HugeBuffer::Allocate(kKvPiecePages * of.page_bytes));
  }
  for (int64_t i = 0; i < count; ++i) {
    const std::span<const std::byte> state = states[static_cast<size_t>(of_.sequence * of.states.of_slot + (first + i) / pages)];
    const auto page = state.subspan(static_cast<size_t>((first + i) % pages * of.page_bytes));
    std::byte* const to = run_.data() + i * of.page_bytes;
    const auto rest = std::ranges::copy(page.first(std::min(page.size(), static_cast<size_t>(of.page_bytes))), to).out;
    std::fill(rest, to + of.page_bytes, std::byte{0});
  }
  return std::span<const std::byte>(run_.data(), static_cast<size_t>(count * of.page_bytes));
}

absl::Status KvHandover::Reader::ReadPiece(int64_t index, int64_t piece) {
  const Content& of = handover_.content_;
  if (of.file == nullptr) return absl::NotFoundError("a piece of KV is neither in memory nor on the disk");
  if (read_ == piece) return absl::OkStatus();
  if (piece_.data() == nullptr) {
    LIME_ASSIGN_OR_RETURN(piece_, HugeBuffer::Allocate(kKvPiecePages * of.page_bytes));
  }
  LIME_RETURN_IF_ERROR(of.file->Read(index, of_.sequence, piece, of.file->hash(index, of_.sequence, piece), piece_.data()));
  read_ = piece;
  return absl::OkStatus();
}

void KvHandover::Reading() {
  absl::MutexLock lock(&mutex_);
  read_at_ = absl::Now();
}

void KvHandover::ReadDone(int32_t layer, bool hosts) {
  absl::MutexLock lock(&mutex_);
  read_at_ = absl::Now();
  ++readers_done_[{layer, hosts}];
  changed_.SignalAll();
}

absl::Status KvHandover::AwaitReaders(const std::vector<KvReaders>& all, absl::Duration patience, const std::atomic<bool>& cancelled) {
  absl::MutexLock lock(&mutex_);
  read_at_ = std::max(read_at_, absl::Now());
  while (true) {
    const auto missing = std::ranges::find_if(all, [&](const KvReaders& each) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return readers_done_[{each.layer, each.hosts}] < each.readers;
    });
    if (missing == all.end()) return absl::OkStatus();
    if (cancelled.load(std::memory_order_relaxed)) return absl::CancelledError("loading was cancelled");
    if (absl::Now() - read_at_ > patience)
      return absl::DeadlineExceededError(absl::StrCat(
          "KV of layer ", missing->layer, " now belongs to another device, which has not read it for ", absl::FormatDuration(patience)));
    changed_.WaitWithTimeout(&mutex_, kLook);
  }
}

absl::Duration KvHandover::Unread(absl::Time now) const {
  absl::MutexLock lock(&mutex_);
  return now - read_at_;
}

}  // namespace lime
