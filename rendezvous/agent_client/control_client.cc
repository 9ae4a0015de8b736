// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/agent_client/control_client.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include "rendezvous/agent_client/control_link.h"
#include "rendezvous/base/backoff.h"
#include "rendezvous/base/lifetime.h"
#include "rendezvous/net/awaitable.h"

namespace muster::net {
namespace {

namespace asio = boost::asio;
constexpr Millis kReturnTimeout{5'000};
constexpr Backoff::Options kBackoff{.first = Millis(20)};

bool worth_another_try(ErrorCode code) {
  return code == ErrorCode::kPeerGone || code == ErrorCode::kTimeout || code == ErrorCode::kIo ||
         code == ErrorCode::kNotFound;
}

}  // namespace

class ControlClient::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(asio::io_context& loop, ControlClientOptions options, ControlEvents events)
      : loop_(loop),
        options_(std::move(options)),
        events_(std::move(events)),
        heartbeat_timer_(loop),
        pause_(loop),
        leave_timer_(loop) {
    if (options_.request.id == membership::NodeId{}) options_.request.id = auth::random_node_id();
    options_.own_host = options_.request.host;
  }

  void start() {
    asio::co_spawn(
        loop_, run(shared_from_this()), [self = shared_from_this()](const std::exception_ptr& exception) {
          if (!exception) return;
          try {
            std::rethrow_exception(exception);
          } catch (const std::exception& error) {
            self->fail_for_good({ErrorCode::kIo, fmt::format("control connection: {}", error.what())});
          }
        });
  }

  void redirect(std::string host, std::uint16_t port) {
    if (over_ || (host == options_.host && port == options_.port)) return;
    options_.host = std::move(host);
    options_.port = port;
    moved_ = true;
    if (leaving_) return;
    if (link_) link_->close("the coordinator is elsewhere now");
    pause_.cancel();
  }

  void send(const control::Message& message) {
    if (!over_ && joined_) link_->send(message);
  }
  void send_store(const control::Message& message) {
    if (!over_ && joined_) link_->send_soon(message);
  }

  [[nodiscard]] std::size_t unsent_bytes() const { return link_ ? link_->unsent_bytes() : 0; }

  void ready(std::int64_t generation, std::uint16_t master_port, const StepProgress& reached) {
    running_.reset();
    unconfirmed_.clear();
    options_.request.master_port = master_port;
    last_ready_ = generation;
    reached_ = reached;
    send(control::Ready{generation, master_port, reached});
  }

  // What has to reach the coordinator even if the connection breaks meanwhile.
  void send_until_over(const control::Message& fact) {
    unconfirmed_.push_back(fact);
    send(fact);
  }

  void leave(std::string reason, Millis timeout, std::function<void()> left) {
    leaving_ = true;
    left_ = std::move(left);
    leave_reason_ = std::move(reason);
    if (over_ || (!joined_ && !comes_back())) {
      asio::post(loop_, [self = shared_from_this()] { self->finish_leaving(); });
      return;
    }
    if (joined_)
      send_leave();
    else
      timeout = std::min(timeout, kReturnTimeout);
    leave_timer_.expires_after(timeout);
    leave_timer_.async_wait([self = shared_from_this()](const auto& error) {
      if (!error) self->finish_leaving();
    });
  }

  void close() {
    events_ = {};
    left_ = {};
    end();
  }

  [[nodiscard]] const membership::NodeId& id() const { return options_.request.id; }

 private:
  // A coordinator that is away keeps this node's place, and the others wait for it: it has to hear the
  // good-bye.
  [[nodiscard]] bool comes_back() const { return !done_ && offered_grace_.count() > 0; }

  void send_leave() {
    link_->send(control::Leave{leave_reason_});
    link_->finish_sending();
    heartbeat_timer_.cancel();
  }

