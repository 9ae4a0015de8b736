// SPDX-License-Identifier: Apache-2.0
#include "launcher/doctor/doctor_plan.h"

#include <array>
#include <string_view>
#include <sys/mman.h>
#include <unistd.h>

#include <fmt/format.h>

#include "launcher/job/exit_status.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

// Which nodes there are and how they meet.
constexpr std::array<std::string_view, 22> kKept = {
    "host-map",         "port-file",         "nnodes",       "node-rank",    "master-addr", "master-port",
    "standalone",       "rdzv-id",           "rdzv-backend", "rdzv-conf",    "no-slurm",    "tls-ca",
    "tls-cert",         "tls-key",           "local-addr",   "iface",        "dry-run",     "secret-file",
    "shutdown-timeout", "signals-to-handle", "cgroup",       "rdzv-endpoint"};

}  // namespace

Options doctor_options(const Options& given, const std::string& own_program) {
  Options out;
  out.doctor = true;
  out.nnodes = given.nnodes;
  out.node_rank = given.node_rank;
  out.master_addr = given.master_addr;
  out.master_port = given.master_port;
  out.standalone = given.standalone;
  // A job of the same name may be running at the same coordinator.
  if (given.rdzv_id) out.rdzv_id = *given.rdzv_id + ".doctor";
  out.rdzv_backend = given.rdzv_backend;
  out.rdzv_endpoint = given.rdzv_endpoint;
  out.rdzv_conf = given.rdzv_conf;
  out.no_slurm = given.no_slurm;
  out.tls_ca = given.tls_ca;
  out.tls_cert = given.tls_cert;
  out.tls_key = given.tls_key;
  out.secret_file = given.secret_file;
  out.local_addr = given.local_addr;
  out.iface = given.iface;
  out.host_map = given.host_map;
  out.port_file = given.port_file;
  out.dry_run = given.dry_run;
  out.dry_run_local = given.dry_run_local;
  out.shutdown_timeout_s = given.shutdown_timeout_s;
  out.signals_to_handle = given.signals_to_handle;
  out.cgroup = given.cgroup;
  out.hang_timeout = "off";
  out.nproc_per_node = "1";
  out.no_python = true;
  out.program = own_program;
  for (const std::string_view name : kKept)
    if (const auto found = given.given.find(name); found != given.given.end()) out.given.insert(*found);
  return out;
}

Result<DoctorVerdict> DoctorVerdict::open() {
  DoctorVerdict out;
  out.file_.reset(::memfd_create("muster-doctor", MFD_CLOEXEC));
  if (!out.file_) return fail(errno_error("memfd_create", errno));
  return out;
}

void DoctorVerdict::instruct(const Options& options, Job& job) const {
  DoctorArguments words;
  words.host = job.host;
  words.local_addr = options.local_addr;
  words.interface = options.iface;
  words.verdict = fmt::format("/proc/{}/fd/{}", ::getpid(), file_.get());
  const std::vector<std::string> argv = words.to_argv();
  job.command.arguments.insert(job.command.arguments.end(), argv.begin(), argv.end());
  job.command.title = "muster --doctor";
  job.elastic.store_proxy = job.mode == RendezvousMode::kElastic;
}

int DoctorVerdict::status_after(int status) const {
  if (status != kExitOk) return status;
  char word = '?';
  if (::pread(file_.get(), &word, 1, 0) != 1) return kExitSystem;
  return word == '0' ? kExitOk : kExitPreflight;
}

}  // namespace muster::launcher
