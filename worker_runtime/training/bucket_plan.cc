// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/training/bucket_plan.h"

namespace muster {

std::vector<Bucket> plan_buckets(std::span<const nn::Parameter> parameters, std::size_t arena_elements,
                                 const DdpOptions& options) {
  std::vector<Bucket> buckets;
  std::size_t end = arena_elements;  // of the bucket being filled
  std::size_t in_bucket = 0;
  std::size_t bytes = 0;
  for (std::size_t i = parameters.size(); i-- > 0;) {
    const nn::Parameter& parameter = parameters[i];
    ++in_bucket;
    bytes += parameter.count * sizeof(float);
    const std::size_t limit = buckets.empty() ? options.first_bucket_bytes : options.bucket_bytes;
    if (bytes < limit && i != 0) continue;
    buckets.push_back({.first_parameter = i,
                       .num_parameters = in_bucket,
                       .offset = parameter.offset,
                       .count = end - parameter.offset,
                       .ready_operation = parameter.operation});
    end = parameter.offset;
    in_bucket = 0;
    bytes = 0;
  }
  return buckets;
}

}  // namespace muster
