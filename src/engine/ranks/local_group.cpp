// SPDX-License-Identifier: Apache-2.0
// Ranks within one process. They take turns: a rank runs until it waits for the others, then the next one does. So
// nothing runs at the same time, and what one rank does never depends on how fast another is.
#include <fmt/format.h>

#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "nanhunt/engine/ranks.h"
#include "src/core/waiting.h"
#include "src/engine/ops/op.h"

namespace nanhunt::engine {
namespace {

class Turns {
 public:
  struct Call {
    std::optional<std::uint32_t> root;  // of a broadcast; else parts are gathered
    std::span<const std::byte> mine;
    std::span<std::byte> all;  // of a broadcast: what is sent or received
  };

  Turns(std::uint32_t size, std::uint32_t first) : seats_(size), turn_(first) {}

  std::uint32_t size() const { return static_cast<std::uint32_t>(seats_.size()); }

  void exchange(std::uint32_t rank, const Call& call) {
    std::unique_lock lock(mutex_);
    if (!lost_.empty()) throw RankLost(lost_);
    Seat& seat = seats_[rank];
    seat.call = call;
    std::uint32_t waiting = 0;
    for (const Seat& one : seats_) waiting += one.call ? 1 : 0;
    if (waiting == size()) {
      complete();
    } else {
      pass_on(rank);
      wait_until_true(turn_changed_, lock, [&] { return turn_ == rank && (!seat.call || !lost_.empty()); });
    }
    if (std::exchange(seat.call, std::nullopt)) throw RankLost(lost_);
  }

  void wait_for_turn(std::uint32_t rank) {
    std::unique_lock lock(mutex_);
    wait_until_true(turn_changed_, lock, [&] { return turn_ == rank; });
  }

  // `why`: what the others are told when they wait for this rank; the first that ends so is told of.
  void end(std::uint32_t rank, const std::string& why) {
    const std::lock_guard lock(mutex_);
    seats_[rank].ended = true;
    if (lost_.empty()) lost_ = fmt::format("rank {} {}", rank, why);
    pass_on(rank);
  }

 private:
  struct Seat {
    std::optional<Call> call;  // in which it waits
    bool ended = false;
  };

  // Everybody is here: each gets what it waits for.
  void complete() {
    const Call& first = *seats_[0].call;
    const std::size_t bytes = first.root ? first.all.size() : first.mine.size();
    for (std::uint32_t rank = 0; rank < size(); ++rank) {
      const Call& call = *seats_[rank].call;
      const std::size_t its = call.root ? call.all.size() : call.mine.size();
      if (call.root == first.root && its == bytes && (call.root || call.all.size() == bytes * size())) continue;
      lost_ = fmt::format("[ranks] expected the same call on all ranks, got {} of {} bytes on rank 0 and {} of {} on "
                          "rank {}",
                          first.root ? "a broadcast" : "a reduction", bytes, call.root ? "a broadcast" : "a reduction",
                          its, rank);
      return;
    }
    for (const Seat& to : seats_) {
      for (std::uint32_t from = 0; from < size() && bytes > 0; ++from) {
        const Call& given = *seats_[from].call;
        if (!first.root) {
          std::memcpy(to.call->all.data() + from * bytes, given.mine.data(), bytes);
        } else if (from == *first.root && &to != &seats_[from]) {
          std::memcpy(to.call->all.data(), given.all.data(), bytes);
        }
      }
    }
    for (Seat& seat : seats_) seat.call.reset();
  }

  void pass_on(std::uint32_t from) {
    for (std::uint32_t k = 1; k <= size(); ++k) {
      const std::uint32_t next = (from + k) % size();
      const Seat& seat = seats_[next];
      if (seat.ended || (seat.call && lost_.empty())) continue;
      turn_ = next;
      turn_changed_.notify_all();
      return;
    }
  }

  std::vector<Seat> seats_;
  std::mutex mutex_;
  std::condition_variable turn_changed_;
  std::uint32_t turn_;
  std::string lost_;  // why nothing can be exchanged any more
};

class LocalGroup : public RankGroup {
 public:
  LocalGroup(std::shared_ptr<Turns> turns, std::uint32_t rank) : turns_(std::move(turns)), rank_(rank) {}
  std::uint32_t rank() const override { return rank_; }
  std::uint32_t size() const override { return turns_->size(); }
  bool takes_turns() const override { return size() > 1; }
  void gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    turns_->exchange(rank_, {std::nullopt, mine, all});
  }
  void broadcast(std::span<std::byte> contents, std::uint32_t root) override {
    turns_->exchange(rank_, {root, contents, contents});
  }

 protected:
  std::shared_ptr<Turns> turns_;
  std::uint32_t rank_;
};

void expect_ranks(std::uint32_t size) {
  if (size == 0) fail("ranks", "1 or more", "0");
}

struct Thrown {
  std::exception_ptr own, lost;  // an error of the rank's own; that another rank was lost
};

Thrown run_body(const std::shared_ptr<Turns>& turns, std::uint32_t rank, const RankBody& body) {
  turns->wait_for_turn(rank);
  Thrown thrown;
  std::string why = "has ended";
  try {
    body(std::make_shared<LocalGroup>(turns, rank));
  } catch (const RankLost&) {
    thrown.lost = std::current_exception();
  } catch (const std::exception& e) {
    thrown.own = std::current_exception();
    why += std::string(": ") + e.what();
  } catch (...) {
    thrown.own = std::current_exception();
  }
  turns->end(rank, why);
  return thrown;
}

class WithCompanions final : public LocalGroup {
 public:
  WithCompanions(std::uint32_t size, std::uint32_t rank, const RankBody& body)
      : LocalGroup(std::make_shared<Turns>(size, rank), rank) {
    for (std::uint32_t other = 0; other < size; ++other) {
      if (other == rank) continue;
      threads_.emplace_back([turns = turns_, other, body] { run_body(turns, other, body); });
    }
  }
  ~WithCompanions() override {
    turns_->end(rank_, "has ended");
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::vector<std::thread> threads_;
};

}  // namespace

void run_ranks(std::uint32_t size, const RankBody& body) {
  expect_ranks(size);
  const auto turns = std::make_shared<Turns>(size, 0);
  std::vector<Thrown> thrown(size);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] { thrown[rank] = run_body(turns, rank, body); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto which : {&Thrown::own, &Thrown::lost}) {
    for (const Thrown& one : thrown) {
      if (one.*which) std::rethrow_exception(one.*which);
    }
  }
}

std::shared_ptr<RankGroup> with_companions(std::uint32_t size, std::uint32_t rank, RankBody body) {
  expect_ranks(size);
  if (rank >= size) fail("ranks", "a rank below " + std::to_string(size), std::to_string(rank));
  return std::make_shared<WithCompanions>(size, rank, body);
}

}  // namespace nanhunt::engine
