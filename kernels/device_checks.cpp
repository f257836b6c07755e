// SPDX-License-Identifier: Apache-2.0
// The host's half of checks: how a view is taken.
#include "kernels/device_checks.h"

#include <algorithm>
#include <string>
#include <vector>

namespace nanhunt::kernels {
namespace {

struct Dim {
  std::int64_t size = 1, stride = 1;
};

// One block of memory, each element of it once, in whatever order of dimensions.
bool has_no_gaps(std::vector<Dim> dims) {
  std::stable_sort(dims.begin(), dims.end(), [](const Dim& a, const Dim& b) { return a.stride < b.stride; });
  std::int64_t expected = 1;
  for (const Dim& dim : dims) {
    if (dim.stride != expected) return false;
    expected *= dim.size;
  }
  return true;
}

}  // namespace

Result<CheckedView> plan_check(const TensorView& tensor) {
  if (tensor.sizes.size() != tensor.strides.size()) {
    return Status(StatusCode::kUsage, "[checks] expected as many strides as sizes, got " +
                                          std::to_string(tensor.strides.size()) + " and " +
                                          std::to_string(tensor.sizes.size()));
  }
  CheckedView view;
  view.data = reinterpret_cast<std::uint64_t>(tensor.data);
  view.size = static_cast<std::uint32_t>(dtype_size(tensor.dtype));
  view.count = static_cast<std::uint64_t>(tensor.numel());
  if (view.count == 0) return view;
  if (tensor.data == nullptr) return Status(StatusCode::kUsage, "[checks] expected contents, got a view without data");

  std::vector<Dim> all, walked;  // outermost first
  for (std::size_t d = 0; d < tensor.sizes.size(); ++d) {
    const Dim dim{tensor.sizes[d], tensor.strides[d]};
    if (dim.size == 1) continue;
    all.push_back(dim);
    if (dim.stride == 0) continue;
    if (!walked.empty() && walked.back().stride == dim.size * dim.stride) {
      walked.back() = {walked.back().size * dim.size, dim.stride};
    } else {
      walked.push_back(dim);
    }
  }
  if (has_no_gaps(all)) return view;
  view.count = 1;
  for (const Dim& dim : walked) view.count *= static_cast<std::uint64_t>(dim.size);
  if (walked.empty() || (walked.size() == 1 && walked[0].stride == 1)) return view;
  if (walked.size() > static_cast<std::size_t>(kMaxCheckedDims)) {
    return Status(StatusCode::kUnsupported, "[checks] expected at most " + std::to_string(kMaxCheckedDims) +
                                                " dimensions that do not join in memory, got " +
                                                std::to_string(walked.size()));
  }
  view.dims = static_cast<std::uint32_t>(walked.size());
  for (std::size_t d = 0; d < walked.size(); ++d) {
    view.sizes[d] = static_cast<std::uint64_t>(walked[d].size);
    view.stride_bytes[d] = walked[d].stride * static_cast<std::int64_t>(view.size);
  }
  return view;
}

}  // namespace nanhunt::kernels
