// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/groups/tcp/tcp_group.h"

#include <cstring>

#include "worker_runtime/groups/base/reduce_kernels.h"

namespace muster::groups {
namespace {

constexpr std::size_t kTcpSmallBytes = std::size_t{16} << 10;   // up to here all send everything to all
constexpr std::size_t kTcpBlockBytes = std::size_t{512} << 10;  // of a slice in flight: stays in the L2 cache

class TcpGroup final : public CpuGroup {
 public:
  TcpGroup(const TcpConnectOptions& options, std::vector<TcpMesh::Peer> peers)
      : CpuGroup(options.me, static_cast<int>(options.ranks.size()), options.timeout),
        ranks_(options.ranks),
        mesh_(std::move(peers)),
        descriptors_(ranks_.size()) {}

  ~TcpGroup() override { stop(); }

  std::string_view backend() const override { return "tcp"; }

  Result<void> run_transfer(const OpContext& op, const Transfer& t) override {
    const auto peer = static_cast<std::size_t>(t.peer);
    own_descriptor_ = op.descriptor;
    mesh_.send(peer, &own_descriptor_, sizeof own_descriptor_);
    mesh_.receive(peer, &descriptors_[peer], sizeof(OpDescriptor));
    const bool small = t.size <= kTcpSmallBytes;
    if (t.sends && small) mesh_.send(peer, t.data, t.size);
    auto outcome = run(op);
    if (mesh_.arrived(peer))
      if (auto text = find_mismatch(op.descriptor, ranks_[me()], descriptors_[peer], ranks_[peer]))
        return fail(ErrorCode::kMismatch, *std::move(text));
    MUSTER_OK(outcome);
    if (!t.sends) mesh_.receive(peer, t.data, t.size);
    if (t.sends && !small) mesh_.send(peer, t.data, t.size);
    return run(op);
  }

 protected:
  Result<void> run_barrier(const OpContext& op) override {
    announce(op);
    return meet(op);
  }

  Result<void> run_all_reduce(const OpContext& op, Buffer buffer) override {
    announce(op);
    if (buffer.size_bytes() <= kTcpSmallBytes) return all_reduce_small(op, buffer);
    MUSTER_OK(meet(op));
    return all_reduce_sliced(op, buffer);
  }

  Result<void> run_broadcast(const OpContext& op, Buffer buffer) override {
    announce(op);
    const auto root = static_cast<std::size_t>(op.descriptor.root);
    auto* data = static_cast<std::byte*>(buffer.data);
    const std::size_t size = buffer.size_bytes();
    if (size <= kTcpSmallBytes || members() == 2) {
      if (me() == root) each_peer([&](std::size_t peer) { mesh_.send(peer, data, size); });
      MUSTER_OK(meet(op));
      if (me() != root) mesh_.receive(root, data, size);
      return run(op);
    }
    // Root deals out slices and everybody passes its own on: root sends S bytes instead of (P-1) S.
    MUSTER_OK(meet(op));
    const auto part = [&](std::size_t member) {
      return slice_of(size, 1, static_cast<int>(member), world_size());
    };
    if (me() == root)
      each_peer([&](std::size_t peer) { mesh_.send(peer, data + part(peer).begin, part(peer).size()); });
    else
      mesh_.receive(root, data + part(me()).begin, part(me()).size());
    MUSTER_OK(run(op));
    each_peer([&](std::size_t peer) {
      if (peer != root) mesh_.send(peer, data + part(me()).begin, part(me()).size());
      if (me() != root) mesh_.receive(peer, data + part(peer).begin, part(peer).size());
    });
    return run(op);
  }

  Result<void> run_all_gather(const OpContext& op, ConstBuffer input, Buffer output) override {
    announce(op);
    auto* out = static_cast<std::byte*>(output.data);
    const std::size_t size = input.size_bytes();
    if (size != 0 && out + me() * size != input.data) std::memcpy(out + me() * size, input.data, size);
    const bool small = size <= kTcpSmallBytes;
    if (!small) MUSTER_OK(meet(op));
    each_peer([&](std::size_t peer) { mesh_.send(peer, out + me() * size, size); });
    if (small) MUSTER_OK(meet(op));
    each_peer([&](std::size_t peer) { mesh_.receive(peer, out + peer * size, size); });
    return run(op);
  }

  Result<void> run_reduce_scatter(const OpContext& op, ConstBuffer input, Buffer output) override {
    announce(op);
    MUSTER_OK(meet(op));
    const std::size_t element = size_of(input.dtype);
    const std::size_t block = kTcpBlockBytes / element;
    reserve_scratch(std::min(output.count, block) * element);
    const auto* in = static_cast<const std::byte*>(input.data);
    auto* out = static_cast<std::byte*>(output.data);
    for (std::size_t begin = 0; begin < output.count; begin += block) {
      const std::size_t count = std::min(block, output.count - begin);
      each_peer([&](std::size_t peer) {
        mesh_.send(peer, in + (peer * output.count + begin) * element, count * element);
        mesh_.receive(peer, scratch(peer), count * element);
      });
      MUSTER_OK(run(op));
      reduce_scratch(op, in + (me() * output.count + begin) * element, out + begin * element, count);
    }
    return {};
  }

