// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/examples/progress.h"

#include <algorithm>
#include <cmath>
#include <sys/ioctl.h>
#include <unistd.h>

namespace fashion {
namespace {

std::string loss_text(double loss) {
  return std::isnan(loss) ? "loss      -" : format("loss %.4f", loss);
}

int columns_of(std::FILE* out) {
  winsize size{};
  if (::ioctl(::fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

}  // namespace

std::string progress_line(const ProgressView& view) {
  const int width = static_cast<int>(std::to_string(view.steps).size());
  return format("epoch %d/%d  step %*lld/%lld  ", view.epoch, view.epochs, width,
                static_cast<long long>(view.step), static_cast<long long>(view.steps)) +
         loss_text(view.loss) +
         format("  %6.0f it/s  %7.0f images/s", view.steps_per_second,
                view.steps_per_second * view.images_per_step);
}

std::string progress_bar(const ProgressView& view, int columns) {
  const double done =
      view.steps == 0 ? 1.0 : static_cast<double>(view.step) / static_cast<double>(view.steps);
  std::string right = format(" %3.0f%%  ", std::floor(done * 100)) + loss_text(view.loss);
  if (view.steps_per_second > 0) {
    const auto left =
        static_cast<long>(std::ceil(static_cast<double>(view.steps - view.step) / view.steps_per_second));
    right += format("  %.0f it/s  %ld:%02ld", view.steps_per_second, left / 60, left % 60);
  }
  const std::string left = format("epoch %d/%d ", view.epoch, view.epochs);
  const int room =
      columns - 1 - static_cast<int>(left.size() + right.size()) - 2;  // the last column stays free
  if (room < 5) return (left + right).substr(0, static_cast<std::size_t>(std::max(columns - 1, 0)));
  const auto filled = static_cast<std::size_t>(std::clamp(static_cast<int>(done * room), 0, room));
  std::string bar(filled, '=');
  if (filled < static_cast<std::size_t>(room)) bar += '>';
  bar.resize(static_cast<std::size_t>(room), ' ');
  return left + "[" + bar + "]" + right;
}

Progress::Progress(std::FILE* out, bool enabled)
    : out_(out), enabled_(enabled), terminal_(::isatty(::fileno(out)) == 1) {}

void Progress::tick(const ProgressView& view, Clock::time_point now) {
  if (!draws_bar() || now - last_ < std::chrono::milliseconds(100)) return;
  last_ = now;
  drawn_ = true;
  // To the line's start, then clear what is right of the text.
  std::fprintf(out_, "\r%s\033[K", progress_bar(view, columns_of(out_)).c_str());
  std::fflush(out_);
}

void Progress::interval(const ProgressView& view) {
  if (enabled_ && !terminal_) say(progress_line(view));
}

void Progress::say(const std::string& line) {
  if (!enabled_) return;
  clear();
  std::fprintf(out_, "%s\n", line.c_str());
  std::fflush(out_);
}

void Progress::clear() {
  if (!drawn_) return;
  drawn_ = false;
  std::fprintf(out_, "\r\033[K");
  std::fflush(out_);
}

}  // namespace fashion
