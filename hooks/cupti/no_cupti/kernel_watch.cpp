// SPDX-License-Identifier: Apache-2.0
#include "hooks/cupti/kernel_watch.h"

namespace nanhunt::hooks {
namespace {

constexpr const char* kWhyNot =
    "this build has no CUPTI (NANHUNT_CUDA=OFF, or no toolkit of version 13 with its headers was found)";

}  // namespace

Result<std::unique_ptr<KernelWatch>> KernelWatch::attach(const KernelOptions&) {
  return Status(StatusCode::kNotFound, kWhyNot);
}

CuptiFacts probe_cupti(const KernelOptions&) {
  CuptiFacts facts;
  facts.why_not = kWhyNot;
  return facts;
}

}  // namespace nanhunt::hooks
