#include "daemon/stage/mask_maker.h"

#include <algorithm>
#include <optional>

#include "common/answer_masks/answer_follower.h"
#include "common/json_schema/mask_memory.h"
#include "common/order_message.h"

namespace lime {
namespace {

using json_schema::AnswerFollower;
using json_schema::AnswerFormatPtr;
using json_schema::TokenUse;
using json_schema::Vocabulary;

static_assert(RequestSampling::kMaxFormatBytes == json_schema::kMaxFormatBytes);

std::string_view WrittenBytes(const Vocabulary& vocabulary, int32_t token) {
  if (token < 0 || static_cast<size_t>(token) >= vocabulary.size()) return {};
  const TokenUse use = vocabulary.Use(token);
  return use == TokenUse::kText || use == TokenUse::kSpecial ? vocabulary.Bytes(token) : std::string_view();
}

}  // namespace

class MaskMaker::Answer {
 public:
  explicit Answer(std::string format) : format(std::move(format)) {}

  const std::string format;

  absl::Mutex mutex;
  bool is_compiled ABSL_GUARDED_BY(mutex) = false;  // or has a wrong format
  bool follows ABSL_GUARDED_BY(mutex) = false;
  bool is_queued ABSL_GUARDED_BY(mutex) = false;  // for the thread that makes masks
  bool is_ready ABSL_GUARDED_BY(mutex) = false;   // the mask belongs to all tokens so far
  absl::Status status ABSL_GUARDED_BY(mutex);
  std::vector<int32_t> tokens ABSL_GUARDED_BY(mutex);  // since the last mask
  int64_t tokens_left ABSL_GUARDED_BY(mutex) = 0;      // behind them

  // Of the thread that makes masks, from is_compiled on until is_ready.
  std::optional<AnswerFollower> follower;
  std::vector<int32_t> pushing;
  int64_t left = 0;
  std::vector<uint64_t> bits;
  bool has_mask = false;

  // Whether the caller has to add it to the queue.
  bool ClaimsMask() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return is_compiled && follows && status.ok() && !std::exchange(is_queued, true);
  }
};

// ---- Worker

MaskMaker::Worker::~Worker() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = is_due_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void MaskMaker::Worker::Add(const AnswerPtr& answer) {
  absl::MutexLock lock(&mutex_);
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  queue_.Push() = answer;
  is_due_ = true;
}

void MaskMaker::Worker::Run() {
  while (true) {
    AnswerPtr answer;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&is_due_));
      if (stopping_) return;
      answer = std::move(queue_.Pop());
      is_due_ = !queue_.empty();
    }
    work_(answer);
  }
}

// ---- Any thread

MaskMaker::MaskMaker()
    : makes_([this](const AnswerPtr& answer) { Make(*answer); }), compiles_([this](const AnswerPtr& answer) { Compile(answer); }) {}

MaskMaker::~MaskMaker() = default;

void MaskMaker::UseVocabulary(json_schema::VocabularyPtr vocabulary) {
  absl::MutexLock lock(&mutex_);
  if (!has_begun_) vocabulary_ = std::move(vocabulary);
}

json_schema::VocabularyPtr MaskMaker::vocabulary() const {
  absl::MutexLock lock(&mutex_);
  return vocabulary_;
}

MaskMaker::AnswerPtr MaskMaker::Begin(std::string format) {
  auto answer = std::make_shared<Answer>(std::move(format));
  {
    absl::MutexLock lock(&mutex_);
    has_begun_ = vocabulary_ != nullptr;
    if (!has_begun_) {
      absl::MutexLock of_answer(&answer->mutex);
      answer->status = absl::FailedPreconditionError("a request has a format, but this device has no vocabulary to make its masks");
      answer->is_compiled = answer->is_ready = true;
      return answer;
    }
  }
  compiles_.Add(answer);
  return answer;
}

void MaskMaker::Follow(const AnswerPtr& answer, std::span<const int32_t> generated, int64_t tokens_left) {
  {
    absl::MutexLock lock(&answer->mutex);
    answer->follows = true;
    answer->tokens.assign(generated.begin(), generated.end());
    answer->tokens_left = tokens_left;
    if (!answer->ClaimsMask()) return;
  }
  makes_.Add(answer);
}

void MaskMaker::Push(const AnswerPtr& answer, int32_t token) {
  {
    absl::MutexLock lock(&answer->mutex);
    answer->is_ready = !answer->status.ok();
    answer->tokens.push_back(token);
    --answer->tokens_left;
    if (!answer->ClaimsMask()) return;
  }
  makes_.Add(answer);
}

absl::StatusOr<std::span<const uint64_t>> MaskMaker::Await(Answer& answer) {
  absl::MutexLock lock(&answer.mutex);
  answer.mutex.Await(absl::Condition(&answer.is_ready));
  LIME_RETURN_IF_ERROR(answer.status);
  return answer.has_mask ? std::span<const uint64_t>(answer.bits) : std::span<const uint64_t>();
}

// ---- The thread that compiles

void MaskMaker::Compile(const AnswerPtr& answer) {
  const absl::StatusOr<AnswerFormatPtr> format = Compiled(answer->format);
  if (format.ok()) answer->follower.emplace(*format);
  {
    absl::MutexLock lock(&answer->mutex);
    answer->status = format.status();
    answer->is_compiled = true;
    answer->is_ready = !format.ok();
    if (!answer->ClaimsMask()) return;
  }
  makes_.Add(answer);
}

absl::StatusOr<AnswerFormatPtr> MaskMaker::Compiled(const std::string& format) {
  std::erase_if(known_, [](const auto& known) { return known.second.expired(); });
  const auto known = std::ranges::find(known_, format, [](const auto& each) -> const std::string& { return each.first; });
  AnswerFormatPtr compiled = known == known_.end() ? nullptr : known->second.lock();
  if (compiled == nullptr) {
    const json_schema::VocabularyPtr vocabulary = this->vocabulary();
    LIME_ASSIGN_OR_RETURN(compiled, json_schema::CompileFormat(format, json_schema::GrammarOptions::For(*vocabulary)));
    known_.emplace_back(format, compiled);
  }
  Keep(compiled);
  return compiled;
}

void MaskMaker::Keep(const AnswerFormatPtr& compiled) {
  std::erase(kept_, compiled);
  kept_.push_back(compiled);
  Bytes memory = 0;
  const auto newest = std::find_if(kept_.rbegin(), kept_.rend(),
                                   [&](const AnswerFormatPtr& each) { return (memory += each->memory) > json_schema::kMaxKeptFormats; });
  kept_.erase(kept_.begin(), newest.base());
}

// ---- The thread that makes masks

void MaskMaker::Make(Answer& answer) {
  {
    absl::MutexLock lock(&answer.mutex);
    answer.is_queued = false;
    answer.pushing.swap(answer.tokens);
    answer.tokens.clear();
    answer.left = answer.tokens_left;
  }
  const json_schema::VocabularyPtr vocabulary = this->vocabulary();
  for (const int32_t token : answer.pushing) answer.follower->Push(WrittenBytes(*vocabulary, token));
  const json_schema::Matcher* const matcher = answer.follower->matcher();
  answer.has_mask = matcher != nullptr;
  if (matcher != nullptr) {
    if (masks_ == nullptr) masks_ = std::make_unique<json_schema::TokenMasks>(vocabulary);
    answer.bits.resize(masks_->Words());
    masks_->Write(*matcher, answer.left, answer.bits);
  }
  absl::MutexLock lock(&answer.mutex);
  answer.is_ready = answer.tokens.empty() && !answer.is_queued;
}

}  // namespace lime
