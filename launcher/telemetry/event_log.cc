// SPDX-License-Identifier: Apache-2.0
#include "launcher/telemetry/event_log.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {

using Json = nlohmann::ordered_json;

EventTime EventTime::now() {
  return {std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(),
          std::chrono::duration<double>(SteadyClock::now().time_since_epoch()).count()};
}

std::string event_line(std::string_view event, const Job& job, const std::optional<Assignment>& assignment,
                       const EventTime& time, const Json& fields) {
  Json out{{"time", time.wall_s},
           {"monotonic", time.monotonic_s},
           {"event", event},
           {"run_id", job.run_id},
           {"host", job.host}};
  if (assignment) out["node"] = assignment->group_rank;
  if (assignment) out["generation"] = assignment->generation;
  out["restarts"] = assignment ? assignment->attempt : 0;
  for (const auto& [key, value] : fields.items())
    if (value != "") out[key] = value;
  for (std::size_t most = 500;; most /= 2) {
    std::string line = out.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n';
    if (line.size() <= kMaxEventBytes) return line;
    for (Json& value : out)
      if (value.is_string()) value = value.get_ref<const std::string&>().substr(0, most);
  }
}

Result<EventLog> EventLog::open(std::string_view file, std::string_view host) {
  constexpr std::string_view kHost = "{host}";
  std::string path(file);
  if (const auto at = path.find(kHost); at != std::string::npos) path.replace(at, kHost.size(), host);
  // O_NONBLOCK: of a named pipe.
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | O_CLOEXEC, 0666));
  if (!fd) {
    Error error = errno_error("--events=" + path, errno);
    error.code = ErrorCode::kInvalidArgument;
    return fail(std::move(error));
  }
  return EventLog(std::move(path), std::move(fd));
}

int EventLog::drain() {
  while (!waiting_.empty()) {
    // As many whole lines as a pipe takes at once, or one; the rest of a line that was begun counts as one.
    std::size_t size = waiting_.find('\n') + 1;
    // A search that finds nothing ends it, too.
    for (std::size_t next = waiting_.find('\n', size); next < kMaxEventBytes;
         next = waiting_.find('\n', size))
      size = next + 1;
    const ssize_t n = retry_eintr([&] { return ::write(fd_.get(), waiting_.data(), size); });
    if (n < 0) return errno;
    waiting_.erase(0, static_cast<std::size_t>(n));
  }
  return 0;
}

void EventLog::write(std::string_view lines, const Log& log) {
  int error = stuck_ ? drain() : 0;
  if (error != 0 && waiting_.size() + lines.size() > kMostWaiting) {
    dropped_ += static_cast<std::uint64_t>(std::count(lines.begin(), lines.end(), '\n'));
  } else {
    waiting_ += lines;
    error = drain();
  }
  if (error != 0 && !std::exchange(stuck_, true))
    log.warning(fmt::format("could not write events to {}: {}; the job goes on, and events may be missing",
                            path_, errno_text(error)));
  if (error == 0 && std::exchange(stuck_, false))
    log.warning(fmt::format("events are written to {} again; {} are missing", path_, dropped_));
}

}  // namespace muster::launcher
