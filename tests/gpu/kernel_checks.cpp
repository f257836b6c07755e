// SPDX-License-Identifier: Apache-2.0
// The statistics kernels on a GPU against the CPU's: formats, edges, lengths, alignments, views, tables and sizes. Every
// check is a row.
#include "tests/gpu/checks.h"

#include <cmath>

#include "kernels/cpu/tensor_stats_block.h"
#include "tests/gpu/device_tensors.h"

namespace nanhunt::gpu {
namespace {

using Dims = std::vector<std::int64_t>;

// Counts comparisons and keeps the first that failed.
struct Tally {
  std::int64_t compared = 0, wrong = 0;
  std::string first;

  void compare(const TensorStats& got, const TensorStats& want, const std::string& what) {
    const std::string difference = testing_support::disagreement(got, want);
    add(difference.empty(), what + ":" + difference);
  }
  void add(bool right, const std::string& what) {
    ++compared;
    if (!right && wrong++ == 0) first = what;
  }
  std::string told() const {
    return std::to_string(compared) + " compared" +
           (wrong == 0 ? "" : ", " + std::to_string(wrong) + " wrong; first: " + first);
  }
};

void finish(Rows& rows, const std::string& name, const Tally& tally) {
  rows.check(name, tally.wrong == 0 && tally.compared > 0, tally.told());
}

std::string named(DType dtype, std::size_t count) {
  return std::string(dtype_name(dtype)) + " of " + std::to_string(count);
}

void compare_one(Bench& bench, OwnedTensor& tensor, std::size_t misalignment, Tally& tally) {
  const TensorView host = tensor.view();
  unsigned char* memory = bench.upload(tensor, misalignment);
  const TensorStats got = bench.run({memory + misalignment, host.dtype, host.sizes, host.strides});
  const std::string what = named(host.dtype, tensor.count()) + " at " + std::to_string(misalignment);
  if (bench.last_error) {
    tally.compare(got, compute_stats(host, StatsLevel::kSums), what);
  } else {
    tally.add(false, what + ": " + bench.last_error.message());
  }
  bench.session->release(memory);
}

void check_formats(Bench& bench, Rows& rows, bool quick) {
  for (const DType dtype : kAllTypes) {
    Tally tally;
    if (is_floating(dtype) && dtype_size(dtype) <= 2) {  // every code there is
      OwnedTensor codes(dtype, std::size_t{1} << 8 * dtype_size(dtype));
      for (std::size_t i = 0; i < codes.count(); ++i) codes.set_code(i, i);
      compare_one(bench, codes, 0, tally);
    }
    if (is_floating(dtype)) {  // what changes at a limit, from both sides
      const kernels::FormatCodes& f = kernels::format_codes(dtype);
      OwnedTensor edges(dtype, 2 * 3 * (kernels::kWhatIfThresholds + 3));
      std::size_t i = 0;
      const auto add = [&](std::uint64_t limit) {
        for (const std::uint64_t near : {limit - 1, limit, limit + 1}) {
          edges.set_code(i++, near & (f.sign - 1));
          edges.set_code(i++, near | f.sign);
        }
      };
      for (const std::uint64_t limit : f.thresholds) add(limit);
      for (const std::uint64_t limit : {f.min_normal, f.first_nonfinite, f.first_nan}) add(limit);
      compare_one(bench, edges, 0, tally);
    }
    std::uint64_t seed = 1;
    for (const Content content : {Content::kNormal, Content::kOdd, Content::kBits}) {
      for (const std::size_t count : {0u, 1u, 7u, 255u, 4097u, 100003u, 3000001u}) {
        if (quick && count > 200000) continue;
        OwnedTensor tensor = make_tensor(dtype, count, content, ++seed);
        compare_one(bench, tensor, 0, tally);
      }
    }
    finish(rows, "format " + std::string(dtype_name(dtype)), tally);
  }
}

void check_lengths_and_alignments(Bench& bench, Rows& rows, bool quick) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64, DType::kE4M3FN}) {
    Tally tally;
    for (std::size_t count = 0; count <= 4097; count += quick ? 411 : 17) {
      for (const std::size_t misalignment : {count % 16, count % 16 / dtype_size(dtype) * dtype_size(dtype)}) {
        OwnedTensor tensor = make_tensor(dtype, count, Content::kOdd, count);
        compare_one(bench, tensor, misalignment, tally);
      }
    }
    finish(rows, "lengths and alignments of " + std::string(dtype_name(dtype)), tally);
  }
}

