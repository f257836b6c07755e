// SPDX-License-Identifier: Apache-2.0
// Readings of the emulated device: the statistics kernels of kernels/cuda in an emulated grid, their results as late as
// the test says.
#include <algorithm>
#include <cstring>
#include <new>
#include <stdexcept>

#include "kernels/portable/finite_kernel.h"
#include "kernels/portable/origin_kernel.h"
#include "kernels/portable/checksum_kernel.h"
#include "kernels/portable/evidence_kernels.h"
#include "kernels/portable/checksum_stats_kernel.h"
#include "kernels/portable/tensor_stats_kernel.h"
#include "kernels/portable/update_kernels.h"
#include "tests/support/emulated_device.h"
#include "tests/support/emulated_grid.h"

namespace nanhunt::testing_support {

using namespace kernels;
using namespace kernels::cuda;

namespace {

template <class Kernel>
void run_in_order(Order order, const Kernel& kernel, std::uint32_t blocks, std::uint32_t threads) {
  const auto orders = block_orders(blocks, 1);
  run_grid(kernel, orders[order == Order::kForwards ? 0 : order == Order::kBackwards ? 1 : 2], threads,
           order == Order::kBackwards);
}

}  // namespace

// Not in a namespace of its own: the device's friend.
class EmulatedReadings final : public ReadingsPort {
 public:
  EmulatedReadings(EmulatedDevice& device, const ReadingsOptions& options)
      : device_(device),
        partials_(options.max_items),
        tickets_(kTensorsInParameters),
        records_(options.tensors),
        host_(options.tensors),
        references_(options.references + 1),
        sums_(kChecksInParameters),
        gates_(options.references + 1),
        check_tickets_(kChecksInParameters),
        known_(options.references + 1),
        arena_(options.arena_words),
        accumulators_(options.arena_words == 0 ? 0 : kMaxOriginTensors * kDetailWords),
        marks_(static_cast<std::size_t>(options.copies)) {
    // What was not copied has not come.
    std::fill_n(reinterpret_cast<unsigned char*>(host_.data()), host_.size() * sizeof(DeviceStatsRecord), 0xa5);
  }

  Status launch(std::span<const DeviceTensor> tensors, std::size_t first) override {
    if (tensors.size() > kTensorsInParameters) throw std::logic_error("too many tensors for one launch");
    StatsTable table;
    std::uint32_t items = 0;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const DeviceTensor& tensor = tensors[i];
      const auto count = static_cast<std::uint64_t>(tensor.count);
      table.entries[i] = make_entry(address(tensor.data), count, tensor.dtype, items, tensor.tag);
      items += static_cast<std::uint32_t>(stats_items(count * element_bytes(tensor.dtype)));
    }
    table.tensors = static_cast<std::uint32_t>(tensors.size());
    return run(table, items, first, tensors.size());
  }
  Status look(std::span<const DeviceTensor> tensors, std::size_t made, std::size_t first) override {
    if (tensors.size() > kTensorsInParameters || made > tensors.size()) throw std::logic_error("too many tensors for one launch");
    ++device_.launches;
    const auto kernel = std::make_unique<FiniteKernel>();
    std::vector<DeviceStatsRecord> found(tensors.size());
    kernel->records = found.data();
    kernel->gates = finite_gates_.data();
    kernel->gate = gate_;
    kernel->next_gate = gate_after(gate_);
    kernel->all = static_cast<std::uint32_t>(tensors.size());
    std::uint32_t items = 0;
    for (std::size_t i = 0; i < made; ++i) {
      const auto count = static_cast<std::uint64_t>(tensors[i].count);
      kernel->table.entries[i] = make_entry(address(tensors[i].data), count, tensors[i].dtype, items, 0);
      items += static_cast<std::uint32_t>(stats_items(count * element_bytes(tensors[i].dtype)));
    }
    kernel->table.tensors = static_cast<std::uint32_t>(made);
    run_ordered(*kernel, items, kStatsThreads);
    const bool open = finite_gates_[gate_] != 0;
    gate_ = gate_after(gate_);
    if (open) return launch(tensors, first);
    ++device_.launches;
    if (first + tensors.size() > records_.size()) throw std::logic_error("slots that do not exist");
    std::copy(found.begin(), found.end(), records_.begin() + static_cast<std::ptrdiff_t>(first));
    return Status::ok();
  }
  Status launch(std::span<const ChecksumStatsTensor> tensors, std::size_t first) override {
    if (tensors.size() > kChecksInParameters) throw std::logic_error("too many tensors for one launch");
    std::vector<ChecksumStatsTensor> here(tensors.begin(), tensors.end());
    for (ChecksumStatsTensor& entry : here) {
      if (entry.tensor.data != nullptr) entry.tensor.data = EmulatedDevice::on_host(entry.tensor.data);
      if (entry.slot != kNoSlot && entry.slot >= records_.size())
        throw std::logic_error("a slot that does not exist");
    }
    ++device_.launches;
    ++device_.checks;
    const auto call = std::make_unique<ChecksumStatsCall>();
    const std::uint32_t items = fill_checksum_stats(here, call->table);
    if (items > partials_.size()) throw std::logic_error("more than there is room for");
    std::vector<DeviceChecks> found((here.size() + kChecksInRecord - 1) / kChecksInRecord);
    call->memory = {checks(found.data()), partials_.data(), records_.data(), known_.data()};
    run_ordered(ChecksumStatsKernel{*call}, items, kStatsThreads);
    leave(found, first);
    return Status::ok();
  }
  Status launch(const CheckedTensor& tensor, std::size_t slot) override {
    CheckedTensor here = tensor;
    here.view.data = address(reinterpret_cast<const void*>(tensor.view.data));
    ++device_.launches;
    ++device_.checks;
    std::vector<DeviceChecks> found(1);
    run_ordered(ChecksumKernel{checks(found.data()), {here.view, here.reference}},
                checksum_blocks(here.view.count * here.view.size), kChecksumThreads);
    leave(found, slot);
    return Status::ok();
  }
  Status launch(const DeviceStatsView& view, std::uint32_t tag, std::size_t slot) override {
    DeviceStatsView here = view;
    here.data = address(reinterpret_cast<const void*>(view.data));
    const auto items = static_cast<std::uint32_t>(stats_items(view.count * element_bytes(view.dtype)));
    StatsTable table;
    table.view = here;
    table.tag = tag;
    return run(table, items, slot, 1);
  }

