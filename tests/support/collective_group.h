// SPDX-License-Identifier: Apache-2.0
// CollectiveGroup: a group without the operations that no training step needs, for fakes to derive from.
#pragma once

#include <string>

#include <muster/process_group.h>

namespace muster::test {

class CollectiveGroup : public ProcessGroup {
 public:
  Result<void> reduce(Buffer, int, ReduceOp) override { return unsupported("reduce"); }
  Result<void> send(ConstBuffer, int) override { return unsupported("send"); }
  Result<void> recv(Buffer, int) override { return unsupported("recv"); }

 private:
  static Result<void> unsupported(const std::string& what) {
    return fail(ErrorCode::kUnsupported, what + " of a test's group");
  }
};

}  // namespace muster::test
