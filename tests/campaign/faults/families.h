// SPDX-License-Identifier: Apache-2.0
// One constant per family; each is defined in a file of this folder.
#pragma once

namespace nanhunt::campaign {

struct Family;
extern const Family kActivationOverflow, kWeightOverflow, kDomain, kZeroDenominator, kRemovedEps, kAdamEps, kMaskedRow,
    kHiddenBranch, kSwallowedInf, kBadData, kBadStart, kBadLater, kStaticScale, kScalerMisuse, kCollapse, kHighLr,
    kGradUnderflow, kBitFlip, kLostUpdates;

}  // namespace nanhunt::campaign