  Status launch(const EvidenceCall& call, std::size_t of, std::size_t slot, const OriginPlan* origins,
                std::size_t origins_slot) override {
    ++device_.launches;
    EvidenceCall here = call;
    here.out.data = const_cast<void*>(EmulatedDevice::on_host(call.out.data));
    for (int k = 0; k < call.inputs; ++k) {
      if (!call.in[k].is_number) here.in[k].data = const_cast<void*>(EmulatedDevice::on_host(call.in[k].data));
    }
    // A device's memory has no types.
    DeviceEvidence found;
    DeviceOrigins born;
    EvidenceKernel kernel{here, &records_.at(of), &so_far_, &found};
    if (origins != nullptr) kernel.origins = {*origins, origin_memory(), &born};
    run_ordered(kernel, kernel.blocks(), EvidenceKernel::kThreads);
    std::memcpy(static_cast<void*>(&records_.at(slot)), &found, sizeof found);
    if (origins != nullptr) std::memcpy(static_cast<void*>(&records_.at(origins_slot)), &born, sizeof born);
    return Status::ok();
  }

  Status launch(const UpdatesCall& call, std::size_t slot) override {
    ++device_.launches;
    UpdatesCall here = call;
    for (DeviceArray* array : {&here.self, &here.a, &here.b}) {
      if (array->data != nullptr) array->data = const_cast<void*>(EmulatedDevice::on_host(array->data));
    }
    DeviceUpdates found;
    const LostUpdatesKernel kernel{here, &updates_, &found};
    run_ordered(kernel, kernel.blocks(), LostUpdatesKernel::kThreads);
    std::memcpy(static_cast<void*>(&records_.at(slot)), &found, sizeof found);
    return Status::ok();
  }

  Status launch(const OriginPlan& plan, std::size_t slot) override {
    ++device_.launches;
    DeviceOrigins found;
    OriginKernel{plan, origin_memory(), &found}(0);
    std::memcpy(static_cast<void*>(&records_.at(slot)), &found, sizeof found);
    return Status::ok();
  }
  Status launch(std::span<const DeviceStatsView> views) override {
    ++device_.launches;
    FewViews table;
    table.tensors = static_cast<std::uint32_t>(views.size());
    std::uint32_t items = 0;
    for (std::size_t i = 0; i < views.size(); ++i) {
      table.views[i] = views[i];
      table.views[i].data = address(reinterpret_cast<const void*>(views[i].data));
      table.first_item[i] = items;
      items += static_cast<std::uint32_t>(stats_items(views[i].count * element_bytes(views[i].dtype)));
    }
    if (items > partials_.size()) throw std::logic_error("more than there is room for");
    StatsMemory memory{partials_.data(), histogram_tickets_.data(), accumulators_.data(), nullptr, nullptr,
                       places_.data()};
    memory.arena = arena_.data();
    run_ordered(TensorStatsKernel<StatsLevel::kHistogram, FewViews>{memory, table}, items, kStatsThreads);
    return Status::ok();
  }
  // As on a GPU the host sees it before the copy comes; it does not know where to look.
  const std::uint64_t* arena() const override { return arena_.data(); }

