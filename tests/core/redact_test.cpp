// SPDX-License-Identifier: Apache-2.0
#include "src/core/redact.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nanhunt {
namespace {

using testing::ElementsAre;

std::vector<std::string> redacted(std::vector<std::string> command) {
  redact_command(command);
  return command;
}

TEST(Redact, names_of_secrets_are_told_from_words_of_the_trade) {
  for (const char* name : {"--api-key", "WANDB_API_KEY", "hfToken", "--token", "--db_password", "AWS_SECRET_ACCESS_KEY",
                           "--hub-auth-token", "passwd", "HF_TOKEN"}) {
    EXPECT_TRUE(names_secret(name)) << name;
  }
  for (const char* name : {"--tokenizer", "--max-tokens", "--pad-token", "--eos_token", "--sort-key", "--key", "author",
                           "token_dim", "--lr", "", "=", "monkey"}) {
    EXPECT_FALSE(names_secret(name)) << name;
  }
}

TEST(Redact, a_command_keeps_everything_but_its_secrets) {
  EXPECT_THAT(redacted({"python", "train.py", "--lr", "0.1", "--token", "abc", "--api-key=def", "HF_TOKEN=x", "out"}),
              ElementsAre("python", "train.py", "--lr", "0.1", "--token", "<redacted>", "--api-key=<redacted>",
                          "HF_TOKEN=<redacted>", "out"));
  // An option that follows is none of its value.
  EXPECT_THAT(redacted({"--token", "--verbose", "yes"}), ElementsAre("--token", "--verbose", "yes"));
  EXPECT_THAT(redacted({"--pad-token", "<pad>"}), ElementsAre("--pad-token", "<pad>"));
}

TEST(Redact, what_looks_like_a_secret_goes_wherever_it_stands) {
  EXPECT_EQ(redact_value("https://me:pass@host/x@y"), "https://<redacted>@host/x@y");
  EXPECT_EQ(redact_value("https://host/x@y"), "https://host/x@y");
  EXPECT_EQ(redact_value("a,hf_abcdefghijklmnopqrst,b"), "a,<redacted>,b");
  EXPECT_EQ(redact_value("hf_short"), "hf_short");
  EXPECT_EQ(redact_value("shelf_abcdefghijklmnopqrst"), "shelf_abcdefghijklmnopqrst");
  EXPECT_EQ(redact_value("://"), "://");
  EXPECT_EQ(redact_value(""), "");
}

TEST(Redact, options_are_redacted_by_their_names) {
  std::vector<std::pair<std::string, std::string>> options = {{"api_key", "x"}, {"lr", "0.1"}, {"password", ""}};
  redact_options(options);
  EXPECT_EQ(options[0].second, "<redacted>");
  EXPECT_EQ(options[1].second, "0.1");
  EXPECT_EQ(options[2].second, "");
}

}  // namespace
}  // namespace nanhunt
