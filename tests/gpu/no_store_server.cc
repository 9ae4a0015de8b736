// SPDX-License-Identifier: Apache-2.0
// In builds without Boost (MUSTER_GPU_HOST), which have no store server.
#include <muster/store_server.h>

namespace muster {

Result<std::unique_ptr<StoreServer>> StoreServer::start(const StoreServerOptions& /*options*/) {
  return fail(ErrorCode::kUnsupported,
              "this build (MUSTER_GPU_HOST) has no store server; start the program with muster");
}

}  // namespace muster
