// SPDX-License-Identifier: Apache-2.0
// Ops of the engine. Names are the dispatcher's without "aten::". Elementwise binary ops broadcast and promote
// (a 0-dim tensor does not promote within a category). Scalars are applied in op math (fp32 for 16-bit and fp32, fp64
// for fp64) and the stored result is rounded once. Each is observed as one op, forward and backward, under its own name
// (in-place forms end in _ and have no gradient: they are for optimizers).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "nanhunt/engine/tensor.h"

namespace nanhunt::engine {

class RandomStream;

// Elementwise, binary.
Tensor add(const Tensor& self, const Tensor& other, double alpha = 1);
Tensor sub(const Tensor& self, const Tensor& other, double alpha = 1);
Tensor mul(const Tensor& self, const Tensor& other);
Tensor div(const Tensor& self, const Tensor& other);
Tensor pow(const Tensor& self, double exponent);
Tensor add(const Tensor& self, double other);  // observed as "add" with scalar "other"
Tensor sub(const Tensor& self, double other);
Tensor mul(const Tensor& self, double other);
Tensor div(const Tensor& self, double other);
Tensor div(double self, const Tensor& other);  // observed as "reciprocal", then "mul": that is what eager does
Tensor addcmul(const Tensor& self, const Tensor& tensor1, const Tensor& tensor2, double value = 1);
Tensor addcdiv(const Tensor& self, const Tensor& tensor1, const Tensor& tensor2, double value = 1);
Tensor atan2(const Tensor& self, const Tensor& other);  // the angle of the point (other, self)
Tensor where(const Tensor& condition, const Tensor& self, const Tensor& other);  // condition: bool
Tensor masked_fill(const Tensor& self, const Tensor& mask, double value);
Tensor eq(const Tensor& self, double other);  // bool, no gradient
Tensor gt(const Tensor& self, double other);  // bool, no gradient

// Elementwise, unary.
Tensor neg(const Tensor& self);
Tensor abs(const Tensor& self);
Tensor reciprocal(const Tensor& self);
Tensor exp(const Tensor& self);
Tensor log(const Tensor& self);
Tensor expm1(const Tensor& self);  // exp(x) - 1, exact near 0
Tensor log10(const Tensor& self);
Tensor log2(const Tensor& self);
Tensor log1p(const Tensor& self);  // log(1 + x), exact near 0
Tensor sinh(const Tensor& self);
Tensor cosh(const Tensor& self);
Tensor tan(const Tensor& self);
Tensor asin(const Tensor& self);
Tensor acos(const Tensor& self);
Tensor sqrt(const Tensor& self);
Tensor rsqrt(const Tensor& self);
Tensor relu(const Tensor& self);
Tensor tanh(const Tensor& self);
Tensor sigmoid(const Tensor& self);
Tensor clamp(const Tensor& self, double min, double max);
enum class GeluForm : std::uint8_t { kErf, kTanh };
Tensor gelu(const Tensor& self, GeluForm form = GeluForm::kErf);
Tensor silu(const Tensor& self);
// log(1 + exp(beta x)) / beta, and x where beta x is above the threshold.
Tensor softplus(const Tensor& self, double beta = 1, double threshold = 20);
// x above 0, else weight x; weight of one element, or one for each of self's second dimension, in self's dtype.
// Observed as "_prelu_kernel", after a "view" of the weight.
Tensor prelu(const Tensor& self, const Tensor& weight);
Tensor to(const Tensor& self, DType dtype);  // observed as "_to_copy"; returns self when it already has the dtype

// Reductions: over one dim (negative counts from the end) or all. 16-bit accumulates in fp32, stores rounded.
Tensor sum(const Tensor& self, std::optional<int> dim = {}, bool keepdim = false);
Tensor mean(const Tensor& self, std::optional<int> dim = {}, bool keepdim = false);
Tensor norm(const Tensor& self, std::optional<int> dim = {}, bool keepdim = false);  // 2-norm; gradient 0 where it is 0
Tensor amax(const Tensor& self, int dim, bool keepdim = false);                      // no gradient
Tensor logsumexp(const Tensor& self, int dim, bool keepdim = false);  // log(sum(exp(x))), without overflow
Tensor softmax(const Tensor& self, int dim);
Tensor log_softmax(const Tensor& self, int dim);
Tensor nll_loss(const Tensor& log_probs, const Tensor& target,
                std::int64_t ignore_index = -100);  // (N,C), int64 (N) -> mean, scalar
Tensor cross_entropy(const Tensor& logits, const Tensor& target,
                     std::int64_t ignore_index = -100);  // log_softmax + nll_loss

// Linear algebra (BLAS; 16-bit inputs widen, accumulate in fp32, store rounded).
// Observed as "mm" for two matrices. Batch dimensions broadcast: "expand" and "view" to 3-D, "bmm" and "view"; a 2-D
// right side is one "mm" over all rows. A side of one dimension: "dot" of two, "mv" on the right, "mm" or "bmm" of
// a row on the left.
Tensor matmul(const Tensor& self, const Tensor& other);
Tensor mv(const Tensor& self, const Tensor& vec);                          // (M,K) @ (K)
Tensor dot(const Tensor& self, const Tensor& tensor);                      // (K) @ (K), a scalar
Tensor bmm(const Tensor& self, const Tensor& mat2);                        // (B,M,K) @ (B,K,N)
// What is added broadcasts to the product: (M,K) @ (K), (M) by (N), (B,M,K) @ (B,K,N).
Tensor addmv(const Tensor& self, const Tensor& mat, const Tensor& vec);
Tensor addr(const Tensor& self, const Tensor& vec1, const Tensor& vec2);
Tensor baddbmm(const Tensor& self, const Tensor& batch1, const Tensor& batch2);
Tensor addmm(const Tensor& bias, const Tensor& mat1, const Tensor& mat2);  // bias (N) + mat1 (M,K) @ mat2 (K,N)
Tensor linear(const Tensor& input, const Tensor& weight,
              const Tensor& bias);  // input (...,K), weight (N,K): observed as "t" then "addmm" ("mm" without bias),
                                    // with a "view" before and after for inputs that are not 2-D
Tensor embedding(const Tensor& weight, const Tensor& indices);  // (V,D), int64 (...) -> (...,D)

// In which format a norm adds up means and squares. kInput: in the input's own, and so is all else that it computes.
// In 16 bits such sums stall (fp16: ones at 2048) or overflow, squares overflow (from 256), small variances and eps
// vanish.
enum class NormStatistics : std::uint8_t { kOpMath, kInput };
// Normalises the last dimension; weight and bias may be undefined. Observed as "native_layer_norm" with results "mean"
// and "rstd", which are fp32 for 16-bit inputs (eps is added in fp32), or of the input's format with kInput.
Tensor layer_norm(const Tensor& input, const Tensor& weight, const Tensor& bias, double eps = 1e-5,
                  NormStatistics statistics = NormStatistics::kOpMath);
// x / sqrt(mean(x * x) + eps) over the last dimension, times weight where it is defined; eps by default the epsilon of
// op math. Observed as the ops it consists of: pow, mean, add, rsqrt, mul, mul, in fp32 for 16-bit inputs.
Tensor rms_norm(const Tensor& input, const Tensor& weight, std::optional<double> eps = {});
// Drops elements with probability p, by one word of `random` each, and scales the others by 1 / (1 - p). Observed as
// "native_dropout" with result "mask" (bool, true: kept).
Tensor dropout(const Tensor& input, double p, RandomStream& random);

struct AttentionOptions {
  Tensor mask, key_mask;           // broadcast to the scores (..., T, S). bool: true hides (-Inf); floating: added
  double dropout = 0;              // of the weights
  RandomStream* random = nullptr;  // for dropout
};
// query (..., T, D), key (..., S, D), value (..., S, E) -> (..., T, E). Observed as the ops it consists of: transpose,
// matmul, mul by 1 / sqrt(D), masked_fill or add, softmax, dropout, matmul. A row that is hidden whole is NaN.
Tensor scaled_dot_product_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                    const AttentionOptions& options = {});