  void tell_failure(const Error& error) override { mesh_.fail_peers(error); }

 private:
  std::size_t members() const { return ranks_.size(); }

  template <class Body>
  void each_peer(Body body) {
    for (std::size_t i = 0; i < members(); ++i)
      if (i != me()) body(i);
  }

  Result<void> run(const OpContext& op) { return mesh_.run(op.deadline); }

  /// Queues the descriptors; small data may be queued behind them before meet().
  void announce(const OpContext& op) {
    own_descriptor_ = op.descriptor;
    descriptors_[me()] = op.descriptor;
    each_peer([&](std::size_t peer) {
      mesh_.send(peer, &own_descriptor_, sizeof own_descriptor_);
      mesh_.receive(peer, &descriptors_[peer], sizeof(OpDescriptor));
    });
  }

  /// Everybody has come to this operation, and it is the same one. A disagreement explains more than a closed
  /// connection, which may only be its consequence.
  Result<void> meet(const OpContext& op) {
    auto outcome = run(op);
    std::vector<OpDescriptor> here;
    std::vector<int> from;
    for (std::size_t i = 0; i < members(); ++i) {
      if (i != me() && !mesh_.arrived(i)) continue;
      here.push_back(descriptors_[i]);
      from.push_back(ranks_[i]);
    }
    if (auto text = find_mismatch(here, from)) return fail(ErrorCode::kMismatch, *std::move(text));
    return outcome;
  }

  /// Room for one block of every member's data.
  void reserve_scratch(std::size_t bytes_each) {
    scratch_each_ = (bytes_each + 63) / 64 * 64;
    if (scratch_.size() < scratch_each_ * members()) scratch_.resize(scratch_each_ * members());
  }
  std::byte* scratch(std::size_t member) { return scratch_.data() + member * scratch_each_; }

  /// `own` in this member's place, the others from scratch.
  void reduce_scratch(const OpContext& op, const std::byte* own, std::byte* output, std::size_t count) {
    std::vector<const void*> inputs;
    inputs.reserve(members());
    for (std::size_t i = 0; i < members(); ++i) inputs.push_back(i == me() ? own : scratch(i));
    void* outputs[] = {output};
    groups::reduce(inputs, outputs, count, op.descriptor.dtype, op.descriptor.reduce,
                   scale_of(op.descriptor.reduce, world_size()));
  }

  Result<void> all_reduce_small(const OpContext& op, Buffer buffer) {
    auto* data = static_cast<std::byte*>(buffer.data);
    const std::size_t size = buffer.size_bytes();
    each_peer([&](std::size_t peer) {
      if (needs_result(op, peer)) mesh_.send(peer, data, size);
    });
    MUSTER_OK(meet(op));
    if (!needs_result(op, me())) return {};
    reserve_scratch(size);
    each_peer([&](std::size_t peer) { mesh_.receive(peer, scratch(peer), size); });
    MUSTER_OK(run(op));
    reduce_scratch(op, data, data, buffer.count);
    return {};
  }

  /// Block k's slices travel together with block k-1's sums.
  Result<void> all_reduce_sliced(const OpContext& op, Buffer buffer) {
    auto* data = static_cast<std::byte*>(buffer.data);
    const std::size_t element = size_of(buffer.dtype);
    const std::size_t block = kTcpBlockBytes / element * members();
    reserve_scratch(std::min(slice_of(block, element, 0, world_size()).size(), buffer.count) * element);
    const auto piece = [&](std::size_t begin, std::size_t member) {
      const Slice slice =
          slice_of(std::min(block, buffer.count - begin), element, static_cast<int>(member), world_size());
      return std::span(data + (begin + slice.begin) * element, slice.size() * element);
    };
    for (std::size_t begin = 0; begin < buffer.count + block; begin += block) {
      each_peer([&](std::size_t peer) {
        if (begin >= block) {
          const auto sum = piece(begin - block, me());
          const auto theirs = piece(begin - block, peer);
          if (needs_result(op, peer)) mesh_.send(peer, sum.data(), sum.size());
          if (needs_result(op, me())) mesh_.receive(peer, theirs.data(), theirs.size());
        }
        if (begin < buffer.count) {
          const auto theirs = piece(begin, peer);
          mesh_.send(peer, theirs.data(), theirs.size());
          mesh_.receive(peer, scratch(peer), piece(begin, me()).size());
        }
      });
      MUSTER_OK(run(op));
      if (begin < buffer.count) {
        const auto own = piece(begin, me());
        reduce_scratch(op, own.data(), own.data(), own.size() / element);
      }
    }
    return {};
  }

  const std::vector<int> ranks_;
  TcpMesh mesh_;
  OpDescriptor own_descriptor_;
  std::vector<OpDescriptor> descriptors_;
  std::vector<std::byte> scratch_;
  std::size_t scratch_each_ = 0;
};

}  // namespace

Result<std::unique_ptr<CpuGroup>> make_tcp_group(const TcpConnectOptions& options,
                                                 const TextExchange& exchange) {
  MUSTER_TRY(auto peers, connect_members(options, exchange));
  return std::make_unique<TcpGroup>(options, std::move(peers));
}

}  // namespace muster::groups
