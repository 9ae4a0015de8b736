// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/groups/nccl/nccl_api.h"

namespace muster::nccl {

Result<NcclApi> NcclApi::load(const std::optional<std::string>& path) {
  SharedLibrary::Request request{"NCCL", cuda_candidates("libnccl.so.2"),
                                 "install libnccl2, or name the library in MUSTER_NCCL_LIBRARY"};
  if (path) request.candidates = {*path};
  MUSTER_TRY(const SharedLibrary library, SharedLibrary::open(request));
  NcclApi api;
  api.library = library.path();
  MUSTER_OK(library.load(api.get_version, "ncclGetVersion"));
  if (api.get_version(&api.version) != kSuccess || api.version < kOldestVersion)
    return fail(ErrorCode::kUnsupported, "load NCCL: " + library.path() + " is version " +
                                             api.version_text() +
                                             ", muster needs 2.18 or newer; install a newer libnccl2");
  MUSTER_OK(library.load(api.get_unique_id, "ncclGetUniqueId", api.comm_init_rank_config,
                         "ncclCommInitRankConfig", api.comm_finalize, "ncclCommFinalize", api.comm_destroy,
                         "ncclCommDestroy", api.comm_abort, "ncclCommAbort", api.comm_get_async_error,
                         "ncclCommGetAsyncError", api.get_error_string, "ncclGetErrorString",
                         api.get_last_error, "ncclGetLastError", api.all_reduce, "ncclAllReduce",
                         api.broadcast, "ncclBroadcast", api.all_gather, "ncclAllGather", api.reduce_scatter,
                         "ncclReduceScatter"));
  library.load_optional(api.mem_alloc, "ncclMemAlloc");
  library.load_optional(api.mem_free, "ncclMemFree");
  if (api.mem_free == nullptr) api.mem_alloc = nullptr;
  return api;
}

std::string NcclApi::describe(Status status, Comm comm) const {
  std::string text = get_error_string(status);
  text += " (" + std::to_string(static_cast<int>(status)) + ")";
  if (const char* last = get_last_error(comm); last != nullptr && *last != '\0') {
    text += ": ";
    for (const char* c = last; *c != '\0'; ++c) text += *c == '\n' ? ' ' : *c;  // one line per error
  }
  return text;
}

}  // namespace muster::nccl
