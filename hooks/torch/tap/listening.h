// SPDX-License-Identifier: Apache-2.0
// Where the tap listens in PyTorch's dispatcher. A boxed fallback on one dispatch key hears an op that is about to run,
// runs what lies below, and hears what it has made. Which key that is, and what is not to be heard there, stands here.
//
//   below autograd   the key Fake: over the kernels, under autograd, autocast and functorch.
//   above autograd   the key TESTING_ONLY_GenericMode: over those, which call their parts from the top again. Used where
//                    somebody else has the first.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/library.h>

#include <array>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>

namespace nanhunt::tap {

struct Listening {
  c10::DispatchKey key;
  const char* name;
  bool above_autograd;

  // Keys above Python's are off inside of what Python runs for a mode or a tensor subclass.
  bool is_above_python() const { return static_cast<int>(key) > static_cast<int>(c10::DispatchKey::Python); }
};

// In the order in which they are tried.
inline constexpr std::array<Listening, 2> kListenings{{
    {c10::DispatchKey::Fake, "below_autograd", false},
    {c10::DispatchKey::TESTING_ONLY_GenericMode, "above_autograd", true},
}};

inline Listening g_listening = kListenings[0];

inline c10::DispatchKey listening_key() { return g_listening.key; }

// Whether ops of the calling thread come to the tap.
inline void include_thread(bool on) { c10::impl::tls_set_dispatch_key_included(g_listening.key, on); }

// What an op becomes below the tap.
class Below {
 public:
  Below(const c10::OperatorHandle& op, c10::DispatchKeySet keys)
      : op_(op), keys_(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, g_listening.key)) {}

  const c10::OperatorHandle& op() const { return op_; }
  c10::DispatchKeySet keys() const { return keys_; }

  // The op is heard as a whole: what it calls is not.
  void run(c10::Stack* stack) const {
    const c10::impl::ExcludeDispatchKeyGuard guard(g_listening.key);
    op_.redispatchBoxed(keys_, stack);
  }
  // The op is not heard: what it calls is.
  void pass(c10::Stack* stack) const { op_.redispatchBoxed(keys_, stack); }

  // Whether the op is not to be heard here: its parts come again, from the top (a cast by autocast, a transform of
  // functorch), or PyTorch makes a tensor of Python's numbers, for which it leaves out the other place.
  bool passes() const {
    if (!g_listening.above_autograd) return false;
    if (!(keys_ & kTransforms).empty() || c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::Fake)) return true;
    for (const c10::DispatchKey key : keys_ & c10::autocast_dispatch_keyset)
      if (op_.hasKernelForDispatchKey(key)) return true;
    return false;
  }

 private:
  inline static const c10::DispatchKeySet kTransforms{
      c10::DispatchKey::FuncTorchDynamicLayerFrontMode, c10::DispatchKey::FuncTorchDynamicLayerBackMode,
      c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::FuncTorchVmapMode, c10::DispatchKey::FuncTorchBatched,
      c10::DispatchKey::Functionalize};

  const c10::OperatorHandle& op_;
  c10::DispatchKeySet keys_;
};

namespace listening {

// The key is somebody's where ops have kernels on it, or it has a fallback: why, as a clause; "": it is ours now.
inline std::string take(const Listening& place, torch::CppFunction&& fallback) {
  const std::string name = c10::toString(place.key);
  try {
    if (!c10::Dispatcher::singleton().getRegistrationsForDispatchKey(place.key).empty())
      return "operators have kernels on PyTorch's dispatch key " + name;
    // Never freed: the library that holds this is never unloaded.
    auto library = std::make_unique<torch::Library>(torch::Library::IMPL, "_", place.key, __FILE__, __LINE__);
    library->fallback(std::move(fallback));
    static_cast<void>(library.release());
  } catch (const std::exception& error) {
    return "another library holds PyTorch's dispatch key " + name + ": " + std::string(error.what()).substr(0, 300);
  }
  g_listening = place;
  return "";
}

}  // namespace listening

// Takes the first place that is free, or the one that is named ("": any). "": done; else why not, as a clause.
template <typename MakeFallback>
std::string listen(std::string_view only, MakeFallback&& make_fallback) {
  std::string why;
  for (const Listening& place : kListenings) {
    if (!only.empty() && only != place.name) continue;
    const std::string taken = listening::take(place, make_fallback());
    if (taken.empty()) return "";
    why += (why.empty() ? "" : "; ") + taken;
  }
  return why.empty() ? "there is no place called " + std::string(only) : why;
}

}  // namespace nanhunt::tap
