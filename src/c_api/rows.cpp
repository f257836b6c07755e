// SPDX-License-Identifier: Apache-2.0
// Packed rows: numbers for texts, layouts and calls, and ops as rows of words.
#include <bit>
#include <cstdint>
#include <limits>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "nanhunt/c_adapter.h"
#include "src/c_api/handle.h"

namespace nanhunt::c_api {
namespace {

using Use = DeviceStreams::Use;

constexpr std::size_t kOpHeader = 7, kMarkHeader = 5, kCheckHeader = 2;  // words before the first value or scalar

static_assert(NANHUNT_PHASE_VALIDATION == static_cast<int>(Phase::kValidation));

std::uint32_t u32_of(const char* what, std::int64_t word) {
  if (word < 0 || word > std::numeric_limits<std::uint32_t>::max()) {
    throw Misuse(std::string(what) + ": expected 0 to 4294967295, got " + std::to_string(word));
  }
  return static_cast<std::uint32_t>(word);
}

template <typename E>
E enum_word(const char* what, std::int64_t word, E last) {
  if (word < 0 || word > static_cast<std::int64_t>(last)) {
    throw Misuse(std::string(what) + ": expected 0 to " + std::to_string(static_cast<int>(last)) + ", got " +
                 std::to_string(word));
  }
  return static_cast<E>(word);
}

// Takes rows off the front. Nothing of a row is recorded before all of it was found right.
class RowReader {
 public:
  RowReader(nanhunt_recorder& to, std::span<const std::int64_t> words) : to_(to), rest_(words) {}

  bool done() const { return rest_.empty(); }
  std::uint64_t rows() const { return rows_; }
  void record_one() {
    to_.devices.begin();
    switch (rest_[0]) {
      case NANHUNT_ROW_OP: op(); break;
      case NANHUNT_ROW_MARK: mark(); break;
      case NANHUNT_ROW_RELEASE: release(); break;
      case NANHUNT_ROW_CHECK: check(); break;
      default: throw Misuse("there is no kind of row " + std::to_string(rest_[0]));
    }
    ++rows_;
  }

 private:
  void need(std::size_t words) const {
    if (rest_.size() < words) {
      throw Misuse("it takes " + std::to_string(words) + " words, and " + std::to_string(rest_.size()) + " are left");
    }
  }
  StringId text(const char* what, std::int64_t word) const {
    if (word < 0 || static_cast<std::uint64_t>(word) > to_.recorder->texts()) {
      throw Misuse(std::string(what) + ": there is no text number " + std::to_string(word) +
                   "; nanhunt_intern_text() gives them out");
    }
    return static_cast<StringId>(word);
  }

  void op() {
    need(kOpHeader);
    Call& call = to_.calls.of(rest_[1]);
    const std::size_t values = call.layouts.size();
    const std::size_t size = kOpHeader + values * kValueWords + call.scalars.size();
    need(size);
    call.event.step = u32_of("step", rest_[2]);
    call.event.micro_batch = u32_of("micro_batch", rest_[3]);
    call.event.phase = enum_word("phase", rest_[4], Phase::kValidation);
    call.numbers.module = text("module", rest_[5]);
    call.numbers.call_site = text("call site", rest_[6]);
    const std::int64_t* word = rest_.data() + kOpHeader;
    LayoutId* layout = call.layouts.data();
    for (OpInput& in : call.inputs) {
      in.value = to_.layouts.value("input", word);
      if (in.role == ArgRole::kOverwritten) in.value.tensor.data = nullptr;
      to_.devices.value("input", word, in.value, in.role == ArgRole::kOverwritten ? Use::kOld : Use::kInput);
      *layout++ = LayoutTable::id_of(word[3]);
      word += kValueWords;
    }
    for (OpOutput& out : call.outputs) {
      out.value = to_.layouts.value("output", word);
      to_.devices.value("output", word, out.value, Use::kMade);
      *layout++ = LayoutTable::id_of(word[3]);
      word += kValueWords;
    }
    for (OpScalar& scalar : call.scalars) scalar.value = std::bit_cast<double>(*word++);
    to_.devices.take(call.event, *to_.recorder);
    to_.recorder->on_op(call.event, call.numbers);
    rest_ = rest_.subspan(size);
  }

  void mark() {
    need(kMarkHeader + kValueWords);
    MarkEvent event;
    event.kind = enum_word("mark", rest_[1], TensorRole::kOutput);
    event.step = u32_of("step", rest_[2]);
    event.micro_batch = u32_of("micro_batch", rest_[3]);
    const StringId path = text("path", rest_[4]);
    event.path = to_.recorder->text(path);
    event.value = to_.layouts.value("mark", rest_.data() + kMarkHeader);
    to_.devices.value("mark", rest_.data() + kMarkHeader, event.value, Use::kRead);
    to_.devices.take(*to_.recorder);
    to_.recorder->on_mark(event, path, LayoutTable::id_of(rest_[kMarkHeader + 3]));
    rest_ = rest_.subspan(kMarkHeader + kValueWords);
  }

