#include "daemon/logic/push_stream.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "planner/base/check.h"

namespace lime {

PushStreamMap::PushStreamMap(const std::vector<Bytes>& units) : begins_(1, 0) {
  for (const Bytes bytes : units) {
    LIME_CHECK_GT(bytes, 0) << "unit " << begins_.size() - 1;
    begins_.push_back(begins_.back() + bytes);
  }
}

size_t PushStreamMap::UnitAt(int64_t position) const {
  LIME_CHECK(position >= 0 && position < end()) << "position " << position << " of " << end();
  return static_cast<size_t>(std::ranges::upper_bound(begins_, position) - begins_.begin()) - 1;
}

std::optional<PushSender::Chunk> PushSender::Next() {
  if (next_ == map_.end()) return std::nullopt;
  const size_t unit = map_.UnitAt(next_);
  const Bytes bytes = std::min(options_.chunk_bytes, map_.begin(unit + 1) - next_);
  if (next_ > stored_ && next_ + bytes - stored_ > options_.window_bytes) return std::nullopt;
  const Chunk chunk{.position = next_, .bytes = bytes, .unit = unit, .offset = next_ - map_.begin(unit)};
  next_ += bytes;
  total_sent_ += bytes;
  return chunk;
}

absl::Status PushSender::CheckPosition(int64_t position, int64_t low) const {
  if (position >= low && position <= next_) return absl::OkStatus();
  return Invalid("the device names position ", position, ", but positions ", low, " to ", next_, " are under way");
}

absl::Status PushSender::OnStored(int64_t position) {
  LIME_RETURN_IF_ERROR(CheckPosition(position, stored_));
  stored_ = position;
  if (stored_ > farthest_) farthest_ = stored_, repeats_ = 0;
  return absl::OkStatus();
}

absl::Status PushSender::OnAgain(int64_t position) {
  LIME_RETURN_IF_ERROR(CheckPosition(position, 0));
  if (++repeats_ > options_.max_repeats)
    return absl::DataLossError(absl::StrCat("the device asks for position ", position, " again and again; check its disk and the network"));
  next_ = position;
  stored_ = std::min(stored_, position);
  return absl::OkStatus();
}

absl::StatusOr<PushReceiver::Verdict> PushReceiver::OnChunk(int64_t position, Bytes bytes, bool intact) {
  if (whole_ || bytes <= 0) return Invalid("a chunk of ", bytes, " bytes is not allowed here");
  if (position != position_ || position == map_.end()) {
    if (going_back_ && (dropped_ += bytes) <= options_.max_dropped_bytes) return Verdict::kDrop;
    return Invalid("a chunk at position ", position, " arrived, expected position ", position_, " of ", map_.end());
  }
  const int64_t end = map_.begin(unit() + 1);
  if (bytes > end - position) return Invalid("a chunk of ", bytes, " bytes ends after its unit, at ", end);
  going_back_ = false;
  if (!intact) return AskAgain(position, chunk_attempts_);
  chunk_attempts_ = 0;
  position_ += bytes;
  whole_ = position_ == end;
  return whole_ ? Verdict::kWriteEnd : Verdict::kWrite;
}

absl::StatusOr<PushReceiver::Verdict> PushReceiver::OnUnit(bool matches) {
  LIME_CHECK(whole_) << "no unit has ended at position " << position_;
  whole_ = false;
  if (!matches) return AskAgain(map_.begin(map_.UnitAt(position_ - 1)), unit_attempts_);
  unit_attempts_ = 0;
  return Verdict::kWrite;
}

absl::StatusOr<PushReceiver::Verdict> PushReceiver::AskAgain(int64_t position, int& attempts) {
  position_ = position;
  if (++attempts >= options_.max_attempts)
    return absl::DataLossError(absl::StrCat("the data differed from its checksum ", attempts, " times; check the disk and the network"));
  going_back_ = true;
  dropped_ = 0;
  return Verdict::kAgain;
}

}  // namespace lime
