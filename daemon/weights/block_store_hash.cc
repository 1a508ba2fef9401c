#include "daemon/weights/block_store_hash.h"

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

FileHashes::FileHashes(const std::vector<StoredBlock>& blocks) : blocks_(blocks), block_hashes_(blocks.size()) {}

void FileHashes::Add(std::span<const std::byte> bytes) {
  const int64_t begin = done_, end = done_ + static_cast<int64_t>(bytes.size());
  file_.Add(bytes);
  AddToPieces(bytes);
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const int64_t first = std::max(begin, blocks_[i].offset), last = std::min(end, blocks_[i].offset + blocks_[i].bytes);
    if (first < last) block_hashes_[i].Add(bytes.subspan(static_cast<size_t>(first - begin), static_cast<size_t>(last - first)));
  }
  done_ = end;
}

void FileHashes::AddToPieces(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (!piece_) piece_ = std::make_unique<Xxh3>();
    const size_t part = std::min(bytes.size(), static_cast<size_t>(kStorePieceBytes - piece_bytes_));
    piece_->Add(bytes.first(part));
    piece_bytes_ += static_cast<Bytes>(part);
    bytes = bytes.subspan(part);
    if (piece_bytes_ < kStorePieceBytes) continue;
    pieces_.push_back(piece_->value());
    piece_.reset();
    piece_bytes_ = 0;
  }
}

StoredFile FileHashes::Finish(std::string name) {
  if (piece_) pieces_.push_back(piece_->value());
  for (size_t i = 0; i < blocks_.size(); ++i) blocks_[i].xxh3 = block_hashes_[i].value();
  return {std::move(name), done_, file_.value(), std::move(pieces_), std::move(blocks_)};
}

}  // namespace lime
