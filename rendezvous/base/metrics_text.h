// SPDX-License-Identifier: Apache-2.0
// MetricsText: readings as Prometheus reads them, its text format 0.0.4. Pure. Made and used up by whoever
// answers GET /metrics; one thread. A family without samples is left out. Label values may be any bytes: what
// is no UTF-8, which would make a whole scrape fail, becomes '?'. Source: Prometheus' "Exposition formats".
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace muster {

enum class MetricType : std::uint8_t { kGauge, kCounter, kSummary };

/// Of a summary without quantiles: how often, and how long in all.
struct DurationSum {
  std::uint64_t count = 0;
  double seconds = 0;
  void add(double more) {
    ++count;
    seconds += more;
  }
  friend bool operator==(const DurationSum&, const DurationSum&) = default;
};

[[nodiscard]] bool is_utf8(std::string_view text);

class MetricsText {
 public:
  using Label = std::pair<std::string_view, std::string_view>;
  static constexpr std::string_view kContentType = "text/plain; version=0.0.4; charset=utf-8";

  /// What the samples that follow belong to. `name` and `help` are constants of the program.
  void family(std::string_view name, MetricType type, std::string_view help);
  void sample(double value, std::span<const Label> labels = {});
  void sample(double value, std::initializer_list<Label> labels) {
    sample(value, std::span(labels.begin(), labels.size()));
  }
  void summary(const DurationSum& sum);

  // A family of one sample.
  void gauge(std::string_view name, double value, std::string_view help);
  void counter(std::string_view name, double value, std::string_view help);

  [[nodiscard]] std::string take() { return std::exchange(text_, {}); }

 private:
  void line(std::string_view suffix, std::span<const Label> labels, double value);

  std::string text_;
  std::string_view name_, help_;
  MetricType type_ = MetricType::kGauge;
  bool announced_ = true;  // its HELP and TYPE are written
};

}  // namespace muster
