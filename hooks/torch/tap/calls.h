// SPDX-License-Identifier: Apache-2.0
// Calls of modules. The function that stands for torch.nn.Module.__call__ is one of Python's, and stays one for whoever
// looks at it (torch.compile, torch.fx); but what it does when it is called is done here, and Python is asked about
// calls of roots only: a model has hundreds of modules, and a function of Python's costs more than many of their ops.
#pragma once

#include <pthread.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hooks/torch/tap/export.h"
#include "hooks/torch/tap/python.h"

extern "C" void nanhunt_tap_enter(void* tap, std::int64_t path);
extern "C" void nanhunt_tap_exit(void* tap);

namespace nanhunt::tap::calls {

// Where the calls of modules are to be told; Python writes it, and the layout is that of `_hooks.calls.Follow`.
struct Follow {
  std::int64_t mode = 0;     // one of these
  std::uint64_t thread = 0;  // that is watched
  void* tap = nullptr;
  void* names = nullptr;     // dict: of a module's id the number of its path
};
inline constexpr std::int64_t kStraight = 1;  // nobody wants to know: the original is called
inline constexpr std::int64_t kPlaces = 2;    // which module runs is told to the tap

// Of Python's, found in the process. Its lock is held wherever one is called.
using Object = void;
using Vectorcall = Object* (*)(Object* callable, Object* const* args, std::size_t flagged_count, Object* names);

struct Python {
  Vectorcall call = nullptr;
  Object* (*long_of)(void* pointer) = nullptr;
  Object* (*item)(Object* dict, Object* key) = nullptr;  // borrowed; no error is set
  long long (*number)(Object* value) = nullptr;
  void (*dec)(Object* value) = nullptr;
  std::ptrdiff_t slot = 0;  // of a function's vectorcall

  bool find() {
    const char* type = nullptr;
    if (!find_python(type, "PyFunction_Type") || !find_python(call, "PyObject_Vectorcall") ||
        !find_python(long_of, "PyLong_FromVoidPtr") || !find_python(item, "PyDict_GetItem") ||
        !find_python(number, "PyLong_AsLongLong") || !find_python(dec, "Py_DecRef"))
      return false;
    // struct _typeobject: ob_refcnt, ob_type, ob_size, tp_name, tp_basicsize, tp_itemsize, tp_dealloc, tp_vectorcall_offset.
    std::memcpy(&slot, type + 7 * sizeof(void*), sizeof slot);
    return slot > 0 && slot < 512;
  }
};

inline Python g_python;
inline Vectorcall g_usual = nullptr;   // how Python calls a function of its own
inline Object* g_original = nullptr;   // torch's __call__
inline const Follow* g_follow = nullptr;

inline Object* called(Object* function, Object* const* args, std::size_t flagged_count, Object* names) {
  const Follow* const follow = g_follow;
  const std::size_t count = flagged_count & ~(std::size_t{1} << (8 * sizeof(std::size_t) - 1));
  if (follow != nullptr && follow->mode == kStraight) return g_python.call(g_original, args, flagged_count, names);
  if (follow == nullptr || follow->mode != kPlaces || count == 0 || follow->thread != pthread_self())
    return g_usual(function, args, flagged_count, names);
  std::int64_t path = -1;
  if (Object* const key = g_python.long_of(args[0]); key != nullptr) {
    if (Object* const known = g_python.item(follow->names, key); known != nullptr) path = g_python.number(known);
    g_python.dec(key);
  }
  void* const tap = follow->tap;
  nanhunt_tap_enter(tap, path);
  Object* const result = g_python.call(g_original, args, flagged_count, names);
  // A watch that was closed meanwhile has freed its tap.
  if (g_follow == follow && follow->tap == tap) nanhunt_tap_exit(tap);
  return result;
}

}  // namespace nanhunt::tap::calls

// Puts it in place of what `function` does; 0: this Python has no such place. `original` is what it calls instead.
NANHUNT_TAP std::int32_t nanhunt_tap_calls(void* function, void* original, const void* follow) {
  namespace calls = nanhunt::tap::calls;
  if (!calls::g_python.find()) return 0;
  char* const place = static_cast<char*>(function) + calls::g_python.slot;
  calls::Vectorcall now = nullptr;
  std::memcpy(&now, place, sizeof now);
  const calls::Vectorcall ours = &calls::called;
  if (now != ours) {
    if (now == nullptr) return 0;
    calls::g_usual = now;
    std::memcpy(place, &ours, sizeof ours);
  }
  calls::g_original = original;
  calls::g_follow = static_cast<const calls::Follow*>(follow);
  return 1;
}
