// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/output_formatter.h"

#include <chrono>

#include <fmt/format.h>

#include "launcher/network/interfaces.h"
#include "launcher/output/error_watch.h"
#include "launcher/text/seconds_text.h"
#include "launcher/text/substitution.h"

namespace muster::launcher {
namespace {

constexpr Millis kFoldWindow{300};
constexpr int kLines = -1;  // the source of all that is whole lines anyway
constexpr std::string_view kResetColour = "\x1b[0m";
constexpr char kTimeMark = '\x1f';  // where ${time} stands in a prefix that is known but for the time

/// Local time with its offset, as 2026-01-31T08:15:30.250+0100. Once for each batch: 2 us.
std::string wall_time() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::string out = local_time_text(whole_seconds(now), "%Y-%m-%dT%H:%M:%S%z");
  const auto millis = std::chrono::duration_cast<Millis>(now).count() % 1000;
  return out.insert(out.find_last_of("+-"), fmt::format(".{:03}", millis));
}

/// Of several nodes that write to one terminal or file, as under srun.
bool among_others(const Assignment& assignment) {
  return assignment.group_world_size > 1;
}

/// Without what all hosts of a cluster have in common.
std::string short_name(const std::string& host) {
  return is_numeric_address(host) ? host : host.substr(0, host.find('.'));
}

std::string prefix_of(const Job& job, const Assignment& assignment, int local_rank) {
  std::string_view text = job.logs.prefix_template;
  // A local rank means nothing there. With --view=all prefixes are torchrun's.
  const bool ours = job.logs.view != View::kAll && among_others(assignment) && text == kDefaultPrefix;
  if (ours) text = "[${host} ${rank}]:";
  return substitute(text, [&](std::string_view name) -> std::optional<std::string> {
    if (name == "role_name") return job.role;
    if (name == "local_rank") return std::to_string(local_rank);
    if (name == "rank") return std::to_string(assignment.base_rank + local_rank);
    if (name == "hostname") return job.logs.hostname;
    if (name == "host") return ours ? short_name(job.host) : job.host;
    if (name == "generation") return std::to_string(assignment.generation);
    if (name == "restart") return std::to_string(assignment.attempt);
    if (name == "time") return std::string(1, kTimeMark);
    return std::nullopt;
  });
}

/// A colour that the program leaves set does not run into what other ranks say. Source: ECMA-48, SGR.
void append_line(std::string_view text, std::string& lines) {
  lines.append(text);
  const auto last = text.rfind("\x1b[");
  if (last != std::string_view::npos && !text.substr(last).starts_with(kResetColour))
    lines.append(kResetColour);
  lines.push_back('\n');
}

bool contains(const std::vector<int>& numbers, int number) {
  return std::ranges::find(numbers, number) != numbers.end();
}

}  // namespace

struct OutputFormatter::Source {
  int rank = 0;
  std::string prefix;
  std::size_t time_at = std::string::npos;  // position of kTimeMark
  bool open = true;                         // its lines are shown
};

OutputFormatter::OutputFormatter(boost::asio::io_context& io, const Job& job, const Assignment& assignment,
                                 OutputSink& out, OutputSink& err)
    : job_(job), assignment_(assignment), out_{out}, err_{err}, timer_(io) {
  const View view = job.logs.view;
  for (int local_rank = 0; local_rank < job.local_world_size; ++local_rank)
    num_shown_ += shown(local_rank) ? 1 : 0;
  if (view == View::kFold) fold_.emplace(job.local_world_size, num_shown_, kFoldWindow);
  for (int local_rank = 0; local_rank < job.local_world_size; ++local_rank) {
    Source source;
    source.rank = assignment.base_rank + local_rank;
    source.open = view != View::kRank0 || source.rank == 0;
    if (view != View::kRank0 || source.rank != 0) source.prefix = prefix_of(job, assignment, local_rank);
    source.time_at = source.prefix.find(kTimeMark);
    sources_.push_back(std::move(source));
  }
}

OutputFormatter::~OutputFormatter() = default;

bool OutputFormatter::shown(int local_rank) const {
  const auto& local = job_.logs.local_ranks_filter;
  const auto& global = job_.logs.ranks_filter;
  return (local.empty() || contains(local, local_rank)) &&
         (global.empty() || contains(global, assignment_.base_rank + local_rank));
}

