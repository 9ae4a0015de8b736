// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/preflight/device_check.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "rendezvous/base/text.h"

namespace muster::preflight {
namespace {

using Speed = std::optional<double> DeviceCheck::*;
using End = DeviceCheck::End;

constexpr std::size_t kMostText = 300;  // of an error
constexpr double kSlowGpu = 0.7;        // neighbours of one model are within a few per cent
constexpr double kSlowCpu = 0.5;
constexpr double kGiB = 1 << 30;

struct Kind {
  Speed speed;
  std::string_view name;
  std::string_view unit;
  double scale;
};
constexpr Kind kGemm{&DeviceCheck::gemm, "GEMM", "TFLOP/s", 1e12};
constexpr Kind kCpuGemm{&DeviceCheck::gemm, "GEMM", "GFLOP/s", 1e9};
constexpr Kind kCopy{&DeviceCheck::copy, "memory copies", "GiB/s", kGiB};
constexpr Kind kReduce{&DeviceCheck::reduce, "all-reduce", "GiB/s", kGiB};

std::optional<double> parse_speed(std::string_view text) {
  double out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  if (!std::isfinite(out) || out <= 0 || out > 1e21) return std::nullopt;
  return out;
}

const Kind& gemm_of(std::span<const DeviceCheck> checks) {
  return !checks.empty() && checks.front().is_gpu ? kGemm : kCpuGemm;
}

/// Ascending.
std::vector<double> values(std::span<const DeviceCheck> checks, Speed speed) {
  std::vector<double> out;
  for (const DeviceCheck& check : checks)
    if (check.*speed) out.push_back(*(check.*speed));
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

void judge_speed(std::span<const DeviceCheck> checks, const Kind& kind, std::vector<Finding>& out) {
  const std::vector<double> all = values(checks, kind.speed);
  if (all.size() < 2) return;
  // Of two nobody knows which is the usual one, but the faster one shows what is possible.
  const double usual = all.size() == 2 ? all.back() : median(all);
  for (const DeviceCheck& check : checks) {
    const std::optional<double>& own = check.*kind.speed;
    if (!own || *own >= (check.is_gpu ? kSlowGpu : kSlowCpu) * usual) continue;
    out.push_back(
        {check.is_gpu,
         fmt::format("{}: {} {} {}, {} {}", check.name, kind.name, digits(*own / kind.scale), kind.unit,
                     all.size() == 2 ? "the other one has" : "the median of this node is",
                     digits(usual / kind.scale))});
  }
}

std::string end_text(const DeviceCheck& check) {
  const std::string step = check.step.empty() ? "before its first step" : "in " + check.step;
  if (check.signal != 0)
    return fmt::format("{}: the check died {} (SIG{})", check.name, step, ::sigabbrev_np(check.signal));
  return fmt::format("{}: the check ended {} (exit status {})", check.name, step, check.exit_code);
}

}  // namespace

void read_line(DeviceCheck& check, std::string_view line) {
  const auto space = line.find(' ');
  const std::string_view word = line.substr(0, space);
  const std::string_view value =
      space == std::string_view::npos ? std::string_view() : line.substr(space + 1);
  const auto refuse = [&] {
    if (check.error.empty()) check.error = fmt::format("unexpected output: {}", one_line(line, 80));
  };
  const auto take_speed = [&](Speed to) {
    check.*to = parse_speed(value);
    if (!(check.*to)) refuse();
  };
  if (word == "at") {
    check.step = one_line(value, 80);
  } else if (word == "copy") {
    take_speed(&DeviceCheck::copy);
  } else if (word == "gemm") {
    take_speed(&DeviceCheck::gemm);
  } else if (word == "reduce") {
    take_speed(&DeviceCheck::reduce);
  } else if (word == "ready") {
    std::uint16_t port = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), port);
    if (error != std::errc{} || end != value.data() + value.size() || value.empty()) return refuse();
    check.ready = port;
  } else if (word == "bad") {
    if (check.error.empty()) check.error = one_line(value, kMostText);
  } else if (word == "done") {
    check.done = true;
  } else {
    refuse();
  }
}

bool has_failed(const DeviceCheck& check) {
  return !check.error.empty() || check.end == End::kLate || (check.end == End::kEnded && !check.done);
}

std::vector<Finding> judge(std::span<const DeviceCheck> checks, std::chrono::milliseconds timeout) {
  std::vector<Finding> out;
  const double seconds = std::chrono::duration<double>(timeout).count();
  // In the all-reduce the others fail with the one that is gone; and where all are late, none is to blame.
  const auto dead = [](const DeviceCheck& check) {
    return check.end == End::kEnded && !check.done && check.error.empty();
  };
  const bool somebody_died = std::any_of(checks.begin(), checks.end(), dead);
  const auto late_together = [](const DeviceCheck& check) {
    return check.end == End::kLate && check.ready.has_value();
  };
  const auto late = static_cast<std::size_t>(std::count_if(checks.begin(), checks.end(), late_together));
  if (late == checks.size() && late > 1)
    out.push_back({true, fmt::format("the all-reduce of {} devices took more than {} s", late, seconds)});
  for (const DeviceCheck& check : checks) {
    if (!check.error.empty()) {
      if (!somebody_died || !check.ready)
        out.push_back({true, fmt::format("{}: {}", check.name, check.error)});
    } else if (dead(check)) {
      out.push_back({true, end_text(check)});
    } else if (check.end == End::kLate &&
               !(late_together(check) && (somebody_died || late == checks.size()))) {
      out.push_back({true, fmt::format("{}: {} took more than {} s", check.name,
                                       check.step.empty() ? "its start" : check.step, seconds)});
    }
  }
  judge_speed(checks, kCopy, out);
  judge_speed(checks, gemm_of(checks), out);
  return out;
}

std::string speeds_text(std::span<const DeviceCheck> checks) {
  std::string out;
  const auto add = [&](const Kind& kind) {
    const std::vector<double> all = values(checks, kind.speed);
    if (all.empty()) return;
    out += out.empty() ? "" : ", ";
    const std::string low = digits(all.front() / kind.scale), high = digits(all.back() / kind.scale);
    out += fmt::format("{} {}", kind.name, low);
    if (low != high) out += fmt::format(" to {}", high);
    out += fmt::format(" {}", kind.unit);
    if (low != high && all.size() > 2) out += fmt::format(" (median {})", digits(median(all) / kind.scale));
  };
  add(gemm_of(checks));
  add(kCopy);
  add(kReduce);
  if (out.empty()) return out;
  const bool gpu = checks.front().is_gpu;
  return fmt::format("{} {}{}: {}", checks.size(), gpu ? "GPU" : "process",
                     checks.size() == 1 ? ""
                     : gpu              ? "s"
                                        : "es",
                     out);
}

}  // namespace muster::preflight
