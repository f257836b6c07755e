// SPDX-License-Identifier: Apache-2.0
// What the engine asks of a device that is not the CPU: memory, copies, and its ops as calls that are plain data. A
// device that is missing is a nullptr with a reason. kernels/cuda has it, kernels/no_cuda says that this build has not.
// Everything goes to one stream in order; only to_host() and wait() wait for the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "nanhunt/dtype.h"

namespace nanhunt::kernels {

inline constexpr int kMaxWalkDims = 8;  // after neighbouring dimensions were merged
inline constexpr int kMaxMapInputs = 4;

// The shape that a kernel walks over in row-major order; every array has strides of its own over it, 0 where it
// repeats.
struct Walk {
  std::int64_t count = 0;  // of positions
  int dims = 1;
  std::int64_t sizes[kMaxWalkDims] = {};
};

struct DeviceArray {
  void* data = nullptr;
  DType dtype = DType::kF32;
  bool is_number = false;  // `number` everywhere, of `dtype`, and no data
  double number = 0;
  std::int64_t strides[kMaxWalkDims] = {};  // in elements
};

// A formula of kernels/portable/formulas.h: its place there and its scalars.
struct FormulaCall {
  int number = 0;
  alignas(8) unsigned char scalars[24] = {};
};

// out[i] = f(inputs[i]...). Inputs of another dtype than `common` are first rounded to it where it has 16 bits.
// Computes in fp64 if `wide`, else in fp32. out may be an input, element by element.
struct MapCall {
  FormulaCall formula;
  DType common = DType::kF32;
  bool wide = false;
  int inputs = 0;
  Walk walk;
  DeviceArray out, in[kMaxMapInputs];
};

// Bits as they are, elements of `bytes` bytes.
struct CopyCall {
  int bytes = 4;
  Walk walk;
  DeviceArray to, from;
};

// The gradient of an input that was broadcast: f over the walk, summed into `out` without gaps in the CPU engine's
// order, rounded to `via` and then to out's dtype. `to` are out's strides over the walk.
struct GradientSumCall {
  MapCall map;  // its out is not used
  DType via = DType::kF32;
  std::int64_t results = 0;
  DeviceArray out;
  int dims = 1;                               // of the walk, merged for out alone
  std::int64_t sizes[kMaxWalkDims] = {};
  std::int64_t to[kMaxWalkDims] = {};
};

// Rows of a walk: row r is its positions [r * length, (r + 1) * length).
struct Rows {
  std::int64_t count = 0, length = 0;
  Walk walk;
};

enum class Reduction : std::uint8_t { kSum, kMean, kNorm, kAmax };
struct ReduceCall {
  Reduction kind = Reduction::kSum;
  bool wide = false;
  Rows rows;
  DeviceArray in, out;  // out: one element a row, without gaps
};

enum class SoftmaxKind : std::uint8_t { kSoftmax, kLogSoftmax };
struct SoftmaxCall {
  SoftmaxKind kind = SoftmaxKind::kSoftmax;
  bool wide = false;
  Rows rows;
  DeviceArray in, out;
};
struct SoftmaxGradientCall {
  SoftmaxKind kind = SoftmaxKind::kSoftmax;
  bool wide = false;
  Rows rows;
  DeviceArray grad, result, out;
};

// `arithmetic` of norms: fp64, fp32, or a format of 16 bits in which all is rounded and added up (portable/narrow.h).
// weight and bias: one element for each of a row, without gaps; data nullptr where there is none. mean and rstd: one for
// each row, of that format.
struct LayerNormCall {
  DType arithmetic = DType::kF32;
  double eps = 0;
  Rows rows;
  DeviceArray in, weight, bias, out, mean, rstd;
};
// What is not wanted has no data.
struct LayerNormGradientCall {
  DType arithmetic = DType::kF32;
  Rows rows;
  DeviceArray grad, in, weight, mean, rstd;
  DeviceArray grad_in, grad_weight, grad_bias;
};

// Mean of -in[at[i]] over i < count; `at` are flat positions in `in`, which has no gaps.
struct PickedLossCall {
  bool wide = false;
  std::int64_t count = 0;
  const std::int64_t* at = nullptr;  // of the device
  DeviceArray in, out;
};
// out[at[i]] = -grad / count; the rest of out is not touched.
struct PickedLossGradientCall {
  bool wide = false;
  std::int64_t count = 0;
  const std::int64_t* at = nullptr;
  DeviceArray grad, out;
};

// Rows of a table: out row i is table row rows[i]. Without gaps.
struct GatherRowsCall {
  int bytes = 4;  // of an element
  std::int64_t count = 0, width = 0;
  const std::int64_t* rows = nullptr;
  DeviceArray table, out;
};
// out row used[u] is the sum of grad's rows order[first[u]] .. order[first[u + 1] - 1] in that order. Other rows of out
// are not touched. Without gaps.
struct ScatterRowsCall {
  bool wide = false;
  std::int64_t used_rows = 0, width = 0;
  const std::int64_t *used = nullptr, *first = nullptr, *order = nullptr;
  DeviceArray grad, out;
};

// Bytes 1 where the word of a Philox stream is at least `dropped`, else 0: word `position` + i for element i.
struct DropoutMaskCall {
  std::int64_t count = 0;
  std::uint64_t seed = 0, stream = 0, position = 0, dropped = 0;
  std::uint8_t* out = nullptr;
};

// torch.amp's check and unscale. `found` is set to 1 where an element is not finite, else left as it is.
struct UnscaleCall {
  bool wide = false;
  float inv_scale = 1;
  Walk walk;
  DeviceArray grad;
  std::int32_t* found = nullptr;
};
// The same of many tensors without gaps, in one launch or as few as take them.
struct UnscaledTensor {
  void* data = nullptr;
  std::int64_t count = 0;
  DType dtype = DType::kF32;
};
struct UnscaleManyCall {
  float inv_scale = 1;
  std::int64_t count = 0;
  const UnscaledTensor* tensors = nullptr;  // of the host; read before run() returns
  std::int32_t* found = nullptr;
};

// Fused updates over tensors without gaps, as src/engine/optim computes them. Scalars come as the engine has them.
struct FusedSgdCall {
  bool wide = false, nesterov = false;
  double lr = 0, momentum = 0, weight_decay = 0;
  std::int64_t count = 0;
  DeviceArray param, grad, buffer;  // buffer: data nullptr without momentum
};
struct FusedAdamCall {
  bool wide = false, decoupled = false;
  double step_size = 0, correction = 1, decay = 0, eps = 0, beta2 = 0, weight1 = 0, weight2 = 0;
  std::int64_t count = 0;
  DeviceArray param, grad, exp_avg, exp_avg_sq;
};

// c = a @ b + beta * c for each of the batch. Row-major; an operand is read transposed if asked. All of one dtype:
// fp16, bf16 and fp32 accumulate in fp32, fp64 in fp64; the result is rounded once.
struct MatrixOperand {
  const void* data = nullptr;
  std::int64_t lead = 1;  // from one stored row to the next, in elements
  std::int64_t step = 0;  // from one of the batch to the next
  bool transposed = false;
};
struct ProductCall {
  DType dtype = DType::kF32;
  std::int64_t m = 0, n = 0, k = 0, batch = 1;
  MatrixOperand a, b;
  double beta = 0;  // 0 or 1
  bool wide_result = false;  // c is fp32 where the operands have 16 bits
  void* c = nullptr;         // dense, of result()
  DType result() const { return wide_result && dtype_size(dtype) == 2 ? DType::kF32 : dtype; }
};

// Windows that slide over images (N, C, H, W), all without gaps. Window (oh, ow) begins at (oh * stride - padding,
// ...); what hangs over the edge is not there.
struct WindowSizes {
  std::int64_t images = 0, channels = 0, height = 0, width = 0;
  std::int64_t kernel_height = 1, kernel_width = 1, stride = 1, padding = 0;
  std::int64_t out_height = 0, out_width = 0;
};

// A convolution is a product of its filters and of columns: (channel, place in the window) by (image, window). Bits as
// they are, elements of `bytes` bytes; what is not there is 0.
struct UnfoldCall {
  int bytes = 4;
  WindowSizes windows;
  const void* images = nullptr;
  void* columns = nullptr;
};
// images = the sums of all elements of the columns that were read from each place, place after place of the window.
struct FoldCall {
  bool wide = false;
  WindowSizes windows;
  DeviceArray columns, images;
};
// out (image, channel, plane) = products (channel, image, plane) + bias (channel); 0 is added where there is no bias.
struct ChannelBiasCall {
  bool wide = false;
  std::int64_t images = 0, channels = 0, plane = 0;
  DeviceArray products, bias, out;
};
// out (channel) = sums of grad (image, channel, plane): `group` images at a time, and the groups' sums pairwise.
struct ChannelSumCall {
  bool wide = false;
  std::int64_t images = 0, channels = 0, plane = 0, group = 1;
  DeviceArray grad, out;
};

// The first of the largest elements of a window wins, and of NaNs the last; `indices` tell where in its plane it lies.
struct MaxPoolCall {
  bool wide = false;
  WindowSizes windows;
  DeviceArray in, out;
  std::int64_t* indices = nullptr;
};
struct MaxPoolGradientCall {
  bool wide = false;
  WindowSizes windows;
  DeviceArray grad, out;
  const std::int64_t* indices = nullptr;
};
// What is not there counts as 0: a sum is divided by the whole window.
struct AvgPoolCall {
  bool wide = false;
  WindowSizes windows;
  DeviceArray in, out;
};
struct AvgPoolGradientCall {
  bool wide = false;
  WindowSizes windows;
  DeviceArray grad, out;
};
// Every element of out (count, width) is the sum of a square of scale x scale elements of grad, line by line.
struct UpsampleGradientCall {
  bool wide = false;
  std::int64_t count = 0, width = 0, scale = 1;  // count: elements of out
  DeviceArray grad, out;
};

// A row is a channel. One element for each channel, without gaps: weight, bias, and what follows. mean and invstd, of
// the arithmetic's format: what the channel was normalised with. Not training: of running_mean and running_var.
// Training: of the row, and new_mean and new_var get the moving averages, computed in double and rounded to fp32 first
// where they are narrower.
struct BatchNormCall {
  DType arithmetic = DType::kF32;
  bool training = false;
  double momentum = 0, eps = 0;
  Rows rows;
  DeviceArray in, out;  // over the rows
  DeviceArray weight, bias, running_mean, running_var;
  DeviceArray mean, invstd, new_mean, new_var;
};
// What is not wanted has no data. spread: invstd in training, else the running variance.
struct BatchNormGradientCall {
  DType arithmetic = DType::kF32;
  bool training = false;
  double eps = 0;
  Rows rows;
  DeviceArray grad, in, grad_in;  // over the rows
  DeviceArray weight, mean, spread, grad_weight, grad_bias;
};

// What products may do beyond ProductCall's rule; off unless asked for.
struct ProductMath {
  bool tf32 = false;          // inputs of fp32 products lose 13 bits of their 23
  bool reduced_sums = false;  // 16-bit products may be added up in 16 bits where a product is split
  bool operator==(const ProductMath&) const = default;
};

class ReadingsPort;
struct ReadingsOptions;

struct DeviceMemory {
  std::uint64_t used = 0;    // handed out
  std::uint64_t cached = 0;  // kept to be used again
};

// Not for several threads at once. What goes wrong on the device throws std::runtime_error, which says what and what to
// do.
class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;
  virtual std::string name() const = 0;  // for people: "cuda:0 (NVIDIA H200, driver 13.0)"

