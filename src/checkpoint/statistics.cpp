// SPDX-License-Identifier: Apache-2.0
#include "src/checkpoint/statistics.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <map>
#include <optional>
#include <span>
#include <thread>
#include <tuple>

#include "src/checkpoint/blocks.h"
#include "src/checkpoint/file_bytes.h"

namespace nanhunt::checkpoint {
namespace {

constexpr std::int64_t kBlockBytes = 1 << 17;  // stays in a core's own cache between reading and counting
constexpr std::int64_t kJobBytes = 32 << 20;
constexpr std::uint64_t kFewBytes = 8u << 20;  // not worth a second thread
constexpr std::uint64_t kMaxReadings = 8, kAlwaysAllowed = 64u << 20;

// A part of one piece: one thread reads it, in order.
struct Job {
  std::size_t file = 0;
  DType dtype = DType::kF32;
  const ByteFormat* byte_format = nullptr;
  std::uint64_t at = 0;
  std::vector<BlockDim> dims;
  std::uint64_t bytes = 0;
  TensorStats stats;
  bool read = false;
};

struct PieceJobs {
  std::size_t first = 0, count = 0;
  BlockLayout layout;
  bool possible = false;
};

using Buffer = std::vector<std::byte>;

TensorStats compute_byte_stats(const ByteFormat& format, std::span<const std::byte> bytes, const Block& block) {
  std::array<std::int64_t, 256> counts{};
  std::int64_t first_nonfinite = -1, at = 0;
  for_each_element(block, [&](std::int64_t place, std::int64_t) {
    const auto code = std::to_integer<std::uint8_t>(bytes[static_cast<std::size_t>(place)]);
    ++counts[code];
    if (code == format.nan_code && first_nonfinite < 0) first_nonfinite = at;
    ++at;
  });
  return stats_of_codes(format, counts, first_nonfinite);
}

void run_job(Job& job, const FileBytes& file, Buffer& buffer) {
  const auto element = static_cast<std::int64_t>(dtype_size(job.dtype));
  job.stats.level = StatsLevel::kCounts;
  const bool all = for_each_block({job.dims, 1}, kBlockBytes / element, [&](const Block& block) {
    const std::span<std::byte> bytes(buffer.data(), static_cast<std::size_t>(block.span[0] * element));
    if (!file.read(job.at + static_cast<std::uint64_t>(block.offset[0] * element), bytes)) return false;
    std::vector<std::int64_t> sizes, strides;
    for (const BlockDim& dim : block.dims) {
      sizes.push_back(dim.size);
      strides.push_back(dim.strides[0]);
    }
    merge(job.stats, job.byte_format != nullptr
                         ? compute_byte_stats(*job.byte_format, bytes, block)
                         : compute_stats({bytes.data(), job.dtype, sizes, strides}, StatsLevel::kCounts));
    return true;
  });
  job.read = all;
}

// Jobs are cut from the outermost dimension.
void add_jobs(const Piece& piece, const Tensor& tensor, const BlockLayout& layout, std::vector<Job>& jobs) {
  const auto element = static_cast<std::int64_t>(dtype_size(*tensor.dtype));
  for_each_block(layout, kJobBytes / element, [&](const Block& block) {
    Job job;
    job.file = piece.file;
    job.dtype = *tensor.dtype;
    job.byte_format = tensor.byte_format;
    job.at = piece.at + static_cast<std::uint64_t>(block.offset[0] * element);
    job.dims = block.dims;
    job.bytes = static_cast<std::uint64_t>(block.span[0] * element);
    jobs.push_back(std::move(job));
    return true;
  });
}

void run_jobs(const Checkpoint& checkpoint, std::vector<Job>& jobs, const ReportProgress& progress) {
  std::uint64_t total = 0;
  for (const Job& job : jobs) total += job.bytes;
  std::atomic<std::size_t> next = 0;
  std::atomic<std::uint64_t> done = 0;
  const auto work = [&](bool reports) {
    Buffer buffer(static_cast<std::size_t>(kBlockBytes));
    std::optional<FileBytes> file;
    std::size_t open_file = 0;
    for (std::size_t i = next++; i < jobs.size(); i = next++) {
      Job& job = jobs[i];
      if (!file || open_file != job.file) {
        file.reset();
        if (auto opened = checkpoint.open(job.file)) file = std::move(*opened);
        open_file = job.file;
      }
      if (file) run_job(job, *file, buffer);
      done += job.bytes;
      if (reports && progress) progress(done.load(), total);
    }
  };
  std::thread second;
  if (total > kFewBytes && std::thread::hardware_concurrency() > 1) second = std::thread(work, false);
  work(true);
  if (second.joinable()) second.join();
}

// Elements that were left out because they repeat the same bytes.
void repeat(TensorStats& stats, std::int64_t times) {
  for (std::int64_t* count : {&stats.numel, &stats.nan, &stats.pos_inf, &stats.neg_inf, &stats.zero, &stats.subnormal})
    *count *= times;
}

}  // namespace

std::uint64_t most_bytes_to_read(const Checkpoint& checkpoint) {
  std::uint64_t bytes = kAlwaysAllowed;
  for (std::size_t i = 0; i < checkpoint.files.size(); ++i)
    if (const auto file = checkpoint.open(i)) bytes += kMaxReadings * file->size();
  return bytes;
}

std::vector<TensorResult> compute_statistics(const Checkpoint& checkpoint, const ReportProgress& progress) {
  using Key = std::tuple<std::size_t, std::uint64_t, DType, const ByteFormat*, std::vector<std::int64_t>,
                         std::vector<std::int64_t>>;
  std::vector<TensorResult> out(checkpoint.tensors.size());
  std::vector<Job> jobs;
  std::map<Key, PieceJobs> pieces;
  const std::uint64_t allowed = most_bytes_to_read(checkpoint);
  std::uint64_t asked = 0;
  const auto key_of = [](const Piece& piece, const Tensor& tensor) {
    return Key{piece.file, piece.at, *tensor.dtype, tensor.byte_format, piece.sizes, piece.strides};
  };
  for (std::size_t i = 0; i < out.size(); ++i) {
    const Tensor& tensor = checkpoint.tensors[i];
    out[i].problem = tensor.problem;
    out[i].damaged = tensor.damaged;
    if (!tensor.problem.empty() || !tensor.dtype) continue;
    for (const Piece& piece : tensor.pieces) {
      const auto [known, fresh] = pieces.emplace(key_of(piece, tensor), PieceJobs{});
      PieceJobs& here = known->second;
      if (fresh) {
        if (auto layout = layout_of(piece)) {
          here.layout = std::move(*layout);
          const std::uint64_t bytes = static_cast<std::uint64_t>(here.layout.elements()) * dtype_size(*tensor.dtype);
          here.possible = asked + bytes <= allowed;
          if (here.possible) asked += bytes;
          here.first = jobs.size();
          if (here.possible) add_jobs(piece, tensor, here.layout, jobs);
          here.count = jobs.size() - here.first;
          if (!here.possible) out[i].problem = "its file has the same bytes read too often";
        } else {
          out[i].problem = "its elements share bytes";
        }
      } else if (!here.possible) {
        out[i].problem = "its elements share bytes";
      }
    }
  }
  run_jobs(checkpoint, jobs, progress);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const Tensor& tensor = checkpoint.tensors[i];
    TensorResult& result = out[i];
    if (!result.problem.empty() || !tensor.dtype) continue;
    result.judged = true;
    result.stats.level = StatsLevel::kCounts;
    for (const Piece& piece : tensor.pieces) {
      const PieceJobs& here = pieces.at(key_of(piece, tensor));
      TensorStats all;
      all.level = StatsLevel::kCounts;
      for (std::size_t j = here.first; j < here.first + here.count; ++j) {
        result.judged = result.judged && jobs[j].read;
        merge(all, jobs[j].stats);
      }
      if (all.any_nonfinite && result.first.empty()) {
        result.first = index_in_piece(piece, here.layout, all.first_nonfinite);
        for (std::size_t d = 0; d < std::min(result.first.size(), piece.origin.size()); ++d)
          result.first[d] += piece.origin[d];
      }
      repeat(all, here.layout.repeats);
      merge(result.stats, all);
    }
    if (!result.judged) {
      result.problem = "its bytes could not be read";
      result.damaged = true;
    }
  }
  return out;
}

