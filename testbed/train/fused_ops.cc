#include "testbed/train/fused_ops.h"

#include <torch/csrc/autograd/custom_function.h>

#include "testbed/train/row_ops.h"

namespace lime::train {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

struct RmsNormFunction : public torch::autograd::Function<RmsNormFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight, double eps) {
    at::Tensor out = at::empty_like(x), factors = at::empty({x.size(0)}, x.options());
    const int64_t n = x.size(1);
    for (int64_t r = 0; r < x.size(0); ++r) {
      factors.data_ptr<float>()[r] =
          RmsNormRow(x.data_ptr<float>() + r * n, weight.data_ptr<float>(), static_cast<float>(eps), out.data_ptr<float>() + r * n, n);
    }
    ctx->save_for_backward({x, weight, factors});
    return out;
  }

  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], grad = grads[0].contiguous();
    at::Tensor dx = at::empty_like(x), d_weight = at::zeros_like(weight);
    const int64_t n = x.size(1);
    for (int64_t r = 0; r < x.size(0); ++r) {
      RmsNormGradRow(x.data_ptr<float>() + r * n, weight.data_ptr<float>(), saved[2].data_ptr<float>()[r], grad.data_ptr<float>() + r * n,
                     dx.data_ptr<float>() + r * n, d_weight.data_ptr<float>(), n);
    }
    return {dx, d_weight, at::Tensor()};
  }
};

struct GatedFunction : public torch::autograd::Function<GatedFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate, const at::Tensor& up, bool relu) {
    at::Tensor out = at::empty_like(gate);
    GatedForward(gate.data_ptr<float>(), up.data_ptr<float>(), out.data_ptr<float>(), gate.numel(), relu);
    ctx->save_for_backward({gate, up});
    ctx->saved_data["relu"] = relu;
    return out;
  }

  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor grad = grads[0].contiguous();
    at::Tensor d_gate = at::empty_like(saved[0]), d_up = at::empty_like(saved[1]);
    GatedBackward(saved[0].data_ptr<float>(), saved[1].data_ptr<float>(), grad.data_ptr<float>(), d_gate.data_ptr<float>(),
                  d_up.data_ptr<float>(), grad.numel(), ctx->saved_data["relu"].toBool());
    return {d_gate, d_up, at::Tensor()};
  }
};

int64_t Counted(const at::Tensor& targets) {
  return (targets >= 0).sum().item<int64_t>();
}

struct MeanLossFunction : public torch::autograd::Function<MeanLossFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& logits, const at::Tensor& targets) {
    const int64_t rows = logits.size(0), n = logits.size(1);
    at::Tensor losses = at::zeros({rows}, logits.options());
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t target = targets.data_ptr<int64_t>()[r];
      if (target >= 0) losses.data_ptr<float>()[r] = LossRow(logits.data_ptr<float>() + r * n, target, n);
    }
    ctx->save_for_backward({logits, targets, losses});
    const int64_t counted = Counted(targets);
    return counted == rows ? losses.mean() : losses.sum() / counted;
  }

  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &logits = saved[0], &targets = saved[1], &losses = saved[2];
    const int64_t rows = logits.size(0), n = logits.size(1);
    const float scale = grads[0].item<float>() / static_cast<float>(Counted(targets));
    at::Tensor grad = at::zeros_like(logits);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t target = targets.data_ptr<int64_t>()[r];
      if (target < 0) continue;
      LossGradRow(logits.data_ptr<float>() + r * n, target, losses.data_ptr<float>()[r], scale, grad.data_ptr<float>() + r * n, n);
    }
    return {grad, at::Tensor()};
  }
};

}  // namespace

at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return RmsNormFunction::apply(x.contiguous(), weight, eps);
}

at::Tensor Gated(const at::Tensor& gate, const at::Tensor& up, bool relu) {
  return GatedFunction::apply(gate.contiguous(), up.contiguous(), relu);
}

at::Tensor MeanLoss(const at::Tensor& logits, const at::Tensor& targets) {
  return MeanLossFunction::apply(logits.contiguous(), targets.contiguous());
}

}  // namespace lime::train
