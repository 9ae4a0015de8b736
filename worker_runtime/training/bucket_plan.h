// SPDX-License-Identifier: Apache-2.0
// bucket_plan: cuts the gradient arena into the ranges that DDP reduces. Pure. Gradients become ready from
// the last parameter to the first; a bucket takes parameters in that order and closes when it has reached its
// limit (so it can exceed it), the first bucket at first_bucket_bytes, the others at bucket_bytes. Source:
// compute_bucket_assignment_by_size in PyTorch's reducer.cpp, after its rebuild in order of arrival.
#pragma once

#include <span>
#include <vector>

#include <muster/ddp.h>

namespace muster {

/// `arena_elements` is the arena's size; the buckets cover it from its end to its beginning without gaps.
[[nodiscard]] std::vector<Bucket> plan_buckets(std::span<const nn::Parameter> parameters,
                                               std::size_t arena_elements, const DdpOptions& options);

}  // namespace muster
