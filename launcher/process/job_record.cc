// SPDX-License-Identifier: Apache-2.0
#include "launcher/process/job_record.h"

#include <algorithm>
#include <fcntl.h>
#include <sys/stat.h>
#include <tuple>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "launcher/hardware/small_files.h"
#include "launcher/text/json_fields.h"
#include "rendezvous/base/fail.h"
#include "rendezvous/base/process_usage.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"

namespace muster::launcher {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxName = 64;
constexpr std::size_t kMaxRecords = 10'000;

Result<void> check_private(const std::string& path, int fd, mode_t kind) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return fail(errno_error("stat " + path, errno));
  if ((info.st_mode & S_IFMT) != kind)
    return fail(ErrorCode::kIo, "{} is not {}", path, kind == S_IFDIR ? "a directory" : "a file");
  if (info.st_uid != ::getuid() || (info.st_mode & 022) != 0)
    return fail(ErrorCode::kIo,
                "{} belongs to user {} and has mode {:o}: it must be yours, and writable by nobody else; "
                "remove it or set MUSTER_RUNTIME_DIR",
                path, info.st_uid, info.st_mode & 07777);
  return {};
}

Result<JobRecord> read_job_record(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file) return fail(errno_error("open " + path, errno));
  MUSTER_OK(check_private(path, file.get(), S_IFREG));
  const auto text = read_file(fmt::format("/proc/self/fd/{}", file.get()), kMaxRecordBytes);
  if (!text) return fail(path, text.error());
  auto record = job_record_from_json(*text);
  if (!record) return fail(path, std::move(record).error());
  return record;
}

}  // namespace

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(JobRecord::Worker, rank, pid, progress_file)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(JobRecord, name, pid, start_time, boot_id, host, directory, command,
                                   output, metrics, page_token, began, state, generation, restarts, nodes,
                                   world_size, workers, exit_status, ended)

std::string to_json(const JobRecord& record) {
  return json::dump(record, 1);
}

Result<JobRecord> job_record_from_json(std::string_view text) {
  constexpr int kMaxDepth = 4;
  // No field is a fraction; one that does not fit an integer is undefined to convert.
  const auto wanted = [](int depth, Json::parse_event_t, const Json& value) {
    return depth < kMaxDepth && !value.is_number_float();
  };
  const Json json = Json::parse(text, wanted, false);
  const auto bad = [](std::string_view what) {
    return fail(ErrorCode::kProtocol, "not a job record: {}", what);
  };
  JobRecord out;
  try {
    out = json.get<JobRecord>();
  } catch (const Json::exception& error) {
    return bad(error.what());
  }
  // What does not fit was converted silently.
  if (Json(out).dump() != json.dump()) return bad("a field is unknown or has the wrong type");
  if (!is_job_name(out.name) || out.pid <= 1) return bad("name or pid");
  return out;
}

bool is_job_name(std::string_view text) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  return !text.empty() && text.size() <= kMaxName && plain(text[0]) &&
         std::ranges::all_of(text, [&](char c) { return plain(c) || c == '.' || c == '-'; });
}

std::string runtime_directory(const Environment& environment) {
  const auto set = lookup(environment, "MUSTER_RUNTIME_DIR");
  return set && !set->empty() ? std::string(*set) : fmt::format("/tmp/muster-{}", ::getuid());
}

Result<void> prepare_runtime_directory(const std::string& directory) {
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST)
    return fail(ErrorCode::kIo, errno_error("create the runtime directory " + directory, errno).message);
  const UniqueFd opened(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!opened)
    return fail(ErrorCode::kIo, errno_error("open the runtime directory " + directory, errno).message);
  return check_private(directory, opened.get(), S_IFDIR);
}

std::vector<JobRecord> read_job_records(const std::string& directory, std::vector<std::string>& errors) {
  std::vector<JobRecord> out;
  for (const std::string& name : list_directory(directory)) {
    if (!name.ends_with(".json") || out.size() >= kMaxRecords) continue;
    auto record = read_job_record(fmt::format("{}/{}", directory, name));
    if (record)
      out.push_back(*std::move(record));
    else
      errors.push_back(record.error().message);
  }
  std::ranges::sort(out, {}, [](const JobRecord& each) { return std::tie(each.began, each.name); });
  return out;
}

Result<void> write_job_record(const std::string& directory, const JobRecord& record) {
  return replace_file(fmt::format("{}/{}.json", directory, record.name), to_json(record), 0600);
}

std::uint64_t start_time_of(int pid) {
  const auto process = read_process_stat(pid);
  return process && !process->ended() ? process->start_ticks : 0;
}

std::string boot_id() {
  return first_line("/proc/sys/kernel/random/boot_id");
}

bool is_alive(const JobRecord& record) {
  return record.boot_id == boot_id() && record.start_time != 0 &&
         start_time_of(record.pid) == record.start_time;
}

}  // namespace muster::launcher
