// SPDX-License-Identifier: Apache-2.0
// NCCL, which moves bytes between the GPUs of several processes. Looked for when it is first needed: a build needs neither
// its header nor its library. Own prototypes of the few functions used, as nccl.h has them since 2.4.
#pragma once

#include <cstddef>
#include <string>

namespace nanhunt::kernels {

namespace nccl {
inline constexpr int kSuccess = 0;  // ncclResult_t
inline constexpr int kBytes = 0;    // ncclInt8 of ncclDataType_t
// ncclUniqueId: of one group of ranks, made by one of them.
struct UniqueId {
  char internal[128] = {};
};
}  // namespace nccl

// Handles are ncclComm_t, streams cudaStream_t. All queue their work on the stream and return, but comm_init_rank,
// which waits for the other ranks. The device of the stream must be current.
struct NcclFunctions {
  int (*get_unique_id)(nccl::UniqueId* id) = nullptr;
  int (*comm_init_rank)(void** handle, int ranks, nccl::UniqueId id, int rank) = nullptr;
  int (*comm_abort)(void* handle) = nullptr;
  int (*comm_destroy)(void* handle) = nullptr;
  int (*all_gather)(const void* mine, void* all, std::size_t count, int type, void* handle, void* stream) = nullptr;
  int (*broadcast)(const void* from, void* to, std::size_t count, int type, int root, void* handle,
                   void* stream) = nullptr;
  const char* (*get_error_string)(int result) = nullptr;
  std::string file;  // what was loaded
};

// As find_vendor_library() looks for it: NANHUNT_NCCL (a path), else libnccl.so.2. nullptr: `why` says what was looked
// for and what to do. Looks once.
const NcclFunctions* load_nccl(std::string& why);
// The same without memory of earlier calls, for tests.
bool find_nccl(NcclFunctions& found, std::string& why);

}  // namespace nanhunt::kernels
