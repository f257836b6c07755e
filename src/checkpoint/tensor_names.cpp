// SPDX-License-Identifier: Apache-2.0
#include "src/checkpoint/tensor_names.h"

#include <algorithm>

namespace nanhunt::checkpoint {
namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

bool has_one_word(std::string_view name, std::string_view word) {
  for (std::size_t at = name.find(word); at != std::string_view::npos; at = name.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    if ((at == 0 || !is_letter(name[at - 1])) && (end == name.size() || !is_letter(name[end]))) return true;
  }
  return false;
}

bool ends_with_word(std::string_view name, std::initializer_list<std::string_view> words) {
  while (!name.empty() && !is_letter(name.back())) name.remove_suffix(1);  // "edges_0"
  return std::any_of(words.begin(), words.end(), [&](std::string_view word) {
    return name.ends_with(word) && (name.size() == word.size() || !is_letter(name[name.size() - word.size() - 1]));
  });
}

}  // namespace

std::string_view last_part(std::string_view name) {
  const std::size_t at = name.find_last_of(".:");
  return at == std::string_view::npos ? name : name.substr(at + 1);
}

bool has_whole_word(std::string_view name, std::initializer_list<std::string_view> words) {
  return std::any_of(words.begin(), words.end(), [&](std::string_view word) { return has_one_word(name, word); });
}

bool has_text(std::string_view name, std::initializer_list<std::string_view> texts) {
  return std::any_of(texts.begin(), texts.end(),
                     [&](std::string_view text) { return name.find(text) != std::string_view::npos; });
}

bool is_callback_state(std::string_view name) {
  return name.starts_with("callbacks.") || has_text(name, {".callbacks.", ":callbacks."});
}

bool is_optimizer_state(std::string_view name) {
  return name.starts_with("state.") || has_text(name, {".state.", ":state.", "exp_avg", "momentum_buffer"});
}

bool is_surely_optimizer_state(std::string_view name) {
  const std::size_t at = name.rfind("state.");
  if (at == std::string_view::npos || (at > 0 && name[at - 1] != '.' && name[at - 1] != ':')) return false;
  const std::string_view parameter = name.substr(at + 6);
  const bool numbered = !parameter.empty() && parameter[0] >= '0' && parameter[0] <= '9';
  return numbered || has_text(name.substr(0, at), {"opt", "Opt"});
}

bool is_mask_name(std::string_view name) {
  return has_text(name,
                  {"mask", "attn_bias", "attention_bias", "logit_bias", "logits_bias", "suppress", "causal", "alibi"});
}

bool is_trained_name(std::string_view name, std::size_t rank) {
  if (ends_with_word(name, {"mask", "masks"})) return false;
  if (name.starts_with("running_") || name.starts_with("lora") || name.ends_with("proj_bias")) return true;
  if (has_whole_word(name, {"lora", "gamma", "beta"})) return true;
  if (name.starts_with("weight") || ends_with_word(name, {"weight", "weights", "kernel", "scale", "scales"}))
    return true;
  if (has_text(name, {"embed"})) return true;
  if (ends_with_word(name, {"token", "tokens"})) return !has_text(name, {"suppress"});
  // A bias of two dimensions may be a mask that is added to scores.
  return name == "bias" ||
         (rank < 2 && !is_mask_name(name) && (name.starts_with("bias_") || ends_with_word(name, {"bias"})));
}

bool is_loss_name(std::string_view name) {
  const bool starts = name.starts_with("loss_") || name.starts_with("losses_");
  return ends_with_word(name, {"loss", "losses", "history"}) ||
         (starts &&
          ends_with_word(name, {"avg", "mean", "ema", "sum", "min", "max", "buffer", "curve", "log", "values"}));
}

bool is_range_name(std::string_view name) {
  return ends_with_word(name, {"edge", "edges", "bins", "boundary", "boundaries", "quantile", "quantiles"});
}

}  // namespace nanhunt::checkpoint