// Images (N, C, H, W).
// weight (O, C / groups, KH, KW), bias (O) or undefined. Each of `groups` shares of the output channels sees its share
// of the input channels. Observed as "convolution".
Tensor conv2d(const Tensor& input, const Tensor& weight, const Tensor& bias, std::int64_t stride = 1,
              std::int64_t padding = 0, std::int64_t groups = 1);
// input (N, C) or (N, C, ...); the others (C), of the input's dtype or fp32. In training the statistics are the
// batch's, and the running ones move (unbiased variance) in place; else the running ones are used. Observed as
// "native_batch_norm", with results "save_mean" and "save_invstd" in training.
Tensor batch_norm(const Tensor& input, const Tensor& weight, const Tensor& bias, Tensor& running_mean,
                  Tensor& running_var, bool training, double momentum = 0.1, double eps = 1e-5,
                  NormStatistics statistics = NormStatistics::kOpMath);
Tensor max_pool2d(const Tensor& self, std::int64_t kernel, std::int64_t stride = 0,
                  std::int64_t padding = 0);  // stride 0: kernel; observed as "max_pool2d_with_indices"
Tensor avg_pool2d(const Tensor& self, std::int64_t kernel, std::int64_t stride = 0, std::int64_t padding = 0);
Tensor upsample_nearest2d(const Tensor& self, std::int64_t scale);

