// SPDX-License-Identifier: Apache-2.0
// Ranks as processes of mpirun. A library of its own, loaded on demand: nothing else needs MPI.
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#include <array>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "src/engine/ranks/mpi_group.h"

namespace nanhunt::engine {
namespace {

// What every call tells the others first: ranks that no longer agree must not wait for each other, nor mix their bytes.
struct Header {
  std::uint64_t bytes = 0;
  std::int64_t root = -1;  // of a broadcast
};

class MpiGroup final : public RankGroup {
 public:
  explicit MpiGroup(std::chrono::seconds patience) : patience_(patience) {
    MPI_Init(nullptr, nullptr);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }
  // Without MPI_Finalize: it would wait for ranks that are lost. mpirun then ends them.
  ~MpiGroup() override {
    if (!lost_ && std::uncaught_exceptions() == 0) MPI_Finalize();
  }

  std::uint32_t rank() const override { return static_cast<std::uint32_t>(rank_); }
  std::uint32_t size() const override { return static_cast<std::uint32_t>(size_); }

  void gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    agree({mine.size(), -1});
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Iallgather(mine.data(), count(mine.size()), MPI_BYTE, all.data(), count(mine.size()), MPI_BYTE,
                         MPI_COMM_WORLD, &request));
    wait(request);
  }
  void broadcast(std::span<std::byte> contents, std::uint32_t root) override {
    agree({contents.size(), static_cast<std::int64_t>(root)});
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Ibcast(contents.data(), count(contents.size()), MPI_BYTE, static_cast<int>(root), MPI_COMM_WORLD,
                     &request));
    wait(request);
  }

 private:
  void agree(const Header& mine) {
    std::vector<Header> all(size());
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Iallgather(&mine, static_cast<int>(sizeof mine), MPI_BYTE, all.data(), static_cast<int>(sizeof mine),
                         MPI_BYTE, MPI_COMM_WORLD, &request));
    wait(request);
    for (std::size_t other = 0; other < all.size(); ++other) {
      if (all[other].bytes == mine.bytes && all[other].root == mine.root) continue;
      lose("[ranks] expected the same call on all ranks, got one of " + std::to_string(mine.bytes) + " bytes on rank " +
           std::to_string(rank_) + " and of " + std::to_string(all[other].bytes) + " on rank " + std::to_string(other));
    }
  }

  int count(std::size_t bytes) {
    if (bytes > INT_MAX) lose("[ranks] expected at most 2^31 - 1 bytes in a call, got " + std::to_string(bytes));
    return static_cast<int>(bytes);
  }

  // Sleeps in between: ranks may share a core.
  void wait(MPI_Request& request) {
    const auto began = std::chrono::steady_clock::now();
    for (int tries = 0;; ++tries) {
      int done = 0;
      check(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
      if (done != 0) return;
      if (tries < 100) {
        std::this_thread::yield();
        continue;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(tries < 1000 ? 20 : 500));
      if (std::chrono::steady_clock::now() - began < patience_) continue;
      lose("another rank has not answered for " + std::to_string(patience_.count()) + " s");
    }
  }

  void check(int error) {
    if (error == MPI_SUCCESS) return;
    std::array<char, MPI_MAX_ERROR_STRING> text{};
    int length = 0;
    MPI_Error_string(error, text.data(), &length);
    lose("MPI says: " + std::string(text.data(), static_cast<std::size_t>(length)));
  }

  [[noreturn]] void lose(const std::string& why) {
    lost_ = true;
    throw RankLost(why);
  }

  std::chrono::seconds patience_;
  int rank_ = 0, size_ = 1;
  bool lost_ = false;
};

}  // namespace
}  // namespace nanhunt::engine

extern "C" nanhunt::engine::RankGroup* nanhunt_open_mpi_ranks(unsigned patience_s) {
  return new nanhunt::engine::MpiGroup(std::chrono::seconds(patience_s));
}
