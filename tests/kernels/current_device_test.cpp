// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/current_device.h"

#include <gtest/gtest.h>

#include <set>

namespace nanhunt::kernels::cuda {
namespace {

// A runtime and a driver as one thread sees them. Contexts are named by their device; a host's own by 100.
struct Machine {
  int device = 0;
  void* context = nullptr;
  std::set<int> used;  // devices with a primary context
  int mode = 0, modes_changed = 0;
  bool has_driver = true, relaxed_on_a_context = false;

  static void* primary(int device) { return reinterpret_cast<void*>(static_cast<std::size_t>(device) + 1); }
  static void* own() { return reinterpret_cast<void*>(100); }
};

struct FakeCalls {
  Machine* machine;
  bool device(int& index) const {
    index = machine->device;
    return machine->has_driver;
  }
  bool set_device(int index) const {
    machine->device = index;
    machine->used.insert(index);
    machine->context = Machine::primary(index);
    return true;
  }
  bool context(void*& current) const {
    current = machine->context;
    return true;
  }
  bool set_context(void* current) const {
    machine->context = current;
    return true;
  }
  bool has_context(int index) const { return machine->used.contains(index); }
  bool relax(int& mode) const {
    mode = machine->mode;
    machine->mode = 2;
    machine->relaxed_on_a_context = machine->context != nullptr;
    ++machine->modes_changed;
    return true;
  }
  bool restore_mode(int mode) const {
    machine->mode = mode;
    ++machine->modes_changed;
    return true;
  }
};

using Guard = CurrentDevice<FakeCalls>;

TEST(CurrentDevice, is_another_one_for_the_time_of_a_call) {
  Machine machine{.device = 0, .context = Machine::primary(0), .used = {0}};
  {
    const Guard guard(3, FakeCalls{&machine});
    EXPECT_EQ(machine.device, 3);
    EXPECT_EQ(machine.mode, 2);
    EXPECT_TRUE(machine.relaxed_on_a_context);
  }
  EXPECT_EQ(machine.device, 0);
  EXPECT_EQ(machine.context, Machine::primary(0));
  EXPECT_EQ(machine.mode, 0);
}

TEST(CurrentDevice, of_a_thread_without_a_context_leaves_none_however_often_it_is_changed) {
  Machine machine{.device = 0, .context = nullptr, .used = {3}};
  for (int i = 0; i < 3; ++i) {
    {
      const Guard guard(3, FakeCalls{&machine});
      machine.context = Machine::primary(3);  // by the first call in there
    }
    EXPECT_EQ(machine.context, nullptr) << i;
  }
  EXPECT_FALSE(machine.used.contains(0));
}

TEST(CurrentDevice, that_is_current_already_is_left_alone) {
  Machine machine{.device = 3, .context = Machine::own(), .used = {3}, .mode = 1};
  {
    const Guard guard(3, FakeCalls{&machine});
    EXPECT_EQ(machine.context, Machine::own());
    EXPECT_EQ(machine.mode, 2);
  }
  EXPECT_EQ(machine.context, Machine::own());
  EXPECT_EQ(machine.mode, 1);
}

TEST(CurrentDevice, makes_no_context_on_a_device_that_nobody_used) {
  Machine machine;  // a thread that never called CUDA: its device is 0 by default
  { const Guard guard(3, FakeCalls{&machine}); }
  EXPECT_EQ(machine.used, (std::set<int>{3}));
  EXPECT_EQ(machine.context, nullptr);
}

TEST(CurrentDevice, is_put_back_for_a_thread_without_a_context_where_the_device_is_in_use) {
  Machine machine{.device = 0, .context = nullptr, .used = {0}};
  { const Guard guard(3, FakeCalls{&machine}); }
  EXPECT_EQ(machine.device, 0);
}

TEST(CurrentDevice, gives_a_host_its_own_context_back) {
  Machine machine{.device = 1, .context = Machine::own(), .used = {}};
  { const Guard guard(3, FakeCalls{&machine}); }
  EXPECT_EQ(machine.device, 1);
  EXPECT_EQ(machine.context, Machine::own());
}

TEST(CurrentDevice, is_nothing_where_there_is_no_driver) {
  Machine machine;
  machine.has_driver = false;
  { const Guard guard(3, FakeCalls{&machine}); }
  EXPECT_EQ(machine.modes_changed, 0);
  EXPECT_TRUE(machine.used.empty());
}

}  // namespace
}  // namespace nanhunt::kernels::cuda
