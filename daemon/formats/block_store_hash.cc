#include "daemon/formats/block_store_hash.h"

#include <xxhash.h>

#include <algorithm>
#include <new>

namespace lime {

Xxh3::Xxh3() : state_(XXH3_createState()) {
  if (state_ == nullptr) throw std::bad_alloc();
  XXH3_64bits_reset(state_.get());
}

void Xxh3::Free::operator()(XXH3_state_s* state) const {
  XXH3_freeState(state);
}

void Xxh3::Add(std::span<const std::byte> bytes) {
  XXH3_64bits_update(state_.get(), bytes.data(), bytes.size());
}

uint64_t Xxh3::value() const {
  return XXH3_64bits_digest(state_.get());
}

void Xxh3::Reset() {
  XXH3_64bits_reset(state_.get());
}

FileHashes::FileHashes(StoredFile shape) : out_(std::make_unique<StoredFile>(std::move(shape))), open_rows_(out_->rows.size()) {
  for (StoredBlock& block : out_->blocks) sections_.push_back({block.offset, block.offset + block.bytes, &block.xxh3});
  for (StoredRange& range : out_->ranges) sections_.push_back({range.offset, range.offset + range.bytes, &range.xxh3});
  std::ranges::stable_sort(sections_, {}, &Section::begin);
}

void FileHashes::Add(std::span<const std::byte> bytes) {
  const int64_t begin = done_, end = done_ + static_cast<int64_t>(bytes.size());
  file_.Add(bytes);
  for (size_t i = first_; i < sections_.size() && sections_[i].begin < end; ++i) AddTo(sections_[i], begin, bytes);
  while (first_ < sections_.size() && sections_[first_].end <= end) ++first_;
  for (size_t i = 0; i < open_rows_.size(); ++i) AddTo(out_->rows[i], open_rows_[i], begin, bytes);
  done_ = end;
}

// `bytes` begins at offset `begin` of the file.
void FileHashes::AddTo(Section& section, int64_t begin, std::span<const std::byte> bytes) {
  const int64_t first = std::max(begin, section.begin), last = std::min(begin + static_cast<int64_t>(bytes.size()), section.end);
  if (first >= last) return;
  if (!section.hash) section.hash = std::make_unique<Xxh3>();
  section.hash->Add(bytes.subspan(static_cast<size_t>(first - begin), static_cast<size_t>(last - first)));
  if (last < section.end) return;
  *section.out = section.hash->value();
  section.hash.reset();
}

// The same, row by row.
void FileHashes::AddTo(StoredRows& table, OpenRow& open, int64_t begin, std::span<const std::byte> bytes) {
  const int64_t end = begin + static_cast<int64_t>(bytes.size());
  while (open.row < table.xxh3.size()) {
    const int64_t row_begin = table.offset + static_cast<int64_t>(open.row) * table.row_bytes, row_end = row_begin + table.row_bytes;
    const int64_t first = std::max(begin, row_begin), last = std::min(end, row_end);
    if (first >= last) return;
    open.hash.Add(bytes.subspan(static_cast<size_t>(first - begin), static_cast<size_t>(last - first)));
    if (last < row_end) return;
    table.xxh3[open.row++] = static_cast<uint32_t>(open.hash.value());
    open.hash.Reset();
  }
}

StoredFile FileHashes::Finish(std::string name) {
  out_->name = std::move(name);
  out_->bytes = done_;
  out_->xxh3 = file_.value();
  return std::move(*out_);
}

}  // namespace lime
