// SPDX-License-Identifier: Apache-2.0
// Random rows, recorded once of the host and once of a device that is late: what is known in the end is the same, word
// for word, whether what ops take is compared or trusted.
#include <cmath>
#include <random>

#include "tests/c_api/device_rows_fixture.h"

namespace nanhunt::c_api_tests {
namespace {

class CDeviceAgrees : public CDeviceRows {
 protected:
  // A 2 x 2 tensor that ops write over and make anew.
  struct Tensor {
    std::array<float, 4> numbers;
    std::int64_t storage = 0, version = 0;
  };

  // Six tensors, ops between them, views of them, marks, checks and ends of life, on two streams.
  RecordBatch record_at_random(unsigned seed, bool there, bool trust) {
    nanhunt_emulated_reset();
    nanhunt_emulated_set("copies_later", seed % 4);
    nanhunt_recorder_options how = options();
    const std::string run = dir_.path((there ? "there" : "host") + std::to_string(seed) + (trust ? "t" : "c"));
    how.run_dir = run.c_str();
    how.trust_inputs = trust ? 1 : 0;
    open(how);
    streams_ = {nanhunt_device_stream(recorder_, 0, kStream), nanhunt_device_stream(recorder_, 0, kStream + 1)};
    const std::array<std::int64_t, 2> square = {2, 2}, turned = {1, 2}, column = {2, 1}, gaps = {2, 1};
    layouts_ = {nanhunt_intern_layout(recorder_, NANHUNT_F32, 2, square.data(), nullptr),
                nanhunt_intern_layout(recorder_, NANHUNT_F32, 2, square.data(), turned.data()),
                nanhunt_intern_layout(recorder_, NANHUNT_F32, 2, column.data(), gaps.data()), layout_};
    const std::array<std::int32_t, 2> roles = {NANHUNT_OVERWRITTEN, NANHUNT_READ};
    const std::int64_t add = call("add_", {"self", "other"}, {"out"}, {}, roles.data()),
                       view = call("view", {"self"}, {"out"});
    random_.seed(seed);
    there_ = there;
    next_storage_ = 1;
    for (Tensor& tensor : tensors_) {
      tensor = {{}, next_storage_++, 0};
      for (float& number : tensor.numbers) number = static_cast<float>(1 + below(5));
    }
    std::int64_t step = 0;
    for (int i = 0; i < 120; ++i) {
      const std::size_t a = below(tensors_.size()), b = (a + 1 + below(tensors_.size() - 1)) % tensors_.size();
      const std::size_t layout = below(layouts_.size()), other = below(layouts_.size());
      // What changed unseen is compared on the stream on which it was read, and there alone.
      stream_ = streams_[below(5) == 0 && trust ? 1 : 0];
      const bool unseen = below(12) == 0;
      if (unseen && !trust) tensors_[below(tensors_.size())].numbers[below(4)] = below(2) == 0 ? kInf : 9;
      Words row = {NANHUNT_ROW_OP, log_, step, 0, NANHUNT_PHASE_LOSS, 0, 0};
      switch (below(9)) {
        case 0:
        case 1:
        case 2:  // b = log(a)
          append(row, value_of(a, layout));
          write(b);
          if (below(3) == 0) make_anew(b);
          append(row, value_of(b, 0));
          break;
        case 3:
        case 4:  // a += b
          row[1] = add;
          append(row, value_of(a, layout));
          row[7] = 0;  // what was there is gone
          append(row, value_of(b, other));
          write(a);
          append(row, value_of(a, layout));
          break;
        case 5:
          row[1] = view;
          append(row, value_of(a, 0));
          append(row, value_of(a, layout));
          break;
        case 6:
          row = {NANHUNT_ROW_MARK, NANHUNT_PARAMETER, step, 0, 0};
          append(row, value_of(a, layout));
          break;
        case 7:
          row = {NANHUNT_ROW_CHECK, step};
          append(row, value_of(a, layout));
          if (below(2) == 0) break;
          row = {NANHUNT_ROW_RELEASE, tensors_[a].storage};
          make_anew(a);
          break;
        default:
          row.clear();
          end_step(static_cast<std::uint32_t>(step++));
          if (step % 4 == 0) {
            EXPECT_EQ(nanhunt_recorder_flush(recorder_), NANHUNT_OK);
          }
      }
      EXPECT_EQ(row.empty() ? NANHUNT_OK : record(row), NANHUNT_OK) << nanhunt_last_error();
    }
    return close_and_read();
  }

  // Histograms, unless contents changed unseen: of what was written over since, the device may know that it was bad,
  // the recorder that it is not known. Such a birth is noted as one without.
  static std::string told(const RecordBatch& all, bool with_histograms) {
    std::string text;
    const auto add = [&](auto... numbers) { (text.append(std::to_string(numbers)).push_back(' '), ...); };
    for (const ValueRecord& value : all.values) {
      add(value.storage, value.version, value.base, value.producer, value.has_stats);
      const TensorStats& stats = value.stats;
      if (value.has_stats) add(stats.nan, stats.pos_inf, stats.neg_inf, stats.zero, stats.first_nonfinite, stats.sum);
      text += '\n';
    }
    for (const EvidenceRecord& one : all.evidence) add(one.seq, one.value, one.flat_index, one.operands.size());
    for (const HistogramRecord& one : all.histograms) {
      if (!with_histograms) break;
      add(one.seq, one.value, one.min_exponent);
      for (const auto bin : one.bins) add(bin);
    }
    for (const ChangedRecord& one : all.changed) add(one.before, one.after, one.step);
    return text;
  }

 private:
  std::size_t below(std::size_t bound) { return random_() % bound; }
  Words value_of(std::size_t tensor, std::size_t layout) const {
    const Tensor& its = tensors_[tensor];
    return {there_ ? away(its.numbers.data()) : address(its.numbers.data()), identity(its.storage, its.version), 0,
            there_ ? NANHUNT_ON_STREAM(layouts_[layout], stream_) : layouts_[layout]};
  }
  void write(std::size_t tensor) {
    ++tensors_[tensor].version;
    for (float& number : tensors_[tensor].numbers) {
      number = below(6) == 0 ? (below(2) == 0 ? std::nanf("") : kInf) : static_cast<float>(below(7));
    }
  }
  void make_anew(std::size_t tensor) {
    tensors_[tensor].storage = next_storage_++;
    tensors_[tensor].version = 0;
  }

  std::array<Tensor, 6> tensors_;
  std::array<std::int64_t, 2> streams_ = {};
  std::array<std::int64_t, 4> layouts_ = {};
  std::int64_t next_storage_ = 1;
  bool there_ = false;
  std::mt19937 random_;
};

TEST_F(CDeviceAgrees, with_the_host_whatever_is_recorded) {
  std::size_t origins = 0, changes = 0;
  for (const bool trust : {true, false}) {
    for (unsigned seed = 1; seed <= 60; ++seed) {
      const RecordBatch host = record_at_random(seed, false, trust);
      const RecordBatch there = record_at_random(seed, true, trust);
      ASSERT_EQ(told(there, trust), told(host, trust)) << "seed " << seed << (trust ? ", trusted" : "");
      origins += host.histograms.size();
      changes += host.changed.size();
    }
  }
  EXPECT_GT(origins, 1000u);
  EXPECT_GT(changes, 100u);
}

}  // namespace
}  // namespace nanhunt::c_api_tests