ZeroCount count_zero_where_other_is_not(const Checkpoint& checkpoint, const Tensor& tensor, const Tensor& other) {
  ZeroCount out;
  if (!tensor.dtype || !other.dtype || tensor.byte_format || other.byte_format ||
      tensor.pieces.size() != other.pieces.size())
    return out;
  for (std::size_t i = 0; i < tensor.pieces.size(); ++i) {
    const Piece &a = tensor.pieces[i], &b = other.pieces[i];
    if (a.sizes != b.sizes) return out;
    const auto layout = layout_of(a, b);
    const auto file_a = checkpoint.open(a.file), file_b = checkpoint.open(b.file);
    if (!layout || !file_a || !file_b) return out;
    const auto size_a = static_cast<std::int64_t>(dtype_size(*tensor.dtype)),
               size_b = static_cast<std::int64_t>(dtype_size(*other.dtype));
    Buffer bytes_a, bytes_b;
    const bool all = for_each_block(*layout, kBlockBytes / 8, [&](const Block& block) {
      bytes_a.resize(static_cast<std::size_t>(block.span[0] * size_a));
      bytes_b.resize(static_cast<std::size_t>(block.span[1] * size_b));
      if (!file_a->read(a.at + static_cast<std::uint64_t>(block.offset[0] * size_a), bytes_a) ||
          !file_b->read(b.at + static_cast<std::uint64_t>(block.offset[1] * size_b), bytes_b))
        return false;
      for_each_element(block, [&](std::int64_t at_a, std::int64_t at_b) {
        if (load_as_f64(*tensor.dtype, bytes_a.data() + at_a * size_a) != 0) return;
        const double value = load_as_f64(*other.dtype, bytes_b.data() + at_b * size_b);
        if (value != 0 && std::isfinite(value)) out.zeros += layout->repeats;
      });
      return true;
    });
    if (!all) return {};
  }
  out.known = true;
  return out;
}

