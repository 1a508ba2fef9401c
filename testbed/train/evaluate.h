// Measures the quality of a model: loss on rows of documents, perplexity of a text, greedy text,
// and the share of zero activations.
#pragma once

#include <string>
#include <vector>

#include "testbed/train/bpe_trainer.h"
#include "testbed/train/corpus.h"
#include "testbed/train/llama.h"

namespace lime::train {

// Documents reserved for each row: more than fit in 512 tokens.
inline constexpr uint64_t kDocumentsPerRow = 64;

// Row number `row`, with `tokens` ids. Its documents come from the grammar's rule `root`: BOS
// document EOS BOS document ... It begins with a whole document and is cut at the end.
std::vector<int> DocumentRow(const Corpus& corpus, const ByteBpe& tokenizer, uint64_t row, int tokens, absl::string_view root = "document");

// [count, tokens] ids of rows first .. first + count - 1.
at::Tensor DocumentRows(const Corpus& corpus, const ByteBpe& tokenizer, uint64_t first, int count, int tokens,
                        absl::string_view root = "document");

// What a model has to write: ids[:, 1:], as [rows * tokens]. With the tokens of a chat template only
// the answers, up to kMessageEnd; all else is -1. Rows begin at the start of a document.
at::Tensor Targets(const ByteBpe& tokenizer, const at::Tensor& ids);

// Mean negative log probability, in nats, of `targets`, each given the ids before it.
at::Tensor NextTokenLoss(const Llama& model, const at::Tensor& ids, const at::Tensor& targets,
                         std::vector<at::Tensor>* activations = nullptr);

struct Score {
  double perplexity = 0;
  int64_t tokens = 0;
};

// Scores the text in consecutive windows of `context` ids, each BOS and then context - 1 tokens of
// the text, as `lime score --text-file` does.
Score ScoreText(const Llama& model, const ByteBpe& tokenizer, const std::string& text, int context);

// The most probable continuation, up to an end token or `max_tokens`. The end of a message is one.
std::string GreedyText(const Llama& model, const ByteBpe& tokenizer, const std::string& prompt, int max_tokens);

// By layer: the share of act(gate) that is exactly zero on these rows.
std::vector<double> ZeroShares(const Llama& model, const at::Tensor& ids);

}  // namespace lime::train
