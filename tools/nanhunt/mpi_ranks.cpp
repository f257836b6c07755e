// SPDX-License-Identifier: Apache-2.0
#include "tools/nanhunt/mpi_ranks.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "src/core/text.h"
#include "src/engine/ranks/mpi_group.h"
#include "tools/nanhunt/children/child.h"
#include "tools/nanhunt/terminal.h"

namespace nanhunt::cli {
namespace {

constexpr unsigned kPatience = 120;  // seconds in which another rank must answer
constexpr const char* kInstall = "Install openmpi-bin and libopenmpi-dev (tools/setup does), and build nanhunt again.";

// Beside this program.
std::string library_path() {
  std::error_code unknown;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", unknown);
  return unknown ? std::string() : (self.parent_path() / "libnanhunt_mpi.so").string();
}

std::vector<std::string> own_command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  std::vector<std::string> words;
  for (std::size_t at = 0; at < all.size();) {
    const std::size_t end = std::min(all.find('\0', at), all.size());
    words.push_back(all.substr(at, end - at));
    at = end + 1;
  }
  std::error_code unknown;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", unknown);
  if (!words.empty() && !unknown) words[0] = self.string();
  return words;
}

}  // namespace

bool started_by_mpirun() { return std::getenv("OMPI_COMM_WORLD_RANK") != nullptr; }

engine::Device device_of_rank() {
  engine::Device device{engine::DeviceKind::kCuda, 0};
  if (const char* told = std::getenv("OMPI_COMM_WORLD_LOCAL_RANK"); told != nullptr) {
    std::from_chars(told, told + std::strlen(told), device.index);
  }
  if (device.index < 0 || !engine::why_unusable(device).empty()) device.index = 0;
  return device;
}

std::shared_ptr<engine::RankGroup> with_devices(const std::shared_ptr<engine::RankGroup>& group,
                                                const engine::Device& device) {
  // A rank may have found no device, and trains on the CPU: all make the same calls.
  std::string why;
  std::shared_ptr<engine::RankGroup> ranks = engine::with_nccl(group, device, why);
  if (group->rank() == 0 && !device.is_cpu()) {
    say(why.empty() ? "Gradients go from device to device, by NCCL."
                    : "Gradients go through the host: " + printable(why) + ".");
  }
  return ranks;
}

Result<int> run_under_mpirun(std::uint32_t ranks) {
  if (!std::filesystem::exists(library_path())) {
    return Status(StatusCode::kUsage,
                  fmt::format("train: --ranks needs MPI, and this nanhunt was built without. {}", kInstall));
  }
  // More ranks than cores, as root in a container too, and nobody else is asked: everything goes over the loopback or
  // memory that the processes share.
  std::vector<std::string> command = {
      "mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", std::to_string(ranks),
      "--mca", "btl", "self,vader,tcp", "--mca", "btl_vader_single_copy_mechanism", "none",
      "--mca", "btl_tcp_if_include", "lo", "--mca", "oob_tcp_if_include", "lo", "--mca", "mpi_yield_when_idle", "1",
      "--mca", "plm_rsh_agent", ""};
  for (std::string& word : own_command_line()) command.push_back(std::move(word));
  const ChildEnd end = run_child(command, {});
  if (end.start_error != 0) {
    return Status(StatusCode::kUsage,
                  fmt::format("train: mpirun cannot be started: {}. {}", std::strerror(end.start_error), kInstall));
  }
  // A rank that ends by itself says why; of one that was killed mpirun tells.
  if (end.status > kNotWritten)
    say("train: a rank has ended before its work was done, and the others with it.");
  return end.status;
}

Result<std::shared_ptr<engine::RankGroup>> open_mpi_ranks(std::uint32_t ranks) {
  void* library = ::dlopen(library_path().c_str(), RTLD_NOW | RTLD_GLOBAL);
  const auto open = library == nullptr ? nullptr
                                       : reinterpret_cast<decltype(&nanhunt_open_mpi_ranks)>(
                                             ::dlsym(library, "nanhunt_open_mpi_ranks"));
  if (open == nullptr) {
    const char* why = ::dlerror();
    return Status(StatusCode::kUsage,
                  fmt::format("train: MPI cannot be used: {}. {}", why == nullptr ? "" : why, kInstall));
  }
  std::shared_ptr<engine::RankGroup> group(open(kPatience));
  if (group->size() != ranks) {
    return Status(StatusCode::kUsage,
                  fmt::format("train: --ranks {} under an mpirun of {}: say the same number.", ranks, group->size()));
  }
  return group;
}

}  // namespace nanhunt::cli
