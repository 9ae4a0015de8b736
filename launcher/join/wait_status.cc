// SPDX-License-Identifier: Apache-2.0
#include "launcher/join/wait_status.h"

#include <utility>

#include <fmt/format.h>

namespace muster::launcher {

void WaitStatus::begin() {
  is_quiet_ = true;
  quiet_.expires_after(kQuietTime);
  quiet_.async_wait(lifetime_.guard([this](const boost::system::error_code& error) {
    if (error) return;
    is_quiet_ = false;
    write();
  }));
}

void WaitStatus::set(std::string text, bool at_once, Instant gives_up) {
  text_ = std::move(text);
  gives_up_ = gives_up;
  if (!is_quiet_ || at_once) write();
}

void WaitStatus::write() {
  const std::string text = std::exchange(text_, {});
  if (text.empty()) return;
  if (gives_up_ == Instant::max()) return log_.warning(text);
  const auto left = std::chrono::round<std::chrono::seconds>(time_left(gives_up_, SteadyClock::now()));
  log_.warning(fmt::format("{}; giving up in {} s", text, left.count()));
}

void WaitStatus::cancel() {
  quiet_.cancel();
  text_.clear();
}

}  // namespace muster::launcher
