// SPDX-License-Identifier: Apache-2.0
#include "kernels/nccl.h"

#include "kernels/vendor_library.h"

namespace nanhunt::kernels {
namespace {

const char* bind_all(void* library, NcclFunctions& f) {
  if (!bind_function(library, "ncclGetUniqueId", f.get_unique_id)) return "ncclGetUniqueId";
  if (!bind_function(library, "ncclCommInitRank", f.comm_init_rank)) return "ncclCommInitRank";
  if (!bind_function(library, "ncclCommAbort", f.comm_abort)) return "ncclCommAbort";
  if (!bind_function(library, "ncclCommDestroy", f.comm_destroy)) return "ncclCommDestroy";
  if (!bind_function(library, "ncclAllGather", f.all_gather)) return "ncclAllGather";
  if (!bind_function(library, "ncclBroadcast", f.broadcast)) return "ncclBroadcast";
  if (!bind_function(library, "ncclGetErrorString", f.get_error_string)) return "ncclGetErrorString";
  return nullptr;
}

}  // namespace

bool find_nccl(NcclFunctions& found, std::string& why) {
  const VendorLibrary wanted = {"NCCL", "NANHUNT_NCCL", {"libnccl.so.2"},
                               "Install it (Debian and Ubuntu: libnccl2 of NVIDIA's repository; with pip: nvidia-nccl-cu13)"};
  found.file = find_vendor_library(wanted, [&](void* library) { return bind_all(library, found); }, why);
  return !found.file.empty();
}

const NcclFunctions* load_nccl(std::string& why) {
  static std::string reason;
  static NcclFunctions functions;
  static const bool found = find_nccl(functions, reason);
  if (found) return &functions;
  why = reason;
  return nullptr;
}

}  // namespace nanhunt::kernels
