// SPDX-License-Identifier: Apache-2.0
// Forked children whose rows the parent takes over.
#include <unistd.h>

#include <mutex>

#include "nanhunt/c_adapter.h"
#include "src/c_api/child_process.h"
#include "src/c_api/convert.h"
#include "src/c_api/handle.h"

namespace nanhunt::c_api {
namespace {

void call(void (*hook)(void)) {
  if (hook != nullptr) hook();
}

Result<pid_t> fork(nanhunt_recorder& of, const nanhunt_fork& how) {
  if (of.kernels.is_attached()) return Status(StatusCode::kUsage, "kernels of a GPU are watched");
  const pid_t parent = getpid();
  call(how.before);
  Result<pid_t> pid = [&] {
    const std::lock_guard lock(of.device_mutex);  // held in the child as well, which gives it back
    return of.recorder->fork();
  }();
  if (!pid || *pid != 0) {
    call(how.in_parent);
    return pid;
  }
  if (!part_from_parent(parent, how.keep)) _exit(NANHUNT_CHILD_SHARES);
  call(how.in_child);
  return pid;
}

template <typename F>
nanhunt_status of_child(const char* who, nanhunt_recorder* recorder, F&& act) {
  return guarded([&]() -> nanhunt_status {
    if (recorder == nullptr) return fail(NANHUNT_USAGE, std::string(who) + ": expected a recorder, got NULL");
    return result_of(act(*recorder->recorder));
  });
}

}  // namespace
}  // namespace nanhunt::c_api

using namespace nanhunt::c_api;  // NOLINT(google-build-using-namespace)

extern "C" {

int64_t nanhunt_recorder_fork(nanhunt_recorder* recorder, const nanhunt_fork* how) {
  int64_t pid = -1;
  const nanhunt_status forked = checked([&] {
    if (recorder == nullptr) throw Misuse("nanhunt_recorder_fork: expected a recorder, got NULL");
    nanhunt_fork unasked{};
    unasked.keep = -1;
    const nanhunt::Result<pid_t> made = fork(*recorder, sized_copy("nanhunt_recorder_fork", how, unasked));
    if (!made) throw Misuse("nanhunt_recorder_fork: " + made.status().message());
    pid = *made;
  });
  return forked == NANHUNT_OK ? pid : -1;
}

nanhunt_status nanhunt_recorder_end_child(nanhunt_recorder* recorder) {
  return of_child("nanhunt_recorder_end_child", recorder, [](auto& its) { return its.end_child(); });
}

nanhunt_status nanhunt_recorder_absorb_child(nanhunt_recorder* recorder) {
  return of_child("nanhunt_recorder_absorb_child", recorder, [](auto& its) { return its.absorb_child(); });
}

nanhunt_status nanhunt_recorder_forget_child(nanhunt_recorder* recorder) {
  return of_child("nanhunt_recorder_forget_child", recorder, [](auto& its) {
    its.forget_child();
    return nanhunt::Status();
  });
}

}  // extern "C"
