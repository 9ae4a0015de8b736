// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/groups/make_cpu_group.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include <fmt/format.h>

#include "rendezvous/base/fail.h"
#include "worker_runtime/groups/base/meeting.h"
#include "worker_runtime/groups/base/reduce_kernels.h"
#include "worker_runtime/groups/shm/shm_group.h"
#include "worker_runtime/groups/tcp/tcp_group.h"

namespace muster::groups {
namespace {

int place_in(const std::vector<int>& ranks, int rank) {
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

/// Ranks on several hosts. Data is combined within each host (shared memory), then between the hosts' first
/// ranks (TCP), then handed out within the hosts, so that it crosses the network once per host. Sums are
/// taken within each host and then between them: the same bits everywhere, and those of a flat group where
/// each host has an equal part of the tree. Transfers between two ranks of different hosts go over a
/// connection of their own.
class HierarchicalGroup final : public CpuGroup {
 public:
  /// `hosts`: global ranks per host, ascending within a host. `local`: the ranks of this host, nullptr where
  /// there is one only. `cross`: the first rank of every host, nullptr on the others. `flat`: all ranks.
  HierarchicalGroup(const CpuGroupOptions& options, std::vector<std::vector<int>> hosts,
                    std::unique_ptr<CpuGroup> local, std::unique_ptr<CpuGroup> cross,
                    std::unique_ptr<CpuGroup> flat)
      : CpuGroup(options.rank, options.world_size, options.timeout),
        hosts_(std::move(hosts)),
        host_(host_of(options.rank)),
        local_(std::move(local)),
        cross_(std::move(cross)),
        flat_(std::move(flat)) {}

  ~HierarchicalGroup() override { stop(); }

  std::string_view backend() const override { return "hierarchical"; }

  bool sums_by_tree() const override {
    const std::size_t each = hosts_[0].size();
    for (int rank = 0; rank < world_size(); ++rank)
      if (host_of(rank) != static_cast<std::size_t>(rank) / each) return false;
    return std::has_single_bit(each);
  }

  Result<void> run_transfer(const OpContext& op, const Transfer& transfer) override {
    if (host_of(transfer.peer) != host_) return flat_->run_transfer(op, transfer);
    Transfer near = transfer;
    near.peer = place_in(hosts_[host_], transfer.peer);
    return local_->run_transfer(op, near);
  }

 protected:
  void prepare(const OpContext& op) override {
    for (CpuGroup* const part : {local_.get(), cross_.get()})
      if (part != nullptr) part->work_for(op, rank());
  }

  Result<void> run_barrier(const OpContext&) override {
    if (local_ != nullptr) MUSTER_OK(local_->barrier());
    if (cross_ != nullptr) MUSTER_OK(cross_->barrier());
    return local_ != nullptr ? local_->barrier() : Result<void>();
  }

  Result<void> run_all_reduce(const OpContext& op, Buffer buffer) override {
    const ReduceOp reduce_op = op.descriptor.reduce == ReduceOp::kAvg ? ReduceOp::kSum : op.descriptor.reduce;
    if (op.descriptor.reduce == ReduceOp::kAvg && buffer.count != 0) {
      const void* inputs[] = {buffer.data};
      void* outputs[] = {buffer.data};
      groups::reduce(inputs, outputs, buffer.count, buffer.dtype, ReduceOp::kSum,
                     scale_of(ReduceOp::kAvg, world_size()));
    }
    // With a root, too: a rank that is not the first of its host cannot have the sum without a further step.
    if (local_ != nullptr) MUSTER_OK(local_->all_reduce(buffer, reduce_op));
    if (cross_ != nullptr) MUSTER_OK(cross_->all_reduce(buffer, reduce_op));
    return hand_out(buffer);
  }

  Result<void> run_broadcast(const OpContext& op, Buffer buffer) override {
    const std::size_t source = host_of(op.descriptor.root);
    const int local_root = place_in(hosts_[source], op.descriptor.root);
    if (source == host_ && local_ != nullptr) MUSTER_OK(local_->broadcast(buffer, local_root));
    if (cross_ != nullptr) MUSTER_OK(cross_->broadcast(buffer, static_cast<int>(source)));
    return source == host_ ? Result<void>() : hand_out(buffer);
  }

  Result<void> run_all_gather(const OpContext&, ConstBuffer input, Buffer output) override {
    // Hosts may have different numbers of ranks: the hosts' parts are padded to the largest.
    std::size_t most = 0;
    for (const auto& host : hosts_) most = std::max(most, host.size());
    const std::size_t size = input.size_bytes();
    std::vector<std::byte> here(most * size);
    const Buffer local_output{here.data(), hosts_[host_].size() * input.count, input.dtype};
    if (local_ != nullptr)
      MUSTER_OK(local_->all_gather(input, local_output));
    else if (size != 0)
      std::memcpy(here.data(), input.data, size);
    if (cross_ != nullptr) {
      std::vector<std::byte> all(hosts_.size() * most * size);
      MUSTER_OK(cross_->all_gather(ConstBuffer(here.data(), most * input.count, input.dtype),
                                   Buffer{all.data(), hosts_.size() * most * input.count, input.dtype}));
      auto* out = static_cast<std::byte*>(output.data);
      for (std::size_t host = 0; size != 0 && host < hosts_.size(); ++host)
        for (std::size_t i = 0; i < hosts_[host].size(); ++i)
          std::memcpy(out + static_cast<std::size_t>(hosts_[host][i]) * size,
                      all.data() + (host * most + i) * size, size);
    }
    return hand_out(output);
  }

  Result<void> run_reduce_scatter(const OpContext& op, ConstBuffer input, Buffer output) override {
    std::vector<std::byte> copy(input.size_bytes());
    if (!copy.empty()) std::memcpy(copy.data(), input.data, copy.size());
    MUSTER_OK(run_all_reduce(op, Buffer{copy.data(), input.count, input.dtype}));
    const std::size_t size = output.size_bytes();
    if (size != 0) std::memcpy(output.data, copy.data() + static_cast<std::size_t>(rank()) * size, size);
    return {};
  }

  Result<void*> run_allocate(const OpContext& op, std::size_t size_bytes) override {
    if (local_ == nullptr) return CpuGroup::run_allocate(op, size_bytes);
    MUSTER_OK(run_barrier(op));  // which hosts of one rank come to, too
    return local_->allocate(size_bytes);
  }

  void tell_failure(const Error& error) override {
    // Both: the ranks of this host wait for its first, and the first ones for each other.
    if (local_ != nullptr) local_->abort(error);
    if (cross_ != nullptr) cross_->abort(error);
    flat_->abort(error);
  }

 private:
  std::size_t host_of(int rank) const {
    for (std::size_t i = 0; i < hosts_.size(); ++i)
      if (std::find(hosts_[i].begin(), hosts_[i].end(), rank) != hosts_[i].end()) return i;
    return 0;
  }
  /// From the first rank of this host to the others.
  Result<void> hand_out(Buffer buffer) {
    return local_ != nullptr ? local_->broadcast(buffer, 0) : Result<void>();
  }

  const std::vector<std::vector<int>> hosts_;
  const std::size_t host_;
  std::unique_ptr<CpuGroup> local_;
  std::unique_ptr<CpuGroup> cross_;
  std::unique_ptr<CpuGroup> flat_;
};

class Maker {
 public:
  Maker(const CpuGroupOptions& options, Store& store)
      : options_(options), store_(store), deadline_(SteadyClock::now() + options.timeout) {}

  Result<std::unique_ptr<CpuGroup>> make() {
    const std::vector<int> everybody = all_ranks(options_.world_size);
    if (options_.backend == Backend::kTcp) return tcp("tcp", everybody, options_.timeout);
    MUSTER_TRY(const auto ids,
               exchange_through_store(store_, "host", everybody, options_.rank, deadline_)(options_.host_id));
    const auto hosts = group_by_host(ids);
    if (hosts.size() == 1) return within_host("shm", everybody);
    if (options_.backend == Backend::kShm)
      return fail(ErrorCode::kUnsupported,
                  "a shared-memory group over {} ranks on {} hosts (rank {} is not where rank 0 is); use the "
                  "automatic backend",
                  options_.world_size, hosts.size(), hosts[1].front());
    if (hosts.size() == everybody.size()) return tcp("tcp", everybody, options_.timeout);

    const auto mine = std::find_if(hosts.begin(), hosts.end(), [&](const std::vector<int>& ranks) {
      return std::find(ranks.begin(), ranks.end(), options_.rank) != ranks.end();
    });
    std::vector<int> first_ranks;
    first_ranks.reserve(hosts.size());
    for (const auto& ranks : hosts) first_ranks.push_back(ranks.front());
    std::unique_ptr<CpuGroup> local;
    std::unique_ptr<CpuGroup> cross;
    if (mine->size() > 1) {
      MUSTER_TRY(local, within_host(fmt::format("host{}", mine - hosts.begin()), *mine));
    }
    if (mine->front() == options_.rank) {
      MUSTER_TRY(cross, tcp("between_hosts", first_ranks, options_.timeout));
    }
    MUSTER_TRY(std::unique_ptr<CpuGroup> flat, tcp("flat", everybody, options_.timeout));
    return std::make_unique<HierarchicalGroup>(options_, hosts, std::move(local), std::move(cross),
                                               std::move(flat));
  }

 private:
  /// Shared memory if these ranks can really share it, else TCP; all of them come to the same answer.
  Result<std::unique_ptr<CpuGroup>> within_host(const std::string& name, const std::vector<int>& ranks) {
    const int me = place_in(ranks, options_.rank);
    // Below a hierarchy the ranks of a host are patient for a little longer than the hosts are with each
    // other, so that the rank which knows who is missing says it first.
    const bool all = ranks.size() == static_cast<std::size_t>(options_.world_size);
    const Millis timeout =
        all ? options_.timeout : options_.timeout + std::max(options_.timeout / 10, Millis(1000));
    auto shm =
        make_shm_group({.ranks = ranks, .me = me, .timeout = timeout, .make_segment = options_.make_segment},
                       exchange_through_store(store_, name, ranks, me, deadline_));
    if (shm || options_.backend == Backend::kShm) return shm;
    if (shm.error().code != ErrorCode::kUnsupported && shm.error().code != ErrorCode::kExhausted) return shm;
    return tcp(name + "_tcp", ranks, timeout);
  }

  Result<std::unique_ptr<CpuGroup>> tcp(const std::string& name, const std::vector<int>& ranks,
                                        Millis timeout) {
    const int me = place_in(ranks, options_.rank);
    return make_tcp_group({.ranks = ranks,
                           .me = me,
                           .timeout = timeout,
                           .address = options_.address,
                           .route_host = options_.route_host,
                           .interface = options_.interface},
                          exchange_through_store(store_, name, ranks, me, deadline_));
  }

  const CpuGroupOptions& options_;
  Store& store_;
  const Instant deadline_;
};

}  // namespace

Result<std::unique_ptr<ProcessGroup>> make_cpu_group(const CpuGroupOptions& options, Store& store) {
  if (options.world_size == 1) return make_single_group();
  MUSTER_TRY(std::unique_ptr<CpuGroup> group, Maker(options, store).make());
  group->record_in(CollectiveRecord(options.page, options.name, group->backend(), options.world_size));
  return std::unique_ptr<ProcessGroup>(std::move(group));
}

}  // namespace muster::groups
