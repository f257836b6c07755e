// SPDX-License-Identifier: Apache-2.0
#include "hooks/engine/host_contents.h"

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

namespace nanhunt::hooks {
namespace {

// Whole storages, by generation and version: no tensor is made for it, so observers hear of nothing.
using Key = std::pair<std::uint64_t, std::uint32_t>;
thread_local std::map<Key, std::vector<std::byte>> copies;

}  // namespace

TensorView host_view(const engine::Tensor& tensor) {
  TensorView view = tensor.view();
  if (tensor.device().is_cpu()) return view;
  const engine::Storage& storage = *tensor.storage();
  const auto [found, is_new] = copies.try_emplace(Key{storage.generation(), storage.version()});
  if (is_new) {
    found->second.resize(storage.bytes() + 1);  // never null, also of nothing
    storage.read(found->second.data());
  }
  view.data = found->second.data() + static_cast<std::size_t>(tensor.storage_offset()) * dtype_size(tensor.dtype());
  return view;
}

ScopedHostContents::~ScopedHostContents() { copies.clear(); }

}  // namespace nanhunt::hooks
