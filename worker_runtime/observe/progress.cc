// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <string>
#include <sys/inotify.h>
#include <unistd.h>

#include <muster/progress.h>
#include <muster/safe_point.h>

#include "rendezvous/base/env.h"
#include "rendezvous/base/env_contract.h"
#include "rendezvous/base/progress_page.h"
#include "rendezvous/base/syscall.h"
#include "worker_runtime/core/runtime_page_map.h"

namespace muster {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kBetweenWrites{1};

}  // namespace

class Progress::Page {
 public:
  static std::unique_ptr<Page> open(const char* path) {
    if (path == nullptr || *path == '\0') return nullptr;
    UniqueFd file = open_page_file(path, sizeof(ProgressPage));
    if (!file) return nullptr;
    const bool is_mapped = lies_in_memory(path);
    auto memory = is_mapped ? map_page<ProgressPage>(file) : std::make_shared<ProgressPage>();
    if (memory == nullptr) return nullptr;
    if (!is_mapped) (void)retry_eintr([&] { return ::pread(file.get(), memory.get(), sizeof *memory, 0); });
    std::unique_ptr<Page> page(new Page(is_mapped ? UniqueFd() : std::move(file), std::move(memory)));
    if (is_mapped) page->start_ = RuntimePageMap::open(path);
    return page;
  }

  ~Page() { moved(true, true); }
  Page& operator=(Page&&) = delete;  // nor copied

  [[nodiscard]] ProgressPage& get() const { return *page_; }

  /// The first two, for the timeline of the start.
  void step_begins() {
    if (start_ == nullptr) return;
    const bool first = start_->page().marks_ns[static_cast<std::size_t>(PageMark::kFirstStepBegun)] == 0;
    start_->mark(first ? PageMark::kFirstStepBegun : PageMark::kFirstStepDone);
    if (first) return;
    start_->announce();
    start_.reset();
  }

  void moved(bool paused, bool at_once) {
    put(page_->paused, paused ? 1U : 0U);
    put(page_->moves, page_->moves + 1);
    if (file_) write(at_once);
  }

  void set_phase(const std::array<char, 16>& name) {
    std::array<std::uint64_t, 2> words;
    std::memcpy(words.data(), name.data(), sizeof words);
    auto* const target = reinterpret_cast<std::uint64_t*>(page_->phase.data());
    put(target[0], words[0]);
    put(target[1], words[1]);
  }

  void set_text(std::string_view text) {
    text = text.substr(0, std::min(text.find('\n'), kMaxText));
    if (text.empty() && page_->text[0] == '\0') return;
    const std::uint32_t version = page_->text_version;
    put(page_->text_version, version | 1U);
    std::atomic_thread_fence(std::memory_order_release);
    (void)text.copy(page_->text.data(), text.size());
    page_->text[text.size()] = '\0';
    std::atomic_thread_fence(std::memory_order_release);
    put(page_->text_version, (version | 1U) + 1);
  }

 private:
  static constexpr std::size_t kMaxText = 400;

  Page(UniqueFd file, std::shared_ptr<ProgressPage> page) : file_(std::move(file)), page_(std::move(page)) {
    initialize();
  }

  /// Another object of this process, or of the program that executed this one, may have been here.
  void initialize() {
    if (std::string_view(page_->magic.data(), page_->magic.size()) == kProgressMagic) return;
    *page_ = ProgressPage{};
    page_->epoch = -1;
    page_->paused = 1;  // until there is something to expect
    std::atomic_thread_fence(std::memory_order_release);
    std::memcpy(page_->magic.data(), kProgressMagic.data(), page_->magic.size());
    if (file_) write(true);
  }

  void write(bool at_once) {
    const Clock::time_point now = Clock::now();
    if (!at_once && now - written_ < kBetweenWrites) return;
    written_ = now;
    // A full disk costs the word, not the training.
    (void)retry_eintr([&] { return ::pwrite(file_.get(), page_.get(), sizeof *page_, 0); });
  }

  UniqueFd file_;  // where it is written instead of mapped
  std::shared_ptr<ProgressPage> page_;
  Clock::time_point written_{};
  std::shared_ptr<RuntimePageMap> start_;  // until its second step begins
};

Progress::Progress() : Progress(std::getenv(std::string(env::kProgressFile).c_str())) {}
Progress::Progress(const char* path) : page_(Page::open(path)) {}
Progress::~Progress() = default;
Progress::Progress(Progress&&) noexcept = default;
Progress& Progress::operator=(Progress&&) noexcept = default;

void Progress::begin_epoch(std::int64_t epoch, std::int64_t steps) {
  if (!page_) return;
  ProgressPage& page = page_->get();
  put(page.epoch, epoch);
  put(page.steps, steps);
  put(page.step, std::int64_t{0});
  page_->set_phase({});
  page_->set_text({});
  page_->moved(false, true);
}

void Progress::begin_step(std::int64_t step) {
  if (!page_) return;
  page_->step_begins();
  put(page_->get().step, step);
  page_->set_phase({});
  page_->set_text({});
  page_->moved(false, false);
}

void Progress::enter(Phase phase) {
  if (!page_) return;
  page_->set_phase(phase.text_);
  page_->moved(false, false);
}

void Progress::set_metrics(double loss, double samples_per_second) {
  if (!page_) return;
  put(page_->get().loss, loss);
  put(page_->get().samples_per_second, samples_per_second);
  page_->moved(false, false);
}

void Progress::say(std::string_view text) {
  if (!page_) return;
  page_->set_text(text);
  page_->moved(false, true);
}

void Progress::pause(Phase phase) {
  if (!page_) return;
  page_->set_phase(phase.text_);
  page_->moved(true, true);
}

void announce_safe_point(std::chrono::milliseconds patience) {
  const auto path = current_value(env::kSafePointFile);
  if (!path) return;
  const UniqueFd removal(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  UniqueFd file(::open(path->c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, 0666));
  if (!file) return;
  // Watched before the launcher hears of the file, which it does by the close. IN_ATTRIB: the last link went.
  const bool watched =
      removal && ::inotify_add_watch(removal.get(), path->c_str(), IN_ATTRIB | IN_DELETE_SELF) >= 0;
  file.reset();
  if (!watched) return;
  const auto deadline = Clock::now() + patience;
  while (::access(path->c_str(), F_OK) == 0) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return;
    pollfd ready{removal.get(), POLLIN, 0};
    // A signal is the launcher's, that the workers are to end: the caller finds out.
    if (::poll(&ready, 1, static_cast<int>(std::min<std::int64_t>(left, 60'000))) < 0) return;
    char events[512];
    while (::read(removal.get(), events, sizeof events) > 0) {
    }
  }
}

}  // namespace muster