  // Connects until it may not any more. `self` keeps the object while this is suspended.
  asio::awaitable<void> run([[maybe_unused]] std::shared_ptr<Impl> self) {
    Backoff backoff(kBackoff, id().low);
    const Instant began = SteadyClock::now();
    Instant deadline = began + options_.connect_timeout;
    bool was_joined = false;
    std::string told;
    for (std::size_t attempt = 0; !over_; ++attempt) {
      link_ = std::make_shared<ControlLink>(loop_, options_);
      Error error =
          co_await run_connection(attempt, std::min(deadline, SteadyClock::now() + options_.attempt_timeout));
      if (over_) co_return;
      const bool lost = std::exchange(joined_, false);
      const bool again = !done_ && (worth_another_try(error.code) || link_->coordinator_stops());
      heartbeat_timer_.cancel();
      link_->close();
      if (const auto call = events_.linked; call && lost) {
        call(false);
        if (over_) co_return;
      }
      // Who closes in its turn has read everything.
      if (leaving_ && (!again || !comes_back() || link_->was_finished())) {
        finish_leaving();
        co_return;
      }
      const Instant now = SteadyClock::now();
      // Who is to come again has not been let in yet: the time for that runs on.
      if (lost && !link_->coordinator_is_busy()) {
        was_joined = true;
        told.clear();
        deadline = now + std::max({options_.reconnect_for, offered_grace_,
                                   link_->was_broken() ? options_.settings.reconnect_grace : Millis(0)});
        backoff = Backoff(kBackoff, id().low + 1);
      }
      if (!again || now >= deadline) {
        if (again && !was_joined) {
          // The last attempt had no time left: what the one before met says more.
          if (error.code == ErrorCode::kTimeout && !told.empty()) error.message = told;
          error.code = ErrorCode::kTimeout;
          error.message += fmt::format(
              " (tried for {:.1f} s){}", seconds_between(began, now),
              link_->coordinator_is_busy() ? "" : "; is the coordinator running, and reachable from here?");
        }
        fail_for_good(std::move(error));
        co_return;
      }
      if (const auto call = events_.trying; call && !leaving_ && error.message != told) {
        told = error.message;
        call(error);
        if (over_) co_return;
      }
      if (std::exchange(moved_, false)) continue;
      pause_.expires_at(std::min(deadline, now + backoff.next()));
      co_await pause_.async_wait(kTuple);
    }
  }

  // One connection; why it ended.
  asio::awaitable<Error> run_connection(std::size_t attempt, Instant deadline) {
    const auto link = link_;
    const auto welcome = co_await link->open(attempt, deadline);
    if (!welcome) co_return welcome.error();
    if (over_) co_return Error{ErrorCode::kCancelled, "closed"};
    heartbeat_ = Millis(std::clamp<std::uint32_t>(welcome->heartbeat_ms, 10, 3'600'000));
    // The job's rules may be stricter than the coordinator's habit.
    const Millis rule = options_.settings.heartbeat_timeout;
    heartbeat_ = std::min(heartbeat_, std::max(rule / 3, Millis(10)));
    // As patient with the coordinator as it is with this agent.
    max_missed_ = std::max<std::int64_t>(options_.missed_heartbeats, rule / heartbeat_);
    offered_grace_ = Millis(std::min<std::uint32_t>(welcome->reconnect_ms, 3'600'000));
    num_missed_ = 0;
    joined_ = true;
    // Between two generations a coordinator that knows none hears of the last one, lest it use its number
    // again. Another answers that it is over, and hears how far workers came before the next world is formed.
    const auto age = std::chrono::duration_cast<Millis>(SteadyClock::now() - options_.born);
    const auto resume = running_ ? running_ : last_ready_;
    send(control::Join{options_.request, options_.settings, resume, options_.software, age});
    for (const control::Message& fact : unconfirmed_) send(fact);
    if (leaving_)
      send_leave();
    else
      send_heartbeat();
    if (options_.compare_clocks) send(control::Clock{wall_nanoseconds()});
    link->on_drained([weak = weak_from_this()] {
      const auto self = weak.lock();
      if (const auto call = self && !self->over_ ? self->events_.drained : nullptr) call();
    });
    if (const auto call = events_.linked) call(true);
    while (!over_) {
      const auto message = co_await link->receive();
      if (!message) co_return message.error();
      if (over_) co_return Error{ErrorCode::kCancelled, "closed"};
      num_missed_ = 0;
      if (!leaving_) on_message(*message);
    }
    co_return Error{ErrorCode::kCancelled, "closed"};
  }

  // The callbacks are copied, since each may close or destroy the client.
  void on_message(const control::Message& message) {
    if (const auto* assignment = std::get_if<control::Assignment>(&message)) {
      if (assignment->generation <= assigned_) return;
      assigned_ = assignment->generation;
      running_ = assignment->generation;
      if (const auto call = events_.assigned) call(*assignment);
    } else if (const auto* over = std::get_if<control::GenerationOver>(&message)) {
      unconfirmed_.clear();
      if (last_ready_ && over->generation <= *last_ready_) {
        // ready() came while the word was on its way, and was lost with a connection.
        send(control::Ready{over->generation, options_.request.master_port, reached_});
        return;
      }
      if (over->generation <= ended_) return;
      ended_ = over->generation;
      if (const auto call = events_.generation_over) call(*over);
    } else if (const auto* closed = std::get_if<control::Closed>(&message)) {
      done_ = true;
      unconfirmed_.clear();
      if (const auto call = std::exchange(events_.closed, {})) call(*closed);
    } else if (const auto* clock = std::get_if<control::Clock>(&message)) {
      compare(*clock);
    } else if (const auto call = is_of_another_generation(message) ? nullptr : events_.message) {
      call(message);
    }
  }

