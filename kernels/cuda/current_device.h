// SPDX-License-Identifier: Apache-2.0
// Another device for the time of a call, and everything of the calling thread put back afterwards. Knows no CUDA, so
// that tests can watch it; device_guard.h has the calls.
#pragma once

namespace nanhunt::kernels::cuda {

// What Calls offers, each true where it worked:
//
//   bool device(int& index);             // the runtime's idea of the current one
//   bool set_device(int index);          // makes the device's primary context, if it has none, and makes it current
//   bool context(void*& current);        // the driver's; nullptr: the thread has none
//   bool set_context(void* current);
//   bool has_context(int index);         // somebody uses that device already
//   bool relax(int& mode);               // captures of graphs, in whichever thread, do not mind what this thread does
//   now bool restore_mode(int mode);
template <class Calls>
class CurrentDevice {
 public:
  explicit CurrentDevice(int device, Calls calls = {}) : calls_(calls) {
    if (!calls_.device(device_)) return;
    has_context_ = calls_.context(context_);
    if (device_ != device) {
      changed_ = calls_.set_device(device);
      if (!changed_) return;
    }
    relaxed_ = calls_.relax(mode_);
  }
  ~CurrentDevice() {
    if (relaxed_) calls_.restore_mode(mode_);
    void* now = nullptr;
    if (!changed_) {  // the calls in between may have made a context current where there was none
      if (has_context_ && context_ == nullptr && calls_.context(now) && now != nullptr) calls_.set_context(nullptr);
      return;
    }
    // A thread that had nothing current gets nothing back: to set the device it might have used would make a context
    // there, some hundred megabytes that nobody asked for.
    if (has_context_ && context_ == nullptr && !calls_.has_context(device_) && calls_.set_context(nullptr)) return;
    calls_.set_device(device_);
    // The host may work in a context of its own instead of the device's primary one.
    if (has_context_ && context_ != nullptr && calls_.context(now) && now != context_) calls_.set_context(context_);
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  Calls calls_;
  int device_ = 0, mode_ = 0;
  void* context_ = nullptr;
  bool has_context_ = false, changed_ = false, relaxed_ = false;
};

}  // namespace nanhunt::kernels::cuda
