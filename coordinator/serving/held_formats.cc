#include "coordinator/serving/held_formats.h"

#include "absl/strings/str_cat.h"
#include "common/json_schema/mask_memory.h"
#include "planner/base/check.h"

namespace lime {
namespace {

constexpr char kWrongFormatMark[] = "lime/wrong-format", kNoMemoryMark[] = "lime/no-memory-for-format";

absl::Status Marked(absl::Status status, const char* mark) {
  status.SetPayload(mark, absl::Cord("1"));
  return status;
}

}  // namespace

bool IsWrongFormat(const absl::Status& status) {
  return status.GetPayload(kWrongFormatMark).has_value();
}

bool LacksFormatMemory(const absl::Status& status) {
  return status.GetPayload(kNoMemoryMark).has_value();
}

absl::StatusOr<HeldFormats::Hold> HeldFormats::Add(const std::string& format, const json_schema::GrammarOptions& options) {
  {
    absl::MutexLock lock(&mutex_);
    if (const auto found = formats_.find(format); found != formats_.end()) return Count(format, found->second);
  }
  const absl::StatusOr<json_schema::AnswerFormatPtr> made = json_schema::CompileFormat(format, options);
  if (!made.ok()) return Marked(absl::InvalidArgumentError(made.status().message()), kWrongFormatMark);
  const Bytes bytes = (*made)->memory;
  absl::MutexLock lock(&mutex_);
  const auto [entry, is_new] = formats_.try_emplace(format, Entry{.memory = bytes});
  if (!is_new) return Count(format, entry->second);
  if (memory_ + bytes > json_schema::kMaxHeldFormats) {
    formats_.erase(entry);
    return Marked(
        absl::ResourceExhaustedError(absl::StrCat("the schemas of all requests need more than ", json_schema::kMaxHeldFormats / kMiB,
                                                  " MiB together; try again when other requests have ended")),
        kNoMemoryMark);
  }
  memory_ += bytes;
  return Count(format, entry->second);
}

HeldFormats::Hold HeldFormats::Count(const std::string& format, Entry& entry) {
  ++entry.holds;
  return {new std::string(format), [this](const std::string* held) {
            Release(*held);
            delete held;
          }};
}

void HeldFormats::Release(const std::string& format) {
  absl::MutexLock lock(&mutex_);
  const auto found = formats_.find(format);
  LIME_CHECK(found != formats_.end()) << "a format that nobody holds";
  if (--found->second.holds > 0) return;
  memory_ -= found->second.memory;
  formats_.erase(found);
}

}  // namespace lime