  // What other nodes say of a generation that has not begun here, or is over.
  [[nodiscard]] bool is_of_another_generation(const control::Message& message) const {
    if (const auto* hang = std::get_if<control::Hang>(&message)) return running_ != hang->generation;
    if (const auto* status = std::get_if<control::Status>(&message)) return running_ != status->generation;
    const auto* stop = std::get_if<control::StopWorkers>(&message);
    return stop != nullptr && running_ != stop->generation;
  }

  void compare(const control::Clock& clock) {
    if (!std::exchange(options_.compare_clocks, false)) return;
    const auto offset = clock_offset({clock.asked, clock.received, clock.answered, wall_nanoseconds()});
    if (const auto call = events_.clock; call && offset) call(*offset);
  }

  // While joined. Silence is counted in beats, so that an agent that was itself stopped for a while does not
  // blame the coordinator.
  void send_heartbeat() {
    heartbeat_timer_.expires_after(heartbeat_);
    heartbeat_timer_.async_wait([self = shared_from_this(), link = link_](const auto& error) {
      if (error || self->over_ || self->link_ != link || !self->joined_) return;
      // What it says may be long, and the line slow.
      if (std::exchange(self->heard_bytes_, link->received_bytes()) != link->received_bytes())
        self->num_missed_ = 0;
      if (self->num_missed_++ >= self->max_missed_) {
        link->abort(fmt::format("the coordinator has been silent for {} ms",
                                self->max_missed_ * self->heartbeat_.count()));
        return;
      }
      link->send(control::Heartbeat{});
      self->send_heartbeat();
    });
  }

  void fail_for_good(Error error) {
    if (over_) return;
    end();
    if (left_) return finish_leaving();
    if (done_) return;
    if (const auto call = std::exchange(events_, {}).lost) call(error);
  }

  void finish_leaving() {
    end();
    if (const auto call = std::exchange(left_, {})) call();
  }

  // Everything under way ends by itself.
  void end() {
    over_ = true;
    if (link_) link_->close();
    heartbeat_timer_.cancel();
    pause_.cancel();
    leave_timer_.cancel();
  }

  asio::io_context& loop_;
  ControlClientOptions options_;
  ControlEvents events_;
  LoopTimer heartbeat_timer_;
  LoopTimer pause_;
  LoopTimer leave_timer_;              // of leave()
  std::shared_ptr<ControlLink> link_;  // the present try
  bool joined_ = false;                // Join is sent on link_
  bool leaving_ = false;
  std::string leave_reason_;
  bool done_ = false;  // closed() was told
  bool over_ = false;
  bool moved_ = false;  // redirected, and not tried there yet
  std::function<void()> left_;
  Millis heartbeat_{5000};
  Millis offered_grace_{0};
  int num_missed_ = 0;
  std::uint64_t heard_bytes_ = 0;
  std::int64_t max_missed_ = 3;
  std::optional<std::int64_t> running_;     // assigned, and not said to be ready since
  std::optional<std::int64_t> last_ready_;  // the last generation that ready() was told of
  StepProgress reached_;                    // as said with it
  std::int64_t assigned_ = -1;
  std::int64_t ended_ = -1;
  std::vector<control::Message> unconfirmed_;  // about the running generation
};

ControlClient::ControlClient(asio::io_context& loop, ControlClientOptions options, ControlEvents events)
    : impl_(std::make_shared<Impl>(loop, std::move(options), std::move(events))) {}

ControlClient::~ControlClient() {
  close();
}

void ControlClient::start() {
  impl_->start();
}
void ControlClient::redirect(std::string host, std::uint16_t port) {
  impl_->redirect(std::move(host), port);
}
void ControlClient::ready(std::int64_t generation, std::uint16_t master_port, const StepProgress& reached) {
  impl_->ready(generation, master_port, reached);
}
void ControlClient::send(const control::Message& message) {
  impl_->send(message);
}
void ControlClient::send_until_over(const control::Message& fact) {
  impl_->send_until_over(fact);
}
void ControlClient::leave(std::string reason, Millis timeout, std::function<void()> left) {
  impl_->leave(std::move(reason), timeout, std::move(left));
}
void ControlClient::close() {
  impl_->close();
}
void ControlClient::send_store(const control::Message& message) {
  impl_->send_store(message);
}
std::size_t ControlClient::unsent_bytes() const {
  return impl_->unsent_bytes();
}

}  // namespace muster::net
