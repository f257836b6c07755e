// SPDX-License-Identifier: Apache-2.0
// Contents of a device between ranks: NCCL moves them, and the ranks agree on every call through the host first, so that
// none waits for one that another does not make.
#include "src/engine/ranks/nccl_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <utility>
#include <vector>

#include "src/engine/backend.h"

namespace nanhunt::engine {
namespace {

using kernels::NcclFunctions;

// The call that a rank is about to make.
struct Header {
  std::uint64_t bytes = 0;
  std::int64_t root = -1;  // of a broadcast
  bool operator==(const Header&) const = default;
};

class NcclGroup final : public RankGroup, public DeviceCommunicator {
 public:
  NcclGroup(const NcclFunctions& nccl, std::shared_ptr<RankGroup> ranks, const Device& device, void* handle)
      : nccl_(nccl), ranks_(std::move(ranks)), device_(device), handle_(handle) {}
  ~NcclGroup() override {
    const bool sound = !lost_ && std::uncaught_exceptions() == 0;
    sound ? nccl_.comm_destroy(handle_) : nccl_.comm_abort(handle_);  // who destroys waits for ranks that are lost
  }

  std::uint32_t rank() const override { return ranks_->rank(); }
  std::uint32_t size() const override { return ranks_->size(); }
  void gather(std::span<const std::byte> mine, std::span<std::byte> all) override { ranks_->gather(mine, all); }
  void broadcast(std::span<std::byte> contents, std::uint32_t root) override { ranks_->broadcast(contents, root); }
  DeviceCommunicator* communicator(const Device& device) override { return device == device_ ? this : nullptr; }

  void gather(const void* mine, void* all, std::size_t bytes) override {
    agree({bytes, -1});
    check(nccl_.all_gather(mine, all, bytes, kernels::nccl::kBytes, handle_, backend_of(device_).stream()));
  }
  void broadcast(void* contents, std::size_t bytes, std::uint32_t root) override {
    agree({bytes, static_cast<std::int64_t>(root)});
    check(nccl_.broadcast(contents, contents, bytes, kernels::nccl::kBytes, static_cast<int>(root), handle_,
                          backend_of(device_).stream()));
  }

 private:
  void agree(const Header& mine) {
    std::vector<Header> all(size());
    try {
      ranks_->gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
    } catch (const RankLost&) {
      lost_ = true;
      throw;
    }
    const auto other = std::ranges::find_if(all, [&](const Header& header) { return header != mine; });
    if (other == all.end()) return;
    lost_ = true;
    throw RankLost(fmt::format("[ranks] expected the same call on all ranks, got one of {} bytes on rank {} and of {} on "
                               "rank {}",
                               mine.bytes, rank(), other->bytes, other - all.begin()));
  }
  void check(int result) {
    if (result == kernels::nccl::kSuccess) return;
    lost_ = true;
    throw RankLost(fmt::format("NCCL says: {}", nccl_.get_error_string(result)));
  }

  const NcclFunctions& nccl_;
  std::shared_ptr<RankGroup> ranks_;
  Device device_;
  void* handle_;
  bool lost_ = false;
};

// What the first rank that cannot go on says, on all of them; "": all can. `mine`: why this one cannot.
std::string first_refusal(RankGroup& ranks, const std::string& mine) {
  std::array<char, 512> text{};
  std::memcpy(text.data(), mine.data(), std::min(mine.size(), text.size() - 1));
  std::vector<char> all(text.size() * ranks.size());
  ranks.gather(std::as_bytes(std::span(text)), std::as_writable_bytes(std::span(all)));
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
    const char* its = all.data() + rank * text.size();
    if (*its != '\0') return fmt::format("rank {}: {}", rank, its);
  }
  return {};
}

}  // namespace

std::shared_ptr<RankGroup> with_nccl(const NcclFunctions* nccl, const std::string& missing,
                                     std::shared_ptr<RankGroup> ranks, const Device& device, std::string& why) {
  const auto error = [&](int result) {
    return result == kernels::nccl::kSuccess ? std::string() : fmt::format("NCCL says: {}", nccl->get_error_string(result));
  };
  const std::string lacks = nccl == nullptr ? missing : std::string();
  if (why = first_refusal(*ranks, device.is_cpu() ? "its device is the CPU" : lacks); !why.empty()) return ranks;

  kernels::nccl::UniqueId id;
  std::string cannot;
  try {
    backend_of(device).stream();  // its device becomes the thread's
    cannot = error(ranks->rank() == 0 ? nccl->get_unique_id(&id) : kernels::nccl::kSuccess);
  } catch (const std::runtime_error& broken) {
    cannot = broken.what();
  }
  if (why = first_refusal(*ranks, cannot); !why.empty()) return ranks;
  ranks->broadcast(std::as_writable_bytes(std::span(id.internal)), 0);
  void* handle = nullptr;
  const int joined = nccl->comm_init_rank(&handle, static_cast<int>(ranks->size()), id, static_cast<int>(ranks->rank()));
  if (why = first_refusal(*ranks, error(joined)); !why.empty()) {
    if (joined == kernels::nccl::kSuccess) nccl->comm_abort(handle);
    return ranks;
  }
  return std::make_shared<NcclGroup>(*nccl, std::move(ranks), device, handle);
}

std::shared_ptr<RankGroup> with_nccl(std::shared_ptr<RankGroup> ranks, const Device& device, std::string& why) {
  if (ranks->takes_turns()) {
    why = "its ranks take turns in one process";
    return ranks;
  }
  std::string missing;
  const NcclFunctions* nccl = device.is_cpu() ? nullptr : kernels::load_nccl(missing);
  return with_nccl(nccl, missing, std::move(ranks), device, why);
}

}  // namespace nanhunt::engine
