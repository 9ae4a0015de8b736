// SPDX-License-Identifier: Apache-2.0
#include "launcher/doctor/doctor_plan.h"

#include <sys/mman.h>
#include <unistd.h>

#include <fmt/format.h>

#include "launcher/cli/option_table.h"
#include "launcher/job/exit_status.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {
Options doctor_options(const Options& given, const std::string& own_program) {
  Options out = with_traits(given, kForDoctor);
  out.doctor = true;
  // A job of the same name may be running at the same coordinator.
  if (out.rdzv_id) *out.rdzv_id += ".doctor";
  out.hang_timeout = "off";
  out.nproc_per_node = "1";
  out.no_python = true;
  out.program = own_program;
  return out;
}

Result<DoctorVerdict> DoctorVerdict::open() {
  DoctorVerdict out;
  out.file_.reset(::memfd_create("muster-doctor", MFD_CLOEXEC));
  if (!out.file_) return fail(errno_error("memfd_create", errno));
  return out;
}

void DoctorVerdict::instruct(const Options& options, Job& job) const {
  DoctorArguments arguments;
  arguments.host = job.host;
  arguments.local_addr = options.local_addr;
  arguments.interface = options.iface;
  arguments.verdict = fmt::format("/proc/{}/fd/{}", ::getpid(), file_.get());
  const std::vector<std::string> argv = arguments.to_argv();
  job.command.arguments.insert(job.command.arguments.end(), argv.begin(), argv.end());
  job.command.title = "muster --doctor";
  job.elastic.store_proxy = job.mode == RendezvousMode::kElastic;
}

int DoctorVerdict::status_after(int status) const {
  if (status != kExitOk) return status;
  char verdict = '?';
  if (::pread(file_.get(), &verdict, 1, 0) != 1) return kExitSystem;
  return verdict == '0' ? kExitOk : kExitPreflight;
}

}  // namespace muster::launcher
