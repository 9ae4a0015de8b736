// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <fmt/format.h>

#include "rendezvous/base/fail.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"
#include "worker_runtime/groups/shm/shm_group.h"

namespace muster::groups {
namespace {

/// Which file it is, and how large.
std::string identity_of(const UniqueFd& file) {
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return "";
  return fmt::format("{} {} {}", info.st_dev, info.st_ino, info.st_size);
}

Result<UniqueFd> create(std::size_t size) {
  UniqueFd file(::memfd_create("muster", MFD_CLOEXEC));
  if (!file || ::ftruncate(file.get(), static_cast<off_t>(size)) != 0)
    return fail(errno_error(fmt::format("make a shared segment of {} bytes", size), errno));
  return file;
}

/// `offer`: its path, a space, its identity. In another mount or pid namespace the path may be absent, or,
/// worse, be something else.
Result<UniqueFd> open_offered(const std::string& offer, std::size_t size) {
  const std::string path = offer.substr(0, offer.find(' '));
  UniqueFd file(retry_eintr([&] { return ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK); }));
  if (!file) return fail(errno_error("open " + path, errno));
  const std::string identity = identity_of(file);
  if (offer != path + " " + identity || !identity.ends_with(fmt::format(" {}", size)))
    return fail(ErrorCode::kUnsupported, "{} is another file here", path);
  return file;
}

Result<ShmSegment> map(const UniqueFd& file, const SegmentRequest& request) {
  const auto own = static_cast<off_t>(request.own_end - request.own_begin);
  if (own > 0 && retry_eintr([&] {
                   return ::fallocate(file.get(), 0, static_cast<off_t>(request.own_begin), own);
                 }) != 0)
    return fail(errno_error(fmt::format("reserve {} bytes of shared memory", own), errno));
  void* base = ::mmap(nullptr, request.size, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (base == MAP_FAILED) return fail(errno_error(fmt::format("map {} shared bytes", request.size), errno));
  ShmSegment segment(static_cast<std::byte*>(base),
                     [size = request.size](std::byte* memory) { ::munmap(memory, size); });
  // Page faults now and not in the first step. Before Linux 5.14 this fails and they come later.
  if (own > 0)
    ::madvise(segment.get() + request.own_begin, static_cast<std::size_t>(own), MADV_POPULATE_WRITE);
  return segment;
}

}  // namespace

Result<ShmSegment> make_shared_segment(const SegmentRequest& request, const TextExchange& exchange) {
  Result<UniqueFd> file;
  std::string offer;
  if (request.member == 0) {
    file = create(request.size);
    offer = file ? fmt::format("/proc/{}/fd/{} {}", ::getpid(), file->get(), identity_of(*file))
                 : "!" + file.error().message;
  }
  MUSTER_TRY(const auto offers, exchange(offer));
  if (offers.front().starts_with('!')) return fail(ErrorCode::kUnsupported, offers.front().substr(1));
  if (request.member != 0) file = open_offered(offers.front(), request.size);
  auto segment = file.and_then([&](const UniqueFd& opened) { return map(opened, request); });
  const bool full = !segment && segment.error().code == ErrorCode::kExhausted;
  // Until all have answered member 0 keeps the file open, through which the others reach it.
  MUSTER_TRY(const auto outcomes,
             exchange(segment ? "ok" : (full ? "full " : "no ") + segment.error().message));
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    const std::string& outcome = outcomes[i];
    if (outcome == "ok") continue;
    return fail(outcome.starts_with("full ") ? ErrorCode::kExhausted : ErrorCode::kUnsupported,
                "member {} of this host cannot share memory: {}", i, outcome.substr(outcome.find(' ') + 1));
  }
  return segment;
}

}  // namespace muster::groups
