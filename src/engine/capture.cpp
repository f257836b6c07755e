// SPDX-License-Identifier: Apache-2.0
#include "src/engine/capture.h"

#include <cstring>
#include <exception>
#include <stdexcept>
#include <utility>

#include "src/engine/backend.h"
#include "src/engine/ops/op.h"
#include "src/engine/silence.h"

namespace nanhunt::engine {
namespace {

constexpr std::size_t kAlignment = 16;

thread_local CapturedWork* captured_now = nullptr;
thread_local bool op_reads_indices = false;

}  // namespace

CapturedWork* CapturedWork::current() { return captured_now; }

CapturedWork::CapturedWork(const Device& device, std::size_t room)
    : device_(device),
      first_generation_(Storage(0).generation()),
      there_(room, Storage::Contents::kUndefined, device),
      here_(room) {}

std::unique_ptr<CapturedWork> CapturedWork::capture(const Device& device, std::size_t room,
                                                    const std::function<void()>& work, std::string& why) {
  why.clear();
  if (captured_now != nullptr) {
    why = "a graph is being captured already";
    return nullptr;
  }
  kernels::DeviceBackend& backend = backend_of(device);
  std::unique_ptr<CapturedWork> out;
  try {
    out.reset(new CapturedWork(device, room));
  } catch (const std::exception& e) {
    why = e.what();
    return nullptr;
  }
  const ScopedSilence silence;
  if (!backend.begin_capture(why)) return nullptr;
  captured_now = out.get();
  try {
    work();
  } catch (const std::exception& e) {
    why = e.what();
  } catch (...) {
    why = "something unknown was thrown";
  }
  captured_now = nullptr;
  std::string ending;
  out->graph_ = backend.end_capture(ending);
  if (why.empty()) why = ending;
  if (out->graph_ == nullptr || !why.empty()) return nullptr;
  return out;
}

void CapturedWork::replay() {
  if (!fed_) {
    for (const Feed& feed : feeds_) feed.fill(here_.data() + feed.at);
  }
  fed_ = false;
  kernels::DeviceBackend& backend = backend_of(device_);
  if (used_ != 0) backend.to_device(there_.data(), here_.data(), used_);
  graph_->replay();
}

const void* CapturedWork::feed(std::size_t bytes, std::function<void(void* to)> fill) {
  const std::size_t size = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (size > here_.size() - used_) throw std::runtime_error("more is fed to a graph than there is room for");
  const std::size_t at = used_;
  fill(here_.data() + at);
  used_ += size;
  feeds_.push_back({std::move(fill), at});
  return there_.data() + at;
}

const void* CapturedWork::feed_number(const Tensor& number) {
  if (number.storage()->generation() >= first_generation_) return nullptr;
  if (!is_floating(number.dtype())) {
    throw std::runtime_error("a number of the CPU that is not floating cannot be part of a graph: " +
                             describe(number));
  }
  const std::pair key(number.storage().get(), number.storage_offset());
  if (const auto known = numbers_.find(key); known != numbers_.end()) return known->second;
  const std::size_t bytes = dtype_size(number.dtype());
  const void* place = feed(bytes, [number, bytes](void* to) { std::memcpy(to, number.raw(), bytes); });
  numbers_.emplace(key, place);
  return place;
}

void CapturedWork::only_leaves(const std::vector<NamedTensor>& leaves) {
  any_leaf_ = false;
  for (const NamedTensor& entry : leaves) leaves_.insert(entry.tensor.impl().get());
}

void CapturedWork::expect_leaf(const Tensor& leaf) const {
  if (any_leaf_ || leaves_.count(leaf.impl().get()) != 0 || leaf.storage()->generation() >= first_generation_) return;
  throw std::runtime_error("the gradient of a tensor that the optimizer does not have adds up from step to step: " +
                           describe(leaf));
}

void CapturedWork::keep(const std::shared_ptr<Storage>& storage) {
  if (storage->generation() < first_generation_) kept_.emplace(storage.get(), storage);
}

ScopedValue<bool> reading_indices() { return {op_reads_indices, true}; }

void expect_index_read() {
  if (captured_now == nullptr || op_reads_indices) return;
  throw std::runtime_error("reading indices on the host cannot be part of a graph");
}

void expect_not_captured(const Tensor& tensor, const char* what) {
  if (captured_now == nullptr || !tensor.defined() || !tensor.device().is_cpu()) return;
  throw std::runtime_error(std::string(what) + " on the CPU cannot be part of a graph");
}

}  // namespace nanhunt::engine
