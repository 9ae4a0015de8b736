// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/base/metrics_text.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <boost/locale/utf.hpp>
#include <fmt/format.h>

namespace muster {
namespace {

// Indexed by MetricType.
constexpr std::array<std::string_view, 3> kTypes = {"gauge", "counter", "summary"};

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

/// Bytes of the sequence that begins here if it is one of UTF-8 (RFC 3629), else 0.
std::size_t sequence_at(std::string_view text) {
  namespace utf = boost::locale::utf;
  const char* end = text.data();
  const auto character = utf::utf_traits<char>::decode(end, text.data() + text.size());
  return utf::is_valid_codepoint(character) ? static_cast<std::size_t>(end - text.data()) : 0;
}

void put_escaped(std::string& out, std::string_view text) {
  while (!text.empty()) {
    const std::size_t size = sequence_at(text);
    const char c = text[0];
    if (size == 0)
      out += '?';
    else if (c == '\\' || c == '"')
      (out += '\\') += c;
    else if (c == '\n')
      out += "\\n";
    else
      out += text.substr(0, size);
    text.remove_prefix(std::max<std::size_t>(size, 1));
  }
}

}  // namespace

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t size = sequence_at(text);
    if (size == 0) return false;
    text.remove_prefix(size);
  }
  return true;
}

void MetricsText::family(std::string_view name, MetricType type, std::string_view help) {
  name_ = name;
  type_ = type;
  help_ = help;
  announced_ = false;
}

void MetricsText::line(std::string_view suffix, std::span<const Label> labels, double value) {
  if (!std::exchange(announced_, true))
    text_ += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", name_, help_,
                         kTypes[static_cast<std::size_t>(type_)]);
  (text_ += name_) += suffix;
  char before = '{';
  for (const auto& [label, text] : labels) {
    ((text_ += before) += label) += "=\"";
    put_escaped(text_, text);
    text_ += '"';
    before = ',';
  }
  if (!labels.empty()) text_ += '}';
  ((text_ += ' ') += number(value)) += '\n';
}

void MetricsText::sample(double value, std::span<const Label> labels) {
  line({}, labels, value);
}

void MetricsText::summary(const DurationSum& sum) {
  line("_sum", {}, sum.seconds);
  line("_count", {}, static_cast<double>(sum.count));
}

void MetricsText::gauge(std::string_view name, double value, std::string_view help) {
  family(name, MetricType::kGauge, help);
  sample(value);
}

void MetricsText::counter(std::string_view name, double value, std::string_view help) {
  family(name, MetricType::kCounter, help);
  sample(value);
}

}  // namespace muster
