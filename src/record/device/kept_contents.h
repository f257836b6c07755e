// SPDX-License-Identifier: Apache-2.0
// What an event borrows, kept until it is reported: views with what is known of their contents, and findings.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "kernels/cpu/checksum.h"
#include "nanhunt/event.h"
#include "nanhunt/recorder.h"
#include "src/record/measure/fp_environment.h"

namespace nanhunt::record {

// Contents that the host can read are gone when the event is reported: up to so many bytes are copied, of more it is kept
// what is known of them.
inline constexpr std::size_t kMostCopied = std::size_t{1} << 20;

inline bool is_deferred(const ValueView& view) { return view.late != 0 && view.tensor.data == nullptr; }

class KeptView {
 public:
  explicit KeptView(const ValueView& from) : view(from) {
    dims_.assign(from.tensor.sizes.begin(), from.tensor.sizes.end());
    dims_.insert(dims_.end(), from.tensor.strides.begin(), from.tensor.strides.end());
    view.tensor.sizes = std::span(dims_).first(from.tensor.sizes.size());
    view.tensor.strides = std::span(dims_).subspan(from.tensor.sizes.size());
    if (from.known != nullptr) know(*from.known);
    if (is_readable(from.tensor)) copy(from.tensor);
  }
  KeptView(const KeptView&) = delete;
  KeptView& operator=(const KeptView&) = delete;

  void know(const KnownContents& contents) {
    known_ = std::make_unique<KnownContents>(contents);
    view.known = known_.get();
  }
  std::size_t bytes() const {
    return sizeof(KeptView) + dims_.size() * sizeof(dims_[0]) + data_.size() + sizeof(KnownContents);
  }

  ValueView view;

 private:
  void copy(const TensorView& from) {
    const std::size_t bytes = static_cast<std::size_t>(from.numel()) * dtype_size(from.dtype);
    view.tensor.data = nullptr;
    if (from.is_contiguous() && bytes <= kMostCopied) {
      data_.resize(std::max<std::size_t>(bytes, 1));
      if (bytes > 0) std::memcpy(data_.data(), from.data, bytes);
      view.tensor.data = data_.data();
      return;
    }
    const ScopedDefaultFpEnvironment environment;
    KnownContents known;
    known.stats = compute_stats(from, StatsLevel::kSums);
    known.has_stats = true;
    known.checksum = checksum_of(from);
    know(known);
  }
  static std::uint64_t checksum_of(const TensorView& from) {
    if (!shows_one_block(from)) return kernels::checksum_elements(from);
    return kernels::checksum_bytes(from.data, static_cast<std::size_t>(from.numel()) * dtype_size(from.dtype));
  }

  std::vector<std::int64_t> dims_;
  std::vector<std::byte> data_;
  std::unique_ptr<KnownContents> known_;
};

class KeptEvidence {
 public:
  explicit KeptEvidence(const DeferredEvidence& from) : findings(from) {
    elements_.assign(from.elements.begin(), from.elements.end());
    for (DeferredElement& element : elements_) {
      element.operands = operands_.emplace_back(element.operands.begin(), element.operands.end());
    }
    histograms_.assign(from.histograms.begin(), from.histograms.end());
    for (DeferredHistogram& histogram : histograms_) {
      histogram.bins = bins_.emplace_back(histogram.bins.begin(), histogram.bins.end());
    }
    findings.elements = elements_;
    findings.histograms = histograms_;
  }
  KeptEvidence(const KeptEvidence&) = delete;
  KeptEvidence& operator=(const KeptEvidence&) = delete;

  std::size_t bytes() const {
    std::size_t all = sizeof(KeptEvidence) + elements_.size() * sizeof(DeferredElement) +
                      histograms_.size() * sizeof(DeferredHistogram);
    for (const auto& operands : operands_) all += sizeof(operands) + operands.size() * sizeof(DeferredOperand);
    for (const auto& bins : bins_) all += sizeof(bins) + bins.size() * sizeof(bins[0]);
    return all;
  }

  DeferredEvidence findings;

 private:
  std::vector<DeferredElement> elements_;
  std::deque<std::vector<DeferredOperand>> operands_;  // stay where they are
  std::vector<DeferredHistogram> histograms_;
  std::deque<std::vector<std::int64_t>> bins_;
};

}  // namespace nanhunt::record