bool neg_inf_is_above_diagonal(const Checkpoint& checkpoint, const Tensor& tensor, std::uint64_t& bytes) {
  const std::size_t rank = tensor.sizes.size();
  if (rank < 2 || !tensor.dtype || tensor.byte_format != nullptr) return false;
  const auto size = static_cast<std::int64_t>(dtype_size(*tensor.dtype));
  Buffer buffer;
  for (const Piece& piece : tensor.pieces) {
    const auto layout = layout_of(piece);
    const auto file = checkpoint.open(piece.file);
    if (!layout || !file || piece.sizes.size() != rank) return false;
    const auto wanted = static_cast<std::uint64_t>(layout->elements() * size);
    if (wanted > bytes) return false;
    bytes -= wanted;
    std::vector<std::size_t> order;  // dimensions by stride, largest first
    for (std::size_t d = 0; d < rank; ++d)
      if (piece.strides[d] > 0 && piece.sizes[d] > 1) order.push_back(d);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return piece.strides[a] > piece.strides[b]; });
    std::vector<std::int64_t> origin = piece.origin;
    origin.resize(rank);
    bool only_there = true;
    const bool all = for_each_block(*layout, kBlockBytes / 8, [&](const Block& block) {
      buffer.resize(static_cast<std::size_t>(block.span[0] * size));
      if (!file->read(piece.at + static_cast<std::uint64_t>(block.offset[0] * size), buffer)) return false;
      std::vector<std::int64_t> index(rank);
      for_each_element(block, [&](std::int64_t place, std::int64_t) {
        std::int64_t offset = block.offset[0] + place;
        for (const std::size_t d : order) {
          index[d] = offset / piece.strides[d];
          offset %= piece.strides[d];
        }
        const double value = load_as_f64(*tensor.dtype, buffer.data() + place * size);
        const bool is_above = index[rank - 1] + origin[rank - 1] > index[rank - 2] + origin[rank - 2];
        only_there = only_there && is_above == (std::isinf(value) && std::signbit(value));
      });
      return only_there;
    });
    if (!all) return false;
  }
  return !tensor.pieces.empty();
}

}  // namespace nanhunt::checkpoint
