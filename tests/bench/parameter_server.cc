// SPDX-License-Identifier: Apache-2.0
// Two ways to give every rank the mean of all gradients, written out with send() and recv(), and the group's
// own all_reduce. For `scripts/bench parameter_server`, and to be read:
// - parameter_server(): rank 0 takes every rank's gradients, updates the parameters and gives them to all. It
//   sends and receives S bytes (P - 1) times each, 2S(P - 1) in all: the more ranks, the longer its turn.
// - ring_all_reduce(): every rank talks to its two neighbours only. In P - 1 steps each of P slices collects
// one
//   more rank's values, in P - 1 more the sums go round. Each rank sends 2S(P - 1)/P, hardly more than 2S
//   whatever P is.
// parameter_server RANKS BYTES[,BYTES...] SECONDS prints a line of JSON for each way and size.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include <muster/init.h>
#include <muster/spawn.h>

namespace {

using muster::Buffer;
using muster::DType;
using muster::Result;
using Clock = std::chrono::steady_clock;

/// The group's send and recv, counting what this rank sends.
class Link {
 public:
  explicit Link(muster::ProcessGroup& group) : group_(group) {}
  [[nodiscard]] int rank() const { return group_.rank(); }
  [[nodiscard]] int size() const { return group_.world_size(); }
  Result<void> send(std::span<float> values, int to) {
    sent_bytes_ += values.size_bytes();
    return group_.send({values.data(), values.size(), DType::kFloat32}, to);
  }
  Result<void> recv(std::span<float> values, int from) {
    return group_.recv({values.data(), values.size(), DType::kFloat32}, from);
  }
  [[nodiscard]] std::size_t sent_bytes() const { return sent_bytes_; }

 private:
  muster::ProcessGroup& group_;
  std::size_t sent_bytes_ = 0;
};

constexpr float kLearningRate = 0.5F;

void update(std::span<float> parameters, std::span<const float> gradient_sum, int ranks) {
  for (std::size_t i = 0; i < parameters.size(); ++i)
    parameters[i] -= kLearningRate * gradient_sum[i] / static_cast<float>(ranks);
}

void add(std::span<float> into, std::span<const float> from) {
  for (std::size_t i = 0; i < into.size(); ++i) into[i] += from[i];
}

/// Synchronous: a step ends when every rank has the new parameters.
Result<void> parameter_server(Link& link, std::span<float> parameters, std::span<float> gradients,
                              std::span<float> received) {
  if (link.rank() != 0) {
    MUSTER_OK(link.send(gradients, 0));
    return link.recv(parameters, 0);
  }
  for (int worker = 1; worker < link.size(); ++worker) {
    MUSTER_OK(link.recv(received, worker));
    add(gradients, received);
  }
  update(parameters, gradients, link.size());
  for (int worker = 1; worker < link.size(); ++worker) MUSTER_OK(link.send(parameters, worker));
  return {};
}

/// A send() returns when the neighbour has the data: ranks of even numbers send first, the others receive
/// first.
Result<void> pass_on(Link& link, std::span<float> out, std::span<float> in) {
  const int next = (link.rank() + 1) % link.size(), previous = (link.rank() + link.size() - 1) % link.size();
  if (link.rank() % 2 == 1) MUSTER_OK(link.recv(in, previous));
  MUSTER_OK(link.send(out, next));
  if (link.rank() % 2 == 0) MUSTER_OK(link.recv(in, previous));
  return {};
}

/// In place, `values` become the sums.
Result<void> ring_all_reduce(Link& link, std::span<float> values, std::span<float> received) {
  const int size = link.size();
  const std::size_t part =
      (values.size() + static_cast<std::size_t>(size) - 1) / static_cast<std::size_t>(size);
  const auto slice = [&](int index) {
    const std::size_t begin =
        std::min(static_cast<std::size_t>((index + 2 * size) % size) * part, values.size());
    return values.subspan(begin, std::min(part, values.size() - begin));
  };
  for (int step = 0; step < size - 1; ++step) {  // reduce-scatter: afterwards slice rank + 1 is complete here
    const auto mine = slice(link.rank() - step), theirs = slice(link.rank() - step - 1);
    MUSTER_OK(pass_on(link, mine, received.first(theirs.size())));
    add(theirs, received.first(theirs.size()));
  }
  for (int step = 0; step < size - 1; ++step)  // all-gather: complete slices go round
    MUSTER_OK(pass_on(link, slice(link.rank() + 1 - step), slice(link.rank() - step)));
  return {};
}

/// A step of training without the model: gradients that are known, so that the result can be checked.
class Worker {
 public:
  Worker(muster::ProcessGroup& group, std::size_t bytes)
      : group_(group), parameters_(bytes / sizeof(float)), gradients_(parameters_), received_(parameters_) {}