  virtual void* allocate(std::size_t bytes) = 0;  // undefined contents
  virtual void release(void* memory, std::size_t bytes) noexcept = 0;
  virtual DeviceMemory memory() const = 0;
  virtual void set_zero(void* to, std::size_t bytes) = 0;
  virtual void to_device(void* to, const void* from, std::size_t bytes) = 0;
  virtual void to_host(void* to, const void* from, std::size_t bytes) = 0;  // waits
  virtual void on_device(void* to, const void* from, std::size_t bytes) = 0;
  virtual void wait() = 0;
  // For a library that queues work of its own: a cudaStream_t, whose device is now current in the calling thread.
  virtual void* stream() = 0;
  // For DeviceReadings::open() (kernels/device_readings.h), on the stream of everything else. nullptr and why.
  virtual std::unique_ptr<ReadingsPort> open_readings(const ReadingsOptions& options, std::string& why) = 0;

  virtual void run(const MapCall& call) = 0;
  virtual void run(const CopyCall& call) = 0;
  virtual void run(const GradientSumCall& call) = 0;
  virtual void run(const ReduceCall& call) = 0;
  virtual void run(const SoftmaxCall& call) = 0;
  virtual void run(const SoftmaxGradientCall& call) = 0;
  virtual void run(const LayerNormCall& call) = 0;
  virtual void run(const LayerNormGradientCall& call) = 0;
  virtual void run(const PickedLossCall& call) = 0;
  virtual void run(const PickedLossGradientCall& call) = 0;
  virtual void run(const GatherRowsCall& call) = 0;
  virtual void run(const ScatterRowsCall& call) = 0;
  virtual void run(const DropoutMaskCall& call) = 0;
  virtual void run(const UnscaleCall& call) = 0;
  virtual void run(const UnscaleManyCall& call) = 0;
  virtual void run(const FusedSgdCall& call) = 0;
  virtual void run(const FusedAdamCall& call) = 0;
  virtual void run(const ProductCall& call) = 0;
  virtual void set_product_math(const ProductMath& math) = 0;  // of the products from here on; name() says it
  virtual void run(const UnfoldCall& call) = 0;
  virtual void run(const FoldCall& call) = 0;
  virtual void run(const ChannelBiasCall& call) = 0;
  virtual void run(const ChannelSumCall& call) = 0;
  virtual void run(const MaxPoolCall& call) = 0;
  virtual void run(const MaxPoolGradientCall& call) = 0;
  virtual void run(const AvgPoolCall& call) = 0;
  virtual void run(const AvgPoolGradientCall& call) = 0;
  virtual void run(const UpsampleGradientCall& call) = 0;
  virtual void run(const BatchNormCall& call) = 0;
  virtual void run(const BatchNormGradientCall& call) = 0;

  // How many bytes of columns, as op math values, a convolution unfolds at a time.
  virtual std::int64_t column_bytes() const = 0;
};

// The backend of one GPU, made on the first call and kept; nullptr where it cannot be had, and `why` says why and what
// to do.
DeviceBackend* cuda_backend(int index, std::string& why);

}  // namespace nanhunt::kernels
