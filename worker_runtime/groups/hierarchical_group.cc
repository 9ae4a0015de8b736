// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/groups/hierarchical_group.h"

#include <algorithm>
#include <cstring>

#include "worker_runtime/groups/base/reduce_kernels.h"

namespace muster::groups {
namespace {

int count_ranks(const std::vector<std::vector<int>>& hosts) {
  std::size_t n = 0;
  for (const auto& host : hosts) n += host.size();
  return static_cast<int>(n);
}

class HierarchicalGroup final : public CpuGroup {
 public:
  HierarchicalGroup(const HierarchyOptions& options, std::unique_ptr<CpuGroup> local,
                    std::unique_ptr<CpuGroup> cross)
      : CpuGroup(options.rank, count_ranks(options.hosts), options.timeout),
        hosts_(options.hosts),
        host_(host_of(options.rank)),
        local_(std::move(local)),
        cross_(std::move(cross)) {}

  ~HierarchicalGroup() override { stop(); }

  std::string_view backend() const override { return "hierarchical"; }

 protected:
  Result<void> run_barrier(const OpContext&) override {
    MUSTER_OK(locally([](CpuGroup& group) { return group.barrier(); }));
    MUSTER_OK(between_hosts([](CpuGroup& group) { return group.barrier(); }));
    return locally([](CpuGroup& group) { return group.barrier(); });
  }

  Result<void> run_all_reduce(const OpContext& op, Buffer buffer) override {
    const ReduceOp reduce_op = op.descriptor.reduce == ReduceOp::kAvg ? ReduceOp::kSum : op.descriptor.reduce;
    if (op.descriptor.reduce == ReduceOp::kAvg && buffer.count != 0) {
      const void* inputs[] = {buffer.data};
      void* outputs[] = {buffer.data};
      reduce(inputs, outputs, buffer.count, buffer.dtype, ReduceOp::kSum,
             scale_of(ReduceOp::kAvg, world_size()));
    }
    MUSTER_OK(locally([&](CpuGroup& group) { return group.all_reduce(buffer, reduce_op); }));
    MUSTER_OK(between_hosts([&](CpuGroup& group) { return group.all_reduce(buffer, reduce_op); }));
    return locally([&](CpuGroup& group) { return group.broadcast(buffer, 0); });
  }

  Result<void> run_broadcast(const OpContext& op, Buffer buffer) override {
    const std::size_t source = host_of(op.descriptor.root);
    const auto& ranks = hosts_[source];
    const auto local_root =
        static_cast<int>(std::find(ranks.begin(), ranks.end(), op.descriptor.root) - ranks.begin());
    if (source == host_)
      MUSTER_OK(locally([&](CpuGroup& group) { return group.broadcast(buffer, local_root); }));
    MUSTER_OK(
        between_hosts([&](CpuGroup& group) { return group.broadcast(buffer, static_cast<int>(source)); }));
    if (source == host_) return {};
    return locally([&](CpuGroup& group) { return group.broadcast(buffer, 0); });
  }

  Result<void> run_all_gather(const OpContext&, ConstBuffer input, Buffer output) override {
    // Hosts may have different numbers of ranks: the hosts' parts are padded to the largest.
    std::size_t most = 0;
    for (const auto& host : hosts_) most = std::max(most, host.size());
    const std::size_t size = input.size_bytes();
    std::vector<std::byte> here(most * size);
    const Buffer local_output{here.data(), local_count() * input.count, input.dtype};
    if (local_ != nullptr)
      MUSTER_OK(local_->all_gather(input, local_output));
    else if (size != 0)
      std::memcpy(here.data(), input.data, size);
    if (leads()) {
      std::vector<std::byte> all(hosts_.size() * most * size);
      MUSTER_OK(between_hosts([&](CpuGroup& group) {
        return group.all_gather(ConstBuffer(here.data(), most * input.count, input.dtype),
                                Buffer{all.data(), hosts_.size() * most * input.count, input.dtype});
      }));
      auto* out = static_cast<std::byte*>(output.data);
      for (std::size_t host = 0; size != 0 && host < hosts_.size(); ++host)
        for (std::size_t i = 0; i < hosts_[host].size(); ++i)
          std::memcpy(out + static_cast<std::size_t>(hosts_[host][i]) * size,
                      all.data() + (host * most + i) * size, size);
    }
    return locally([&](CpuGroup& group) { return group.broadcast(output, 0); });
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
    if (local_ != nullptr) return local_->allocate(size_bytes);
    return CpuGroup::run_allocate(op, size_bytes);
  }

  void tell_failure(const Error& error) override {
    // Both: the ranks of this host wait for its first, and the first ones for each other.
    if (local_ != nullptr) local_->abort(error);
    if (cross_ != nullptr) cross_->abort(error);
  }

 private:
  std::size_t host_of(int rank) const {
    for (std::size_t i = 0; i < hosts_.size(); ++i)
      if (std::find(hosts_[i].begin(), hosts_[i].end(), rank) != hosts_[i].end()) return i;
    return 0;
  }
  std::size_t local_count() const { return hosts_[host_].size(); }
  bool leads() const { return hosts_[host_].front() == rank(); }

  template <class Call>
  Result<void> locally(Call call) {
    return local_ != nullptr ? call(*local_) : Result<void>();
  }
  template <class Call>
  Result<void> between_hosts(Call call) {
    return cross_ != nullptr ? call(*cross_) : Result<void>();
  }

  const std::vector<std::vector<int>> hosts_;
  const std::size_t host_;
  std::unique_ptr<CpuGroup> local_;
  std::unique_ptr<CpuGroup> cross_;
};

}  // namespace

std::unique_ptr<CpuGroup> make_hierarchical_group(const HierarchyOptions& options,
                                                  std::unique_ptr<CpuGroup> local,
                                                  std::unique_ptr<CpuGroup> cross) {
  return std::make_unique<HierarchicalGroup>(options, std::move(local), std::move(cross));
}

}  // namespace muster::groups
