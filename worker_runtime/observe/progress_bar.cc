// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdarg>
#include <sys/ioctl.h>
#include <unistd.h>

#include <fmt/format.h>

#include <muster/progress_bar.h>

namespace muster {
namespace {

int columns_of(std::FILE* out) {
  winsize size{};
  return ::ioctl(::fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::string milliseconds(double seconds) {
  const double ms = seconds * 1e3;
  return fmt::format("{:.{}f} ms", ms, ms < 1 ? 3 : ms < 100 ? 1 : 0);
}

/// What there is to show, in the order of a line: loss, learning rate, times, images, rest. Empty: not known.
std::array<std::string, 6> parts_of(const ProgressView& view) {
  const std::string loss = std::isnan(view.loss) ? "loss      -" : fmt::format("loss {:.4f}", view.loss);
  if (view.step_seconds <= 0) return {loss};
  const auto left =
      static_cast<std::int64_t>(std::ceil(static_cast<double>(view.steps - view.step) * view.step_seconds));
  const std::string eta = left < 3600
                              ? fmt::format("ETA {}:{:02}", left / 60, left % 60)
                              : fmt::format("ETA {}:{:02}:{:02}", left / 3600, left / 60 % 60, left % 60);
  return {loss,
          fmt::format("lr {:.4g}", view.lr),
          view.data_seconds ? "data " + milliseconds(*view.data_seconds) : "",
          "step " + milliseconds(view.step_seconds),
          fmt::format("{:.0f} images/s", view.images_per_second),
          eta};
}

}  // namespace

std::string progress_line(const ProgressView& view) {
  std::string out = fmt::format("epoch {}/{}  step {:>{}}/{}", view.epoch, view.epochs, view.step,
                                fmt::formatted_size("{}", view.steps), view.steps);
  for (const std::string& part : parts_of(view))
    if (!part.empty()) out += "  " + part;
  return out;
}

std::string progress_bar(const ProgressView& view, int columns) {
  constexpr std::size_t kLeastBar = 7;                                   // with its brackets
  const auto room = static_cast<std::size_t>(std::max(columns - 1, 0));  // the last column stays free
  const double done =
      view.steps == 0 ? 1.0 : static_cast<double>(view.step) / static_cast<double>(view.steps);
  const std::string left = fmt::format("epoch {}/{} ", view.epoch, view.epochs);
  std::string right = fmt::format(" {:3.0f}%", std::floor(done * 100));
  const auto parts = parts_of(view);
  for (const std::size_t i : {0, 5, 4, 2, 3, 1})  // what matters most first
    if (!parts[i].empty() && left.size() + kLeastBar + right.size() + 2 + parts[i].size() <= room)
      right += "  " + parts[i];
  if (left.size() + kLeastBar + right.size() > room) return (left + right).substr(0, room);
  const std::size_t width = room - left.size() - right.size() - 2;
  std::string bar(std::min(static_cast<std::size_t>(done * static_cast<double>(width)), width), '=');
  if (bar.size() < width) bar += '>';
  bar.resize(width, ' ');
  return left + "[" + bar + "]" + right;
}

ProgressBar::ProgressBar(std::FILE* out, bool enabled)
    : out_(out), enabled_(enabled), terminal_(::isatty(::fileno(out)) == 1) {}

void ProgressBar::begin_epoch(int epoch, int epochs, std::int64_t steps, std::int64_t first_step,
                              Clock::time_point now) {
  view_ = {.epoch = epoch, .epochs = epochs, .step = first_step, .steps = steps};
  interval_step_ = first_step;
  interval_begin_ = now;
}

void ProgressBar::update(std::int64_t step, Clock::time_point now) {
  view_.step = step;
  if (!enabled_ || !terminal_ || now - last_drawn_ < std::chrono::milliseconds(100)) return;
  last_drawn_ = now;
  drawn_ = true;
  // To the line's start, then clear what is right of the text.
  std::fprintf(out_, "\r%s\033[K", progress_bar(view_, columns_of(out_)).c_str());
  std::fflush(out_);
}

void ProgressBar::interval(const Interval& interval, Clock::time_point now) {
  using Seconds = std::chrono::duration<double>;
  const double seconds = std::max(Seconds(now - interval_begin_).count(), 1e-9);
  const auto steps = static_cast<double>(std::max<std::int64_t>(view_.step - interval_step_, 1));
  view_.loss = interval.loss;
  view_.lr = interval.lr;
  view_.step_seconds = seconds / steps;
  view_.images_per_second = static_cast<double>(interval.images) / seconds;
  if (interval.data_time) {
    view_.data_seconds = Seconds(*interval.data_time - data_time_).count() / steps;
    data_time_ = *interval.data_time;
  }
  interval_step_ = view_.step;
  interval_begin_ = now;
  if (!terminal_) print("%s", progress_line(view_).c_str());
}

void ProgressBar::print(const char* format, ...) {
  if (!enabled_) return;
  clear();
  std::va_list arguments;
  va_start(arguments, format);
  std::vfprintf(out_, format, arguments);
  va_end(arguments);
  std::fputc('\n', out_);
  std::fflush(out_);
}

void ProgressBar::clear() {
  if (!drawn_) return;
  drawn_ = false;
  std::fprintf(out_, "\r\033[K");
  std::fflush(out_);
}

}  // namespace muster
