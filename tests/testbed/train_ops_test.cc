// The operators with hand-written gradients against ATen's, which autograd differentiates.
#include <torch/utils.h>

#include <cmath>
#include <functional>

#include "gtest/gtest.h"
#include "testbed/train/attention.h"
#include "testbed/train/evaluate.h"
#include "testbed/train/fused_ops.h"

namespace lime::train {
namespace {

using Inputs = std::vector<at::Tensor>;
using Function = std::function<at::Tensor(const Inputs&)>;

// Value and gradients of `ours` (fp32) equal those of `reference` (fp64).
void ExpectSame(const Function& ours, const Function& reference, const Inputs& inputs) {
  Inputs narrow, wide;
  for (const at::Tensor& x : inputs) {
    narrow.push_back(x.to(at::kFloat).detach().requires_grad_(true));
    wide.push_back(x.to(at::kDouble).detach().requires_grad_(true));
  }
  const at::Tensor got = ours(narrow), want = reference(wide);
  EXPECT_TRUE(torch::allclose(got.to(at::kDouble), want, 1e-4, 1e-5));
  const at::Tensor direction = torch::randn(want.sizes(), at::kDouble);
  (got * direction.to(at::kFloat)).sum().backward();
  (want * direction).sum().backward();
  for (size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_TRUE(torch::allclose(narrow[i].grad().to(at::kDouble), wide[i].grad(), 1e-3, 1e-4)) << "gradient of input " << i;
  }
}

// x: [batch, heads, tokens, head_dim], turned as Hugging Face's rotate_half does.
at::Tensor Rotated(const at::Tensor& x, double theta) {
  const int64_t d = x.size(3);
  const at::Tensor rates = torch::pow(theta, -torch::arange(0, d, 2, at::kDouble) / d);
  const at::Tensor half = torch::arange(x.size(2), at::kDouble).unsqueeze(1) * rates, angles = torch::cat({half, half}, 1);
  const at::Tensor turned = torch::cat({-x.narrow(3, d / 2, d / 2), x.narrow(3, 0, d / 2)}, 3);
  return x * angles.cos() + turned * angles.sin();
}

at::Tensor ReferenceAttention(const Inputs& in, const AttentionShape& s) {
  const auto heads = [&](const at::Tensor& x, int64_t n) { return x.view({s.batch, s.tokens, n, s.head_dim}).transpose(1, 2); };
  const int64_t group = s.heads / s.kv_heads;
  const at::Tensor q = Rotated(heads(in[0], s.heads), s.rope_theta);
  const at::Tensor k = Rotated(heads(in[1], s.kv_heads), s.rope_theta).repeat_interleave(group, 1);
  const at::Tensor v = heads(in[2], s.kv_heads).repeat_interleave(group, 1);
  const at::Tensor future = torch::ones({s.tokens, s.tokens}, at::kBool).triu(1);
  const at::Tensor scores = (torch::matmul(q, k.transpose(2, 3)) / std::sqrt(double(s.head_dim))).masked_fill(future, -1e30);
  return torch::matmul(torch::softmax(scores, 3), v).transpose(1, 2).reshape({s.batch * s.tokens, s.heads * s.head_dim});
}

TEST(TrainOpsTest, AttentionAndItsGradientsEqualAtens) {
  torch::manual_seed(1);
  for (int64_t tokens : {1, 7, 64, 150}) {  // below, at and above a block of rows
    const AttentionShape s{2, tokens, 6, 2, 8};
    const Inputs inputs{torch::randn({2 * tokens, 48}), torch::randn({2 * tokens, 16}), torch::randn({2 * tokens, 16})};
    ExpectSame([&](const Inputs& in) { return CausalAttention(in[0], in[1], in[2], s); },
               [&](const Inputs& in) { return ReferenceAttention(in, s); }, inputs);
  }
}

TEST(TrainOpsTest, RmsNormAndItsGradientsEqualAtens) {
  torch::manual_seed(2);
  const auto reference = [](const Inputs& in) { return in[0] * torch::rsqrt(in[0].pow(2).mean(1, true) + 1e-5) * in[1]; };
  ExpectSame([](const Inputs& in) { return RmsNorm(in[0], in[1], 1e-5); }, reference, {torch::randn({5, 48}), torch::randn({48})});
}

TEST(TrainOpsTest, GatedActivationsAndTheirGradientsEqualAtens) {
  torch::manual_seed(3);
  const Inputs inputs{torch::randn({5, 48}) * 3, torch::randn({5, 48})};
  ExpectSame([](const Inputs& in) { return Gated(in[0], in[1], false); }, [](const Inputs& in) { return torch::silu(in[0]) * in[1]; },
             inputs);
  ExpectSame([](const Inputs& in) { return Gated(in[0], in[1], true); }, [](const Inputs& in) { return torch::relu(in[0]) * in[1]; },
             inputs);
}

TEST(TrainOpsTest, LossAndItsGradientEqualAtens) {
  torch::manual_seed(4);
  const at::Tensor targets = torch::randint(0, 37, {9});
  ExpectSame([&](const Inputs& in) { return MeanLoss(in[0], targets); },
             [&](const Inputs& in) { return torch::cross_entropy_loss(in[0], targets); }, {torch::randn({9, 37}) * 5});
}

TEST(TrainOpsTest, LossLeavesRowsWithoutATargetOut) {
  torch::manual_seed(5);
  const at::Tensor targets = torch::randint(0, 37, {9});
  targets[2] = targets[7] = -1;
  ExpectSame([&](const Inputs& in) { return MeanLoss(in[0], targets); },
             [&](const Inputs& in) { return at::cross_entropy_loss(in[0], targets, {}, at::Reduction::Mean, /*ignore_index=*/-1); },
             {torch::randn({9, 37}) * 5});
}

TEST(TrainOpsTest, OnlyAnswersOfADialogueAreTargets) {
  std::vector<ByteBpe::AddedToken> added;
  for (const ChatToken& token : kChatTokens) added.push_back({std::string(token.content), token.special});
  const ByteBpe plain = ByteBpe::Train({}, 0), chat = plain.Extended({}, 0, added);
  const std::vector<int> ids = chat.Encode("<s><|im_start|>user\nassistant\nHi<|im_end|>\n<|im_start|>assistant\nYo<|im_end|>\n");
  const at::Tensor row = torch::tensor(std::vector<int64_t>(ids.begin(), ids.end())).unsqueeze(0);
  const at::Tensor targets = Targets(chat, row), written = targets.index({targets >= 0});
  EXPECT_EQ(chat.Decode({static_cast<int>(written[0].item<int64_t>()), static_cast<int>(written[1].item<int64_t>())}), "Yo");
  EXPECT_EQ(written.size(0), 3);  // with the end of the message
  EXPECT_EQ((Targets(plain, row) >= 0).sum().item<int64_t>(), row.size(1) - 1);
}

}  // namespace
}  // namespace lime::train
