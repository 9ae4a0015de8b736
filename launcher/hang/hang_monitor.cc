// SPDX-License-Identifier: Apache-2.0
#include "launcher/hang/hang_monitor.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/hang/hang_report.h"
#include "launcher/hang/odd_one_out.h"
#include "launcher/hang/process_state.h"

namespace muster::launcher {
namespace {

constexpr std::size_t kMostThreads = 64;  // of a worker; a process of PyTorch has hundreds on a large node
constexpr std::chrono::seconds kWordPatience{10};  // for the first node to ask
constexpr std::chrono::seconds kVerdictPatience = HangInquiry::kPatience + std::chrono::seconds(15);
constexpr std::chrono::seconds kEndPatience{10};  // for the node that is to end the attempt

std::string how_it_ended(const ProcessEnd& end) {
  return end.signal == 0 ? fmt::format("exited with code {}", end.code)
                         : fmt::format("was killed by {}", signal_name(end.signal));
}

std::string follows(OnHang action) {
  switch (action) {
    case OnHang::kRestart:
      return "the workers are stopped and start again (--on-hang=restart)";
    case OnHang::kStop:
      return "the job is stopped (--on-hang=stop)";
    case OnHang::kReport:
      break;
  }
  return "nothing is done about it (--on-hang=report)";
}

}  // namespace

HangMonitor::HangMonitor(boost::asio::io_context& io, const Surroundings& around, Act act, Say say)
    : around_(around),
      act_(std::move(act)),
      say_(std::move(say)),
      io_(io),
      timer_(io),
      word_timer_(io),
      inquiry_timer_(io),
      signs_(io, around.job, around.assignment, around.directory, around.router, around.group, around.log),
      ended_(static_cast<std::size_t>(around.job.local_world_size)),
      ledger_(around.directory, around.log),
      alive_(std::make_shared<bool>(true)) {}

HangMonitor::~HangMonitor() {
  *alive_ = false;
}

void HangMonitor::begin() {
  watch_.emplace(around_.job.hang, static_cast<std::size_t>(around_.job.local_world_size),
                 SteadyClock::now());
  if (several() && is_first()) inquiry_.emplace(around_.assignment.group_world_size);
  arm();
}

void HangMonitor::worker_ended(int local_rank, const ProcessEnd& end) {
  ended_[static_cast<std::size_t>(local_rank)] = how_it_ended(end);
}

void HangMonitor::stop() {
  watch_.reset();
  inquiry_.reset();
  timer_.cancel();
  word_timer_.cancel();
  inquiry_timer_.cancel();
  collector_.reset();
}

// Looks.

void HangMonitor::arm() {
  if (!watch_ || !watch_->next_look()) return;
  timer_.expires_at(*watch_->next_look());
  timer_.async_wait([this, alive = alive_](boost::system::error_code error) {
    if (error || !*alive || !watch_) return;
    signs_.look([this](std::vector<LifeSigns::Seen> seen) { looked(std::move(seen)); });
  });
}

void HangMonitor::looked(std::vector<LifeSigns::Seen> seen) {
  if (!watch_) return;
  std::vector<LifeSign> signs;
  signs.reserve(seen.size());
  for (const LifeSigns::Seen& each : seen) signs.push_back(each.sign);
  seen_ = std::move(seen);
  const HangWatch::Seen verdict = watch_->look(signs, SteadyClock::now());
  if (!verdict.moved.empty() || !verdict.ended.empty()) over(verdict);
  if (!verdict.hang.empty()) {
    if (!several()) {
      if (!reading_) read_stacks(false);
    } else if (inquiry_) {
      obey(inquiry_->seen(0, 0, SteadyClock::now()));
    } else {
      say_hanging(0);
      if (awaits_ == Awaits::kNothing) await(Awaits::kWord);
    }
  } else if (several() && !inquiry_ && watch_->hanging() && !reading_ && !alone_ && number_ > 0 &&
             awaits_ == Awaits::kNothing && SteadyClock::now() - said_ >= HangInquiry::kRenewal) {
    say_hanging(number_);
  }
  // Tools stop what they look at: nobody is to be found silent for that.
  if (!collector_) arm();
}

/// No worker here hangs any more.
void HangMonitor::over(const HangWatch::Seen& verdict) {
  std::vector<int> moved, ended;
  for (const int rank : verdict.moved) moved.push_back(around_.assignment.base_rank + rank);
  for (const int rank : verdict.ended) ended.push_back(around_.assignment.base_rank + rank);
  part_.moved = moved;
  part_.ended = ended;
  if (reading_) return;  // the part says so
  if (!several() || alone_) {
    alone_ = false;
    return say_over(moved, ended);
  }
  const bool unasked = awaits_ == Awaits::kWord;
  if (unasked) await(Awaits::kNothing);
  if (inquiry_) return obey(inquiry_->over(0, moved, ended, SteadyClock::now()));
  HangPart word;
  word.moved = std::move(moved);
  word.ended = std::move(ended);
  say(Kind::kOver, to_json(word));
  if (unasked) return;
  ledger_.over(std::chrono::duration_cast<Millis>(SteadyClock::now() - hang_began_));
}

// What the workers are doing.

void HangMonitor::read_stacks(bool look_first) {
  reading_ = true;
  part_ = {};
  if (!look_first) return fill_part();
  signs_.look([this](std::vector<LifeSigns::Seen> seen) {
    if (!watch_) return;
    looked(std::move(seen));
    fill_part();
  });
}

void HangMonitor::fill_part() {
  const Instant now = SteadyClock::now();
  const bool watching = watch_->next_look().has_value();
  part_.action = around_.job.hang.action;
  HangReport& report = part_.report;
  report.host = around_.job.host;
  report.wall_time_s = std::time(nullptr);
  const std::vector<int> silent = watching ? watch_->silent_for(usual_limit(), now) : std::vector<int>();
  for (const int rank : silent)
    if (const auto own = watch_->limit(rank); own && watch_->silence(rank, now) >= *own)
      report.limit = std::max(report.limit, *own);
  if (report.limit.count() == 0) report.limit = usual_limit();
  for (int local_rank = 0; local_rank < around_.job.local_world_size; ++local_rank) {
    const LifeSigns::Seen& of_rank = seen_[static_cast<std::size_t>(local_rank)];
    RankEvidence& rank = report.ranks.emplace_back();
    rank.local_rank = local_rank;
    rank.rank = around_.assignment.base_rank + local_rank;
    rank.node = around_.assignment.group_rank;
    rank.pid = around_.group.pid(local_rank);
    rank.ended = ended_[static_cast<std::size_t>(local_rank)];
    rank.judged = watching && watch_->watched(local_rank);
    rank.silent = std::find(silent.begin(), silent.end(), local_rank) != silent.end();
    if (rank.silent) rank.silence = watch_->silence(local_rank, now);
    report.silence = std::max(report.silence, rank.silence);
    rank.word = of_rank.word;
    rank.collectives = read_collectives(around_.directory.progress_file(local_rank));
    rank.source = of_rank.source;
    rank.patience = of_rank.patience;
    if (!of_rank.sign.running) continue;
    // Before any tool: those stop what they look at.
    rank.threads = read_threads(rank.pid, kMostThreads);
    rank.python = runs_python(rank.pid);
  }
  hang_began_ = now - report.silence;
  timer_.cancel();
  collector_ =
      std::make_unique<StackCollector>(io_, around_.spawner, around_.environment, StackCollector::Patience{});
  collector_->collect(report.ranks, [this] { stacks_read(); });
}

/// Of workers whose first steps are over.
Millis HangMonitor::usual_limit() const {
  if (around_.job.hang.watch == HangRules::Watch::kFixed) return around_.job.hang.limit;
  Millis out = HangWatch::kLeastLimit;
  for (int rank = 0; watch_->next_look() && rank < around_.job.local_world_size; ++rank)
    if (const auto own = watch_->limit(rank); own && *own != HangWatch::kFirstSteps)
      out = std::max(out, *own);
  return out;
}

/// The tools took their time: who was silent may have moved or ended since.
void HangMonitor::stacks_read() {
  collector_.reset();
  signs_.look([this](std::vector<LifeSigns::Seen> seen) {
    if (!watch_) return;
    looked(std::move(seen));
    part_is_whole();
  });
}

void HangMonitor::part_is_whole() {
  reading_ = false;
  part_.hanging = watch_->hanging();
  for (RankEvidence& rank : part_.report.ranks)
    rank.ended = ended_[static_cast<std::size_t>(rank.local_rank)];
  if (inquiry_) return obey(inquiry_->part(0, inquiry_->number(), part_, SteadyClock::now()));
  if (!several() || alone_) {
    publish({{around_.assignment.group_rank, part_}}, part_.hanging);
    if (!part_.hanging) say_over(part_.moved, part_.ended);
    return;
  }
  say(Kind::kPart, to_json(part_));
  ledger_.add(part_.report);
}

// What follows.

/// On the first of several nodes.
void HangMonitor::obey(const HangInquiry::Orders& orders) {
  if (orders.ask) {
    say(Kind::kCollect);
    if (!reading_) read_stacks(true);
  }
  if (orders.known) say(Kind::kKnown);
  if (orders.publish) publish(inquiry_->parts(), inquiry_->hanging());
  if (orders.over) say_over(inquiry_->moved(), inquiry_->ended());
  if (orders.faded)
    around_.log.warning(
        fmt::format("no node has said for {} s that its workers still hang: whoever hangs from now on is "
                    "told of anew",
                    HangInquiry::kForget.count()));
  inquiry_timer_.cancel();
  if (!inquiry_->deadline()) return;
  inquiry_timer_.expires_at(*inquiry_->deadline());
  inquiry_timer_.async_wait([this, alive = alive_](boost::system::error_code error) {
    if (!error && *alive && inquiry_) obey(inquiry_->tick(SteadyClock::now()));
  });
}

void HangMonitor::publish(const std::map<int, HangPart>& parts, bool hanging) {
  HangReport report = several() ? merged(parts, around_.assignment.group_world_size) : part_.report;
  if (!several()) report.odd = odd_one_out(report.ranks);
  if (report.ranks.empty()) return;
  OnHang action = OnHang::kReport;
  for (const auto& [node, part] : parts) action = std::max(action, part.action);
  const std::string patience = hanging ? patience_text(report) : std::string();
  hang_began_ = SteadyClock::now() - report.silence;

  HangVerdict verdict;
  verdict.odd = report.odd;
  verdict.patience = !patience.empty();
  verdict.ends = hanging && patience.empty() && action != OnHang::kReport;
  const std::string next = !hanging            ? "it ended while stacks were read: nothing is done about it"
                           : !patience.empty() ? fmt::format("nothing is done about it: {}", patience)
                                               : follows(action);
  verdict.text = fmt::format("{}; {}", fmt::join(hang_head(report), "; "), next);
  const RankEvidence& named = culprit(report);
  verdict.rank = named.rank;
  verdict.line = hang_line(report, named);

  std::string text = hang_text(report, next);
  ledger_.add(std::move(report));
  if (!ledger_.file().empty()) text += fmt::format("  all stacks and states are in {}\n", ledger_.file());
  around_.err.write(text);
  if (inquiry_) {
    say(Kind::kTold, to_json(verdict));
    if (verdict.patience) inquiry_->forget();
  }
  conclude(verdict);
}

void HangMonitor::conclude(const HangVerdict& verdict) {
  await(Awaits::kNothing);
  if (verdict.patience) watch_->begin_anew(SteadyClock::now());
  const int local_rank = verdict.rank - around_.assignment.base_rank;
  const bool here = local_rank >= 0 && local_rank < around_.job.local_world_size;
  if (here && around_.told) around_.told(local_rank, verdict.line);
  if (!verdict.ends) return;
  if (here) return act_(local_rank, verdict.line);
  await(Awaits::kEnd);
}

void HangMonitor::say_over(const std::vector<int>& moved, const std::vector<int>& ended) {
  const auto after = std::chrono::duration_cast<Millis>(SteadyClock::now() - hang_began_);
  around_.log.warning(over_text(after, moved, ended));
  ledger_.over(after);
}

// The other nodes.

/// `number`: of the hang that goes on; 0: it has begun.
void HangMonitor::say_hanging(int number) {
  said_ = SteadyClock::now();
  say(Kind::kSeen, {}, number);
}

void HangMonitor::say(Kind kind, std::string payload, std::optional<int> number) {
  control::Hang word;
  word.kind = kind;
  word.number = number.value_or(inquiry_ ? inquiry_->number() : number_);
  word.host = around_.job.host;
  word.group_rank = around_.assignment.group_rank;
  word.payload = std::move(payload);
  say_(std::move(word));
}

void HangMonitor::heard(const control::Hang& word) {
  if (!watch_ || word.to_all() != !inquiry_) return;
  const auto doubt = [&](const Error& error) {
    around_.log.info(fmt::format("node {} ({}): {}", word.group_rank, word.host, error.message));
  };
  const Instant now = SteadyClock::now();
  if (word.kind == Kind::kSeen) return obey(inquiry_->seen(word.group_rank, word.number, now));
  if (word.kind == Kind::kPart || word.kind == Kind::kOver) {
    auto part = hang_part_from_json(word.payload);
    if (!part) return doubt(part.error());
    if (word.kind == Kind::kOver) return obey(inquiry_->over(word.group_rank, part->moved, part->ended, now));
    return obey(inquiry_->part(word.group_rank, word.number, *std::move(part), now));
  }
  if (word.kind == Kind::kCollect) {
    number_ = word.number;
    alone_ = false;
    await(Awaits::kVerdict);
    if (!reading_) read_stacks(true);
  } else if (word.kind == Kind::kTold) {
    const auto verdict = hang_verdict_from_json(word.payload);
    if (!verdict) return doubt(verdict.error());
    around_.log.warning(fmt::format("{}; node 0 ({}) tells more", verdict->text, word.host));
    ledger_.judged(verdict->odd);
    conclude(*verdict);
  } else if (awaits_ == Awaits::kWord) {
    await(Awaits::kNothing);  // it belongs to a hang that was told
    number_ = word.number;
  }
}

void HangMonitor::await(Awaits what) {
  awaits_ = what;
  word_timer_.cancel();
  if (what == Awaits::kNothing) return;
  word_timer_.expires_after(what == Awaits::kWord      ? kWordPatience
                            : what == Awaits::kVerdict ? kVerdictPatience
                                                       : kEndPatience);
  word_timer_.async_wait([this, alive = alive_](boost::system::error_code error) {
    if (!error && *alive && watch_) waited_in_vain();
  });
}

void HangMonitor::waited_in_vain() {
  const Awaits what = std::exchange(awaits_, Awaits::kNothing);
  if (what == Awaits::kEnd) {
    // The word to the node that was to end the attempt may have been lost, or the hang is over meanwhile.
    if (!watch_->hanging() || part_.report.ranks.empty()) return;
    const RankEvidence& named = culprit(part_.report);
    return act_(named.local_rank, hang_line(part_.report, named));
  }
  if (!watch_->hanging()) return;
  around_.log.warning("a hang: node 0 does not ask for it; this node tells of it alone");
  alone_ = true;
  if (reading_) return;
  if (what == Awaits::kWord) return read_stacks(true);
  publish({{around_.assignment.group_rank, part_}}, true);
}

}  // namespace muster::launcher
