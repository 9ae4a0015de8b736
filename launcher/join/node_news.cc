// SPDX-License-Identifier: Apache-2.0
#include "launcher/join/node_news.h"

#include <utility>

#include <fmt/format.h>

#include "launcher/job/outcome_text.h"

namespace muster::launcher {
namespace {

constexpr char kWord = '~';  // no outcome begins so

}  // namespace

std::string to_entry(const control::Hang& word) {
  std::string out(1, kWord);
  control::encode(control::Preamble{}, out);
  control::encode(control::Message(word), out);
  return out;
}

std::optional<control::Hang> hang_from_entry(std::string_view text) {
  if (text.empty() || text.front() != kWord) return std::nullopt;
  text.remove_prefix(1);
  control::Decoder decoder{control::Limits{}};
  control::Message message;
  if (decoder.next(text, message) != control::Decoder::Step::kPreamble ||
      decoder.next(text, message) != control::Decoder::Step::kMessage)
    return std::nullopt;
  const auto* word = std::get_if<control::Hang>(&message);
  return word == nullptr ? std::nullopt : std::optional(*word);
}

std::string NodeNews::news(int attempt, int number) const {
  return fmt::format("{}news/{}", entries_.of_attempt(attempt), number);
}

std::string NodeNews::inbox(std::string_view name) const {
  return fmt::format("/{}/inbox/{}", job_.run_id, name);
}

Awaitable<Result<AttemptOutcome>> NodeNews::read(AgentLink& waiting, int attempt, Heard heard) {
  for (int number = 0;; ++number) {
    const std::string key = news(attempt, number);
    if (auto ok = co_await waiting.wait(key, std::nullopt); !ok) co_return fail(ok.error());
    auto text = co_await waiting.get(key);
    if (!text) co_return fail(text.error());
    if (!text->starts_with(kWord)) co_return outcome_from_json(*text);
    if (const auto word = hang_from_entry(*text)) heard(*word);
  }
}

Awaitable<Result<void>> NodeNews::end(int attempt, AttemptOutcome outcome) {
  const std::string text = to_json(outcome);
  for (int number = 0;; ++number) {
    const std::string key = news(attempt, number);
    auto written = co_await link_.set_if_absent(key, text);
    if (!written) co_return fail(written.error());
    if (!written->starts_with(kWord)) co_return Result<void>{};
  }
}

Awaitable<Result<void>> NodeNews::succeeded(int attempt) {
  const std::string done_key = entries_.of_attempt(attempt) + "done";
  auto done = co_await link_.add(done_key, 1);
  if (!done) co_return fail(done.error());
  if (*done < job_.nodes) co_return Result<void>{};
  co_return co_await end(attempt, AllSucceeded{});
}

Awaitable<Result<void>> NodeNews::tell(int attempt, control::Hang word) {
  word.generation = attempt;
  const std::string text = to_entry(word);
  if (!word.to_all()) {
    const std::string count_key = inbox("count");
    auto count = co_await link_.add(count_key, 1);
    if (!count) co_return fail(count.error());
    const std::string key = inbox(std::to_string(*count - 1));
    co_return co_await link_.set(key, text);
  }
  for (int number = 0;; ++number) {
    const std::string key = news(attempt, number);
    auto written = co_await link_.set_if_absent(key, text);
    if (!written) co_return fail(written.error());
    // Behind an outcome nobody reads.
    if (*written == text || !written->starts_with(kWord)) co_return Result<void>{};
  }
}

Awaitable<Result<void>> NodeNews::read_inbox(AgentLink& link, Heard heard) {
  for (int number = 0;; ++number) {
    const std::string key = inbox(std::to_string(number));
    if (auto ok = co_await link.wait(key, std::nullopt); !ok) co_return ok;
    auto text = co_await link.get(key);
    if (!text) co_return fail(text.error());
    if (auto ok = co_await link.remove(key); !ok) co_return ok;
    if (const auto word = hang_from_entry(*text)) heard(*word);
  }
}

}  // namespace muster::launcher
