// SPDX-License-Identifier: Apache-2.0
// The GPU group of one rank, on a host stream.
#include "tests/support/catch.h"
#include "tests/support/host_device.h"
#include "worker_runtime/groups/nccl/nccl_group.h"

using namespace muster;
using namespace muster::testing;

TEST_CASE("a single rank's group copies in the order of the stream and needs no NCCL") {
  auto device = std::make_shared<HostDevice>();
  HostStream stream;
  const auto group = nccl::make_single_group(device, &stream);
  REQUIRE(group->device() == DeviceType::kCuda);
  REQUIRE(group->world_size() == 1);
  auto memory = group->allocate(6 * sizeof(float));
  REQUIRE_OK(memory);
  auto* data = static_cast<float*>(*memory);
  // Written by the stream only: a copy that does not wait its turn takes zeros.
  stream.enqueue([data] {
    for (int i = 0; i < 3; ++i) data[i] = static_cast<float>(i + 1);
  });
  REQUIRE_OK(group->all_reduce({data, 3, DType::kFloat32}, ReduceOp::kAvg));
  REQUIRE_OK(group->all_gather(ConstBuffer(data, 3, DType::kFloat32), {data + 3, 3, DType::kFloat32}));
  REQUIRE_OK(group->barrier());
  REQUIRE(data[5] == 3.0F);
  REQUIRE(data[2] == 3.0F);
  REQUIRE_FALSE(group->all_gather(ConstBuffer(data, 2, DType::kFloat32), {data + 3, 3, DType::kFloat32}));
  HostGraph graph;
  device->begin_capture(stream, graph);
  REQUIRE_FALSE(group->barrier());
  device->end_capture();
}
