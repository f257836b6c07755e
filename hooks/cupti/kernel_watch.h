// SPDX-License-Identifier: Apache-2.0
// Which kernels a GPU ran for an op, through CUPTI. README.md holds the contract.
//
//   auto watch = nanhunt::hooks::KernelWatch::attach();
//   if (!watch) tell(watch.status().message());   // and go on without
//   const std::uint64_t ticket = (*watch)->push_op();
//   ...                                           // launches
//   (*watch)->pop_op(ticket, seq, step);
//   (*watch)->drain(recorder);                    // once a step
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hooks/cupti/kernel_join.h"
#include "nanhunt/status.h"
#include "src/record/kernel_source.h"

namespace nanhunt::hooks {

// What was not seen, and how often.
struct KernelNote {
  std::string text;
  std::uint64_t count = 0;
};

struct KernelOptions {
  std::string library = {};                  // of CUPTI: a path or soname; empty: searched
  std::string driver = "libcuda.so.1";       // a call of it carries the way out
  std::size_t buffer_bytes = std::size_t{4} << 20;
  std::size_t max_buffers = 16;
  int flush_ms = 250;  // how often what is complete is asked for
  JoinLimits join = {};
  std::vector<KernelNote> earlier = {};  // told of sessions before this one: notes count from there
};

struct KernelStats {
  JoinStats join;
  std::uint64_t dropped = 0;            // records, by CUPTI, for want of a buffer
  std::uint64_t incomplete = 0;         // buffers that ended in a record without a kind
  std::uint64_t buffers_refused = 0;    // asked for beyond max_buffers
  std::uint64_t buffers_given_up = 0;   // unread ones, where a refusal would crash CUPTI
  std::uint64_t flushes = 0;
  std::uint64_t tags_failed = 0;        // pushes that CUPTI refused
  bool late = false;                    // a CUDA context was there before
  bool second_session = false;          // this process had one before
  bool finalized = false;               // detached to the end
  std::uint32_t version = 0;            // as cuptiGetVersion says
};

// At most one in a process. Attaching and detaching is done on one thread; what KernelSource offers may be called on
// any, but drain and finish on one.
class KernelWatch : public record::KernelSource {
 public:
  // A failed Status says in one line why kernels are not watched.
  static Result<std::unique_ptr<KernelWatch>> attach(const KernelOptions& options = {});
  ~KernelWatch() override = default;  // detaches

  // Leaves nothing behind. What was not drained by then is lost.
  virtual void detach() noexcept = 0;
  virtual bool is_attached() const noexcept = 0;
  virtual KernelStats stats() const = 0;
};

// As people write it; cut at 1024 bytes. What is no mangled name stays as it is.
std::string readable_kernel_name(std::string_view name);

// What the coverage of a report has to say of kernels that were not seen; empty if there is nothing.
std::vector<KernelNote> kernel_notes(const KernelStats& stats);
// The note where nothing is watched: `why` is the message of attach().
std::string not_watched_note(const std::string& why);

// For `doctor --env`: looks and leaves everything as it was, apart from libcupti having been loaded.
struct CuptiFacts {
  bool built = false;          // this build can use CUPTI
  std::string path;            // of the library that was found; empty: none
  bool loaded_before = false;  // by someone else in this process
  std::uint32_t version = 0;
  std::string version_text;    // "13.0 (130001)"
  bool usable = false;         // a subscription was granted, and given back
  std::string why_not;         // one line
};
CuptiFacts probe_cupti(const KernelOptions& options = {});

// "13.0 (130001)", "12.6 (24)", "unknown (17)".
std::string cupti_version_text(std::uint32_t version);
// Why this version is not used; empty: it is.
std::string cupti_version_refusal(std::uint32_t version);

}  // namespace nanhunt::hooks
