// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/node_report.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace muster::launcher {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxWorkers = 4096;
constexpr std::size_t kMaxLines = 64;
constexpr std::size_t kMaxLineBytes = 2048;
constexpr std::size_t kMaxTextBytes = 16384;

std::string cut(std::string_view text, std::size_t bytes) {
  return std::string(text.substr(0, bytes));
}

std::vector<std::string> cut(const std::vector<std::string>& lines) {
  std::vector<std::string> out;
  for (const std::string& line : lines) {
    if (out.size() == kMaxLines) break;
    out.push_back(cut(line, kMaxLineBytes));
  }
  return out;
}

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json whole(const NodeReport& report, std::size_t with_evidence) {
  Json workers = Json::array();
  for (const WorkerOutcome& worker : report.workers) {
    if (workers.size() == kMaxWorkers) break;
    Json entry = to_object(worker);
    if (is_failure(worker) && with_evidence > 0) {
      --with_evidence;
    } else {
      for (const char* name : {"stderr", "kernel", "callstack", "message"}) entry.erase(name);
    }
    workers.push_back(std::move(entry));
  }
  return {{"version", kReportVersion},
          {"node", report.node},
          {"host", report.host},
          {"kernel", cut(report.kernel)},
          {"workers", std::move(workers)}};
}

/// As what another node may send: nothing of it is trusted to be small.
WorkerOutcome worker_from(const Json& json) {
  WorkerOutcome out;
  out.rank = json.at("rank");
  out.local_rank = json.at("local_rank");
  out.pid = json.at("pid");
  out.end.code = json.value("exit_code", 0);
  out.end.signal = json.value("signal", 0);
  out.end.core = json.value("core_dumped", false);
  out.stopped_by_us = json.value("stopped", false);
  out.wall_time_s = json.value("time", std::int64_t{0});
  out.before_outcome_ms = json.value("before_outcome_ms", std::int64_t{0});
  out.error_file = cut(json.value("error_file", std::string()), kMaxLineBytes);
  out.error_message = cut(json.value("message", std::string()), kMaxTextBytes);
  out.error_callstack = cut(json.value("callstack", std::string()), kMaxTextBytes);
  out.device = cut(json.value("device", std::string()), kMaxLineBytes);
  out.progress = cut(json.value("progress", std::string()), kMaxLineBytes);
  out.stderr_tail = cut(json.value("stderr", std::vector<std::string>()));
  out.kernel = cut(json.value("kernel", std::vector<std::string>()));
  const std::string word = json.value("cause", std::string());
  const auto* name = std::find_if(kCauseNames.begin(), kCauseNames.end(),
                                  [&](const CauseName& known) { return known.word == word; });
  out.cause.kind = name == kCauseNames.end() ? CauseClass::kExitCode : name->kind;
  out.cause.text = cut(json.value("error", std::string()), kMaxLineBytes);
  if (out.cause.kind == CauseClass::kHang) out.hang = out.cause.text;
  out.cause.where = cut(json.value("where", std::string()), kMaxLineBytes);
  return out;
}

}  // namespace

Json to_object(const WorkerOutcome& worker) {
  Json out{{"rank", worker.rank},
           {"local_rank", worker.local_rank},
           {"pid", worker.pid},
           {"cause", name_of(worker.cause.kind).word},
           {"before_outcome_ms", worker.before_outcome_ms},
           {"time", worker.wall_time_s}};
  if (worker.end.signal != 0) {
    out["signal"] = worker.end.signal;
    out["core_dumped"] = worker.end.core;
  } else {
    out["exit_code"] = worker.end.code;
  }
  if (worker.stopped_by_us) out["stopped"] = true;
  const auto text = [&](const char* name, const std::string& value, std::size_t bytes) {
    if (!value.empty()) out[name] = cut(value, bytes);
  };
  text("error", worker.cause.text, kMaxLineBytes);
  text("where", worker.cause.where, kMaxLineBytes);
  text("device", worker.device, kMaxLineBytes);
  text("progress", worker.progress, kMaxLineBytes);
  text("error_file", worker.error_file, kMaxLineBytes);
  text("message", worker.error_message, kMaxTextBytes);
  text("callstack", worker.error_callstack, kMaxTextBytes);
  if (!worker.stderr_tail.empty()) out["stderr"] = cut(worker.stderr_tail);
  if (!worker.kernel.empty()) out["kernel"] = cut(worker.kernel);
  return out;
}

std::string to_json(const NodeReport& report) {
  for (const std::size_t with_evidence : {64, 8, 1, 0}) {
    std::string text = dump(whole(report, with_evidence));
    if (text.size() <= kMaxPartBytes) return text;
  }
  // Thousands of workers: those that failed, and no more of them than there is room for.
  NodeReport failed = report;
  std::erase_if(failed.workers, [](const WorkerOutcome& worker) { return !is_failure(worker); });
  while (true) {
    std::string text = dump(whole(failed, 0));
    if (text.size() <= kMaxPartBytes) return text;
    failed.workers.resize(failed.workers.size() / 2);
  }
}

Result<NodeReport> node_report_from_json(std::string_view text) {
  const auto refused = [](std::string_view why) {
    return fail(ErrorCode::kProtocol,
                fmt::format("a node's part of the report is not what muster writes: {}", why));
  };
  if (text.size() > 2 * kMaxPartBytes) return refused("too long");
  const Json json = Json::parse(text, nullptr, false);
  try {
    if (const int version = json.at("version"); version != kReportVersion)
      return refused(fmt::format("version {}", version));
    NodeReport out;
    out.node = json.at("node");
    out.host = cut(json.at("host").get<std::string>(), kMaxLineBytes);
    out.kernel = cut(json.at("kernel").get<std::vector<std::string>>());
    for (const Json& worker : json.at("workers")) {
      if (out.workers.size() == kMaxWorkers) break;
      out.workers.push_back(worker_from(worker));
    }
    return out;
  } catch (const Json::exception& error) {
    return refused(error.what());
  }
}

}  // namespace muster::launcher
