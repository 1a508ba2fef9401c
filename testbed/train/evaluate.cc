#include "testbed/train/evaluate.h"

#include <torch/utils.h>

#include <algorithm>
#include <cmath>

#include "testbed/train/fused_ops.h"

namespace lime::train {
namespace {

at::Tensor IdTensor(const std::vector<int>& ids) {
  return torch::tensor(std::vector<int64_t>(ids.begin(), ids.end())).unsqueeze(0);
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

at::Tensor NextTokenLoss(const Llama& model, const at::Tensor& ids, std::vector<at::Tensor>* activations) {
  const int64_t tokens = ids.size(1) - 1;
  const at::Tensor logits = model.Forward(ids.narrow(1, 0, tokens), activations);
  return MeanLoss(logits, ids.narrow(1, 1, tokens).reshape(-1));
}

Score ScoreText(const Llama& model, const ByteBpe& tokenizer, const std::string& text, int context) {
  torch::NoGradGuard no_grad;
  const std::vector<int> ids = tokenizer.Encode(text);
  const size_t window = context - 1;
  double nats = 0;
  for (size_t begin = 0; begin < ids.size(); begin += window) {
    std::vector<int> row{kBosId};
    row.insert(row.end(), ids.begin() + begin, ids.begin() + std::min(ids.size(), begin + window));
    nats += NextTokenLoss(model, IdTensor(row)).item<double>() * (row.size() - 1);
  }
  return {std::exp(nats / ids.size()), static_cast<int64_t>(ids.size())};
}

std::string GreedyText(const Llama& model, const ByteBpe& tokenizer, const std::string& prompt, int max_tokens) {
  torch::NoGradGuard no_grad;
  std::vector<int> ids{kBosId}, out;
  for (int id : tokenizer.Encode(prompt)) ids.push_back(id);
  while (static_cast<int>(out.size()) < max_tokens && static_cast<int64_t>(ids.size()) < model.config().max_position_embeddings) {
    const int next = model.Forward(IdTensor(ids))[-1].argmax().item<int>();
    if (next == kEosId) break;
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
