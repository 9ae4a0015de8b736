// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/base/metrics_text.h"

#include <unistd.h>

#include "rendezvous/base/process_usage.h"
#include "tests/support/catch.h"

using namespace muster;

TEST_CASE("a family is announced with its first sample, and not at all without one") {
  MetricsText out;
  out.family("muster_nothing", MetricType::kGauge, "Never seen.");
  out.family("muster_workers", MetricType::kGauge, "Workers by state.");
  out.sample(2, {{"state", "running"}, {"node", "0"}});
  out.sample(0.5, {{"state", "failed"}});
  out.counter("muster_starts_total", 1e6, "Starts.");
  REQUIRE(out.take() ==
          "# HELP muster_workers Workers by state.\n# TYPE muster_workers gauge\n"
          "muster_workers{state=\"running\",node=\"0\"} 2\nmuster_workers{state=\"failed\"} 0.5\n"
          "# HELP muster_starts_total Starts.\n# TYPE muster_starts_total counter\n"
          "muster_starts_total 1000000\n");
  REQUIRE(out.take().empty());
}

TEST_CASE("a label's value may be any bytes, and one line stays one line") {
  const auto written = [](std::string_view value) {
    MetricsText out;
    out.family("m", MetricType::kGauge, "M.");
    out.sample(1, {{"l", value}});
    std::string text = out.take();
    return text.substr(text.rfind("m{"));
  };
  CHECK(written("a\"b\\c\nd") == "m{l=\"a\\\"b\\\\c\\nd\"} 1\n");
  CHECK(written("gr\xc3\xbc\xc3\x9f \xf0\x9f\x98\x80") == "m{l=\"gr\xc3\xbc\xc3\x9f \xf0\x9f\x98\x80\"} 1\n");
  CHECK(written("\xff\xc3") == "m{l=\"??\"} 1\n");
  CHECK(written("\xc0\xaf") == "m{l=\"??\"} 1\n");            // longer than needed
  CHECK(written("\xed\xa0\x80") == "m{l=\"???\"} 1\n");       // a surrogate
  CHECK(written("\xf4\x90\x80\x80") == "m{l=\"????\"} 1\n");  // beyond the last character
  CHECK(written("\xe2\x82") == "m{l=\"??\"} 1\n");            // cut
}

TEST_CASE("a summary tells how often and how long in all") {
  DurationSum sum;
  sum.add(0.25);
  sum.add(100);
  MetricsText out;
  out.family("d_seconds", MetricType::kSummary, "D.");
  out.summary(sum);
  CHECK_THAT(out.take(),
             Catch::EndsWith("# TYPE d_seconds summary\nd_seconds_sum 100.25\nd_seconds_count 2\n"));
}

TEST_CASE("a process' line is read whatever its name is") {
  const std::string_view line =
      "77 (a) b (c) R 12 77 77 0 -1 4194304 1 0 0 0 250 50 0 0 20 0 9 0 1000 123456 3 18446744073709551615 1 "
      "1";
  const auto usage = parse_process_stat(line, 100, 4096);
  REQUIRE(usage);
  CHECK(usage->pid == 77);
  CHECK(usage->name == "a) b (c");
  CHECK(usage->state == 'R');
  CHECK(usage->parent == 12);
  CHECK(usage->threads == 9);
  CHECK(usage->cpu_seconds == 3.0);
  CHECK(usage->start_ticks == 1000);
  CHECK(usage->resident_bytes == 3 * 4096);
  for (const std::string_view bad : {"", "77 (x", "77 (x) R", "77 (x) R x 77", "77 (x) R -1 1 1 1"})
    CHECK_FALSE(parse_process_stat(bad, 100, 4096));
  for (std::size_t i = 0; i < line.size() - 29; ++i)
    CHECK_FALSE(parse_process_stat(line.substr(0, i), 100, 4096));
}

TEST_CASE("this process has memory, time and a parent") {
  const auto self = read_process_stat(::getpid());
  REQUIRE(self);
  CHECK(self->parent == ::getppid());
  CHECK(self->resident_bytes > 100'000);
  CHECK(self->threads >= 1);
  CHECK_FALSE(read_process_stat(-1));
  MetricsText out;
  put_process_metrics(out);
  CHECK_THAT(out.take(), Catch::Contains("\nprocess_resident_memory_bytes ") &&
                             Catch::Contains("\nprocess_open_fds ") &&
                             Catch::Contains("\nprocess_start_time_seconds "));
}