  /// Returns the bytes this rank sent; of all_reduce they are not counted.
  Result<std::size_t> step(const std::string& way) {
    std::fill(gradients_.begin(), gradients_.end(), static_cast<float>(group_.rank() + 1));
    Link link(group_);
    if (way == "parameter_server") {
      MUSTER_OK(parameter_server(link, parameters_, gradients_, received_));
      return link.sent_bytes();
    }
    if (way == "ring")
      MUSTER_OK(ring_all_reduce(link, gradients_, received_));
    else
      MUSTER_OK(group_.all_reduce({gradients_.data(), gradients_.size(), DType::kFloat32}));
    update(parameters_, gradients_, group_.world_size());
    return link.sent_bytes();
  }

  /// Of the next step: what every parameter must lose.
  [[nodiscard]] bool is_right(float before) const {
    const float mean = static_cast<float>(group_.world_size() + 1) / 2;
    return std::all_of(parameters_.begin(), parameters_.end(),
                       [&](float now) { return std::fabs(before - kLearningRate * mean - now) < 1e-3F; });
  }
  [[nodiscard]] float parameter() const { return parameters_.front(); }

 private:
  muster::ProcessGroup& group_;
  std::vector<float> parameters_, gradients_, received_;
};

Result<void> measure(const std::vector<std::size_t>& sizes, double seconds) {
  MUSTER_TRY(const auto context, muster::init());
  muster::ProcessGroup& group = *context.group;
  for (const std::size_t bytes : sizes)
    for (const std::string way : {"parameter_server", "ring", "all_reduce"}) {
      Worker worker(group, bytes);
      std::size_t sent = 0;
      const float before = worker.parameter();
      MUSTER_TRY(sent, worker.step(way));
      if (!worker.is_right(before))
        return muster::fail(muster::ErrorCode::kFailed, way + " gave a wrong mean");
      std::vector<double> micros;
      const auto end = Clock::now() + std::chrono::duration<double>(seconds);
      for (std::int32_t more = 1; more != 0;) {
        const auto begin = Clock::now();
        MUSTER_OK(worker.step(way));
        micros.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
        more = Clock::now() < end ? 1 : 0;
        MUSTER_OK(group.broadcast({&more, 1, DType::kInt32}, 0));
      }
      auto most = static_cast<std::int64_t>(sent);
      MUSTER_OK(group.all_reduce({&most, 1, DType::kInt64}, muster::ReduceOp::kMax));
      std::nth_element(micros.begin(), micros.begin() + static_cast<std::ptrdiff_t>(micros.size() / 2),
                       micros.end());
      if (group.rank() == 0)
        std::printf(
            "{\"way\": \"%s\", \"ranks\": %d, \"bytes\": %zu, \"micros\": %.2f, \"steps\": %zu, \"sent\": "
            "%lld}\n",
            way.c_str(), group.world_size(), bytes, micros[micros.size() / 2], micros.size(),
            static_cast<long long>(most));
    }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc == 4 ? std::atoi(argv[1]) : 0;
  const double seconds = argc == 4 ? std::atof(argv[3]) : 0;
  std::vector<std::size_t> sizes;
  for (char* text = argc == 4 ? argv[2] : nullptr; text != nullptr && *text != '\0';) {
    sizes.push_back(std::strtoull(text, &text, 10) / sizeof(float) * sizeof(float));
    if (*text == ',') ++text;
    if (sizes.back() == 0) break;
  }
  if (ranks < 2 || seconds <= 0 || sizes.empty() || sizes.back() == 0) {
    std::fputs("parameter_server: expected RANKS (2 or more), BYTES[,BYTES...] and SECONDS\n", stderr);
    return 2;
  }
  const auto done = muster::spawn(ranks, [&](int) { return measure(sizes, seconds); });
  if (!done) std::fprintf(stderr, "parameter_server: %s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
