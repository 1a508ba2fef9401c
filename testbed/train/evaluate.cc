#include "testbed/train/evaluate.h"

#include <torch/utils.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "testbed/train/dialogue.h"
#include "testbed/train/fused_ops.h"

namespace lime::train {
namespace {

at::Tensor IdTensor(const std::vector<int>& ids) {
  return torch::tensor(std::vector<int64_t>(ids.begin(), ids.end())).unsqueeze(0);
}

// Leaves of a row what stands behind `begin`, up to and with `end`. The first id, BOS, is not in the
// row.
void MaskRow(const std::vector<int>& begin, int end, int64_t* row, int64_t tokens) {
  size_t matched = 0;  // ids of `begin`
  for (int64_t i = 0; i < tokens; ++i) {
    const bool inside = matched == begin.size();
    const int64_t id = row[i];
    if (!inside) row[i] = -1;
    if (inside) {
      if (id == end) matched = 0;
    } else {
      matched = id == begin[matched] ? matched + 1 : id == begin[0] ? 1 : 0;
    }
  }
}

}  // namespace

std::vector<int> DocumentRow(const Corpus& corpus, const ByteBpe& tokenizer, uint64_t row, int tokens, absl::string_view root) {
  std::vector<int> ids;
  for (uint64_t document = row * kDocumentsPerRow; static_cast<int>(ids.size()) < tokens; ++document) {
    const std::vector<int> text = tokenizer.Encode(corpus.Document(document, root));
    ids.push_back(kBosId);
    ids.insert(ids.end(), text.begin(), text.end());
    ids.push_back(kEosId);
  }
  ids.resize(tokens);
  return ids;
}

at::Tensor DocumentRows(const Corpus& corpus, const ByteBpe& tokenizer, uint64_t first, int count, int tokens, absl::string_view root) {
  std::vector<at::Tensor> rows;
  for (int i = 0; i < count; ++i) rows.push_back(IdTensor(DocumentRow(corpus, tokenizer, first + i, tokens, root)));
  return torch::cat(rows);
}

at::Tensor Targets(const ByteBpe& tokenizer, const at::Tensor& ids) {
  at::Tensor targets = ids.narrow(1, 1, ids.size(1) - 1).contiguous().clone();
  if (tokenizer.added().empty()) return targets.reshape(-1);
  const std::vector<int> begin = tokenizer.Encode(absl::StrCat(kMessageBegin, kAnswerBegin));
  const int end = tokenizer.Encode({kMessageEnd.data(), kMessageEnd.size()}).front();
  for (int64_t r = 0; r < ids.size(0); ++r) MaskRow(begin, end, targets.data_ptr<int64_t>() + r * targets.size(1), targets.size(1));
  return targets.reshape(-1);
}

at::Tensor NextTokenLoss(const Llama& model, const at::Tensor& ids, const at::Tensor& targets, std::vector<at::Tensor>* activations) {
  return MeanLoss(model.Forward(ids.narrow(1, 0, ids.size(1) - 1), activations), targets);
}

Score ScoreText(const Llama& model, const ByteBpe& tokenizer, const std::string& text, int context) {
  torch::NoGradGuard no_grad;
  const std::vector<int> ids = tokenizer.Encode(text);
  const size_t window = context - 1;
  double nats = 0;
  for (size_t begin = 0; begin < ids.size(); begin += window) {
    std::vector<int> row{kBosId};
    row.insert(row.end(), ids.begin() + begin, ids.begin() + std::min(ids.size(), begin + window));
    const at::Tensor all = IdTensor(row);
    nats += NextTokenLoss(model, all, all.narrow(1, 1, all.size(1) - 1).reshape(-1)).item<double>() * (row.size() - 1);
  }
  return {std::exp(nats / ids.size()), static_cast<int64_t>(ids.size())};
}

std::string GreedyText(const Llama& model, const ByteBpe& tokenizer, const std::string& prompt, int max_tokens) {
  torch::NoGradGuard no_grad;
  const std::vector<int> message_end = tokenizer.Encode({kMessageEnd.data(), kMessageEnd.size()});
  std::vector<int> ids{kBosId}, out;
  for (int id : tokenizer.Encode(prompt)) ids.push_back(id);
  while (static_cast<int>(out.size()) < max_tokens && static_cast<int64_t>(ids.size()) < model.config().max_position_embeddings) {
    const int next = model.Forward(IdTensor(ids))[-1].argmax().item<int>();
    if (next == kEosId || (message_end.size() == 1 && next == message_end[0])) break;
    ids.push_back(next);
    out.push_back(next);
  }
  return tokenizer.Decode(out);
}

std::vector<double> ZeroShares(const Llama& model, const at::Tensor& ids) {
  torch::NoGradGuard no_grad;
  std::vector<at::Tensor> activations;
  model.Forward(ids, &activations);
  std::vector<double> shares;
  for (const at::Tensor& a : activations) shares.push_back((a == 0).to(at::kDouble).mean().item<double>());
  return shares;
}

}  // namespace lime::train