// Losses between two tensors of one shape and dtype: mean over all elements, a scalar.
Tensor l1_loss(const Tensor& self, const Tensor& target);  // observed as "sub", "abs", "mean"
Tensor mse_loss(const Tensor& self, const Tensor& target);
Tensor smooth_l1_loss(const Tensor& self, const Tensor& target, double beta = 1);
Tensor huber_loss(const Tensor& self, const Tensor& target, double delta = 1);
// Of probabilities. Throws in torch's words on the CPU for one or a target that is not in [0, 1], and always under
// autocast for CUDA.
Tensor binary_cross_entropy(const Tensor& self, const Tensor& target);
Tensor binary_cross_entropy_with_logits(const Tensor& self, const Tensor& target);

// Made of other ops, which are observed. Means over all elements, a scalar; targets are floating, 1 or -1.
Tensor margin_ranking_loss(const Tensor& input1, const Tensor& input2, const Tensor& target, double margin = 0);
Tensor hinge_embedding_loss(const Tensor& self, const Tensor& target, double margin = 1);
// Of rows: the distance to positive is to be smaller than the one to negative, by the margin.
Tensor triplet_margin_loss(const Tensor& anchor, const Tensor& positive, const Tensor& negative, double margin = 1);
Tensor cosine_embedding_loss(const Tensor& input1, const Tensor& input2, const Tensor& target,
                             double margin = 0);                             // (N,D), (N,D), (N)
Tensor poisson_nll_loss(const Tensor& input, const Tensor& target);          // exp(input) - target * input
Tensor cosine_similarity(const Tensor& x1, const Tensor& x2, int dim = 1,
                         double eps = 1e-8);  // over one dimension; a norm below eps counts as eps

Tensor cat(const std::vector<Tensor>& tensors, int dim = 0);  // a copy; dtypes promote

// Views: share storage, observed so that values stay connected.
Tensor t(const Tensor& self);                     // 2-D transpose
Tensor transpose(const Tensor& self, int dim0, int dim1);
Tensor permute(const Tensor& self, std::vector<int> dims);
Tensor expand(const Tensor& self, Shape sizes);   // repeats dimensions of size 1 and leading ones
Tensor reshape(const Tensor& self, Shape sizes);  // "view"; copies first ("clone") when strides cannot say it
Tensor flatten(const Tensor& self, int start_dim = 0);  // from that dimension on; a reshape
Tensor clone(const Tensor& self);                 // contiguous copy
Tensor narrow(const Tensor& self, int dim, std::int64_t start, std::int64_t length);
Tensor select(const Tensor& self, int dim, std::int64_t index);

// In-place, without gradient (optimizers, running statistics). Each bumps the storage version.
Tensor& fill_(Tensor& self, double value);
Tensor& copy_(Tensor& self, const Tensor& source);
Tensor& add_(Tensor& self, const Tensor& other, double alpha = 1);
Tensor& add_(Tensor& self, double other);
Tensor& mul_(Tensor& self, const Tensor& other);
Tensor& mul_(Tensor& self, double other);
Tensor& lerp_(Tensor& self, const Tensor& end,
              double weight);  // self + weight * (end - self), or from the other end when weight >= 0.5
Tensor& addcmul_(Tensor& self, const Tensor& tensor1, const Tensor& tensor2, double value);
Tensor& addcdiv_(Tensor& self, const Tensor& tensor1, const Tensor& tensor2, double value);

}  // namespace nanhunt::engine
