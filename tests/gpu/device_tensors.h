// SPDX-License-Identifier: Apache-2.0
// Tensors in device memory, and what the kernels say of them.
#pragma once

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/device_session.h"
#include "kernels/device_stats.h"
#include "tests/kernels/stats_agree.h"
#include "tests/kernels/stats_support.h"

namespace nanhunt::gpu {

using kernels::DeviceSession;
using kernels::DeviceStats;
using kernels::DeviceStatsRecord;
using kernels::DeviceStatsTarget;
using testing_support::OwnedTensor;

inline constexpr DType kAllTypes[] = {DType::kF16,  DType::kBF16, DType::kF32, DType::kF64, DType::kE4M3FN,
                                      DType::kE5M2, DType::kI64,  DType::kI32, DType::kU8,  DType::kBool};
// What a set of tensors holds: bits of every kind, or numbers.
enum class Content { kNormal, kOdd, kBits };
inline OwnedTensor make_tensor(DType dtype, std::size_t count, Content content, std::uint64_t seed) {
  OwnedTensor tensor(dtype, count);
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t die = random();
    if (content == Content::kBits || !is_floating(dtype)) {
      tensor.set_code(i, die);
    } else if (content == Content::kOdd && die % 97 == 0) {
      constexpr double kOdd[] = {0.0, -0.0, 1e-7, -1e-40, 1e30};
      tensor.set(i, die % 7 < 5 ? kOdd[die % 7] : die % 7 == 5 ? static_cast<double>(NAN) : -INFINITY);
    } else {
      tensor.set(i, normal(random));
    }
  }
  return tensor;
}

// Memory on a device that the launches of one program share.
class Bench {
 public:
  static Result<std::unique_ptr<Bench>> open(std::size_t tensors, std::uint64_t items) {
    auto bench = std::unique_ptr<Bench>(new Bench);
    Result<std::unique_ptr<DeviceSession>> session = DeviceSession::open(0);
    if (!session) return session.status();
    bench->session = std::move(*session);
    kernels::DeviceStatsOptions options;
    options.max_tensors = tensors;
    options.max_items = items;
    Result<std::unique_ptr<DeviceStats>> stats = DeviceStats::create(options);
    if (!stats) return stats.status();
    bench->stats = std::move(*stats);
    bench->tensors_ = tensors;
    bench->target.records =
        static_cast<DeviceStatsRecord*>(bench->session->allocate(tensors * sizeof(DeviceStatsRecord)));
    if (bench->target.records == nullptr) {
      return Status(StatusCode::kUnsupported, "no memory on the device for results");
    }
    return bench;
  }

  // The contents at `misalignment` bytes past an aligned address; released with release().
  unsigned char* upload(OwnedTensor& tensor, std::size_t misalignment = 0) {
    const std::size_t bytes = tensor.count() * dtype_size(tensor.view().dtype);
    auto* memory = static_cast<unsigned char*>(session->allocate(bytes + misalignment + 1));
    if (memory == nullptr) return nullptr;
    if (bytes > 0 && !session->copy_in(memory + misalignment, tensor.at(0), bytes)) return nullptr;
    return memory;
  }

  std::vector<DeviceStatsRecord> records(std::size_t count) {
    std::vector<DeviceStatsRecord> got(count);
    last_error = session->copy_out(got.data(), target.records, count * sizeof(DeviceStatsRecord));
    return got;
  }
  // Statistics of a view whose data lies on the device. Errors are in `last_error`.
  TensorStats run(const TensorView& view) {
    std::int64_t repeats = 1;
    const Result<kernels::DeviceStatsView> plan = kernels::plan_device_view(view, repeats);
    last_error = plan.status();
    if (!plan) return {};
    last_error = stats->enqueue(*plan, 0, target, session->stream());
    if (!last_error) return {};
    const std::vector<DeviceStatsRecord> got = records(1);
    return stats_of_record(got[0], nullptr, repeats);
  }

  std::unique_ptr<DeviceSession> session;
  std::unique_ptr<DeviceStats> stats;
  DeviceStatsTarget target;
  Status last_error;

 private:
  Bench() = default;
  std::size_t tensors_ = 0;
};

}  // namespace nanhunt::gpu
