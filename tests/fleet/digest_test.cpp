// SPDX-License-Identifier: Apache-2.0
// digest.json: what is written is read back, it never passes its size, and nothing that is read is believed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "src/fleet/digest.h"

namespace nanhunt::fleet {
namespace {

using ::testing::HasSubstr;
using analyze::thin_checksums;
using ::testing::SizeIs;

DigestOrigin overflow() {
  DigestOrigin one;
  one.place = {.step = 7, .micro_batch = 2, .phase = Phase::kBackward, .module = "block.fc1", .op = "mm", .seq = 9};
  one.cls = FindingClass::kOverflow;
  one.severity = Severity::kFault;
  one.confidence = Confidence::kProved;
  one.call_site = "train.py:30";
  one.cause = "300 * 400";
  one.title = "mm overflows";
  one.count = 3;
  one.first_step = 7;
  one.last_step = 12;
  one.sinks = {"loss", "gradient of fc1.weight"};
  return one;
}

Digest whole() {
  Digest d;
  d.rank = 4711;
  d.world_size = 10000;
  d.attempt = 2;
  d.run = "r-1";
  d.job = "slurm 12.0";
  d.host = "n17";
  d.accelerator_name = "H100";
  d.accelerator_id = "GPU-1";
  d.nanhunt = "0.1.0";
  d.framework = "torch 2.13.0";
  d.level = "live";
  d.coordinates = {{"data", 3}, {"pipeline", 1}};
  d.replicas = Replicas{3, 128};
  d.ended = true;
  d.trace_bytes = 1u << 20;
  d.status = VerdictStatus::kFault;
  d.steps = 13;
  d.last_step = 12;
  d.clean_through = 6;
  d.origins = {overflow()};
  d.arrival = DigestArrival{9, 1, Severity::kWarning, "allreduce", "data", 88, 128, 3};
  d.last_call = DigestCall{12, "data", 99};
  d.scaler = DigestScaler{65536, 13, 2};
  d.checksums = {{0, 1}, {8, 0xFFFFFFFFFFFFFFFFu}};
  d.ops = 1000;
  d.unwatched = 2;
  return d;
}

TEST(Digest, is_read_back_as_it_was_written) {
  for (const Digest& d : {whole(), Digest{}}) {
    const std::string text = render_digest(d);
    const auto read = parse_digest(text);
    ASSERT_TRUE(read.is_ok()) << read.status().message();
    EXPECT_EQ(render_digest(*read), text);
  }
  const auto read = parse_digest(render_digest(whole()));
  EXPECT_EQ(read->origins.at(0).place.op, "mm");
  EXPECT_EQ(read->origins.at(0).place.phase, Phase::kBackward);
  EXPECT_EQ(read->arrival->call, 88u);
  EXPECT_EQ(read->checksums.at(1).second, 0xFFFFFFFFFFFFFFFFu);
}

TEST(Digest, never_passes_8_KiB_whatever_the_program_calls_its_things) {
  for (const std::string& unit : {std::string("x"), std::string("\x01"), std::string("\xff"), std::string("日本"), std::string("\"\\")}) {
    std::string name;
    while (name.size() < 5000) name += unit;
    Digest d = whole();
    DigestOrigin origin = overflow();
    origin.place.op = origin.place.module = name;
    origin.call_site = origin.cause = origin.title = name;
    origin.sinks.assign(9, name);
    d.origins.assign(9, origin);
    d.run = d.host = d.framework = d.level = d.nanhunt = d.job = d.accelerator_id = d.accelerator_name = name;
    d.arrival->group = d.arrival->through = d.last_call->group = name;
    for (int i = 0; i < 40; ++i) d.coordinates.emplace(name + std::to_string(i), i);
    for (std::uint32_t i = 0; i < kMaxChecksums; ++i) d.checksums.emplace_back(100 + i, ~std::uint64_t{0});
    const std::string text = render_digest(d);
    EXPECT_LE(text.size(), kMaxDigestBytes);
    EXPECT_TRUE(parse_digest(text).is_ok());
  }
}

TEST(Digest, of_another_schema_or_a_later_version_is_refused_with_a_word) {
  nlohmann::json d = nlohmann::json::parse(render_digest(whole()));
  d["schema_version"] = 2;
  EXPECT_THAT(parse_digest(d.dump()).status().message(), HasSubstr("its version is 2"));
  d["schema"] = "nanhunt.run";
  EXPECT_THAT(parse_digest(d.dump()).status().message(), HasSubstr("nanhunt.run"));
  EXPECT_THAT(parse_digest("").status().message(), HasSubstr("not whole"));
  EXPECT_THAT(parse_digest("[1]").status().message(), HasSubstr("no object"));
  EXPECT_THAT(parse_digest(std::string(kMaxReadBytes + 1, ' ')).status().message(), HasSubstr("larger"));
}

TEST(Digest, with_a_key_that_a_later_version_added_is_read) {
  nlohmann::json d = nlohmann::json::parse(render_digest(whole()));
  d["later"] = {1, 2};
  EXPECT_TRUE(parse_digest(d.dump()).is_ok());
}

TEST(Digest, that_lacks_a_key_or_holds_another_type_there_is_refused_and_the_key_named) {
  const nlohmann::json d = nlohmann::json::parse(render_digest(whole()));
  for (const auto& [key, value] : d.items()) {
    nlohmann::json without = d, other = d;
    without.erase(key);
    EXPECT_FALSE(parse_digest(without.dump()).is_ok()) << key;
    other[key] = nlohmann::json::array({nlohmann::json::array({"x"})});
    const auto read = parse_digest(other.dump());
    if (key != "origins" && key != "scaler") {
      EXPECT_THAT(read.status().message(), HasSubstr(key));
    }
    EXPECT_FALSE(read.is_ok()) << key;
  }
}

TEST(Digest, that_is_cut_or_changed_anywhere_crashes_nothing) {
  const std::string text = render_digest(whole());
  for (std::size_t n = 0; n + 1 < text.size(); ++n) EXPECT_FALSE(parse_digest(text.substr(0, n)).is_ok());
  std::mt19937 random(1);
  for (int i = 0; i < 5000; ++i) {
    std::string changed = text;
    for (int k = 0; k < 1 + i % 4; ++k) changed[random() % changed.size()] = static_cast<char>(random());
    const auto read = parse_digest(changed);
    if (read) {
      EXPECT_LE(render_digest(*read).size(), kMaxDigestBytes);
    }
  }
  EXPECT_FALSE(parse_digest(std::string(60000, '[')).is_ok());
}

TEST(Digest, keeps_checksums_at_steps_that_other_ranks_keep_too) {
  const auto checksums_until = [](std::uint32_t last) {
    std::vector<std::pair<std::uint32_t, std::uint64_t>> all;
    for (std::uint32_t step = 0; step <= last; step += step < 8 ? 1 : 8) all.emplace_back(step, step);
    thin_checksums(all);
    return all;
  };
  const auto some = checksums_until(4000), more = checksums_until(9000);
  EXPECT_LE(some.size(), kMaxChecksums);
  EXPECT_LE(more.size(), kMaxChecksums);
  std::size_t shared = 0;
  for (const auto& one : some) shared += std::find(more.begin(), more.end(), one) != more.end() ? 1u : 0u;
  EXPECT_GE(shared, 16u);
  EXPECT_THAT(checksums_until(7), SizeIs(8));
}

}  // namespace
}  // namespace nanhunt::fleet
