// SPDX-License-Identifier: Apache-2.0
#include "src/core/redact.h"

#include <algorithm>
#include <array>
#include <cstddef>

namespace nanhunt {
namespace {

// Locale-free.
bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word(char c) { return is_lower(c) || is_upper(c) || is_digit(c); }
char lower(char c) { return is_upper(c) ? static_cast<char>(c - 'A' + 'a') : c; }

// "WANDB_API_KEY", "wandb-api-key" and "wandbApiKey" are wandb, api, key.
std::vector<std::string> words_of(std::string_view name) {
  std::vector<std::string> words;
  bool begins = true;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    if (!is_word(c)) {
      begins = true;
      continue;
    }
    if (begins || (is_upper(c) && !is_upper(name[i - 1]))) words.emplace_back();
    words.back().push_back(lower(c));
    begins = false;
  }
  return words;
}

template <std::size_t N>
bool is_among(const std::array<std::string_view, N>& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

constexpr std::array<std::string_view, 14> kSecretWords = {
    "apikey", "auth",     "authorization", "bearer", "cookie", "credential", "credentials",
    "passwd", "password", "passphrase",    "pwd",    "secret", "secrets",    "token"};
constexpr std::array<std::string_view, 12> kKeyOwners = {
    "access", "account", "api", "auth", "comet", "encryption", "hf", "neptune", "private", "ssh", "service", "wandb"};
// "--pad-token <pad>" names a token of a vocabulary.
constexpr std::array<std::string_view, 12> kVocabulary = {"bos", "cls",    "end",  "eos", "image", "mask",
                                                          "pad", "prompt", "sep",  "special", "start", "unk"};

struct Beginning {
  std::string_view text;
  std::size_t least;  // characters of the whole token
};
constexpr std::array<Beginning, 13> kBeginnings = {{{"AKIA", 20},
                                                    {"ASIA", 20},
                                                    {"eyJ", 40},  // a JSON web token
                                                    {"github_pat_", 20},
                                                    {"ghp_", 20},
                                                    {"gho_", 20},
                                                    {"ghs_", 20},
                                                    {"glpat-", 20},
                                                    {"hf_", 20},
                                                    {"sk-", 20},
                                                    {"xoxb-", 20},
                                                    {"xoxp-", 20},
                                                    {"AIza", 35}}};

bool is_token_char(char c) { return is_word(c) || c == '_' || c == '-' || c == '.'; }

// The token that starts here, 0: none.
std::size_t token_at(std::string_view text) {
  for (const Beginning& beginning : kBeginnings) {
    if (!text.starts_with(beginning.text)) continue;
    const auto end = std::find_if_not(text.begin(), text.end(), is_token_char);
    const auto size = static_cast<std::size_t>(end - text.begin());
    if (size >= beginning.least) return size;
  }
  return 0;
}

}  // namespace

bool names_secret(std::string_view name) {
  const std::vector<std::string> words = words_of(name);
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "token" && i > 0 && is_among(kVocabulary, words[i - 1])) continue;
    if (words[i] == "token" && i + 1 < words.size()) continue;  // "token_dim", "token-type-ids"
    if (is_among(kSecretWords, words[i])) return true;
    if (words[i] == "key" && i > 0 && is_among(kKeyOwners, words[i - 1])) return true;
  }
  return false;
}

std::string redact_value(std::string_view value) {
  std::string out;
  for (std::size_t i = 0; i < value.size();) {
    const bool begins = i == 0 || !is_word(value[i - 1]);
    if (const std::size_t size = begins ? token_at(value.substr(i)) : 0; size > 0) {
      out += kRedacted;
      i += size;
      continue;
    }
    if (value.substr(i).starts_with("://")) {  // scheme://user:password@host
      const std::size_t host = i + 3, end = std::min(value.find_first_of("/?# ", host), value.size());
      const std::size_t at = value.substr(0, end).rfind('@');
      out += "://";
      i = host;
      if (at != std::string_view::npos && at >= host) {
        out += kRedacted;
        i = at;
      }
      continue;
    }
    out += value[i++];
  }
  return out;
}

void redact_command(std::vector<std::string>& command) {
  bool is_secret = false;  // the argument at hand belongs to an option that names one
  for (std::string& argument : command) {
    const bool is_option = argument.starts_with('-') && argument.size() > 1;
    if (is_secret && !is_option) {
      argument = kRedacted;
      is_secret = false;
      continue;
    }
    const std::size_t equals = argument.find('=');
    const std::string_view name = std::string_view(argument).substr(0, equals);
    // A long text with a '=' somewhere is no name.
    const bool named = names_secret(name.size() > 128 ? std::string_view() : name);
    is_secret = named && is_option && equals == std::string::npos;
    if (named && equals != std::string::npos) {
      argument.replace(equals + 1, std::string::npos, kRedacted);
    } else {
      argument = redact_value(argument);
    }
  }
}

void redact_options(std::vector<std::pair<std::string, std::string>>& options) {
  for (auto& [name, value] : options)
    value = names_secret(name) && !value.empty() ? std::string(kRedacted) : redact_value(value);
}

}  // namespace nanhunt
