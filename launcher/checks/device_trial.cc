// SPDX-License-Identifier: Apache-2.0
#include "launcher/checks/device_trial.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "rendezvous/store/wire.h"

namespace muster::launcher {
namespace {

using Figure = std::optional<double> DeviceTrial::*;
using End = DeviceTrial::End;

constexpr double kSlowGpu = 0.7;  // neighbours of one model are within a few per cent
constexpr double kSlowCpu = 0.5;
constexpr std::size_t kMostDefectBytes = 300;
constexpr double kGiB = 1 << 30;

struct Kind {
  Figure figure;
  std::string_view name;
  std::string_view unit;
  double scale;
};
constexpr Kind kGemm{&DeviceTrial::gemm, "GEMM", "TFLOP/s", 1e12};
constexpr Kind kCpuGemm{&DeviceTrial::gemm, "GEMM", "GFLOP/s", 1e9};
constexpr Kind kCopy{&DeviceTrial::copy, "memory copies", "GiB/s", kGiB};
constexpr Kind kReduce{&DeviceTrial::reduce, "all-reduce", "GiB/s", kGiB};

std::optional<double> parse_speed(std::string_view text) {
  double out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  if (!std::isfinite(out) || out <= 0 || out > 1e21) return std::nullopt;
  return out;
}

const Kind& gemm_of(std::span<const DeviceTrial> trials) {
  return !trials.empty() && trials.front().is_gpu ? kGemm : kCpuGemm;
}

/// Ascending.
std::vector<double> values(std::span<const DeviceTrial> trials, Figure figure) {
  std::vector<double> out;
  for (const DeviceTrial& trial : trials)
    if (trial.*figure) out.push_back(*(trial.*figure));
  std::sort(out.begin(), out.end());
  return out;
}

double median(const std::vector<double>& ascending) {
  const std::size_t middle = ascending.size() / 2;
  return ascending.size() % 2 == 1 ? ascending[middle] : (ascending[middle - 1] + ascending[middle]) / 2;
}

/// "640", "61.2", "0.043": three digits, more where they are before the point.
std::string digits(double value) {
  const int after = value < 1 ? 3 : value < 10 ? 2 : value < 100 ? 1 : 0;
  return fmt::format("{:.{}f}", value, after);
}

void judge_speed(std::span<const DeviceTrial> trials, const Kind& kind, std::vector<Finding>& out) {
  const std::vector<double> all = values(trials, kind.figure);
  if (all.size() < 2) return;
  // Of two nobody knows which is the usual one, but the faster one shows what is possible.
  const double usual = all.size() == 2 ? all.back() : median(all);
  for (const DeviceTrial& trial : trials) {
    const std::optional<double>& own = trial.*kind.figure;
    if (!own || *own >= (trial.is_gpu ? kSlowGpu : kSlowCpu) * usual) continue;
    out.push_back(
        {trial.is_gpu, fmt::format("{}: {} {} {}, {} {}", trial.name, kind.name, digits(*own / kind.scale),
                                   kind.unit, all.size() == 2 ? "its neighbour" : "the median of the node",
                                   digits(usual / kind.scale))});
  }
}

std::string end_text(const DeviceTrial& trial) {
  const std::string step = trial.step.empty() ? "before its first step" : "in " + trial.step;
  if (trial.process.signal != 0)
    return fmt::format("{}: it died {} ({})", trial.name, step, signal_name(trial.process.signal));
  return fmt::format("{}: it ended {} (exit status {})", trial.name, step, trial.process.code);
}

}  // namespace

void take_line(DeviceTrial& trial, std::string_view line) {
  const auto space = line.find(' ');
  const std::string_view word = line.substr(0, space);
  const std::string_view value =
      space == std::string_view::npos ? std::string_view() : line.substr(space + 1);
  const auto refuse = [&] {
    if (trial.defect.empty())
      trial.defect = fmt::format("it says '{}', which muster-preflight of this release does not",
                                 wire::printable(line, 80));
  };
  const auto speed = [&](Figure figure) {
    trial.*figure = parse_speed(value);
    if (!(trial.*figure)) refuse();
  };
  if (word == "at") {
    trial.step = wire::printable(value, 80);
  } else if (word == "copy") {
    speed(&DeviceTrial::copy);
  } else if (word == "gemm") {
    speed(&DeviceTrial::gemm);
  } else if (word == "reduce") {
    speed(&DeviceTrial::reduce);
  } else if (word == "ready") {
    std::uint16_t port = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), port);
    if (error != std::errc{} || end != value.data() + value.size() || value.empty()) return refuse();
    trial.ready = port;
  } else if (word == "bad") {
    if (trial.defect.empty()) trial.defect = wire::printable(value, kMostDefectBytes);
  } else if (word == "done") {
    trial.done = true;
  } else {
    refuse();
  }
}

bool has_failed(const DeviceTrial& trial) {
  return !trial.defect.empty() || trial.end == End::kLate || (trial.end == End::kEnded && !trial.done);
}

std::vector<Finding> judge_trials(std::span<const DeviceTrial> trials, std::chrono::milliseconds patience) {
  std::vector<Finding> out;
  const double seconds = std::chrono::duration<double>(patience).count();
  // In the all-reduce the others fail with the one that is gone; and where all are late, none is to blame.
  const auto dead = [](const DeviceTrial& trial) {
    return trial.end == End::kEnded && !trial.done && trial.defect.empty();
  };
  const bool somebody_died = std::any_of(trials.begin(), trials.end(), dead);
  const auto late_together = [](const DeviceTrial& trial) {
    return trial.end == End::kLate && trial.ready.has_value();
  };
  const auto late = static_cast<std::size_t>(std::count_if(trials.begin(), trials.end(), late_together));
  if (late == trials.size() && late > 1)
    out.push_back({true, fmt::format("the all-reduce of {} devices took more than {} s", late, seconds)});
  for (const DeviceTrial& trial : trials) {
    if (!trial.defect.empty()) {
      if (!somebody_died || !trial.ready)
        out.push_back({true, fmt::format("{}: {}", trial.name, trial.defect)});
    } else if (dead(trial)) {
      out.push_back({true, end_text(trial)});
    } else if (trial.end == End::kLate &&
               !(late_together(trial) && (somebody_died || late == trials.size()))) {
      out.push_back({true, fmt::format("{}: {} took more than {} s", trial.name,
                                       trial.step.empty() ? "its start" : trial.step, seconds)});
    }
  }
  judge_speed(trials, kCopy, out);
  judge_speed(trials, gemm_of(trials), out);
  return out;
}

std::string figures_text(std::span<const DeviceTrial> trials) {
  std::string out;
  const auto add = [&](const Kind& kind) {
    const std::vector<double> all = values(trials, kind.figure);
    if (all.empty()) return;
    out += out.empty() ? "" : ", ";
    const std::string low = digits(all.front() / kind.scale), high = digits(all.back() / kind.scale);
    out += fmt::format("{} {}", kind.name, low);
    if (low != high) out += fmt::format(" to {}", high);
    out += fmt::format(" {}", kind.unit);
    if (low != high && all.size() > 2) out += fmt::format(" (median {})", digits(median(all) / kind.scale));
  };
  add(gemm_of(trials));
  add(kCopy);
  add(kReduce);
  if (out.empty()) return out;
  const bool gpu = trials.front().is_gpu;
  return fmt::format("{} {}{}: {}", trials.size(), gpu ? "GPU" : "process",
                     trials.size() == 1 ? ""
                     : gpu              ? "s"
                                        : "es",
                     out);
}

}  // namespace muster::launcher