  void release() {
    need(2);
    to_.recorder->on_storage_released(static_cast<std::uint64_t>(rest_[1]));
    to_.devices.release(static_cast<std::uint64_t>(rest_[1]));
    rest_ = rest_.subspan(2);
  }

  void check() {
    need(kCheckHeader + kValueWords);
    const std::uint32_t step = u32_of("step", rest_[1]);
    ValueView value = to_.layouts.value("check", rest_.data() + kCheckHeader);
    to_.devices.value("check", rest_.data() + kCheckHeader, value, Use::kKnown);
    to_.devices.take(*to_.recorder);
    to_.recorder->check_contents(step, value, LayoutTable::id_of(rest_[kCheckHeader + 3]));
    rest_ = rest_.subspan(kCheckHeader + kValueWords);
  }

  nanhunt_recorder& to_;
  std::span<const std::int64_t> rest_;
  std::uint64_t rows_ = 0;
};

// A number, or -1 with the words of what is wrong.
template <typename F>
std::int64_t numbered(const char* function, nanhunt_recorder* handle, F&& body) noexcept {
  std::int64_t number = -1;
  const nanhunt_status status = recording(handle, [&](nanhunt_recorder& to) {
    number = body(to);
    if (number < 0) {
      throw Misuse(std::string(function) + ": no more numbers: over 1048575 different ones, or 32 MiB of them");
    }
  });
  return status == NANHUNT_OK ? number : -1;
}

}  // namespace
}  // namespace nanhunt::c_api

using namespace nanhunt;
using namespace nanhunt::c_api;

extern "C" {

int64_t nanhunt_intern_text(nanhunt_recorder* recorder, const char* text) {
  return numbered("nanhunt_intern_text", recorder, [&](nanhunt_recorder& to) -> std::int64_t {
    const std::string_view view = text_of(text);
    const StringId id = to.recorder->number_text(view);
    return id == 0 && !view.empty() ? -1 : static_cast<std::int64_t>(id);
  });
}

int64_t nanhunt_intern_layout(nanhunt_recorder* recorder, int32_t dtype, int32_t ndim, const int64_t* sizes,
                              const int64_t* strides) {
  return numbered("nanhunt_intern_layout", recorder, [&](nanhunt_recorder& to) {
    check_sizes("nanhunt_intern_layout", ndim, sizes);
    TensorView view;
    view.dtype = enum_of("dtype", dtype, DType::kBool);
    view.sizes = {sizes, static_cast<std::size_t>(ndim)};
    std::vector<std::int64_t> dense;
    if (strides == nullptr) {
      fill_strides(view.sizes, dense);
      strides = dense.data();
    }
    view.strides = {strides, view.sizes.size()};
    return to.layouts.number(*to.recorder, view);
  });
}

int64_t nanhunt_intern_call(nanhunt_recorder* recorder, const nanhunt_call* call) {
  return numbered("nanhunt_intern_call", recorder, [&](nanhunt_recorder& to) {
    return to.calls.number(*to.recorder, sized_copy("nanhunt_intern_call", call));
  });
}

nanhunt_status nanhunt_record_rows(nanhunt_recorder* recorder, const int64_t* words, size_t count) {
  return recording(recorder, [&](nanhunt_recorder& to) {
    if (words == nullptr && count != 0) throw Misuse("nanhunt_record_rows: expected words, got NULL");
    const DeviceTurn turn(to);
    if (!turn) return;
    to.devices.begin_call(*to.recorder);
    RowReader reader(to, {words, count});
    try {
      while (!reader.done()) reader.record_one();
    } catch (const Misuse& error) {
      to.devices.launch(*to.recorder);
      throw Misuse("nanhunt_record_rows: row " + std::to_string(reader.rows()) + " (from 0): " + error.what());
    }
    to.devices.launch(*to.recorder);
  });
}

uint64_t nanhunt_recorder_anomalies(const nanhunt_recorder* recorder) {
  return recorder == nullptr ? 0 : recorder->recorder->anomalies();
}

uint64_t nanhunt_recorder_bad_since(const nanhunt_recorder* recorder, uint64_t seq) {
  return recorder == nullptr ? 0 : recorder->recorder->bad_since(seq);
}

uint64_t nanhunt_recorder_origins(const nanhunt_recorder* recorder) {
  return recorder == nullptr ? 0 : recorder->recorder->origins();
}

uint64_t nanhunt_recorder_origins_that_last(const nanhunt_recorder* recorder) {
  return recorder == nullptr ? 0 : recorder->recorder->origins_that_last();
}

const char* nanhunt_recorder_folder(const nanhunt_recorder* recorder) {
  return recorder == nullptr ? "" : recorder->recorder->attempt_dir().c_str();
}

uint64_t nanhunt_recorder_next_seq(const nanhunt_recorder* recorder) {
  return recorder == nullptr ? 0 : recorder->recorder->next_seq();
}

}  // extern "C"