void check_views(Bench& bench, Rows& rows) {
  struct Case {
    Dims sizes, strides;
    std::int64_t offset;
  };
  const Case cases[] = {{{100, 200}, {1, 100}, 0},      {{50, 60}, {200, 3}, 7},     {{30, 20, 10}, {400, 10, 1}, 101},
                        {{2000}, {-1}, 1999},           {{7, 11, 13}, {-1300, 90, -7}, 10000},
                        {{4, 16, 16, 8}, {2048, 16, 1, 256}, 0}, {{5, 40, 3, 50}, {0, 50, 0, 1}, 11}, {{}, {}, 42}};
  Tally tally;
  for (const DType dtype : kAllTypes) {
    OwnedTensor tensor = make_tensor(dtype, 20000, Content::kOdd, 5);
    unsigned char* memory = bench.upload(tensor);
    for (const Case& c : cases) {
      const auto offset = static_cast<std::size_t>(c.offset);
      const TensorStats got = bench.run({memory + offset * dtype_size(dtype), dtype, c.sizes, c.strides});
      const TensorView here{tensor.at(offset), dtype, c.sizes, c.strides};
      tally.compare(got, compute_stats(here, StatsLevel::kSums), named(dtype, static_cast<std::size_t>(here.numel())));
    }
    bench.session->release(memory);
  }
  finish(rows, "strided, permuted, reversed and broadcast views", tally);
}

// Tensors of all formats in one launch; the same bits as alone.
void check_tables(Bench& bench, Rows& rows) {
  constexpr std::size_t kTensors = kernels::kTensorsInParameters;
  std::vector<OwnedTensor> tensors;
  std::vector<kernels::DeviceTensor> there;
  for (std::size_t i = 0; i < kTensors; ++i) {
    constexpr std::size_t kCounts[] = {0, 1, 300, 4096, 70000, 9, 20000};
    tensors.push_back(make_tensor(kAllTypes[i % 10], kCounts[i % 7], Content::kOdd, i));
    unsigned char* memory = bench.upload(tensors.back());
    there.push_back({memory, static_cast<std::int64_t>(tensors.back().count()), kAllTypes[i % 10],
                     static_cast<std::uint32_t>(i)});
  }
  Tally tally;
  const Status launched = bench.stats->enqueue(there, bench.target, bench.session->stream());
  tally.add(launched.is_ok(), launched.message());
  const std::vector<DeviceStatsRecord> records = bench.records(kTensors);
  for (std::size_t i = 0; i < kTensors && launched; ++i) {
    const TensorStats got = stats_of_record(records[i]);
    tally.compare(got, compute_stats(tensors[i].view(), StatsLevel::kSums), "tensor " + std::to_string(i));
    if (i % 97 != 0) continue;
    const Dims sizes = {there[i].count};
    const Dims strides = {1};
    tally.add(bench.run({there[i].data, there[i].dtype, sizes, strides}) == got, "another result alone");
  }
  finish(rows, "150 tensors of mixed formats in one launch", tally);
  for (const kernels::DeviceTensor& tensor : there) bench.session->release(const_cast<void*>(tensor.data));
}