OutputFormatter::Form OutputFormatter::form(int local_rank) const {
  if (!shown(local_rank)) return Form::kHidden;
  if (job_.logs.view == View::kAll) return Form::kBytes;
  return job_.logs.view == View::kRank0 && assignment_.base_rank + local_rank == 0 ? Form::kBytes
                                                                                   : Form::kLines;
}

void OutputFormatter::line(int local_rank, Std stream, std::string_view text) {
  if (fold_) {
    fold_->add(local_rank, stream, text, SteadyClock::now());
    return;
  }
  Source& source = sources_[static_cast<std::size_t>(local_rank)];
  source.open = source.open || looks_like_error(text);
  if (source.open) append(source, stream, text);
}

std::string OutputFormatter::prefix(int local_rank) const {
  std::string out = prefix_of(job_, assignment_, local_rank);
  if (const auto at = out.find(kTimeMark); at != std::string::npos) out.replace(at, 1, wall_time());
  return out;
}

void OutputFormatter::append(Source& source, Std stream, std::string_view text) {
  std::string& lines = target(stream).lines;
  if (source.time_at == std::string::npos) {
    lines.append(source.prefix);
  } else {
    if (time_.empty()) time_ = wall_time();
    lines.append(source.prefix, 0, source.time_at).append(time_);
    lines.append(source.prefix, source.time_at + 1);
  }
  append_line(text, lines);
}

void OutputFormatter::append(const FoldBuffer::Entry& entry) {
  if (entry.ranks.size() == 1) {
    append(sources_[static_cast<std::size_t>(entry.ranks.front())], entry.stream, entry.text);
    return;
  }
  std::string& lines = target(entry.stream).lines;
  const std::string host = among_others(assignment_) ? short_name(job_.host) : std::string();
  lines.append(fold_label(entry.ranks, num_shown_, assignment_.base_rank, host)).push_back(':');
  append_line(entry.text, lines);
}

void OutputFormatter::flush() {
  if (fold_) {
    const Instant now = SteadyClock::now();
    while (const auto entry = fold_->take(now)) append(*entry);
  }
  for (const Std stream : {Std::kOut, Std::kErr})
    put(kLines, stream, std::exchange(target(stream).lines, {}));
  time_.clear();
  wait();
}

bool OutputFormatter::shares(int local_rank) const {
  return job_.logs.view == View::kRank0 && form(local_rank) == Form::kBytes && num_shown_ > 1;
}

void OutputFormatter::log(std::string_view line) {
  put(kLines, Std::kErr, fmt::format("muster: {}\n", line));
}

void OutputFormatter::put(int source, Std stream, std::string_view text) {
  if (text.empty()) return;
  Target& to = target(stream);
  to.interleaver.add(source, text, SteadyClock::now(), [&](std::string_view piece) { to.sink.write(piece); });
  wait();
}

/// For lines that others may say too, or that are to end.
void OutputFormatter::wait() {
  Instant due = Instant::max();
  for (const auto& each :
       {fold_ ? fold_->deadline() : std::nullopt, out_.interleaver.deadline(), err_.interleaver.deadline()})
    due = std::min(due, each.value_or(due));
  if (due >= awaited_) return;
  awaited_ = due;
  lifetime_.call_at(timer_, due, [this] {
    awaited_ = Instant::max();
    const Instant now = SteadyClock::now();
    for (Target* to : {&out_, &err_}) {
      if (to->sink.backpressure()) to->interleaver.excuse(now);
      to->interleaver.tick(now, [&](std::string_view piece) { to->sink.write(piece); });
    }
    flush();
  });
}

void OutputFormatter::finish() {
  while (const auto entry = fold_ ? fold_->take_oldest() : std::nullopt) append(*entry);
  flush();
  for (Target* to : {&out_, &err_})
    to->interleaver.finish([&](std::string_view piece) { to->sink.write(piece); });
}

void OutputFormatter::when_writable(Std stream, std::function<void()> resume) {
  target(stream).sink.when_writable(lifetime_.guard(std::move(resume)));
}

}  // namespace muster::launcher
