// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/groups/shm/shm_segment.h"

#include <array>
#include <cstring>
#include <fcntl.h>
#include <sstream>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <fmt/format.h>

#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"

namespace muster::groups {
namespace {

enum class Way { kMemfd, kDevShm };

/// What the creator tells the others: where the segment is, and how they know that it is this one.
struct Offer {
  std::string path;
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
};

std::string to_text(const Offer& offer) {
  return fmt::format("{} {} {}", offer.device, offer.inode, offer.path);
}

Result<Offer> parse_offer(const std::string& text) {
  Offer offer;
  std::istringstream in(text);
  if (!(in >> offer.device >> offer.inode >> offer.path))
    return fail(ErrorCode::kProtocol, "'" + text + "' is not where a shared segment is");
  return offer;
}

struct Created {
  UniqueFd fd;
  Offer offer;
};

Result<Created> create(Way way, std::size_t size) {
  Created out;
  if (way == Way::kMemfd) {
    out.fd.reset(::memfd_create("muster", MFD_CLOEXEC));
    if (!out.fd) return fail(errno_error("memfd_create", errno));
    out.offer.path = fmt::format("/proc/{}/fd/{}", ::getpid(), out.fd.get());
  } else {
    std::array<std::uint64_t, 2> random{};
    if (::getrandom(random.data(), sizeof random, 0) != sizeof random)
      return fail(errno_error("getrandom", errno));
    out.offer.path = fmt::format("/dev/shm/muster-{:016x}{:016x}", random[0], random[1]);
    out.fd.reset(::open(out.offer.path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!out.fd) return fail(errno_error("create " + out.offer.path, errno));
  }
  struct stat info {};
  if (::ftruncate(out.fd.get(), static_cast<off_t>(size)) != 0 || ::fstat(out.fd.get(), &info) != 0) {
    const int error = errno;
    if (way == Way::kDevShm) ::unlink(out.offer.path.c_str());
    return fail(errno_error(fmt::format("size a shared segment of {} bytes", size), error));
  }
  out.offer.device = info.st_dev;
  out.offer.inode = info.st_ino;
  return out;
}

/// In another mount or pid namespace the path may be absent, or, worse, be something else.
Result<UniqueFd> open_offer(const Offer& offer, std::size_t size) {
  UniqueFd fd(retry_eintr([&] { return ::open(offer.path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK); }));
  if (!fd) return fail(errno_error("open " + offer.path, errno));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return fail(errno_error("stat " + offer.path, errno));
  if (info.st_dev != offer.device || info.st_ino != offer.inode ||
      static_cast<std::size_t>(info.st_size) != size)
    return fail(ErrorCode::kUnsupported, offer.path + " is another file here");
  return fd;
}

Result<std::shared_ptr<ShmSegment>> map(int fd, const SegmentRequest& request) {
  const auto own = static_cast<off_t>(request.own_end - request.own_begin);
  if (own > 0) {
    const int outcome =
        retry_eintr([&] { return ::fallocate(fd, 0, static_cast<off_t>(request.own_begin), own); });
    if (outcome != 0) {
      const int error = errno;
      struct statvfs disk {};
      const bool told = ::fstatvfs(fd, &disk) == 0 && disk.f_blocks != 0;
      Error out = errno_error(fmt::format("reserve {} bytes of shared memory", own), error);
      if (told)
        out.message += fmt::format("; {} of {} bytes are free there, give the container a larger /dev/shm",
                                   disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize);
      return fail(std::move(out));
    }
  }
  void* base = ::mmap(nullptr, request.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return fail(errno_error(fmt::format("map {} shared bytes", request.size), errno));
  auto segment = std::make_shared<ShmSegment>(base, request.size);
  // Page faults now and not in the first step. Before Linux 5.14 this fails and they come later.
  if (own > 0)
    ::madvise(segment->base() + request.own_begin, static_cast<std::size_t>(own), MADV_POPULATE_WRITE);
  return segment;
}

Result<std::shared_ptr<ShmSegment>> attempt(Way way, const SegmentRequest& request,
                                            const TextExchange& exchange) {
  Result<Created> created = Created{};
  std::string offer_text;
  if (request.member == 0) {
    created = create(way, request.size);
    offer_text = created ? to_text(created->offer) : "!" + created.error().message;
  }
  auto offers = exchange(offer_text);
  const auto forget_name = [&] {
    if (way == Way::kDevShm && created && created->fd) ::unlink(created->offer.path.c_str());
  };
  if (!offers) {
    forget_name();
    return fail(std::move(offers).error());
  }
  if (offers->front().starts_with('!')) return fail(ErrorCode::kUnsupported, offers->front().substr(1));

  Result<std::shared_ptr<ShmSegment>> segment = std::shared_ptr<ShmSegment>();
  if (request.member == 0) {
    segment = map(created->fd.get(), request);
  } else {
    const auto offer = parse_offer(offers->front());
    auto fd = offer ? open_offer(*offer, request.size) : Result<UniqueFd>(fail(offer.error()));
    segment = fd ? map(fd->get(), request) : Result<std::shared_ptr<ShmSegment>>(fail(std::move(fd).error()));
  }
  const bool full = !segment && segment.error().code == ErrorCode::kExhausted;
  const auto outcomes = exchange(segment ? "ok" : (full ? "full " : "no ") + segment.error().message);
  forget_name();
  if (!outcomes) return fail(outcomes.error());
  for (std::size_t i = 0; i < outcomes->size(); ++i) {
    const std::string& outcome = (*outcomes)[i];
    if (outcome == "ok") continue;
    const auto text = outcome.substr(std::min(outcome.find(' '), outcome.size()));
    return fail(outcome.starts_with("full ") ? ErrorCode::kExhausted : ErrorCode::kUnsupported,
                fmt::format("member {} of this host cannot share memory:{}", i, text));
  }
  return segment;
}

}  // namespace

ShmSegment::~ShmSegment() {
  ::munmap(base_, size_);
}

Result<std::shared_ptr<ShmSegment>> make_memfd_segment(const SegmentRequest& request,
                                                       const TextExchange& exchange) {
  return attempt(Way::kMemfd, request, exchange);
}

Result<std::shared_ptr<ShmSegment>> make_dev_shm_segment(const SegmentRequest& request,
                                                         const TextExchange& exchange) {
  return attempt(Way::kDevShm, request, exchange);
}

Result<std::shared_ptr<ShmSegment>> make_shared_segment(const SegmentRequest& request,
                                                        const TextExchange& exchange) {
  const auto is_final = [](const auto& made) {
    return made ||
           (made.error().code != ErrorCode::kUnsupported && made.error().code != ErrorCode::kExhausted);
  };
  // The memfd first: it never has a name, and no small /dev/shm of a container limits it.
  auto first = make_memfd_segment(request, exchange);
  if (is_final(first)) return first;
  auto second = make_dev_shm_segment(request, exchange);
  if (is_final(second)) return second;
  second.error().message = fmt::format("no shared memory between these processes: {}; and by /dev/shm: {}",
                                       first.error().message, second.error().message);
  return second;
}

}  // namespace muster::groups