// Memory that the device cannot read is refused in words; a kernel that read it would end CUDA for the whole process.
void check_foreign_memory(Bench& bench, Rows& rows) {
  OwnedTensor tensor = make_tensor(DType::kF32, 5000, Content::kNormal, 1);
  const TensorView host = tensor.view();
  Tally tally;
  bench.run(host);
  tally.add(!bench.last_error, "a tensor of the host was taken");
  unsigned char* memory = bench.upload(tensor);
  const kernels::DeviceTensor mixed[] = {{memory, 5000, DType::kF32, 0}, {host.data, 5000, DType::kF32, 1}};
  tally.add(!bench.stats->enqueue(mixed, bench.target, bench.session->stream()),
            "a mixed table was taken");
  const TensorStats got = bench.run({memory, host.dtype, host.sizes, host.strides});
  tally.add(bench.last_error.is_ok(), bench.last_error.message());
  tally.compare(got, compute_stats(host, StatsLevel::kSums), "afterwards");
  bench.session->release(memory);
  finish(rows, "memory of the host is refused", tally);
}

}  // namespace

void run_kernel_checks(Rows& rows, bool quick) {
  auto bench = Bench::open(kernels::kTensorsInParameters, std::uint64_t{1} << 17);
  if (!bench) {
    rows.check("kernels", false, bench.status().message());
    return;
  }
  check_formats(**bench, rows, quick);
  check_lengths_and_alignments(**bench, rows, quick);
  check_views(**bench, rows);
  if (!quick) check_tables(**bench, rows);
  check_foreign_memory(**bench, rows);
}

void run_large_checks(Rows& rows) {
  auto bench = Bench::open(1, std::uint64_t{1} << 17);
  if (!bench) {
    rows.check("more than 2^32 elements", false, bench.status().message());
    return;
  }
  struct Case {
    DType dtype;
    std::uint64_t one;  // the code of 1
    std::uint64_t nan;
  };
  for (const Case c : {Case{DType::kE4M3FN, 0x38, 0x7f}, Case{DType::kF16, 0x3c00, 0x7e00},
                       Case{DType::kF32, 0x3f800000, 0x7fc00000}}) {
    const std::uint64_t count = (std::uint64_t{1} << 32) + 1000003;
    const std::size_t size = dtype_size(c.dtype);
    const std::string name = "2^32 + 1000003 elements of " + std::string(dtype_name(c.dtype));
    DeviceSession& session = *(*bench)->session;
    if (session.free_memory() < count * size + (std::size_t{1} << 30)) {
      rows.skip(name, "not enough memory on the device");
      continue;
    }
    auto* memory = static_cast<unsigned char*>(session.allocate(count * size));
    if (memory == nullptr) {
      rows.skip(name, "not enough memory on the device");
      continue;
    }
    // Zeros, with 1 at four places and NaN at one, all but one of them beyond 2^32.
    Status s = session.fill(memory, 0, count * size);
    for (const std::uint64_t at :
         {std::uint64_t{5}, std::uint64_t{1} << 32, (std::uint64_t{1} << 32) + 4097, count - 1}) {
      if (s) s = session.copy_in(memory + at * size, &c.one, size);
    }
    const std::uint64_t nan_at = (std::uint64_t{1} << 32) + 99;
    if (s) s = session.copy_in(memory + nan_at * size, &c.nan, size);
    const Dims sizes = {static_cast<std::int64_t>(count)};
    const Dims strides = {1};
    Tally tally;
    tally.add(s.is_ok(), s.message());
    const TensorStats got = (*bench)->run({memory, c.dtype, sizes, strides});
    tally.add((*bench)->last_error.is_ok(), (*bench)->last_error.message());
    tally.add(got.numel == static_cast<std::int64_t>(count), "numel");
    tally.add(got.first_nonfinite == static_cast<std::int64_t>(nan_at), "first " + std::to_string(got.first_nonfinite));
    tally.add(got.nan == 1 && got.zero == static_cast<std::int64_t>(count) - 5, "counts");
    tally.add(got.sum == 4 && got.sum_sq == 4, "sums");
    finish(rows, name, tally);
    session.release(memory);
  }
}

}  // namespace nanhunt::gpu