  Status copy(std::size_t first, std::size_t count) override {
    if (first + count > records_.size()) throw std::logic_error("slots that do not exist");
    under_way_.push_back({first, {records_.begin() + static_cast<std::ptrdiff_t>(first),
                                  records_.begin() + static_cast<std::ptrdiff_t>(first + count)}});
    return Status::ok();
  }
  Status mark(std::size_t which) override {
    marks_.at(which) = {++made_, device_.waits, std::move(under_way_)};
    under_way_.clear();
    return Status::ok();
  }
  Mark look(std::size_t which) override {
    const ReadingsDelivery& delivery = device_.delivery;
    if (delivery.fails) return Mark::kFailed;
    MarkAt& mark = marks_.at(which);
    if (delivery.never) return Mark::kPending;
    const bool waited = mark.number <= waited_for_ || (delivery.after_waits && device_.waits > mark.waits);
    const bool late =
        delivery.copies_later >= 0 && made_ - mark.number >= static_cast<std::uint64_t>(delivery.copies_later);
    if (!waited && !late) return Mark::kPending;
    for (const Copy& copy : mark.copies)
      std::copy(copy.records.begin(), copy.records.end(), host_.begin() + static_cast<std::ptrdiff_t>(copy.first));
    mark.copies.clear();
    return Mark::kReached;
  }
  Status wait(std::size_t which) override {
    ++device_.waits;
    waited_for_ = std::max(waited_for_, marks_.at(which).number);
    return device_.delivery.fails ? Status(StatusCode::kUnsupported, "the emulated device fails") : Status::ok();
  }
  const DeviceStatsRecord* records() const override {
    if (device_.delivery.no_memory > 0 && device_.delivery.no_memory-- > 0) throw std::bad_alloc();
    return host_.data();
  }

 private:
  struct Copy {
    std::size_t first = 0;
    std::vector<DeviceStatsRecord> records;
  };
  struct MarkAt {
    std::uint64_t number = 0, waits = 0;
    std::vector<Copy> copies;
  };

  static std::uint64_t address(const void* on_device) {
    return reinterpret_cast<std::uint64_t>(EmulatedDevice::on_host(on_device));
  }

  ChecksumMemory checks(DeviceChecks* found) {
    return {sums_.data(), check_tickets_.data(), references_.data(), gates_.data(), found};
  }
  OriginMemory origin_memory() { return {records_.data(), known_.data(), places_.data(), &used_, arena_.size()}; }
  void leave(const std::vector<DeviceChecks>& found, std::size_t first) {
    if (first + found.size() > records_.size()) throw std::logic_error("slots that do not exist");
    std::memcpy(static_cast<void*>(&records_[first]), found.data(), found.size() * sizeof(DeviceChecks));
  }

  template <class Kernel>
  void run_ordered(const Kernel& kernel, std::uint32_t blocks, std::uint32_t threads) {
    run_in_order(device_.order, kernel, blocks, threads);
  }

  template <class Table>
  Status run(const Table& table, std::uint32_t items, std::size_t first, std::size_t count) {
    if (items > partials_.size() || first + count > records_.size())
      throw std::logic_error("more than there is room for");
    device_.expect_parameters(sizeof(TensorStatsKernel<StatsLevel::kSums, Table>));
    ++device_.launches;
    const StatsMemory memory{partials_.data(), tickets_.data(), nullptr, records_.data() + first, nullptr,
                             gates_.data(),    known_.data()};
    run_ordered(TensorStatsKernel<StatsLevel::kSums, Table>{memory, table}, items, kStatsThreads);
    return Status::ok();
  }

  EmulatedDevice& device_;
  std::vector<StatsPartial> partials_;
  std::vector<std::uint32_t> tickets_;
  std::vector<DeviceStatsRecord> records_, host_;
  std::vector<std::uint64_t> references_, sums_;
  std::vector<std::uint32_t> gates_, check_tickets_, known_;
  std::vector<std::uint32_t> finite_gates_ = std::vector<std::uint32_t>(kFiniteGates);
  std::uint32_t gate_ = 1;
  std::vector<std::uint64_t> arena_, accumulators_;
  std::vector<std::uint32_t> places_ = std::vector<std::uint32_t>(kMaxOriginTensors + 1);
  std::vector<std::uint32_t> histogram_tickets_ = std::vector<std::uint32_t>(kMaxOriginTensors);
  std::uint64_t used_ = 0;
  LostUpdatesKernel::Memory updates_{};
  EvidenceSoFar so_far_ = kNoEvidence;
  std::vector<MarkAt> marks_;
  std::vector<Copy> under_way_;
  std::uint64_t made_ = 0, waited_for_ = 0;
};

std::unique_ptr<kernels::ReadingsPort> EmulatedDevice::open_readings(const kernels::ReadingsOptions& options,
                                                                     std::string& why) {
  if (delivery.fails) {
    why = "the emulated device fails";
    return nullptr;
  }
  return std::make_unique<EmulatedReadings>(*this, options);
}

}  // namespace nanhunt::testing_support
