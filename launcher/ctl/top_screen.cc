// SPDX-License-Identifier: Apache-2.0
// The live view of musterctl top on a terminal, by ncurses: draws what job_view.h says, hands it the keys,
// asks the job's page once per interval. One loop, one thread. A page that does not answer is said on the
// screen, over what was seen last. The terminal is as it was when this returns.
#include <algorithm>
#include <clocale>
#include <cstdlib>
#include <exception>
#include <fcntl.h>
#include <optional>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/signal_set.hpp>
#include <fmt/format.h>

#include "launcher/ctl/commands.h"
#include "launcher/ctl/job_view.h"
#include "launcher/job/exit_status.h"
#include "rendezvous/base/lifetime.h"
#include "rendezvous/base/text.h"
#include "rendezvous/base/unique_fd.h"
#include "rendezvous/net/awaitable.h"

// Behind everything else: what is left of its macros has short names.
#define NCURSES_NOMACROS
#include <ncurses.h>

namespace muster::launcher {
namespace {

namespace asio = boost::asio;
using net::kTuple;
constexpr Millis kTimeout{5'000};
constexpr int kEscapeDelayMs = 25;  // until a lone Esc is no beginning of another key
constexpr int kLogLines = 1000;

constexpr std::pair<int, int> kKeys[] = {
    {KEY_UP, Key::kUp},           {KEY_DOWN, Key::kDown}, {KEY_PPAGE, Key::kPageUp},
    {KEY_NPAGE, Key::kPageDown},  {KEY_HOME, Key::kHome}, {KEY_END, Key::kEnd},
    {KEY_ENTER, Key::kEnter},     {'\n', Key::kEnter},    {'\r', Key::kEnter},
    {KEY_BACKSPACE, Key::kErase}, {'\b', Key::kErase},    {0x7f, Key::kErase},
    {0x1b, Key::kEscape}};

/// Nothing: a key without a meaning here.
std::optional<int> key_of(int code) {
  for (const auto& [each, key] : kKeys)
    if (each == code) return key;
  return code >= ' ' && code < 0x7f ? std::optional(code) : std::nullopt;
}

class TopScreen {
 public:
  TopScreen(const JobPage& page, Millis interval, UniqueFd keys)
      : page_(page),
        interval_(interval),
        keys_(loop_, keys.release()),
        signals_(loop_, SIGINT, SIGTERM, SIGHUP),
        timer_(loop_) {
    signals_.add(SIGWINCH);
  }

  int run() {
    resize();
    draw();
    for (auto task : {&TopScreen::watch_job, &TopScreen::read_keys, &TopScreen::take_signals})
      asio::co_spawn(loop_, (this->*task)(), [this](const std::exception_ptr& failed) {
        if (failed) status_ = kExitSystem;
        loop_.stop();
      });
    loop_.run();
    return status_;
  }

 private:
  asio::awaitable<void> watch_job() {
    while (true) {
      const auto document = co_await get(page_, "/api/status", SteadyClock::now() + kTimeout);
      auto view = document ? parse_job_view(*document) : fail(document.error());
      if (view) {
        view_ = *std::move(view);
        seen_ = SteadyClock::now();
        state_.trouble.clear();
      } else {
        state_.trouble = one_line(view.error().message);
        if (seen_ != Instant{})
          state_.trouble = fmt::format(
              "as of {} s ago: {}",
              std::chrono::duration_cast<std::chrono::seconds>(SteadyClock::now() - seen_).count(),
              state_.trouble);
      }
      if (state_.page == TopState::Page::kLog) co_await read_log();
      draw();
      timer_.expires_after(interval_);
      co_await timer_.async_wait(kTuple);  // a key may end it
    }
  }

  asio::awaitable<void> read_log() {
    const std::int64_t rank = state_.selected;
    const auto log = co_await get(page_, fmt::format("/api/log?rank={}&lines={}", rank, kLogLines),
                                  SteadyClock::now() + kTimeout);
    if (state_.page != TopState::Page::kLog || state_.selected != rank) co_return;
    const bool opened = state_.log.empty();
    state_.log = shown_lines(log ? *log : log.error().message);
    if (state_.log.empty()) state_.log = {"the log is empty"};
    if (opened) (void)press(state_, view_, Key::kEnd);
  }

  asio::awaitable<void> read_keys() {
    while (true) {
      const auto [error] = co_await keys_.async_wait(asio::posix::descriptor_base::wait_read, kTuple);
      pollfd terminal{keys_.native_handle(), POLLIN, 0};
      if (error || (::poll(&terminal, 1, 0) > 0 && (terminal.revents & (POLLHUP | POLLERR)) != 0)) co_return;
      for (int code = ::getch(); code != ERR; code = ::getch()) {
        const auto key = key_of(code);
        if (!key) continue;
        const Action action = press(state_, view_, *key);
        if (action == Action::kQuit) co_return;
        if (action == Action::kReadLog) timer_.cancel();
      }
      draw();
    }
  }

  asio::awaitable<void> take_signals() {
    while (true) {
      const auto [error, number] = co_await signals_.async_wait(kTuple);
      if (error) co_return;
      if (number != SIGWINCH) {
        status_ = 128 + number;
        co_return;
      }
      resize();
      draw();
    }
  }

  void resize() {
    winsize size{};
    if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 && size.ws_col > 0)
      ::resizeterm(size.ws_row, size.ws_col);
    state_.rows = static_cast<std::size_t>(std::max(1, ::getmaxy(stdscr)));
    state_.columns = static_cast<std::size_t>(std::max(1, ::getmaxx(stdscr)));
  }

  void draw() {
    ::erase();
    const auto lines = screen_of(state_, view_);
    for (std::size_t i = 0; i < lines.size(); ++i) {
      const auto style = lines[i].style;
      ::attrset(style == ScreenLine::Style::kPlain     ? A_NORMAL
                : style == ScreenLine::Style::kReverse ? A_REVERSE
                                                       : A_BOLD);
      if (style == ScreenLine::Style::kAlert && ::has_colors()) ::attron(COLOR_PAIR(1));
      // Unlike addstr it does not go on in the next line where a character is wider than it was counted.
      ::mvinsstr(static_cast<int>(i), 0, lines[i].text.c_str());
    }
    ::refresh();
  }

  const JobPage page_;
  const Millis interval_;
  asio::io_context loop_{1};
  asio::posix::stream_descriptor keys_;
  asio::signal_set signals_;
  LoopTimer timer_;
  JobView view_;
  TopState state_;
  Instant seen_{};
  int status_ = kExitOk;
};

}  // namespace

std::optional<int> run_screen(const JobPage& page, Millis interval) {
  // A description of its own: Asio may make the shell's one non-blocking.
  const char* name = ::ttyname(STDIN_FILENO);
  UniqueFd keys(name == nullptr ? -1 : ::open(name, O_RDONLY | O_CLOEXEC | O_NOCTTY));
  const char* term = ::getenv("TERM");
  if (!keys || term == nullptr || std::string_view(term) == "dumb") return std::nullopt;
  ::setlocale(LC_CTYPE, "");
  SCREEN* screen = ::newterm(nullptr, stdout, stdin);
  if (screen == nullptr) return std::nullopt;
  ::cbreak();
  ::noecho();
  ::keypad(stdscr, true);
  ::nodelay(stdscr, true);
  ::curs_set(0);
  ::set_escdelay(kEscapeDelayMs);
  if (::has_colors()) {
    ::start_color();
    ::use_default_colors();
    ::init_pair(1, COLOR_RED, -1);
  }
  const int status = TopScreen(page, interval, std::move(keys)).run();
  ::endwin();
  ::delscreen(screen);
  return status;
}

}  // namespace muster::launcher
