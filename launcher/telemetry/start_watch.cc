// SPDX-License-Identifier: Apache-2.0
#include "launcher/telemetry/start_watch.h"

#include <cstring>
#include <sys/inotify.h>
#include <unistd.h>

#include <fmt/format.h>

#include "launcher/progress/runtime_page_reader.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"

namespace muster::launcher {
namespace {

constexpr int kOfNoHang = -1;

}  // namespace

control::Hang StartWatch::word() {
  control::Hang out;
  out.kind = control::Hang::Kind::kPart;
  out.number = kOfNoHang;
  return out;
}

bool StartWatch::is_about_start(const control::Hang& word) {
  return word.kind == control::Hang::Kind::kPart && word.number == kOfNoHang;
}

StartWatch::StartWatch(boost::asio::io_context& io, Place place, Told told, Say say, const Log& log)
    : place_(std::move(place)),
      told_(std::move(told)),
      say_(std::move(say)),
      log_(log),
      events_(io),
      alive_(std::make_shared<bool>(true)) {}

StartWatch::~StartWatch() {
  *alive_ = false;
}

void StartWatch::begin(const std::vector<std::string>& progress_files) {
  started_ = SteadyClock::now();
  files_ = progress_files;
  if (files_.empty()) return;
  marks_.assign(files_.size(), std::nullopt);
  UniqueFd fd(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  int failed = fd ? 0 : errno;
  for (std::size_t rank = 0; rank < files_.size() && failed == 0; ++rank) {
    const std::string file = runtime_page_file(files_[rank]);
    const auto slash = file.rfind('/');
    // A worker touches its page when it has come further; a store into mapped memory says nothing here.
    const int watch = ::inotify_add_watch(fd.get(), file.substr(0, slash).c_str(), IN_ATTRIB);
    if (watch < 0)
      failed = errno;
    else
      names_.emplace(std::pair(watch, file.substr(slash + 1)), rank);
  }
  if (failed != 0)
    return log_.warning(fmt::format("the workers' part of the start's timeline is not known: inotify: {}",
                                    errno_text(failed)));
  events_.assign(fd.release());
  wait();
}

void StartWatch::wait() {
  events_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                     [this, alive = alive_](boost::system::error_code error) {
                       if (error || !*alive) return;
                       drain();
                       if (*alive && events_.is_open()) wait();
                     });
}

void StartWatch::drain() {
  alignas(inotify_event) std::array<char, 4096> buffer;
  while (true) {
    const ssize_t n =
        retry_eintr([&] { return ::read(events_.native_handle(), buffer.data(), buffer.size()); });
    if (n <= 0) break;
    for (std::size_t at = 0; at < static_cast<std::size_t>(n);) {
      inotify_event event;
      std::memcpy(&event, buffer.data() + at, sizeof event);
      // The name is padded with zeros.
      const char* const name = buffer.data() + at + sizeof event;
      at += sizeof event + event.len;
      if ((event.mask & IN_Q_OVERFLOW) != 0)  // who was touched meanwhile is not known
        for (std::size_t rank = 0; rank < files_.size(); ++rank) look(rank);
      if (event.len == 0) continue;
      const auto found = names_.find({event.wd, std::string(name, ::strnlen(name, event.len))});
      if (found != names_.end()) look(found->second);
    }
  }
  tell();
}

void StartWatch::look(std::size_t local_rank) {
  const std::string page = RuntimePageReader(files_[local_rank]).read();
  if (const auto marks = marks_in(page)) marks_[local_rank] = marks;
}

void StartWatch::tell() {
  for (std::size_t i = 0; i < kStages; ++i) {
    if (said_[i]) continue;
    const auto start = summarize(static_cast<StartStage>(i), started_, place_.base_rank, place_.host, marks_);
    if (!start) continue;
    said_[i] = true;
    told_(*start, false);
    if (place_.nodes == 1) continue;
    if (place_.node == 0)
      take(0, *start);
    else
      say_(to_json(*start));
  }
  if (!said_[kStages - 1]) return;
  boost::system::error_code ignored;
  events_.close(ignored);  // there is nothing more to learn
}

void StartWatch::heard(int node, std::string_view part) {
  auto start = workers_start_from_json(part);
  if (!start) return log_.info(fmt::format("node {}: {}", node, start.error().message));
  take(node, *std::move(start));
}

void StartWatch::take(int node, WorkersStart part) {
  const auto stage = static_cast<std::size_t>(part.stage);
  auto& parts = parts_.at(stage);
  if (node < 0 || node >= place_.nodes) return;
  const bool known = !parts.emplace(node, std::move(part)).second;
  if (known || parts.size() < static_cast<std::size_t>(place_.nodes)) return;
  std::vector<WorkersStart> all;
  for (const auto& [of_node, each] : parts) all.push_back(each);
  told_(merged(all), true);
}

}  // namespace muster::launcher
