// SPDX-License-Identifier: Apache-2.0
// What is asked of a device of an op's elements, and how the answer is told.
#include "src/record/device/device_elements.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/record/support.h"
#include "tests/support/silent_recorder.h"

namespace nanhunt::record {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;
using testing::TestTensor;

constexpr float kInf = std::numeric_limits<float>::infinity();

// y = a / b, b broadcast over the rows of a; all lie on the device, which reads b, a and y in this order.
class DeviceElements : public ::testing::Test {
 protected:
  OpEvent event(std::string_view op = "div") {
    OpEvent it;
    it.op = op;
    it.inputs = inputs_;
    it.outputs = outputs_;
    return it;
  }
  static ValueView away(const TestTensor& tensor) {
    ValueView view = tensor.value();
    view.tensor.data = nullptr;
    return view;
  }

  TestTensor a_{DType::kF32, {2, 3}, {1, 2, 3, 4, 0, 6}, 1}, b_{DType::kF32, {3}, {1, 0, 3}, 2},
      y_{DType::kF32, {2, 3}, {1, kInf, 1, 4, kInf, 2}, 3};
  std::vector<OpInput> inputs_ = {{"self", away(a_)}, {"other", away(b_)}};
  std::vector<OpOutput> outputs_ = {{"out", away(y_)}};
  std::vector<DeviceOperand> in_ = {{a_.tensor().data, 1, false, 5}, {b_.tensor().data, 0, true, 6}},
                             out_ = {{y_.tensor().data, 2, true, 7}};
  DeviceOperands operands() const { return {in_, out_}; }
  std::vector<kernels::EvidenceCall> calls_;
  ElementRequest requests_;
};

TEST_F(DeviceElements, of_an_output_its_elements_are_asked_with_what_meets_in_them) {
  ASSERT_TRUE(ask_elements(event(), operands(), calls_, requests_));
  ASSERT_THAT(calls_, SizeIs(1));
  const kernels::EvidenceCall& call = calls_[0];
  EXPECT_EQ(call.of, 2u);
  EXPECT_EQ(call.out.data, y_.tensor().data);
  ASSERT_EQ(call.inputs, 2);
  EXPECT_EQ(call.in[0].data, a_.tensor().data);
  EXPECT_EQ(call.in[1].data, b_.tensor().data);
  EXPECT_EQ(call.walk.count, 6);
  ASSERT_EQ(call.walk.dims, 2);
  EXPECT_THAT(std::span(call.in[1].strides).first(2), ElementsAre(0, 1));
  EXPECT_TRUE(call.counts_flushed);
  EXPECT_EQ(call.must_be_nonzero, 1u);
  EXPECT_EQ(call.must_not_be_inf, 2u);
}

TEST_F(DeviceElements, contents_that_were_read_before_and_formats_without_kernels_are_not_asked_for) {
  out_[0].is_new = false;
  EXPECT_FALSE(ask_elements(event(), operands(), calls_, requests_));
  out_[0] = {y_.tensor().data, kNoReading, true, 7};
  EXPECT_FALSE(ask_elements(event(), operands(), calls_, requests_));
  out_[0] = {y_.tensor().data, 2, true, 7};
  outputs_[0].value.tensor.dtype = DType::kE4M3FN;
  EXPECT_FALSE(ask_elements(event(), operands(), calls_, requests_));
  EXPECT_THAT(calls_, SizeIs(0));
}

TEST_F(DeviceElements, numbers_of_the_host_meet_in_them_and_tensors_of_the_host_do_not) {
  const TestTensor two(DType::kF32, {}, {2}, 4);
  inputs_ = {{"self", a_.value()}, {"other", two.value()}};
  in_ = {{}, {}};
  ASSERT_TRUE(ask_elements(event(), operands(), calls_, requests_));
  ASSERT_EQ(calls_[0].inputs, 1);
  EXPECT_TRUE(calls_[0].in[0].is_number);
  EXPECT_EQ(calls_[0].in[0].number, 2);
  EXPECT_FALSE(calls_[0].counts_flushed) << "whether self was 0 is not known";
}

TEST_F(DeviceElements, histograms_are_asked_of_what_is_known_without_reading_it_and_once_of_the_same) {
  in_[0] = {a_.tensor().data, kNoReading, false, 5, 3};
  in_[1] = {a_.tensor().data, kNoReading, false, 5, 3};
  ASSERT_TRUE(ask_elements(event(), operands(), calls_, requests_));
  const kernels::OriginCall origins = ask_origins(event(), operands(), requests_);
  EXPECT_THAT(std::span(origins.tensor).first(origins.tensors), ElementsAre(3u | kernels::kShownOnly, 2u));
  EXPECT_EQ(origins.decided_by, 0u) << "with the elements of its output";
  EXPECT_THAT(requests_.histograms, SizeIs(3));
}

TEST_F(DeviceElements, histograms_are_asked_of_what_is_read_where_bad_numbers_may_be_born) {
  const TestTensor old(DType::kF32, {2, 3}, {0, 0, 0, 0, 0, 0}, 3);
  inputs_.push_back({"out", away(old), ArgRole::kOverwritten});
  in_.push_back({nullptr, kNoReading, false, 9});
  const kernels::OriginCall origins = ask_origins(event(), operands(), requests_);
  EXPECT_THAT(std::span(origins.tensor).first(origins.tensors), ElementsAre(1u, 0u, 2u));
  EXPECT_THAT(std::span(origins.reference).first(origins.inputs), ElementsAre(5u, 6u, 9u));
  EXPECT_THAT(std::span(origins.output).first(origins.outputs), ElementsAre(2u));
  EXPECT_EQ(origins.known_in, 0u);
  ASSERT_THAT(requests_.histograms, SizeIs(3));
  EXPECT_TRUE(requests_.histograms[2].of_output);
  // An op that writes over everything reads nothing of it.
  ElementRequest filled;
  EXPECT_EQ(ask_origins(event("fill_"), operands(), filled).inputs, 2u);
}

TEST_F(DeviceElements, what_comes_is_told_by_the_op_s_own_inputs_and_outputs) {
  struct Reported final : testing_support::SilentRecorder {
    void on_deferred_evidence(std::uint64_t number, const DeferredEvidence& findings) noexcept override {
      told = number;
      flushed = findings.flushed;
      for (const DeferredElement& element : findings.elements) {
        at.push_back(element.flat_index);
        for (const DeferredOperand& met : element.operands) places.push_back(met.flat_index);
      }
      for (const DeferredHistogram& histogram : findings.histograms) bins.push_back(histogram.bins.size());
    }
    std::uint64_t told = 0;
    std::int64_t flushed = -1;
    std::vector<std::int64_t> at, places;
    std::vector<std::size_t> bins;
  } recorder;
  ASSERT_TRUE(ask_elements(event(), operands(), calls_, requests_));
  static_cast<void>(ask_origins(event(), operands(), requests_));
  requests_.number = 42;
  kernels::ReadingExtras found;
  kernels::DeviceEvidence& one = found.findings.emplace_back().emplace();
  one.first_inf = 4;  // [1, 1]
  one.flushed = 3;
  found.histograms.resize(1);
  found.histograms[0].resize(3);
  found.histograms[0][2] = compute_stats(y_.tensor(), StatsLevel::kHistogram);
  report_elements(requests_, found, recorder);
  EXPECT_EQ(recorder.told, 42u);
  EXPECT_EQ(recorder.flushed, 3);
  EXPECT_THAT(recorder.at, ElementsAre(4));
  EXPECT_THAT(recorder.places, ElementsAre(4, 1)) << "in b, row 1 is row 0";
  EXPECT_THAT(recorder.bins, ElementsAre(found.histograms[0][2]->histogram.size()));
}

}  // namespace
}  // namespace nanhunt::record
